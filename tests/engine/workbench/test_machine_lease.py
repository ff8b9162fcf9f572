"""Machine leases: whatever is tried in whatever order, a measurement runs alone, and no lease is lost."""

import threading
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.bench.planning.plan import Plan
from engine.bench.running.session import Session
from engine.errors import ConfigError, PoolClosed
from engine.settings import Settings
from engine.tasks import Task, TaskRunner
from engine.workbench import Workbench, backend_manager, load_order_manager, machine_lease, machine_limits
from engine.workbench.machine_lease import Kind, Lease, MachineBusy, MachineLease
from tests.waiting import until

WITHIN_S = 60.0
KINDS: tuple[Kind, ...] = ("measurement", "benchmark", "shared", "interactive", "call", "background")
EXCLUSIVE: tuple[Kind, ...] = ("measurement", "benchmark")
TOGETHER = {
    frozenset(pair)
    for pair in (
        ("shared",), ("shared", "interactive"), ("interactive",), ("interactive", "benchmark"),
        ("background", "shared"), ("background", "interactive"), ("background", "call"),
        ("call",), ("call", "shared"), ("call", "interactive"), ("call", "benchmark"),
    )
}  # fmt: skip
"""Kinds that may be held at the same time; a single name stands for two leases of that kind."""


def may_join(kind: Kind, held: Kind) -> bool:
    """Whether a lease may begin beside another; a call may not begin beside a benchmark, only the reverse."""
    return frozenset((kind, held)) in TOGETHER and (kind, held) != ("call", "benchmark")


class Waiting:
    """Attempt in its own thread that waits for background work to end."""

    def __init__(self, machine: MachineLease, kind: Kind) -> None:
        self.kind = kind
        self.lease: Lease | None = None
        self.error: ConfigError | PoolClosed | None = None
        self._thread = threading.Thread(target=self._acquire, args=(machine,), daemon=True)
        self._thread.start()
        until(lambda: machine.is_measuring, "it is not said that somebody waits", WITHIN_S)

    def end(self) -> None:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "it waits for ever"

    def _acquire(self, machine: MachineLease) -> None:
        try:
            self.lease = machine.acquire("The one that waits", self.kind)
        except (ConfigError, PoolClosed) as error:
            self.error = error


