"""Limits of this machine: measured once, kept in the history."""

from collections.abc import Callable
from pathlib import Path

from engine.bench.measurement.ceiling import ceiling_key, prefill_ceiling
from engine.machine.fingerprint import fingerprint, fingerprint_hash
from engine.machine.limits import Limits, measure_limits
from engine.models.reading import read_model
from engine.workbench.history_manager import HistoryManager


class MachineLimits:
    """Measured limits of this machine. Whoever measures them has exclusive use of the machine."""

    def __init__(self, kept: HistoryManager) -> None:
        self._kept = kept
        self._limits: Limits | None = None

    def known(self) -> Limits | None:
        """Return the limits, or None if they have not been measured. Raises HistoryError where they cannot be read."""
        history = self._kept.history
        if self._limits is None and history is not None:
            found = history.runs.limits(fingerprint_hash(fingerprint()))
            self._limits = Limits.from_dict(found) if found else None
        return self._limits

    def measured(self, on_progress: Callable[[float], object]) -> Limits:
        """Return the limits, measured first where they are not known; `on_progress` gets 0 to 1.

        Takes a few seconds. Raises HistoryError where they cannot be read or saved.
        """
        known = self.known()
        return known if known is not None else self._save(measure_limits(on_progress=on_progress))

    def measure(self, model: str, num_prompt: int, on_progress: Callable[[float], object]) -> None:
        """Measure the limits where they are not known, and the prefill ceiling with a model file, "" for none."""
        limits = self.measured(lambda share: on_progress(0.3 * share if model else share))
        if model:
            file = read_model(Path(model))
            best = prefill_ceiling(file, num_prompt, lambda share: on_progress(0.3 + 0.7 * share))
            self._save(limits.with_prefill(ceiling_key(file, num_prompt), best))

    def _save(self, limits: Limits) -> Limits:
        self._limits = limits
        history = self._kept.history
        if history is not None:
            history.runs.save_limits(limits.machine_hash, limits.to_dict())
        return limits
