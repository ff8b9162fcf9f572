"""Trial manager: running trials, ended ones that are still in memory, and stored ones, all found by id."""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from engine.comparing.beam_search import GREEDY
from engine.comparing.beams import Beams
from engine.errors import ConfigError
from engine.history import TrialLabel, TrialSummary
from engine.history.trial_file import read_trial
from engine.llama.frozen import Flip, Resampler
from engine.models.library import shipped
from engine.protocol import Engine, mixture_of
from engine.specs import Origin, Sampling
from engine.units import counted
from engine.workbench.chat_ids import with_known_ids
from engine.workbench.history_manager import HistoryManager
from engine.workbench.machine_lease import Lease, MachineLease
from engine.workbench.model_manager import ModelManager
from engine.workbench.resampling import SampledAgain, flips, sample_again
from engine.workbench.semantic_index import SemanticIndex
from engine.workbench.trial_keeping import TrialKeeping
from engine.workbench.trial_records import is_stepped_over, summary_of
from engine.workbench.trials import Beginning, Draft, LiveTrial, StoredTrial, Trial

KEPT_S, API_KEPT_S = 600, 30
FORGET_EVERY_S = 1.0
READ_KEPT = 16
UNLISTED = (TrialLabel.COMPARED, TrialLabel.SAMPLE)
STEPS_PER_LINE = 8


class _Deleted(NamedTuple):
    """A deleted trial, which `restore` brings back, and the time of its deletion on the monotonic clock."""

    trial: LiveTrial
    at: float


