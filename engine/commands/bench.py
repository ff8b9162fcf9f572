"""Benchmark commands: `bench`, `tune`, `reconcile`, `limits`."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from engine.bench.baselines.llama_bench_program import PROGRAM, build_llama_bench
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.plan import Plan
from engine.bench.planning.preview import preview
from engine.bench.planning.remote import remote_requests
from engine.bench.planning.together import Together, check_together, connected
from engine.bench.running.session import Session
from engine.commands import bench_arguments as words_of
from engine.commands.arguments import check_writable
from engine.commands.bench_on_nodes import measure_on_nodes
from engine.commands.bench_printing import print_run
from engine.commands.keeping import LEFT, owned_if_free, readable
from engine.commands.printing import print_json
from engine.commands.watched import show_progress
from engine.errors import ConfigError
from engine.history import INBOX, write_inbox, write_run
from engine.jsonable import figure
from engine.machine.fingerprint import fingerprint, fingerprint_hash
from engine.machine.limits import Limits, measure_limits
from engine.machine.quietness import quietness_now
from engine.models.llama_programs import find_program
from engine.private_files import persons_umask
from engine.progress_line import ProgressLine
from engine.runs import RunRecord
from engine.settings import Settings
from engine.tasks import Stopped
from engine.units import counted, digits, percent, quantity
from engine.workbench.bench_keeping import HistoryKeeper
from engine.workbench.bench_run import BenchRun


def run(words: Sequence[str]) -> None:
    """Run one of these commands. Raises EngineError, SystemExit for unknown flags, KeyboardInterrupt after Ctrl+C."""
    match words_of.parse(words):
        case words_of.BenchArguments() as given if given.is_dry_run:
            show_plan(given.plan, is_json=given.is_json)
        case words_of.BenchArguments() as given if given.cluster and given.is_together:
            check_together(given.plan)  # before the cluster is connected
            measure(given.plan, given, together=connected(given.cluster))
        case words_of.BenchArguments() as given if given.cluster:
            measure_on_nodes(given.plan, given.cluster, is_json=given.is_json)
        case words_of.BenchArguments() as given:
            if given.builds_llama_bench and not find_program(PROGRAM):
                build_llama_bench(_teller("building llama-bench"))
            measure(given.plan, given)
        case words_of.ResumeArguments() as given:
            resume(given)
        case words_of.LimitsArguments() as given:
            show_limits(given)


def show_plan(plan: Plan, *, is_json: bool) -> None:
    """Print a plan's configurations with their estimated time and memory, and whether the machine is quiet.

    Raises ConfigError where none of them can run.
    """
    planned, now = preview(plan), quietness_now()
    if is_json:
        cells = [
            {
                "number": cell.number,
                "label": cell.label,
                "settings": dict(cell.settings),
                "seconds": planned.seconds_by_cell.get(cell.number),
                "memory_bytes": planned.memory_by_cell.get(cell.number),
                "notes": list(cell.notes),
                "refusal": cell.refusal,
            }
            for cell in planned.cells
        ]
        ratio = figure(planned.smallest_ratio)
        seconds = {"seconds": planned.seconds, "most_seconds": planned.most_seconds}
        offers = [one._asdict() for one in planned.offers]
        about = {"sentence": planned.sentence, **seconds, "smallest_ratio": ratio, "offers": offers}
        print_json({**about, "quietness": now.to_dict(), "cells": cells})
    if all(cell.refusal for cell in planned.cells):
        raise ConfigError(planned.sentence)
    if is_json:
        return
    print(planned.sentence)
    print(now.sentence)
    for cell in planned.cells:
        memory = quantity(planned.memory_by_cell.get(cell.number, float("nan")), "B")
        print(f"  {cell.label or 'one configuration'}: {cell.refusal or memory}", *cell.notes, sep="; ")


def measure(
    plan: Plan,
    given: words_of.BenchArguments | words_of.ResumeArguments,
    before: RunRecord | None = None,
    together: Together | None = None,
) -> None:
    """Measure a plan, store the run and print it. After Ctrl+C the partial run is stored; one of this machine can be
    resumed.

    before, together: as for a Session.
    """
    if given.out is not None:
        check_writable(given.out)
    settings = Settings.from_environment()
    with ExitStack() as closing:
        history = owned_if_free(settings, closing)
        keeper = HistoryKeeper(history, lambda error: print(f"not saved: {error}", file=sys.stderr))
        confirmed = remote_requests(plan, planned_cells(plan)) if given.sends_to_others else {}
        session = Session(plan, keeper, before=before, confirmed=tuple(confirmed), together=together)
        if together is None:
            _tell_before(plan, is_begun=before is not None)
        else:
            print(f"One pool on {', '.join(node.name for node in together.nodes)}.", file=sys.stderr)
        is_interrupted = _watched(session, keeper)
        done = session.record
        keeper.keep_all(done)
        if history is None:
            write_inbox(settings.home / INBOX, done)
            print(LEFT, file=sys.stderr)
    print_run(done, is_json=given.is_json)
    if given.out is not None:
        with persons_umask():
            write_run(given.out, done)
    if is_interrupted:
        if together is None:
            print(f"Stopped; resume with: python -m engine bench resume {done.id}", file=sys.stderr)
        raise KeyboardInterrupt


def _tell_before(plan: Plan, *, is_begun: bool) -> None:
    """Print what a plan will take and can tell, unless its run has begun already, and whether the machine is quiet."""
    sentence = quietness_now().sentence if is_begun else f"{preview(plan).sentence} {quietness_now().sentence}"
    print(sentence, file=sys.stderr)


def resume(given: words_of.ResumeArguments) -> None:
    """Resume a run of the history. Raises ConfigError for an unknown run."""
    with readable(Settings.from_environment()) as history:
        before = history.runs.run(given.run)
    if before is None:
        raise ConfigError(f"there is no run {given.run!r} in the history")
    if before.origin != "measured":
        raise ConfigError(f"run {given.run} was not measured by this machine ({before.origin}): measure its plan anew")
    measure(Plan.from_dict(before.plan), given, before)


def show_limits(given: words_of.LimitsArguments) -> None:
    """Print memory bandwidth and matrix throughput of this machine; measure them where they are not known."""
    settings = Settings.from_environment()
    with ExitStack() as closing:
        history = owned_if_free(settings, closing)
        kept = history.runs.limits(fingerprint_hash(fingerprint())) if history else None
        is_measured = given.is_measured_again or kept is None
        limits = measure_limits(on_progress=_teller("measuring")) if is_measured else Limits.from_dict(kept or {})
        if history is not None and is_measured:
            history.runs.save_limits(limits.machine_hash, limits.to_dict())
    if given.is_json:
        print_json(limits.to_dict())
        return
    for num, rate in limits.bandwidth:
        print(f"memory read {digits(rate / 1e9):>6} GB/s with {counted(num, 'thread')}")
    print(f"matrix multiply {digits(limits.flops / 1e9)} GFLOP/s (32-bit)")
    print(f"last-level cache {quantity(limits.cache_bytes, 'B')}")


def _watched(session: Session, keeper: HistoryKeeper) -> bool:
    """Run the session and show its progress; return True where the user interrupted it."""

    def work(_task: object) -> None:
        session.run()

    task, line, is_interrupted = BenchRun(session, keeper, work), ProgressLine(), False
    task.start()
    while task.is_running:
        try:
            show_progress(task, line, lambda: session.progress.message)
        except KeyboardInterrupt:
            is_interrupted = True
            task.stop()
    line.end()
    try:
        task.result()
    except Stopped:
        raise KeyboardInterrupt from None  # it had not begun
    return is_interrupted


def _teller(doing: str) -> Callable[[float], None]:
    line = ProgressLine()

    def tell(fraction: float) -> None:
        line.show(f"{doing}: {percent(fraction)}", step=int(10 * fraction))
        if fraction >= 1:
            line.end()

    return tell
