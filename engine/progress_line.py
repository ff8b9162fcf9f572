"""Progress on standard error: one line that is overwritten on a terminal, one line per step in a file."""

import sys


class ProgressLine:
    """Progress line: shows texts in turn; in a file, a new line only when `step` changes."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._step = -1

    def show(self, text: str, *, step: int) -> None:
        """Overwrite the line with `text`; in a file, write a line only when `step` differs from the last."""
        if self._is_terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif step != self._step:
            print(text, file=sys.stderr, flush=True)
        self._step = step

    def end(self) -> None:
        """End the line on a terminal, so that later output begins on a new one."""
        if self._is_terminal and self._step >= 0:
            print(file=sys.stderr)
