"""A node of the tests: NodeFiles behind futures, on a disk of its own, with faults that a test asks for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine.cluster.model_files import Have
from engine.cluster.node_files import NodeFiles
from engine.errors import WorkerDied


class DiskNode:
    """Node whose disk is the folder `root`: a path of the front names a file below it there.

    calls: methods that came, in order. fault: called before each with its number, from 1; what it raises is the end of
    the connection for that call.
    """

    def __init__(self, root: Path, name: str = "b", fault: Callable[[int], None] = lambda _number: None) -> None:
        self.name, self.root, self._fault = name, root, fault
        self.home = root / "home"
        self.files = NodeFiles(self.home)
        self.calls: list[str] = []
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(1)

    def call(self, method: str, *arguments: Any) -> "Future[Have]":
        """As FilesOfNode."""
        with self._lock:
            self.calls.append(method)
            number = len(self.calls)
        if method == "offer":
            arguments = ({**arguments[0], "path": str(self.here(arguments[0]["path"]))}, arguments[1])
        return self._threads.submit(self._answer, number, method, arguments)

    def here(self, path: str | Path) -> Path:
        """Return where a path of the front is on this disk."""
        return self.root / str(path).lstrip("/")

    def restart(self) -> None:
        """Have the node's process end and start again."""
        self.files.close()
        self.files = NodeFiles(self.home)

    def shown(self) -> list[Path]:
        """Return the files that lie in the folder of models under names that are not hidden."""
        return [path for path in (self.home / "cluster").rglob("*") if path.is_file() and path.name[0] != "."]

    def hidden(self) -> list[Path]:
        """Return the partial files."""
        return [path for path in (self.home / "cluster").rglob(".*") if path.is_file()]

    def close(self) -> None:
        """End its threads and its transfers."""
        self._threads.shutdown()
        self.files.close()

    def _answer(self, number: int, method: str, arguments: tuple[Any, ...]) -> Have:
        self._fault(number)
        answer: Have = getattr(self.files, method)(*arguments)
        return answer


def lost(name: str = "b") -> WorkerDied:
    """Return the error of a node that is lost."""
    return WorkerDied(f"node {name} was lost")
