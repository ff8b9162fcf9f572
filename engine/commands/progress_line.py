"""How far something is, on standard error: one line written over on a terminal, in a file a line a step."""

import sys


class ProgressLine:
    """Shows texts one after the other; `step` says which of them are worth a line where lines stay."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._step = -1

    def show(self, text: str, *, step: int) -> None:
        """Write `text` over what stands there; in a file only when `step` is another than before."""
        if self._is_terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif step != self._step:
            print(text, file=sys.stderr, flush=True)
        self._step = step

    def end(self) -> None:
        """Leave the line."""
        if self._is_terminal and self._step >= 0:
            print(file=sys.stderr)