class Leases(RuleBasedStateMachine):
    """Leases acquired and released in any order, checked against a model of what should be held."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = MachineLease()
        self.held: list[Lease] = []
        self.waiting: Waiting | None = None

    @rule(kind=st.sampled_from(KINDS))
    def acquire(self, kind: Kind) -> None:
        self._try(kind, self.held.append)

    @rule(kind=st.sampled_from(KINDS))
    def fail_while_holding(self, kind: Kind) -> None:
        def fail(lease: Lease) -> None:
            with pytest.raises(ZeroDivisionError), lease:
                1 / 0  # noqa: B018

        if not (kind in EXCLUSIVE and self._background()):
            self._try(kind, fail)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 1000), is_twice=st.booleans())
    def release(self, number: int, is_twice: bool) -> None:
        lease = self.held.pop(number % len(self.held))
        lease.release()
        if is_twice:
            lease.release()
        self._let_the_waiting_go_on()

    @invariant()
    def what_is_held_may_be_together(self) -> None:
        for one, other in combinations(self.held, 2):
            assert frozenset((one.kind, other.kind)) in TOGETHER

    @invariant()
    def it_says_what_is_held(self) -> None:
        is_waiting = self.waiting is not None
        assert self.machine.is_measuring == (is_waiting or any(lease.kind in EXCLUSIVE for lease in self.held))
        others = [lease.name for lease in self.held if lease.kind != "background"]
        assert self.machine.busy_with in ([*others, *["The one that waits"] * is_waiting] or [""])
        assert all(lease.is_unwanted == is_waiting for lease in self._background())

    def teardown(self) -> None:
        self.machine.close()
        if self.waiting is not None:
            self.waiting.end()
            assert isinstance(self.waiting.error, PoolClosed)
        with pytest.raises(PoolClosed, match="closed"):
            self.machine.acquire("Too late", "shared")
        for lease in self.held:
            lease.release()
        assert self.machine.busy_with == "" and not self.machine.is_measuring

    def _try(self, kind: Kind, then: Callable[[Lease], None]) -> None:
        """Acquire a lease if the model says that it is available; otherwise expect a refusal that names the holder."""
        name = f"number {len(self.held)} ({kind})"
        yields = {"background"} if kind in EXCLUSIVE else set()
        in_the_way = [
            lease.name
            for lease in self.held
            if kind == "background" or (not may_join(kind, lease.kind) and lease.kind not in yields)
        ]
        if self.waiting is not None and (kind == "background" or not may_join(kind, self.waiting.kind)):
            in_the_way.append("The one that waits")
        if in_the_way:
            with pytest.raises(MachineBusy) as refused:
                self.machine.acquire(name, kind)
            assert refused.value.holder in in_the_way and str(refused.value).startswith(refused.value.holder)
        elif kind in EXCLUSIVE and self._background():
            self.waiting = Waiting(self.machine, kind)
        else:
            then(self.machine.acquire(name, kind))

    def _background(self) -> list[Lease]:
        return [lease for lease in self.held if lease.kind == "background"]

    def _let_the_waiting_go_on(self) -> None:
        if self.waiting is not None and not self._background():
            self.waiting.end()
            assert self.waiting.lease is not None, self.waiting.error
            self.held.append(self.waiting.lease)
            self.waiting = None


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("kind", EXCLUSIVE)
def test_background_work_that_does_not_end_is_named_and_nothing_is_kept(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_lease, "YIELDS_WITHIN_S", 0.01)
    machine = MachineLease()
    lease = machine.acquire("Reading", "background")
    with pytest.raises(MachineBusy, match="Reading is still running and would distort the measurement"):
        machine.acquire("A benchmark", kind)
    assert not machine.is_measuring
    lease.release()
    machine.acquire("A benchmark", kind)


@pytest.mark.parametrize("by", ["release", "close"])
def test_who_waits_for_background_work_is_woken(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_lease, "YIELDS_WITHIN_S", 100 * WITHIN_S)
    machine = MachineLease()
    lease = machine.acquire("Reading", "background")
    waiting = Waiting(machine, "benchmark")
    (lease.release if by == "release" else machine.close)()
    waiting.end()
    assert (waiting.lease is not None) == (by == "release") == (waiting.error is None)


@pytest.mark.parametrize("number", range(5))
def test_of_many_measurements_that_begin_at_once_one_has_the_machine(number: int) -> None:
    machine, at_once = MachineLease(), threading.Barrier(12)
    granted, refused = list[Lease](), list[str]()

    def begin(index: int) -> None:
        at_once.wait(WITHIN_S)
        try:
            granted.append(machine.acquire(f"number {index}", EXCLUSIVE[index % 2]))
        except MachineBusy as busy:
            refused.append(busy.holder)

    threads = [threading.Thread(target=begin, args=(index,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert len(granted) == 1 and refused == [granted[0].name] * 11


def test_of_all_measurements_of_a_workbench_that_begin_at_once_one_does(
    home: Path, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if each has checked whether it would disturb others before any has begun."""
    go_on, at_once = threading.Event(), threading.Barrier(4)

    def measure(*_what: object, **_how: object) -> None:
        assert go_on.wait(WITHIN_S)

    for place, name in (
        (load_order_manager, "measure_load_order"),
        (backend_manager, "measure_backends"),
        (machine_limits, "measure_limits"),
    ):
        monkeypatch.setattr(place, name, measure)
    monkeypatch.setattr(Session, "run", measure)
    bench = Workbench(Settings.from_environment())
    begun, refused = list[str](), list[str]()
    starts = {
        "The load-order measurement of story.gguf and other.gguf": lambda: bench.load_order.start(
            story_model, home / "other.gguf"
        ),
        "A measurement of embedding backends": lambda: bench.backends.start(""),
        "Measuring this machine": bench.bench.measure_limits,
        "A benchmark": lambda: bench.bench.start(Plan(model=str(story_model))),
    }

    def begin(name: str, start: Callable[[], object]) -> None:
        at_once.wait(WITHIN_S)
        try:
            start()
        except MachineBusy as busy:
            refused.append(busy.holder)
        else:
            begun.append(name)

    threads = [threading.Thread(target=begin, args=start) for start in starts.items()]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WITHIN_S)
        assert begun == [bench.machine.busy_with] and refused == begun * 3
    finally:
        go_on.set()
        bench.close()
    assert bench.machine.busy_with == ""


class Tasks(RuleBasedStateMachine):
    """Tasks of several owners under leases: finished, failed, defective or stopped, none keeps the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = MachineLease()
        self.runners = [TaskRunner[Task[None]]() for _owner in range(3)]
        self.running: dict[int, tuple[Kind, threading.Event, list[Exception]]] = {}

    @rule(owner=st.integers(0, 2), kind=st.sampled_from(KINDS[:4]))
    def start(self, owner: int, kind: Kind) -> None:
        go_on, failure = threading.Event(), list[Exception]()

        def work(task: Task[None]) -> None:
            task.on_stop(go_on.set)
            assert go_on.wait(WITHIN_S)
            task.check()
            if failure:
                raise failure[0]

        can_begin = owner not in self.running and all(
            frozenset((other, kind)) in TOGETHER for other, *_rest in self.running.values()
        )
        task = Task(f"owner {owner}", work)
        try:
            self.runners[owner].start(task, lambda: self.machine.acquire(task.name, kind))
        except ConfigError:
            assert not can_begin
        else:
            assert can_begin
            self.running[owner] = kind, go_on, failure

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 1000), ending=st.sampled_from(["done", "failed", "defect", "stopped"]))
    def end(self, number: int, ending: str) -> None:
        owner = list(self.running)[number % len(self.running)]
        _kind, go_on, failure = self.running.pop(owner)
        task = self.runners[owner].last
        assert task is not None
        if ending == "stopped":
            task.stop()
        elif ending != "done":
            failure.append(ConfigError("no") if ending == "failed" else ValueError("defect"))
        go_on.set()
        assert task.wait(WITHIN_S)
        assert task.state == {"defect": "failed"}.get(ending, ending)

    @invariant()
    def the_machine_is_had_by_those_who_run(self) -> None:
        assert (self.machine.busy_with != "") == bool(self.running)

    def teardown(self) -> None:
        self.machine.close()
        for runner in self.runners:
            runner.close()
        assert self.machine.busy_with == ""


TestTasks = Tasks.TestCase
TestTasks.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
