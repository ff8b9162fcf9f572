"""Trials as the pages see them: drafts, running trials and stored trials."""

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from engine.backends.dialects import NOT_REPORTED, gives_ids
from engine.chat_options import ChatOptions
from engine.comparing.beams import Beams
from engine.errors import EngineError, sentence
from engine.history import EngineIdentity, ModelIdentity, TrialRecord
from engine.jobs import Job
from engine.results import Completion, Timings
from engine.specs import MAX_NODE_CHARACTERS, UNKNOWN_CTX, PoolSpec, Request, Sampling
from engine.step_parts import StageColumns
from engine.steps import StepTable
from engine.workbench.endings import end_sentence, num_context, num_text_bytes, text_before

Message = dict[str, str]


@dataclass(frozen=True)
class Draft:
    """Draft of a trial: all of its inputs as the user set them. `messages` empty: completion, not chat.

    chat: how the messages are rendered; only the rendered prompt is stored. unknown_fields: names of the fields of an
    API call that were ignored.
    """

    prompt: str
    messages: tuple[Message, ...] = ()
    sampling: Sampling = Sampling()
    request: Request = Request()
    is_kept: bool = True
    chat: ChatOptions = ChatOptions()
    unknown_fields: tuple[str, ...] = field(default=(), compare=False)


class Trial(ABC):
    """Base of running and stored trials; counts are in tokens, times in seconds.

    `draft` has its inputs, `label` its origin ("" for a plain run, else step, continue, regenerate, turn, edit,
    score, beams, compared, log or recorded), `parent` the id of the trial that it derives from, `engine` the external
    engine that answered, None for a pool of this machine, `client` who asked, for a call of the API, `node` where in
    a cluster it ended, empty for this machine, `beams` the beam search whose best sequence it is, None for others;
    `mixture` in what nodes of its cluster differ.
    """

    id: str
    created_at: datetime
    draft: Draft
    label: str
    parent: str | None
    model: ModelIdentity
    pool: PoolSpec
    engine: EngineIdentity | None = None
    client = node = ""
    beams: Beams | None = None
    mixture: Mapping[str, str] = MappingProxyType({})
    has_neighbours = False

    @property
    def logit_bias(self) -> tuple[tuple[int, float], ...]:
        """Token ids with what was added to their logits, in nats; -inf bans a token."""
        return self.draft.sampling.logit_bias

    @property
    def sampling_in_effect(self) -> Sampling:
        """Sampling that the engine was asked for: where a server lacks a sampler, that one is off."""
        return self.draft.sampling

    @property
    def request_in_effect(self) -> Request:
        """Request with the records that the engine makes."""
        return self.draft.request

    @property
    @abstractmethod
    def seed(self) -> int | None:
        """Seed in use; None while the trial waits."""

    @property
    @abstractmethod
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt; empty while the trial waits."""

    @property
    @abstractmethod
    def prompt_steps(self) -> StepTable:
        """Tokens of the prompt."""

    @property
    @abstractmethod
    def steps(self) -> StepTable:
        """Generated tokens, growing while it runs."""

    @property
    @abstractmethod
    def timings(self) -> Timings:
        """Time breakdown so far; of the last job where the trial was continued."""

    @property
    @abstractmethod
    def completion(self) -> Completion | None:
        """Complete result once it has ended without an error, else None."""

    @property
    def error(self) -> EngineError | None:
        """Error that made it fail, or None."""
        return None

    @property
    def queue_position(self) -> int | None:
        """Position among the waiting jobs, 1 for the next; None once it runs."""
        return None

    @abstractmethod
    def done(self) -> bool:
        """Return True once no further tokens will come."""

    @abstractmethod
    def add_listener(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after any change, from another thread; return a function that removes it."""

    @property
    def can_continue(self) -> bool:
        """True where it can be continued: it ended without an error or a stop, and the context has room."""
        completion = self.completion
        if completion is None or completion.finish_reason == "stop":
            return False
        return num_context(len(completion.prompt_ids), len(completion.steps)) < self.pool.padded_n_ctx

    def status(self) -> dict[str, Any]:
        """Return live figures for the status strip, ready for JSON."""
        timings, position = self.timings, self.queue_position
        num_prompt, num_steps = len(self.prompt_ids), len(self.steps)
        state = "failed" if self.error else "done" if self.done() else "queued" if position else "running"
        return {
            "state": state,
            "queue_position": position,
            "num_prompt": num_prompt,
            "num_prefilled": num_prompt
            if num_steps or self.done()
            else max(len(self.prompt_steps), timings.num_cached),
            "num_cached": timings.num_cached,
            "num_generated": num_steps,
            "max_tokens": self.draft.request.max_tokens,
            "num_context": num_context(num_prompt, num_steps),
            "n_ctx": None if self.pool.n_ctx == UNKNOWN_CTX else self.pool.padded_n_ctx,
            "tok_per_s": timings.decode_per_s,
            "ttft_ms": timings.ttft_s * 1e3 if timings.num_generated else None,
            "seed": self.seed,
            **({} if self.engine is None else _of_server(self.engine)),
        }

    def ending(self) -> dict[str, Any]:
        """Return how it ended, ready for JSON."""
        completion = self.completion
        if completion is None:
            return {"error": sentence(self.error or "It ended without a result.")}
        return {
            "finish_reason": completion.finish_reason,
            "sentence": end_sentence(completion, self.pool.padded_n_ctx, is_call=bool(self.client)),
            "error": "",
            "seed": completion.seed,
            "timings": completion.timings.to_dict(),
            "text_bytes": num_text_bytes(completion),
        }


