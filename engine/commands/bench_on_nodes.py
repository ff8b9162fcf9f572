"""`python -m engine bench --cluster`: a plan measured whole on each node of a cluster; its runs are one group.

In the history they share a tag, and each has the name of its node.
"""

import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime

from engine.bench.planning.plan import Plan
from engine.commands.bench_printing import json_of_run, print_run
from engine.commands.keeping import LEFT, owned_if_free
from engine.commands.printing import print_json_text, print_text
from engine.commands.watched import show_progress
from engine.errors import HistoryError, ServerFailed
from engine.history import INBOX, History, write_inbox
from engine.history.marks import TAG_CHARACTERS
from engine.over_nodes.cluster_bench import ClusterBench
from engine.progress_line import ProgressLine
from engine.runs import RunRecord
from engine.settings import Settings
from engine.units import counted


def measure_on_nodes(plan: Plan, address: str, *, is_json: bool) -> None:
    """Measure a plan on every node, store the runs and print them.

    After Ctrl+C partial runs are stored. Raises ServerFailed, once the other runs are stored and printed, where a node
    failed.
    """
    settings, name = Settings.from_environment(), plan.name or "Benchmark"
    with ExitStack() as closing:
        keeper = _Keeper(owned_if_free(settings, closing))
        task = ClusterBench(plan, address, name, keeper.keep)
        is_interrupted = _watched(task)
        benches = task.result()
        runs = [bench.record for bench in benches if bench.record is not None]
        keeper.end(runs, settings, f"{datetime.now():%Y-%m-%d %H:%M:%S} {name}")
    _print(runs, is_json=is_json)
    if is_interrupted:
        raise KeyboardInterrupt
    failures = [str(bench.error) for bench in benches if bench.error is not None]
    failures += [f"node {node}: {reason}" for node, reason in task.unusable.items()]
    if failures:
        raise ServerFailed(f"{counted(len(failures), 'node')} failed: {'; '.join(failures)}")


class _Keeper:
    """Storage of the runs while they are measured; in the inbox at their end, where the history is not free."""

    def __init__(self, history: History | None) -> None:
        self._history = history
        self._lock = threading.Lock()
        self._is_failing = False

    def keep(self, run: RunRecord) -> None:
        """Store a run, from any thread; a failure is printed once, and `end` tries again."""
        if self._history is None:
            return
        try:
            self._history.runs.put(run)
        except HistoryError as error:
            with self._lock:
                if not self._is_failing:
                    print(f"not saved: {error}", file=sys.stderr)
                self._is_failing = True

    def end(self, runs: Sequence[RunRecord], settings: Settings, group: str) -> None:
        """Store all runs, with a tag for the group; nothing where no node began one. Raises HistoryError."""
        if not runs:
            return
        if self._history is None:
            for run in runs:
                write_inbox(settings.home / INBOX, run)
            print(LEFT, file=sys.stderr)
            return
        if self._is_failing:
            for run in runs:
                self._history.runs.put(run)
        tag = group.replace(",", " ")[:TAG_CHARACTERS].strip()
        self._history.marks.tag("run", [run.id for run in runs], add=[tag])
        print(f"The history has them under the tag {tag!r}.", file=sys.stderr)


def _watched(task: ClusterBench) -> bool:
    """Show the progress of the task until its end; return True where Ctrl+C stopped it."""
    line, is_interrupted = ProgressLine(), False
    task.start()
    while task.is_running:
        try:
            show_progress(task, line)
        except KeyboardInterrupt:
            is_interrupted = True
            task.stop()
    line.end()
    return is_interrupted


def _print(runs: Sequence[RunRecord], *, is_json: bool) -> None:
    if is_json:
        print_json_text(f"[{', '.join(map(json_of_run, runs))}]")
        return
    for run in runs:
        print_text(f"{run.machine['name']}:\n")
        print_run(run, is_json=False)
        print()
