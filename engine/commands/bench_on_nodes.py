"""`python -m engine bench --cluster`: a plan measured whole on each node of a cluster; its runs are one group.

In the history they share a tag, and each has the name of its node.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime

from engine.bench.planning.plan import Plan
from engine.commands.bench_printing import json_of_run, print_run
from engine.commands.keeping import LEFT, owned_if_free
from engine.commands.printing import print_json_text, print_text
from engine.commands.watched import show_progress
from engine.errors import ServerFailed
from engine.history import INBOX, History, write_inbox
from engine.over_nodes.cluster_bench import ClusterBench
from engine.over_nodes.group import GroupKeeper, tag_of
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
        history = owned_if_free(settings, closing)
        keeper = GroupKeeper(
            history, tag_of(name, datetime.now()), lambda error: print(f"not saved: {error}", file=sys.stderr)
        )
        task = ClusterBench(plan, address, name, keeper.keep)
        is_interrupted = _watched(task)
        runs = [bench.record for bench in task.result() if bench.record is not None]
        if runs:
            _end(keeper, history, settings)
    _print(runs, is_json=is_json)
    if is_interrupted:
        raise KeyboardInterrupt
    if failures := task.failures:
        raise ServerFailed(f"{counted(len(failures), 'node')} failed: {'; '.join(failures)}")


def _end(keeper: GroupKeeper, history: History | None, settings: Settings) -> None:
    """Store what is not stored yet, in the inbox where the history is another program's, and say where the runs are.

    Raises HistoryError.
    """
    for run in list(keeper.unsaved.values()):
        if history is None:
            write_inbox(settings.home / INBOX, run, run_tags=[keeper.tag])
        else:
            keeper.put(history, run)
    print(LEFT if history is None else f"The history has them under the tag {keeper.tag!r}.", file=sys.stderr)


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
