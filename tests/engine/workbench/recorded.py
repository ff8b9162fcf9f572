"""Trials of the shipped model as the history stores them."""

from datetime import UTC, datetime
from typing import Any

from engine.commands.keeping import identity_of
from engine.history import TrialRecord
from engine.history.trials import versions
from engine.jobs import Job
from engine.pool.pool import Pool
from engine.specs import Request, Sampling

PROMPT = "Once upon a time there was a king"


def recorded(pool: Pool, job: Job) -> TrialRecord:
    """Return the record of a job."""
    return TrialRecord(
        id=job.id,
        created_at=datetime.now(UTC),
        prompt=PROMPT,
        messages=(),
        sampling=job.sampling,
        request=job.request,
        pool=pool.spec,
        model=identity_of(pool),
        versions=versions(pool.spec),
        completion=job.result(60),
    )


def make_recorded(pool: Pool, sampling: Sampling | None = None, **options: Any) -> TrialRecord:
    """Return the record of a run of PROMPT without a random seed, all of its prompt computed."""
    request = Request(**{"max_tokens": 24, "top_k": 8, "reuse_prefix": False, **options})
    return recorded(pool, pool.submit(PROMPT, sampling or Sampling(seed=5), **request.to_dict()))