class StoredTrial(Trial):
    """Trial read from the history, or the shipped recorded one."""

    def __init__(self, record: TrialRecord) -> None:
        self.record = record
        self.id, self.created_at = record.id, record.created_at
        self.label, self.parent = record.label, record.parent
        self.model, self.pool, self.engine = record.model, record.pool, record.engine
        self.client, self.node, self.beams = record.client, record.node, record.beams
        self.draft = Draft(
            record.prompt, record.messages, record.sampling, record.request, unknown_fields=record.unknown_fields
        )

    @property
    def completion(self) -> Completion:
        """Stored result."""
        return self.record.completion

    @property
    def seed(self) -> int:
        """Seed that was used."""
        return self.completion.seed

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt."""
        return self.completion.prompt_ids

    @property
    def prompt_steps(self) -> StepTable:
        """Tokens of the prompt."""
        return self.completion.prompt_steps

    @property
    def steps(self) -> StepTable:
        """Generated tokens."""
        return self.completion.steps

    @property
    def timings(self) -> Timings:
        """Time breakdown."""
        return self.completion.timings

    def done(self) -> bool:
        """Return True: a stored trial has ended."""
        return True

    def add_listener(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Return a function that does nothing: a stored trial never changes, so `callback` is not called."""
        return lambda: None


class Beginning(NamedTuple):
    """First tokens of a trial, with which another one begins. seed: of what follows them; None: a random one."""

    trial_id: str
    prompt_ids: tuple[int, ...]
    prompt_steps: StepTable
    steps: StepTable
    seed: int | None

    @classmethod
    def of(cls, trial: Trial, num_steps: int | None = None) -> Self:
        """Return the first generated tokens of a trial, all of them by default, with its seed."""
        steps = steps_of(trial.steps, slice(num_steps))
        return cls(trial.id, trial.prompt_ids, trial.prompt_steps, steps, trial.seed)


