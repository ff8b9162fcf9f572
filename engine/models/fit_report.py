"""Fit report of one model on this machine: the memory estimate, and a grid of contexts and sequences."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.models.fit import SEQUENCES, FitRow, MachineMemory, grid, longest_context, machine_memory
from engine.models.gguf import ModelFile
from engine.models.memory import MemoryEstimate, estimate
from engine.specs import PoolSpec
from engine.units import quantity

_ABOUT_WINDOWS = (
    "Some layers see only a sliding window of the last tokens. The pool still caches their whole context, so that a "
    "prefix can be reused; llama.cpp's own programs cache less unless run with --swa-full."
)


@dataclass(frozen=True)
class FitReport:
    """Fit report of one model on one machine. base: the estimate for the sequences and context of `spec`."""

    model: ModelFile
    spec: PoolSpec
    base: MemoryEstimate
    rows: list[FitRow]
    longest: dict[int, int]
    machine: MachineMemory

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, in bytes and tokens, for JSON; the longest context by number of sequences."""
        return {
            "model": str(self.model.path),
            "name": self.model.name,
            "architecture": self.model.architecture,
            "quantisation": self.model.quantisation,
            "n_ctx_train": self.model.n_ctx_train,
            "pool": self.spec.to_dict(),
            "machine": self.machine._asdict(),
            "estimate": asdict(self.base) | {"weights": self.base.weights, "total": self.base.total},
            "fits": self.base.fits,
            "longest_context": [{"sequences": count, "n_ctx": n_ctx} for count, n_ctx in self.longest.items()],
            "grid": [asdict(row) for row in self.rows],
        }

    def __str__(self) -> str:
        machine = self.machine
        limit = "" if machine.limit is None else f", limited to {quantity(machine.limit, 'B')} by the control group"
        verdict = "It fits" if self.base.fits else "It does not fit"
        lines = [
            f"{self.model.name}: {self.base.arithmetic}. {verdict}.",
            f"This machine has {quantity(machine.total, 'B')}{limit}; {quantity(machine.available, 'B')} is available.",
            "",
            *_table(self.rows),
        ]
        if any(row.kv_windowed < row.kv for row in self.rows):
            lines += ["", _ABOUT_WINDOWS]
        return "\n".join(lines)


def fit_report(
    model: ModelFile, spec: PoolSpec | None = None, contexts: Iterable[int] = (), sequences: Sequence[int] = SEQUENCES
) -> FitReport:
    """Return the report that `models fit` prints: estimate of `spec`, and the grid. Raises ConfigError as grid does."""
    chosen = spec or PoolSpec()
    return FitReport(
        model,
        chosen,
        estimate(model, chosen),
        grid(model, contexts, sequences, chosen),
        {count: longest_context(model, count, chosen) for count in sequences},
        machine_memory(),
    )


def _table(rows: Sequence[FitRow]) -> list[str]:
    """Return lines of total bytes, a row per number of sequences and a column per context; in brackets if too large."""
    contexts = list(dict.fromkeys(row.n_ctx for row in rows))
    cells = {(row.sequences, row.n_ctx): row for row in rows}
    lines = [["sequences", *(f"{n_ctx:,} tokens" for n_ctx in contexts)]]
    for count in dict.fromkeys(row.sequences for row in rows):
        shown = [cells[count, n_ctx] for n_ctx in contexts]
        lines.append([f"{count:,}", *(_shown(row) for row in shown)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]


def _shown(row: FitRow) -> str:
    total = quantity(row.total, "B")
    return total if row.fits else f"({total})"
