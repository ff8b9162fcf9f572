"""Storage of a benchmark's samples while it runs: in the history, or not at all where the history is unusable."""

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import HistoryError
from engine.history import History
from engine.runs import CellRecord, RunRecord, RunStatus
from engine.samples import Samples


class HistoryKeeper:
    """An engine.bench.running.session.Keeper that writes every sample to disk before the next one is measured.

    A history that fails, as on a full disk, does not end the run: `on_error` is called once, the run continues unsaved,
    and `keep_all` retries at its end. failure: why the run is not saved, or None.
    """

    def __init__(self, history: History | None, on_error: Callable[[HistoryError], object]) -> None:
        self._history, self._on_error = history, on_error
        self._run_id = ""
        self.failure: HistoryError | None = None

    @property
    def is_keeping(self) -> bool:
        """True while samples are saved: there is a history, and it has not failed."""
        return self._history is not None and self.failure is None

    def begin(self, run: RunRecord) -> None:
        """Store a new run, or resume a stored one, whose plan may have more rounds now."""
        self._run_id = run.id
        self._try(lambda history: _begin(history, run))

    def cell(self, record: CellRecord) -> None:
        """Store a configuration, replacing its stored record."""
        self._try(lambda history: history.runs.save_cells(self._run_id, [record]).result())

    def sample(self, sample: Samples) -> None:
        """Append one sample."""
        self._try(lambda history: history.runs.add(self._run_id, sample).result())

    def replaced(self, positions: list[int]) -> None:
        """Mark samples that no longer count."""
        self._try(lambda history: history.runs.replace_flags(self._run_id, positions).result())

    def finish(self, status: RunStatus, outcome: Mapping[str, Any]) -> None:
        """Store the final status and outcome of the run."""
        self._try(lambda history: history.runs.finish(self._run_id, status, outcome))

    def keep_all(self, run: RunRecord) -> bool:
        """Store the whole finished run where the history failed before; return whether it is stored now."""
        if self._history is not None and self.failure is not None:
            self.failure = None
            self._try(lambda history: history.runs.put(run))
        return self.is_keeping

    def _try(self, write: Callable[[History], object]) -> None:
        if self._history is None or self.failure is not None:
            return
        try:
            write(self._history)
        except HistoryError as error:
            self.failure = error.bare()
            self._on_error(error)


def _begin(history: History, run: RunRecord) -> None:
    kept = history.runs.run(run.id)
    if kept is None:
        history.runs.begin(run)
    elif len(kept.samples) < len(run.samples):  # the others were measured while the history failed
        history.runs.put(run)
    else:
        history.runs.resume(run.id, run.plan)