class LiveTrial(Trial):
    """Trial of this process: a job of the pool, preceded by the tokens of the trial that it continues (`before`)."""

    def __init__(
        self,
        draft: Draft,
        job: Job,
        pool: PoolSpec,
        model: ModelIdentity,
        *,
        created_at: datetime,
        before: Beginning | None = None,
        label: str = "",
        parent: str | None = None,
        engine: EngineIdentity | None = None,
        beams: Beams | None = None,
        mixture: dict[str, str] | None = None,
    ) -> None:
        self.engine, self.client, self.beams, self.mixture = engine, job.origin.client, beams, mixture or {}
        self.id, self.created_at = job.id, created_at
        self.draft, self.label, self.pool, self.model = draft, label, pool, model
        self.parent = before.trial_id if before else parent
        self.job = job
        self.is_stored = False
        self._ended_at: float | None = None
        self._before, self._taking = before, threading.Lock()
        self._all = steps_of(before.steps, slice(None)) if before else None

    @property
    def seed(self) -> int | None:
        """Seed in use; None while the trial waits."""
        return self.job.seed

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt; empty while the trial waits."""
        return self._before.prompt_ids if self._before else tuple(self.job.prompt_ids or ())

    @property
    def prompt_steps(self) -> StepTable:
        """Tokens of the prompt."""
        return self._before.prompt_steps if self._before else self.job.prompt_steps

    @property
    def steps(self) -> StepTable:
        """Generated tokens, including those of the continued trial."""
        if self._all is None or self._before is None:
            return self.job.steps
        new = self.job.steps
        with self._taking:
            here = slice(len(self._all) - len(self._before.steps), len(new))
            if here.start < here.stop:
                self._all.append(*_columns(new, here))
        return self._all

    @property
    def timings(self) -> Timings:
        """Time breakdown of this job alone; earlier generated tokens count as prompt."""
        return self.job.timings

    @property
    def sampling_in_effect(self) -> Sampling:
        """Sampling of its job, with the seed that the draft asks for."""
        used, seed = self.job.sampling, self.draft.sampling.seed
        return used if used.seed == seed else replace(used, seed=seed)

    @property
    def request_in_effect(self) -> Request:
        """Request of its draft, with the candidates and stages that its job records."""
        asked, used = self.draft.request, self.job.request
        if (asked.top_k, asked.stages) == (used.top_k, used.stages):
            return asked
        return replace(asked, top_k=used.top_k, stages=used.stages)

    @property
    def queue_position(self) -> int | None:
        """Position among the waiting jobs, 1 for the next; None once it runs."""
        return None if self.job.is_started or self.job.done() else self.job.queue_position + 1

    def done(self) -> bool:
        """Return True once no further tokens will come."""
        return self.job.done()

    @property
    def error(self) -> EngineError | None:
        """Error that made it fail; None while it runs."""
        failure = self.job.exception() if self.job.done() else None
        return failure if isinstance(failure, EngineError) else None

    @property
    def completion(self) -> Completion | None:
        """Complete result once it has ended without an error; its text ends before the first stop string."""
        if not self.job.done() or self.error:
            return None
        own = self.job.result()
        if self._before is None:
            return own
        return Completion(
            text=text_before(self.steps.text, self.draft.request.stop),
            steps=self.steps,
            prompt_steps=self.prompt_steps,
            prompt_ids=self.prompt_ids,
            finish_reason=own.finish_reason,
            timings=own.timings,
            seed=own.seed,
            id=self.id,
            is_context_full=own.is_context_full,
        )

    def add_listener(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after any change, from another thread; return a function that removes it."""
        return self.job.add_listener(callback)

    def status(self) -> dict[str, Any]:
        """Return live figures for the status strip, with the time of the last token (seconds since the epoch)."""
        elapsed = self.job.steps.records["elapsed_s"].sum()
        return {**super().status(), "decoded_at": self.created_at.timestamp() + float(elapsed)}

    def end(self) -> None:
        """Record the current time as its end, and the node of its worker."""
        self._ended_at = time.monotonic()
        self.node = "".join(filter(str.isprintable, self.job.node))[:MAX_NODE_CHARACTERS]

    @property
    def age_s(self) -> float:
        """Seconds since it ended; 0 while it runs."""
        return 0.0 if self._ended_at is None else time.monotonic() - self._ended_at


def perplexity(steps: StepTable) -> float | None:
    """Return exp of the mean surprise in nats over the tokens with a logprob; None where there are none."""
    logprobs = [step.logprob for step in steps if step.logprob is not None]
    return math.exp(-sum(logprobs) / len(logprobs)) if logprobs else None


def _of_server(engine: EngineIdentity) -> dict[str, Any]:
    """Return what the status of a trial says of the figures of its external engine."""
    return {"missing": NOT_REPORTED, "logprobs_of": engine.logprobs_of, "has_ids": gives_ids(engine.dialect)}


def steps_of(table: StepTable, here: slice) -> StepTable:
    """Return some steps of a table as a table of generated tokens."""
    *columns, stages = _columns(table, here)
    return StepTable.of(table.vocabulary, *columns, is_prompt=False, stages=table.stages, stage_columns=stages)


def _columns(table: StepTable, here: slice) -> tuple[Any, Any, Any, Any, StageColumns | None]:
    """Return some rows of all columns of a table."""
    stages = table.stage_columns
    of_stages = stages and stages.rows(here)
    return table.records[here], table.top_ids[here], table.top_logprobs[here], table.top_p_final[here], of_stages
