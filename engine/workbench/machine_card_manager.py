"""Machine cards of a workbench: measures this machine with the loaded model in a minute, and keeps the card."""

import threading
import time
from contextlib import suppress

from engine.bench.planning.presets import minute_plan
from engine.errors import ConfigError, EngineError
from engine.models import ModelFile
from engine.settings import Settings
from engine.tasks import Task, TaskRunner
from engine.workbench.bench_manager import BenchManager
from engine.workbench.machine_card import MachineCard, card_of, own_machine, read_cards, with_card, write_cards
from engine.workbench.machine_lease import MachineLease
from engine.workbench.model_manager import ModelManager

NAME = "Your machine in 60 seconds"
MOST_S = 60.0
"""Seconds after which no further sample is taken, once the speed of one user is known."""
POLL_S = 0.2
LIMITS_SHARE = 0.08
"""Part of the progress for the machine's limits; the run of `minute_plan` has the rest."""


class MachineCardManager:
    """Runner of the measurement behind a machine card, one at a time. Any thread may call it.

    The measurement first needs the machine for itself; its run is then an ordinary benchmark of `bench`, which lets
    interactive work run between two samples, and which the history keeps.
    """

    def __init__(
        self, settings: Settings, model_manager: ModelManager, bench: BenchManager, machine: MachineLease
    ) -> None:
        self._home, self._model_manager, self._bench, self._machine = settings.home, model_manager, bench, machine
        self._runner = TaskRunner[Task[MachineCard]]()
        self._lock = threading.Lock()
        self._cards: list[MachineCard] | None = None

    @property
    def running(self) -> Task[MachineCard] | None:
        """The measurement that runs, or None."""
        return self._runner.running

    @property
    def last(self) -> Task[MachineCard] | None:
        """The measurement that runs, else the last one of this process, or None."""
        return self._runner.last

    def card(self) -> MachineCard | None:
        """Return the latest card of this machine: of the loaded model, where no model is loaded of any; None if there
        is none. Raises ConfigError where the kept cards cannot be read."""
        with self._lock:
            if self._cards is None:
                self._cards = read_cards(self._home)
            cards = self._cards
        identity, machine = self._model_manager.state.identity, own_machine()
        wanted = (one for one in cards if one.machine == machine)
        return next((one for one in wanted if identity is None or one.model_hash == identity.hash), None)

    def start(self) -> Task[MachineCard]:
        """Measure this machine with the loaded model in the background.

        Raises ConfigError where another such measurement runs or the machine is in use, EngineError where no model is
        loaded. What fails later is the task's `error`.
        """
        state = self._model_manager.state
        engine, identity = state.loaded()
        file, share_weights = state.file, bool(engine.spec.share_weights)
        if file is None:
            raise ConfigError("The loaded model has no file here, so this machine cannot be measured with it.")

        def measure(task: Task[MachineCard]) -> MachineCard:
            return self._measure(task, file, identity.hash, share_weights=share_weights)

        return self._runner.start(Task(NAME, measure), lambda: self._machine.acquire(NAME, "measurement"))

    def stop(self) -> None:
        """Stop the measurement, if there is one; its samples so far stay in the history."""
        self._runner.stop()

    def close(self) -> None:
        """Stop the measurement and wait for it to end."""
        self._runner.close()

    def _measure(
        self, task: Task[MachineCard], file: ModelFile, model_hash: str, *, share_weights: bool
    ) -> MachineCard:
        ends = time.monotonic() + MOST_S
        task.update(0.0, "Measuring memory bandwidth and processor", MOST_S)
        limits = self._bench.known_limits(
            lambda share: task.update(LIMITS_SHARE * share, left_s=max(0.0, ends - time.monotonic()))
        )
        plan = minute_plan(file.path, share_weights=share_weights)
        task.let_go()  # the benchmark takes the machine itself
        run_id = self._bench.start(plan, most_repeats=0)  # whose two rounds give no verdict that a drift could spoil
        task.on_stop(self._bench.stop)
        self._follow(task, run_id, ends)
        task.check()
        run = self._bench.run(run_id)
        if run is None:
            raise EngineError("The run was deleted while it was measured, so there is no card. Measure again.")
        card = card_of(run, file, model_hash, limits)
        with self._lock:
            self._cards = cards = with_card(self._known(), card)
            write_cards(self._home, cards)
        return card

    def _known(self) -> list[MachineCard]:
        """Return the kept cards, none where their file cannot be read: the next card replaces it. The lock is held."""
        with suppress(ConfigError):
            return read_cards(self._home) if self._cards is None else self._cards
        return []

    def _follow(self, task: Task[MachineCard], run_id: str, ends: float) -> None:
        """Wait for the end of the run, which is stopped when the time is over and the speed of one user is known."""
        while (now := self._bench.running) is not None and now.run_id == run_id:
            done, total, left_s = now.progress.done, max(now.progress.total, 1), ends - time.monotonic()
            if left_s <= 0 and done:
                self._bench.stop()
                self._bench.wait()
                return
            expected_s = now.progress.left_s
            shown_s = max(left_s, 0.0) if expected_s is None else min(expected_s, max(left_s, 0.0))
            task.report(
                LIMITS_SHARE + (1 - LIMITS_SHARE) * done / total, f"sample {min(done + 1, total)} of {total}", shown_s
            )
            task.sleep(POLL_S)
            if task.is_stopped:
                self._bench.wait()
                return
