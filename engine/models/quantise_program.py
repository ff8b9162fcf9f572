"""Client of the child process in which llama.cpp quantises."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.models.imatrix import Importance
from engine.process.program import Program


class QuantiseProgram(Program):
    """Client of the child program `engine.llama.quantise`."""

    def __init__(self) -> None:
        super().__init__("engine.llama.quantise", does="was quantising it (nothing was written)")

    def quantise(self, source: Path, file_type: int, **options: Any) -> dict[str, Any]:
        """Run a job and return its answer; options as in `engine.llama.quantise.Job`. Raises WorkerDied."""
        request = {"source": str(source), "file_type": file_type, **options}
        answer: dict[str, Any] = self.ask(request, about=str(source))
        return answer


def matrix_options(imatrix: Path | None, importances: Sequence[Importance]) -> dict[str, Any]:
    """Return the options with which the program reads an importance matrix; none without a matrix."""
    return {"imatrix": str(imatrix), "importances": list(importances)} if imatrix else {}