class TrialManager:
    """Manager of trials: starts, continues, stops, finds and deletes them, and stores those that have ended.

    An unusable history does not stop trials: they run unsaved, and are stored once it works again; those of API calls
    as far as there is room for them in memory.
    """

    def __init__(
        self, model_manager: ModelManager, kept: HistoryManager, meaning: SemanticIndex, machine: MachineLease
    ) -> None:
        self._model_manager, self._kept, self._machine = model_manager, kept, machine
        self._keeping = TrialKeeping(kept, meaning, self._drop)
        self._lock = threading.Lock()
        self._resampler = Resampler()
        self._trials: dict[str, LiveTrial] = {}
        self._running: dict[str, LiveTrial] = {}
        self._forgot_at = 0.0
        self._read: dict[str, StoredTrial] = {}
        self._bin: dict[str, _Deleted] = {}
        self._recorded: StoredTrial | None = None

    def submit(
        self, draft: Draft, label: str = "", origin: Origin | None = None, *, after: Trial | None = None
    ) -> LiveTrial:
        """Start a trial of `draft`; a conversation is converted to token ids as `render` does.

        origin: lane and client, None for a page. Raises EngineError where it cannot start.
        """
        if not draft.messages:
            return self._start(draft, draft.prompt, label=label, origin=origin)
        text, ids = self.render(draft, after)
        parent = after.id if after else None
        return self._start(replace(draft, prompt=text), ids, label=label, parent=parent, origin=origin)

    def render(self, draft: Draft, after: Trial | None = None) -> tuple[str, list[int]]:
        """Return a conversation as text and token ids, by the model's chat template.

        after: the trial whose chat this one takes further or changes; its ids are kept as far as they spell the same
        text. Raises EngineError where the template fails or no model is loaded.
        """
        engine, identity = self._model_manager.state.loaded()
        text, ids = engine.render_chat(list(draft.messages), draft.chat)
        if after is not None and after.model.hash == identity.hash:
            ids = with_known_ids(engine.vocabulary, [*after.prompt_ids, *after.steps.ids], ids)
        return text, ids

    def submit_ids(self, draft: Draft, ids: list[int], label: str = "", origin: Origin | None = None) -> LiveTrial:
        """Start a trial whose prompt is given as token ids, of which `draft` has the text."""
        return self._start(draft, ids, label=label, origin=origin)

    def step(self, draft: Draft, trial: Trial | None) -> LiveTrial:
        """Generate one more token of `trial`, or the first token of `draft`."""
        if trial is not None:
            return self.continue_trial(trial, 1, label=TrialLabel.STEP)
        return self.submit(replace(draft, request=replace(draft.request, max_tokens=1)), TrialLabel.STEP)

    def continue_trial(self, trial: Trial, num_tokens: int, label: str = TrialLabel.CONTINUE) -> LiveTrial:
        """Continue from the token ids of `trial` with its parameters and seed, as if it had a larger token limit.

        Raises ConfigError where it is still running, failed or ended by itself, or the context is full.
        """
        if not trial.can_continue:
            raise ConfigError(
                "This trial cannot be continued: it is still running, or it ended by itself. Run it again."
            )
        self.engine_of(trial)
        total = len(trial.steps) + num_tokens
        draft = replace(trial.draft, request=replace(trial.draft.request, max_tokens=total))
        return self._start(draft, [*trial.prompt_ids, *trial.steps.ids], before=Beginning.of(trial), label=label)

    def branch(
        self,
        trial: Trial,
        step: int,
        ids: Sequence[int],
        *,
        sampling: Sampling | None = None,
        num_tokens: int | None = None,
        is_drawn_anew: bool = False,
        label: str = TrialLabel.BRANCH,
    ) -> LiveTrial:
        """Start a trial with the first `step` generated tokens of `trial`, then `ids`, then what the model adds.

        sampling: parameters and seed from there on, by default those of `trial`, so that forcing the token that was
        drawn gives the same text again; is_drawn_anew: with a new seed. num_tokens: maximum after `ids`, by default
        what the limit of `trial` leaves. Raises ConfigError where `trial` has no such step, or its model is not loaded.
        """
        self.engine_of(trial)
        if not 0 <= step <= len(trial.steps):
            raise ConfigError(f"there is no token {step + 1:,}: this trial has {counted(len(trial.steps), 'token')}")
        before = Beginning.of(trial, step)
        if sampling is not None or is_drawn_anew:
            before = before._replace(seed=None if is_drawn_anew or sampling is None else sampling.seed)
        num_before = step + len(ids)
        left = trial.draft.request.max_tokens - num_before if num_tokens is None else num_tokens
        request = replace(trial.draft.request, max_tokens=num_before + max(left, 0))
        draft = replace(trial.draft, sampling=sampling or trial.draft.sampling, request=request)
        prompt = [*trial.prompt_ids, *before.steps.ids, *ids]
        return self._start(draft, prompt, before=before, forced=len(ids), label=label)

    def regenerate(self, trial: Trial, draft: Draft | None = None) -> LiveTrial:
        """Run the same prompt ids with a new seed, and the parameters of `draft`, by default those of `trial`."""
        self.engine_of(trial)
        draft = draft or trial.draft
        again = replace(draft, sampling=replace(draft.sampling, seed=random.getrandbits(31)))
        prompt = list(trial.prompt_ids) or again.prompt  # a server may tell no ids
        return self._start(again, prompt, label=TrialLabel.REGENERATE, parent=trial.id)

    def score(self, draft: Draft, *, after: Trial | None = None) -> LiveTrial:
        """Compute the log-probabilities of the prompt's tokens without generating any; `after` as for `render`."""
        request = replace(draft.request, max_tokens=0, prompt_logprobs=True)
        return self.submit(replace(draft, request=request), TrialLabel.SCORE, after=after)

    def keep_beams(
        self, draft: Draft, prompt_ids: Sequence[int], beams: Beams, trial_id: str, searched: Engine
    ) -> LiveTrial:
        """Start a trial with this id, whose tokens are the best sequence of a beam search; the model adds none.

        prompt_ids: of the prompt of `draft` that was searched from. Raises ConfigError where the engine `searched` is
        not the loaded one any more.
        """
        if self._model_manager.state.engine is not searched:
            raise ConfigError("Another model was loaded during the beam search. Search again.")
        ids = beams.sequences[0].ids
        request = replace(draft.request, max_tokens=beams.spec.max_new_tokens, stop=(), prompt_logprobs=False)
        draft = replace(draft, sampling=GREEDY, request=request)
        prompt = [*prompt_ids, *ids]
        return self._start(draft, prompt, forced=len(ids), label=TrialLabel.BEAMS, trial_id=trial_id, beams=beams)

    def stop(self, trial: Trial) -> None:
        """Stop a trial at the next decode step; no effect where it has ended."""
        if isinstance(trial, LiveTrial):
            trial.job.cancel()

    def flips(self, trial_id: str, step: int) -> list[Flip]:
        """Return how far the sampling parameters of a trial may move before another token is drawn at a step.

        Raises ConfigError where the step's candidates do not decide that, and as `Resampler.flips`.
        """
        trial = self.watch(trial_id)
        if trial is None or not 0 <= step < len(trial.steps):
            raise ConfigError("there is no such token")
        return flips(self._resampler, trial, step)

    def resample(self, trial_id: str, changed: Mapping[str, float], shown: int | None = None) -> SampledAgain:
        """Sample the steps of a trial again, as `sample_again`. Raises ConfigError where there is no such trial too."""
        return sample_again(self._resampler, self.trial(trial_id), changed, shown)

    def close(self) -> None:
        """End the process that samples again. Safe to call twice."""
        self._resampler.close()

    def engine_of(self, trial: Trial) -> Engine:
        """Return the engine. Raises ConfigError where its model is not the trial's, as token ids are model-specific."""
        engine, identity = self._model_manager.state.loaded()
        if identity.hash != trial.model.hash:
            raise ConfigError(
                f"This trial was run with {trial.model.name}, which is not the loaded model, so its tokens "
                "cannot be reused. Load that model, or press Run to start again from the text."
            )
        return engine

    def _start(
        self,
        draft: Draft,
        prompt: str | list[int],
        *,
        before: Beginning | None = None,
        forced: int = 0,
        label: str = "",
        parent: str | None = None,
        origin: Origin | None = None,
        trial_id: str | None = None,
        beams: Beams | None = None,
    ) -> LiveTrial:
        """Submit a job and register it as a trial; a call or a batch only while no benchmark runs.

        `prompt` ends with the tokens of `before`, which count as generated, and then those that are `forced`.
        """
        state = self._model_manager.state
        engine, identity = state.loaded()
        if label == TrialLabel.API and not self._kept.keeps_calls:
            draft = replace(draft, is_kept=False)
        num_before = len(before.steps) if before else 0
        submitted = datetime.now(UTC)
        is_watched = origin is None or origin.lane == "browser"
        lease = self._machine.acquire(*(("A trial", "interactive") if is_watched else ("A call of the API", "call")))
        try:
            job = engine.submit(
                prompt,
                replace(draft.sampling, seed=before.seed) if before else draft.sampling,
                max_tokens=draft.request.max_tokens - num_before,
                top_k=before.steps.k if before else draft.request.top_k,
                stages=bool(before.steps.stages) if before else draft.request.stages,
                watched=() if before else draft.request.watched,
                stop=draft.request.stop,
                prompt_logprobs=draft.request.prompt_logprobs and before is None,
                reuse_prefix=draft.request.reuse_prefix,
                generated=num_before,
                forced=forced,
                job_id=trial_id,
                origin=origin,
            )
        except BaseException:
            lease.release()
            raise
        trial = LiveTrial(
            draft,
            job,
            engine.spec,
            identity,
            created_at=submitted,
            before=before,
            label=label,
            parent=parent,
            engine=state.answering,
            beams=beams,
            mixture=mixture_of(engine),
        )
        with self._lock:
            self._forget_old()
            neighbours = [other for other in self._running.values() if not other.done()]
            for one in [*neighbours, trial] if neighbours else []:
                one.has_neighbours = True
            self._trials[trial.id] = self._running[trial.id] = trial
        job.add_done_callback(lambda _: self._ended(trial, lease))
        return trial

    def _ended(self, trial: LiveTrial, lease: Lease) -> None:
        """Submit a finished trial to the history; runs on the engine's thread and does not block."""
        lease.release()
        trial.end()
        with self._lock:
            del self._running[trial.id]
            is_deleted = trial.id in self._bin
        if trial.draft.is_kept and trial.completion is not None and not is_deleted:
            self._keeping.keep(trial)

    def _drop(self, trial_id: str) -> None:
        with self._lock:
            self._trials.pop(trial_id, None)

    def _forget_old(self) -> None:
        """Drop trials ten minutes after their end, if stored, failed or not to be stored, or after their deletion.

        Those of the API, of which there may be thousands, half a minute after their end; once a second, as each is
        looked at.
        """
        if time.monotonic() < self._forgot_at + FORGET_EVERY_S:
            return
        self._forgot_at = time.monotonic()
        for trial in list(self._trials.values()):
            is_settled = trial.is_stored or not trial.draft.is_kept or trial.error is not None
            if is_settled and trial.age_s > (API_KEPT_S if trial.label == TrialLabel.API else KEPT_S):
                del self._trials[trial.id]
        for trial, deleted_at in list(self._bin.values()):
            if trial.done() and time.monotonic() > deleted_at + KEPT_S:
                del self._bin[trial.id]

    def watch(self, trial_id: str) -> Trial | None:
        """Return a trial by its id: running, stored, or the shipped one; None where there is none.

        Raises HistoryError where the history cannot be read.
        """
        with self._lock:
            live = self._trials.get(trial_id)
            read = self._read.get(trial_id)
        if live or read:
            return live or read
        recorded = self.recorded()
        if recorded is not None and recorded.id == trial_id:
            return recorded
        history = self._kept.history
        record = history.trial(trial_id) if history else None
        if record is None:
            return None
        with self._lock:
            self._read[trial_id] = trial = StoredTrial(record)
            while len(self._read) > READ_KEPT:
                del self._read[next(iter(self._read))]
        return trial

    def trial(self, trial_id: str) -> Trial:
        """Return a trial as `watch` does. Raises ConfigError where there is no such trial."""
        trial = self.watch(trial_id)
        if trial is None:
            raise ConfigError("The URL names a trial that does not exist: it was deleted or not saved. Run it again.")
        return trial

    def in_memory(self) -> list[LiveTrial]:
        """Return the trials that run, and those that ended a short while ago."""
        with self._lock:
            return list(self._trials.values())

    def recorded(self) -> StoredTrial | None:
        """Return the shipped trial, shown before the first trial has run; None where there is none."""
        with self._lock:
            if self._recorded is None:
                for path in shipped("demo").glob("*.trial"):
                    self._recorded = StoredTrial(read_trial(path))
            return self._recorded

    def recent(self, limit: int) -> list[TrialSummary]:
        """Return the newest trials, including running and unsaved ones; of single steps and a chat only the last.

        Trials of comparisons and samples are left out, as they are listed with their comparison and their family.
        """
        history, most = self._kept.history, STEPS_PER_LINE * limit
        stored = history.recent(most, without_labels=UNLISTED) if history else []
        shown = [trial for trial in self.in_memory() if trial.label not in UNLISTED]
        live = [trial for trial in shown if trial.completion or not trial.done()]
        by_id = {summary.id: summary for summary in stored} | {trial.id: summary_of(trial) for trial in live}
        newest_first = sorted(by_id.values(), key=lambda summary: summary.created_at, reverse=True)
        lines = [one for newer, one in pairwise([None, *newest_first]) if one and not is_stepped_over(one, newer)]
        taken_further = {one.parent for one in newest_first if one.label == TrialLabel.TURN}
        return [one for one in lines if one.id not in taken_further][:limit]

    def children(self, trial_id: str) -> list[TrialSummary]:
        """Return the trials that continue or regenerate this one, oldest first, including running and unsaved ones."""
        history = self._kept.history
        stored = history.children(trial_id) if history else []
        with self._lock:
            live = [trial for trial in self._trials.values() if trial.parent == trial_id]
        by_id = {summary.id: summary for summary in stored} | {trial.id: summary_of(trial) for trial in live}
        return sorted(by_id.values(), key=lambda summary: summary.created_at)

    def newest_id(self) -> str | None:
        """Return the id of the trial that a page opens with: the newest, else the shipped one, or None."""
        newest = self.recent(1)
        if newest:
            return newest[0].id
        recorded = self.recorded()
        return recorded.id if recorded else None

    def delete(self, trial_id: str) -> None:
        """Delete a trial; `restore` undoes this. Raises ConfigError where another process has been given it."""
        history = self._kept.history
        with self._lock:
            live = self._trials.get(trial_id)
        is_handed_over = self._kept.is_handed_over(trial_id) or (live is not None and live.is_stored)
        if history is None and is_handed_over:
            raise ConfigError("This trial was handed over to the process that owns the history; delete it there.")
        with self._lock:
            live = self._trials.pop(trial_id, None)
            self._read.pop(trial_id, None)
            if live is not None:
                self._bin[trial_id] = _Deleted(live, time.monotonic())
        self._keeping.forget(trial_id)
        if history is not None:
            history.delete(trial_id)

    def restore(self, trial_id: str) -> None:
        """Undo the deletion of a trial."""
        with self._lock:
            deleted = self._bin.pop(trial_id, None)
            live = deleted.trial if deleted else None
            if live is not None:
                self._trials[trial_id] = live
        if live is not None and live.draft.is_kept and live.completion is not None and not live.is_stored:
            self._keeping.keep_later(live)
        history = self._kept.history
        if history is not None:
            history.restore(trial_id)
