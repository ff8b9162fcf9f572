"""One comparison while it runs: model after model, arms on one model together, each answer entered as it ends."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from engine.comparing.arms import Answer, ComparisonRecord
from engine.errors import EngineError, ModelError, PoolClosed, QueueFull
from engine.models import read_model
from engine.specs import PoolSpec, Request
from engine.tasks import Task
from engine.units import counted
from engine.workbench.machine_lease import Lease, MachineBusy, MachineLease
from engine.workbench.model_slot import ModelSlot, ModelState, default_spec
from engine.workbench.trials import Draft, LiveTrial

COMPARED = "compared"
"""Label of the trials that a comparison starts."""

POLL_S = 0.05
KEEP_S = 2.0
NAME, OTHERS = "A comparison", "The trials that run"


class Begin(Protocol):
    """Starts a trial of the loaded model; raises EngineError where it cannot."""

    def __call__(self, draft: Draft, label: str) -> LiveTrial: ...


class CompareRun(Task[None]):
    """Comparison that asks every arm and fills in its answers.

    `keep` is given the record at the beginning, every other second while answers come, and at the end. An arm that
    fails says why in its answers and the others go on. Trials compute their prompt anew, so that the time to the first
    token does not depend on which arm came first.
    """

    def __init__(
        self,
        record: ComparisonRecord,
        slot: ModelSlot,
        begin: Begin,
        keep: Callable[[ComparisonRecord], None],
        *,
        machine: MachineLease,
        recorded_top_k: int,
    ) -> None:
        super().__init__(NAME, lambda _task: self._compare())
        self._plan, self._blank = record.plan, record
        self._answers = list(record.answers)
        self._settled: set[int] = set()
        self._slot, self._begin, self._keep, self._machine = slot, begin, keep, machine
        self._recorded_top_k = recorded_top_k
        self._open: dict[int, LiveTrial] = {}
        self._changed = threading.Event()
        self._kept_at = 0.0
        self._before = slot.state
        self._loaded: Path | None = None
        self._report()
        self.on_stop(self._cancel)

    @property
    def record(self) -> ComparisonRecord:
        """The comparison with the answers so far."""
        return replace(self._blank, answers=tuple(self._answers))

    def _report(self, now: str = "") -> None:
        """Say how many answers there are, and what is done `now` beside waiting for them."""
        done, total = len(self._settled), len(self._answers)
        doing = f"{done:,} of {counted(total, 'trial')}"
        self.report(done / max(total, 1), f"{doing}, {now}" if now else doing)

    def _cancel(self) -> None:
        for trial in list(self._open.values()):
            trial.job.cancel()
        self._changed.set()

    def _compare(self) -> None:
        """Ask all arms, model after model."""
        self._keep(self.record)
        try:
            for path, numbers in self._by_model():
                try:
                    self._load(path)
                except EngineError as error:
                    self._fail(numbers, error)
                else:
                    self._ask(path, numbers)
        finally:
            self._keep(self.record)
            self._put_back()
        self.check()

    # models

    def _by_model(self) -> Iterator[tuple[Path, list[int]]]:
        """Positions of the answers by model file, the loaded one first; none once it is stopped."""
        loaded = self._before.path
        groups: dict[Path, list[int]] = {} if loaded is None else {loaded.resolve(): []}
        for number, answer in enumerate(self._answers):
            model = self._plan.arms[answer.arm].model or str(loaded)
            groups.setdefault(Path(model).expanduser().resolve(), []).append(number)
        for path, numbers in groups.items():
            if numbers and not self.is_stopped:
                yield path, numbers

    def _load(self, path: Path) -> None:
        """Have this model loaded: once no benchmark measures and no trial runs. Raises EngineError where it fails."""
        if self._is_loaded(path):
            return
        spec = self._spec(path)
        lease = self._undisturbed(path)
        if lease is None:
            return
        with lease:
            self._loaded = path
            self._report(f"loading {path.name}")
            self._slot.load(path, spec)
            while self._slot.state.is_loading and self._holds(path) and not self.is_stopped:
                self.sleep(POLL_S)
            self._report()
        if not self.is_stopped:
            self._check(path)

    def _undisturbed(self, path: Path) -> Lease | None:
        """A lease for the load of a model, once nothing is measured and no trial runs; None where it is stopped."""
        try:
            while not self.is_stopped:
                try:
                    lease = self._machine.acquire(f"Loading {path.name}", "shared")
                except MachineBusy as busy:
                    self.waits_for = busy.holder
                else:
                    if _num_open(self._slot.state) == 0:
                        return lease
                    lease.release()
                    self.waits_for = OTHERS
                self.sleep(POLL_S)
            return None
        finally:
            self.waits_for = ""

    def _spec(self, path: Path) -> PoolSpec:
        """The parameters of the model that was loaded, so that speeds can be compared; context as far as trained."""
        file = read_model(path)
        if self._before.pool is None:
            return default_spec(file)
        usual = self._before.spec
        return replace(usual, n_ctx=min(usual.n_ctx, max(file.n_ctx_train, 16)))

    def _put_back(self) -> None:
        """Load the model that was there before, unless the person has chosen another meanwhile."""
        before = self._before
        is_ours = self._loaded is not None and self._holds(self._loaded)
        if is_ours and before.path is not None:
            with suppress(PoolClosed):  # the workbench closes
                self._slot.load(before.path, None if before.pool is None else before.spec)

    def _holds(self, path: Path) -> bool:
        held = self._slot.state.path
        return held is not None and held.resolve() == path

    def _is_loaded(self, path: Path) -> bool:
        return self._slot.state.pool is not None and self._holds(path)

    def _check(self, path: Path) -> None:
        if not self._holds(path):
            raise ModelError(
                f"{path.name} was taken out of the model bar before this arm had answered. Run the comparison again."
            )
        self._slot.state.loaded()

    # trials

    def _ask(self, path: Path, numbers: Sequence[int]) -> None:
        """Run these answers' trials together, one sequence of the pool left to the person, or one by one."""
        waiting = deque(numbers)
        spec = self._slot.state.spec
        room = 1 if self._plan.is_apart else max(1, spec.instances * spec.parallel - 1)
        while self._open or (waiting and not self.is_stopped):
            while waiting and len(self._open) < room and not self.is_stopped:
                try:
                    self._start(path, waiting[0])
                except QueueFull:
                    break
                waiting.popleft()
            self._changed.wait(POLL_S)
            self._changed.clear()
            if self._settle() and time.monotonic() - self._kept_at > KEEP_S:
                self._keep(self.record)
                self._kept_at = time.monotonic()

    def _start(self, path: Path, number: int) -> None:
        """Begin one trial; raises QueueFull, any other failure is entered as the answer."""
        try:
            self._check(path)
            trial = self._begin(self._draft(self._answers[number]), COMPARED)
        except QueueFull:
            raise
        except EngineError as error:
            self._fail([number], error)
            return
        self._answers[number] = self._answers[number]._replace(trial_id=trial.id)
        self._open[number] = trial
        trial.job.add_done_callback(lambda _: self._changed.set())
        if self.is_stopped:
            trial.job.cancel()

    def _draft(self, answer: Answer) -> Draft:
        arm = self._plan.arms[answer.arm]
        text = self._plan.text(arm, self._plan.rows[answer.row])
        messages = (*map(dict, self._plan.before), {"role": "user", "content": text}) if self._plan.is_chat else ()
        request = Request(
            max_tokens=arm.max_tokens, top_k=self._recorded_top_k, stop=arm.stop, reuse_prefix=False
        )  # fmt: skip
        return Draft("" if messages else text, messages, arm.for_repeat(answer.repeat), request)

    def _settle(self) -> bool:
        """Enter the trials that have ended; False where none has."""
        ended = [number for number, trial in self._open.items() if trial.done()]
        for number in ended:
            trial = self._open.pop(number)
            if trial.error is not None:
                self._fail([number], trial.error)
            else:
                self._answers[number] = self._answers[number]._replace(is_shared=trial.has_neighbours)
                self._settled.add(number)
        self._report()
        return bool(ended)

    def _fail(self, numbers: Sequence[int], error: EngineError) -> None:
        for number in numbers:
            self._answers[number] = self._answers[number]._replace(trial_id="", error=str(error))
            self._settled.add(number)
        self._report()


def _num_open(state: ModelState) -> int:
    return state.pool.num_open if state.pool is not None else 0
