"""Beam manager: runs beam searches from a prompt, one at a time; what one finds becomes a trial."""

from collections.abc import Sequence

from engine.comparing.beam_search import beam_problem, find_beams
from engine.comparing.beams import BeamSearch, BeamSpec
from engine.errors import ConfigError
from engine.ids import new_id
from engine.protocol import Engine
from engine.tasks import Task, TaskRunner
from engine.units import counted
from engine.workbench.machine_lease import MachineLease
from engine.workbench.model_manager import ModelManager
from engine.workbench.trial_manager import TrialManager
from engine.workbench.trials import Draft, LiveTrial


class BeamTask(Task[LiveTrial]):
    """Beam search from the prompt of a draft. Its result is the trial of the best sequence, whose id is `trial_id`."""

    def __init__(
        self, trials: TrialManager, engine: Engine, draft: Draft, prompt_ids: Sequence[int], spec: BeamSpec
    ) -> None:
        super().__init__("Beam search", self._find)
        self.trial_id, self.spec = new_id(), spec
        self._trials, self._engine, self._draft, self._prompt_ids = trials, engine, draft, prompt_ids

    def _find(self, _task: Task[LiveTrial]) -> LiveTrial:
        beams = find_beams(self._engine, self._prompt_ids, self.spec, on_progress=self._tell)
        trial = self._trials.keep_beams(self._draft, self._prompt_ids, beams, self.trial_id, self._engine)
        trial.job.result()
        return trial

    def _tell(self, search: BeamSearch) -> None:
        done = f"{search.length:,} of at most {counted(self.spec.max_new_tokens, 'token')}"
        self.update(search.length / self.spec.max_new_tokens, done)


class BeamManager(TaskRunner[BeamTask]):
    """Runner of beam searches."""

    def __init__(self, model_manager: ModelManager, trials: TrialManager, machine: MachineLease) -> None:
        super().__init__()
        self._model_manager, self._trials, self._machine = model_manager, trials, machine

    @property
    def problem(self) -> str:
        """Why the loaded engine cannot run a beam search, as a sentence; "" where it can, or none is loaded."""
        engine = self._model_manager.state.engine
        if engine is None:
            return ""
        can = engine.capabilities
        found = beam_problem(can) or ("" if can.inspects else "the tokens of this engine cannot be given, only drawn")
        return f"No beam search: {found}." if found else ""

    def find(self, draft: Draft, spec: BeamSpec) -> BeamTask:
        """Search from the prompt or the chat of `draft`, whose sampling and stop strings do not apply.

        Raises ConfigError where the engine cannot, another search or a measurement runs, or no model is loaded, and
        what tokenising raises.
        """
        if self.problem:
            raise ConfigError(self.problem)
        engine, _ = self._model_manager.state.loaded()
        if draft.messages:
            text, ids = self._trials.render(draft)
            draft = Draft(text, draft.messages, request=draft.request, is_kept=draft.is_kept, chat=draft.chat)
        else:
            ids = engine.tokenize(draft.prompt)
        task = BeamTask(self._trials, engine, draft, ids, spec)
        return self.start(task, lambda: self._machine.acquire(task.name, "interactive"))
