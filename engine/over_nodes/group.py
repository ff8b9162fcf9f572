"""Group of the runs of one benchmark over nodes: their common tag, and their storage while they are measured."""

import re
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple

from engine.errors import HistoryError
from engine.history import History
from engine.history.filters import Filter
from engine.history.marks import TAG_CHARACTERS
from engine.runs import NODE, RunRecord, RunStatus

_TAG = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def tag_of(name: str, began: datetime) -> str:
    """Return the tag of a benchmark over nodes: when it began, and its name."""
    return f"{began:%Y-%m-%d %H:%M:%S} {name}".replace(",", " ")[:TAG_CHARACTERS].strip()


def group_tag(tags: Iterable[str]) -> str:
    """Return the tag among these that `tag_of` made; empty where there is none."""
    return next((tag for tag in tags if _TAG.match(tag)), "")


class Member(NamedTuple):
    """A stored run of a group, without its samples. node: name of its node; machine: label of the machine.

    num_samples: those that count; num_replaced: the others.
    """

    id: str
    node: str
    machine: str
    name: str
    status: RunStatus
    num_samples: int
    num_replaced: int


class GroupKeeper:
    """Storage of the runs of one group; each state of a run replaces the one before. Any thread may call it.

    A history that fails, as on a full disk, ends nothing: `on_error` is called for the first failure. unsaved: the runs
    that are not stored as they are now, by id; all of them where the history is None.
    """

    def __init__(self, history: History | None, tag: str, on_error: Callable[[HistoryError], object]) -> None:
        self.tag = tag
        self.unsaved: dict[str, RunRecord] = {}
        self._history, self._on_error = history, on_error
        self._lock = threading.Lock()
        self._has_failed = False

    def keep(self, run: RunRecord) -> None:
        """Store a run so far."""
        with self._lock:
            self.unsaved[run.id] = run
        if self._history is None:
            return
        try:
            self.put(self._history, run)
        except HistoryError as error:
            with self._lock:
                is_first, self._has_failed = not self._has_failed, True
            if is_first:
                self._on_error(error)

    def put(self, history: History, run: RunRecord) -> None:
        """Store a run in a history, under the tag of the group. Raises HistoryError."""
        history.runs.put(run)
        history.marks.tag("run", [run.id], add=[self.tag])
        with self._lock:
            if self.unsaved.get(run.id) is run:
                del self.unsaved[run.id]


def group_of(history: History, run: RunRecord) -> list[Member]:
    """Return the first 200 runs of a run's group, in the order of their nodes; empty where it has none.

    Raises HistoryError.
    """
    if not run.origin.startswith(NODE) or not (tag := group_tag(history.marks.tags_of("run", run.id))):
        return []
    found = history.find.runs(Filter(tags=(tag,), has_archived=True), order="origin", is_descending=False)
    return [
        Member(
            row["id"], row["origin"].removeprefix(NODE), row["machine"], row["name"], row["status"],
            row["num_samples"], row["num_replaced"],
        )
        for row in found.rows
        if row["origin"].startswith(NODE)
    ]  # fmt: skip
