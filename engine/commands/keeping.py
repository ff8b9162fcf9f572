"""History for commands: opens it with its inbox imported, and stores trials, also while another process owns it."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime

from engine.comparing.beams import Beams
from engine.errors import HistoryError, HistoryLocked
from engine.exchange.importer import Importer
from engine.history import (
    INBOX,
    History,
    Inbox,
    ModelIdentity,
    TrialLabel,
    TrialRecord,
    has_arrivals,
    open_to_read,
    write_inbox,
)
from engine.history.trials import versions
from engine.jobs import Job
from engine.models import model_hash
from engine.pool.pool import Pool
from engine.protocol import mixture_of
from engine.settings import Settings

LEFT = "Left in the inbox of the process that has the history open, which imports it."


def keep(
    job: Job,
    pool: Pool,
    created_at: datetime,
    settings: Settings,
    *,
    prompt: str,
    messages: Sequence[dict[str, str]] = (),
    beams: Beams | None = None,
) -> None:
    """Store a finished job; waits until it is on disk.

    created_at: time of submission, timezone-aware. prompt: its text, that of a chat as rendered; messages: of a chat.
    beams: the beam search whose best sequence the job has.

    Raises HistoryError where it cannot be stored; the database is then unchanged.
    """
    trial = TrialRecord(
        id=job.id,
        created_at=created_at,
        prompt=prompt,
        messages=tuple(messages),
        sampling=job.sampling,
        request=replace(job.request, watched=()),  # which the history does not keep
        pool=pool.spec,
        model=identity_of(pool),
        versions=versions(pool.spec) | mixture_of(pool),
        completion=job.result(),
        label=TrialLabel.RUN if beams is None else TrialLabel.BEAMS,
        beams=beams,
    )
    try:
        with owned(settings) as history:
            history.record(trial).result()
    except HistoryLocked:
        write_inbox(settings.home / INBOX, trial)
        print(LEFT, file=sys.stderr)


@contextmanager
def owned(settings: Settings) -> Iterator[History]:
    """Open and own the history. Imports what is in the inbox first, and at the end what has arrived meanwhile.

    Raises HistoryError as `History.open` does.
    """
    with History.open(settings.history) as history:
        _take_inbox(settings, history)
        yield history
        _take_inbox(settings, history)


def owned_if_free(settings: Settings, closing: ExitStack) -> History | None:
    """Open the history; return None where another process owns it or, with the reason printed, it is unusable."""
    try:
        return closing.enter_context(owned(settings))
    except HistoryLocked:
        return None
    except HistoryError as error:
        print(f"not saved: {error}", file=sys.stderr)
        return None


@contextmanager
def readable(settings: Settings) -> Iterator[History]:
    """Open the history, or a copy where another process owns it, see `open_to_read`.

    What is in the inbox is imported first, by the owner if there is one.
    """
    if has_arrivals(settings.home / INBOX):
        with suppress(HistoryLocked), owned(settings):
            pass
    with open_to_read(settings.history) as history:
        yield history


def _take_inbox(settings: Settings, history: History) -> None:
    """Import what other processes have left in the inbox; a failure is printed, and leaves the files there."""
    folder = settings.home / INBOX
    if not has_arrivals(folder):
        return
    try:
        with Importer(settings.home) as importer:
            Inbox(folder, importer.stage_kept).take(history)
    except HistoryError as error:
        print(f"left in the inbox: {error}", file=sys.stderr)


def identity_of(pool: Pool) -> ModelIdentity:
    """Return the identity of a pool's model; reads the whole file the first time it is seen."""
    file = pool.file
    return ModelIdentity(file.name, str(file.path), model_hash(file.path), file.quantisation, file.num_parameters)
