"""Storage of trials run without a workbench: in the history, or in the inbox of the process that owns it."""

from datetime import datetime

from engine.errors import HistoryLocked
from engine.history import INBOX, History, ModelIdentity, TrialRecord, write_inbox
from engine.history.trials import versions
from engine.jobs import Job
from engine.models import model_hash
from engine.pool.pool import Pool
from engine.settings import Settings


def keep(job: Job, pool: Pool, created_at: datetime, settings: Settings) -> None:
    """Store a finished job; waits until it is on disk. `created_at`: time of submission, timezone-aware.

    Raises HistoryError where it cannot be stored; the database is then unchanged.
    """
    trial = TrialRecord(
        id=job.id,
        created_at=created_at,
        prompt=job.prompt if isinstance(job.prompt, str) else "",
        messages=(),
        sampling=job.sampling,
        request=job.request,
        pool=pool.spec,
        model=identity_of(pool),
        versions=versions(),
        completion=job.result(),
    )
    try:
        with History.open(settings.history) as history:
            history.record(trial).result()
    except HistoryLocked:
        write_inbox(settings.home / INBOX, trial)


def identity_of(pool: Pool) -> ModelIdentity:
    """Return the identity of a pool's model; reads the whole file the first time it is seen."""
    file = pool.file
    return ModelIdentity(file.name, str(file.path), model_hash(file.path), file.quantisation, file.num_parameters)
