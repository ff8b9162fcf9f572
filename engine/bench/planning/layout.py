"""Layouts: processes with the model × threads of each, as written by a user and as resolved for this machine."""

import os
import re
from typing import Any, NamedTuple

from engine.errors import ConfigError, quoted
from engine.machine.cores import threads_for
from engine.specs import PoolSpec
from engine.units import counted

AUTO = "auto"
LIBRARY_DEFAULT = "llama-cpp-default"
"""Default threads of llama-cpp-python: half the processors of the machine (Llama.__init__)."""

ALLOWED = f"instances x threads, such as 2x7, 2x{AUTO} or 1x{LIBRARY_DEFAULT}"
_LAYOUT = re.compile(rf"([0-9]{{1,4}})\s*[x×]\s*([0-9]{{1,4}}|{AUTO}|{LIBRARY_DEFAULT})")


class Layout(NamedTuple):
    """Processes and the threads of each; the threads may be AUTO (cores allowed / instances) or LIBRARY_DEFAULT."""

    instances: int
    threads: int | str

    @property
    def text(self) -> str:
        """Text form, as in a plan."""
        return f"{self.instances}x{self.threads}"

    @property
    def in_words(self) -> str:
        """Plain words: "2 processes with 1 thread each"."""
        threads = counted(self.threads, "thread") if isinstance(self.threads, int) else f"{self.threads} threads"
        each = " each" if self.instances > 1 else ""
        return f"{self.instances:,} process{'es' if self.instances > 1 else ''} with {threads}{each}"

    def resolved(self) -> "Layout":
        """Return the layout with the number of threads resolved for this machine."""
        if self.threads == AUTO:
            return Layout(self.instances, threads_for(self.instances))
        if self.threads == LIBRARY_DEFAULT:
            return Layout(self.instances, max(1, (os.cpu_count() or 1) // 2))
        return self


def parse_layout(text: Any) -> Layout:
    """Read "2x7", "2xauto" or "1xllama-cpp-default"; raises ConfigError."""
    match = _LAYOUT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f"layout = {quoted(text)}: it takes {ALLOWED}")
    threads = int(match[2]) if match[2].isdigit() else match[2]
    PoolSpec(instances=int(match[1]), threads=threads if isinstance(threads, int) else None)
    return Layout(int(match[1]), threads)
