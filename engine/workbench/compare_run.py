"""Running comparison: one model at a time, the variants of a model together, answers entered as trials finish."""

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
from engine.files import named_path
from engine.history import TrialLabel
from engine.models import read_model
from engine.models.folder_specs import carried_over
from engine.specs import PoolSpec, Request
from engine.tasks import Task
from engine.units import counted
from engine.workbench.machine_lease import Lease, MachineBusy, MachineLease
from engine.workbench.model_manager import ModelManager, ModelState, default_spec
from engine.workbench.trials import Draft, LiveTrial

"""Label of the trials that a comparison starts."""

POLL_S = 0.05
KEEP_S = 2.0
NAME, OTHERS = "A comparison", "Running trials"


class Submit(Protocol):
    """Function that starts a trial of the loaded model; raises EngineError where it cannot."""

    def __call__(self, draft: Draft, label: str) -> LiveTrial: ...


class CompareRun(Task[None]):
    """Task that runs the trials of every variant and fills in their answers.

    `keep` is called with the record and whether it is complete: at the beginning, every other second while answers
    arrive, and at the end. A variant that fails has the reason in its answers; the others continue. Trials do not reuse
    a prefix, so that the time to the first token does not depend on the order of the variants.
    """

    def __init__(
        self,
        record: ComparisonRecord,
        model_manager: ModelManager,
        submit: Submit,
        keep: Callable[[ComparisonRecord, bool], None],
        *,
        machine: MachineLease,
        recorded_top_k: int,
    ) -> None:
        super().__init__(NAME, lambda _task: self._compare())
        self._plan, self._blank = record.plan, record
        self._answers = list(record.answers)
        self._settled: set[int] = set()
        self._model_manager, self._submit, self._keep, self._machine = model_manager, submit, keep, machine
        self._recorded_top_k = recorded_top_k
        self._open: dict[int, LiveTrial] = {}
        self._changed = threading.Event()
        self._kept_at = 0.0
        self._before = model_manager.state
        self._loaded: Path | None = None
        self._report()
        self.on_stop(self._cancel)

    @property
    def record(self) -> ComparisonRecord:
        """The comparison with the answers so far."""
        return replace(self._blank, answers=tuple(self._answers))

    def _report(self, now: str = "") -> None:
        """Report how many answers are complete, and the current activity `now` besides waiting for them."""
        done, total = len(self._settled), len(self._answers)
        doing = f"{done:,} of {counted(total, 'trial')}"
        self.report(done / max(total, 1), f"{doing}, {now}" if now else doing)

    def _cancel(self) -> None:
        for trial in list(self._open.values()):
            trial.job.cancel()
        self._changed.set()

    def _compare(self) -> None:
        """Run the trials of all variants, one model at a time."""
        self._keep(self.record, False)
        try:
            for path, numbers in self._by_model():
                try:
                    self._load(path)
                except EngineError as error:
                    self._fail(numbers, error)
                else:
                    self._ask(path, numbers)
        finally:
            self._keep(self.record, True)
            self._put_back()
        self.check()

    # models

    def _by_model(self) -> Iterator[tuple[Path | None, list[int]]]:
        """Yield model files with the positions of their answers, the loaded model first; end once stopped.

        None stands for the external engine that was connected.
        """
        before = self._before
        loaded = before.path.resolve() if before.path is not None else None
        groups: dict[Path | None, list[int]] = {loaded: []}
        for number, answer in enumerate(self._answers):
            model = self._plan.arms[answer.arm].model
            groups.setdefault(named_path(model) if model else loaded, []).append(number)
        for path, numbers in groups.items():
            if numbers and not self.is_stopped:
                yield path, numbers

    def _load(self, path: Path | None) -> None:
        """Load this model once no benchmark and no trial is running. Raises EngineError where it fails."""
        if path is None:
            self._check(path)
            return
        if self._is_loaded(path):
            return
        spec = self._spec(path)
        lease = self._undisturbed(path)
        if lease is None:
            return
        with lease:
            self._loaded = path
            self._report(f"loading {path.name}")
            self._model_manager.load(path, spec)
            while self._model_manager.state.is_loading and self._holds(path) and not self.is_stopped:
                self.sleep(POLL_S)
            self._report()
        if not self.is_stopped:
            self._check(path)

    def _undisturbed(self, path: Path) -> Lease | None:
        """Return a lease for loading a model once nothing is measured and no trial runs; None once stopped."""
        try:
            while not self.is_stopped:
                try:
                    lease = self._machine.acquire(f"Loading {path.name}", "shared")
                except MachineBusy as busy:
                    self.waits_for = busy.holder
                else:
                    if _num_open(self._model_manager.state) == 0:
                        return lease
                    lease.release()
                    self.waits_for = OTHERS
                self.sleep(POLL_S)
            return None
        finally:
            self.waits_for = ""

    def _spec(self, path: Path) -> PoolSpec:
        """Return the pool parameters of the model loaded before, so that speeds are comparable.

        The context is at most the one that the model was trained with, and between a GGUF file and a folder only what
        both have is the same. Defaults apply where no model was loaded.
        """
        file, before = read_model(path), self._before
        if before.engine is None or before.file is None:
            return default_spec(file)
        usual = carried_over(before.file, before.spec, file)
        return replace(usual, n_ctx=min(usual.n_ctx, max(file.n_ctx_train, 16)))

    def _put_back(self) -> None:
        """Reload the previous model, unless the user has chosen another in the meantime."""
        before = self._before
        is_ours = self._loaded is not None and self._holds(self._loaded)
        if is_ours and before.path is not None:
            with suppress(PoolClosed):  # the workbench is closing
                self._model_manager.load(before.path, None if before.engine is None else before.spec)
        elif is_ours and before.server is not None:
            with suppress(PoolClosed):
                self._model_manager.connect(before.server)

    def _holds(self, path: Path | None) -> bool:
        """Return whether the model bar has this file, or for None the external engine of the beginning."""
        state = self._model_manager.state
        if path is None:
            return state.server is not None and state.server == self._before.server
        held = state.path
        return held is not None and held.resolve() == path

    def _is_loaded(self, path: Path) -> bool:
        return self._model_manager.state.engine is not None and self._holds(path)

    def _check(self, path: Path | None) -> None:
        name = self._before.name if path is None else path.name
        if not self._holds(path):
            raise ModelError(f"{name or 'The model'} was unloaded before this variant finished. Run it again.")
        self._model_manager.state.loaded()

    # trials

    def _ask(self, path: Path | None, numbers: Sequence[int]) -> None:
        """Run these answers' trials: one by one where the plan requires it, else concurrently.

        Concurrent trials leave one sequence of the pool free for the user where it has more than one.
        """
        waiting = deque(numbers)
        spec = self._model_manager.state.spec
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
                self._keep(self.record, False)
                self._kept_at = time.monotonic()

    def _start(self, path: Path | None, number: int) -> None:
        """Start one trial; any failure except QueueFull, which is raised, is entered as its answer."""
        try:
            self._check(path)
            trial = self._submit(self._draft(self._answers[number]), TrialLabel.COMPARED)
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
            max_tokens=arm.max_tokens, top_k=self._recorded_top_k, stop=arm.stop, reuse_prefix=False, stages=True
        )
        return Draft("" if messages else text, messages, arm.for_repeat(answer.repeat), request)

    def _settle(self) -> bool:
        """Enter the answers of finished trials; return False where there are none."""
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
    return state.engine.num_open if state.engine is not None else 0
