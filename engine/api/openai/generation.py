"""Generation for requests: starts the trials of a request, and waits for them or for the client to leave."""

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from starlette.requests import ClientDisconnect, Request

from engine.api.openai.errors import ApiError, api_error
from engine.api.openai.requests import RECORDED_TOP_K, ChatRequest, CommonRequest, CompletionRequest
from engine.api.openai.tools import NO_TOOLS, ToolUse
from engine.errors import EngineError, PromptTooLong, quoted
from engine.history import TrialLabel
from engine.jobs import Job
from engine.protocol import Engine
from engine.results import Completion
from engine.specs import Origin, Sampling
from engine.specs import Request as Limits
from engine.workbench.trials import Draft, LiveTrial
from engine.workbench.workbench import Workbench

QUICK_TRIALS, QUICK_CHARACTERS, QUICK_BIASES = 8, 8_192, 64
"""Trials, characters (or ids) and biases up to which the event loop itself starts the trials of a request: well under
a millisecond, as handing them to a thread takes."""
UNKNOWN_MAX_TOKENS = 2048
"""Tokens of a chat's answer where neither the request limits it nor an external engine tells its context."""
WATCHED_AFTER_S = 0.02
"""Time after which it is noticed that a client has left, whose answer is then stopped."""

T = TypeVar("T")


class Choice(NamedTuple):
    """One answer of a request: its trial, the text of its prompt, and how it may call tools (of a chat)."""

    trial: LiveTrial
    prompt: str
    tools: ToolUse = NO_TOOLS

    @property
    def completion(self) -> Completion:
        """The result, once the trial has ended. Raises the error that ended it."""
        return self.trial.job.result(0)


class Generator:
    """Generator of answers with the loaded model of a workbench."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def engine(self) -> Engine:
        """Return the engine. Raises ApiError while none is loaded."""
        try:
            return self._bench.model.loaded()[0]
        except EngineError as error:
            raise api_error(error) from None

    @property
    def model_id(self) -> str:
        """Name of the loaded model for clients: its file's, without the ending, or that of an external engine.

        Empty while there is none.
        """
        state = self._bench.model
        if state.engine is None:
            return ""
        return state.path.stem if state.path is not None else state.name

    def check_model(self, name: str) -> None:
        """Raise ApiError where a request names a model that is not loaded."""
        if name and (known := self.model_id) and name != known:
            raise self.unknown_model(name)

    def unknown_model(self, name: str) -> ApiError:
        """Return the error of a request that names a model that is not loaded."""
        message = f"The model {quoted(name)} is not loaded; {self.model_id!r} is."
        return ApiError(404, message, param="model", code="model_not_found")

    async def completions(
        self, asked: CompletionRequest, origin: Origin, unknown_fields: tuple[str, ...]
    ) -> list[Choice]:
        """Start the trials of a completion request, which name its unknown fields. Raises ApiError."""
        engine = self.engine()
        self.check_model(asked.model)
        limits = _limits(
            max_tokens=16 if asked.max_tokens is None else asked.max_tokens,
            top_k=RECORDED_TOP_K,
            stop=asked.stops,
            prompt_logprobs=asked.scores_prompt or (asked.echo and asked.logprobs is not None),
            reuse_prefix=asked.cache_prompt,
        )
        given = [checked_length(engine, prompt) for prompt in asked.prompts()]
        prompts = [(text_of(engine, prompt), prompt if isinstance(prompt, list) else None) for prompt in given]
        drafts = [(Draft(text, request=limits, unknown_fields=unknown_fields), ids) for text, ids in prompts]
        return await self._start(asked, origin, engine, drafts)

    async def chat(self, asked: ChatRequest, origin: Origin, unknown_fields: tuple[str, ...]) -> list[Choice]:
        """Start the trials of a chat request, which name its unknown fields. Raises ApiError."""
        engine = self.engine()
        self.check_model(asked.model)
        most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        limits = _limits(
            max_tokens=engine.capabilities.n_ctx or UNKNOWN_MAX_TOKENS if most is None else most,
            top_k=RECORDED_TOP_K,
            stop=asked.stops,
            prompt_logprobs=asked.scores_prompt,
            reuse_prefix=asked.cache_prompt,
        )
        use = asked.tool_use(engine.chat_template)
        messages = tuple(message.plain() for message in asked.messages)
        draft = Draft("", messages, request=limits, chat=asked.options(use), unknown_fields=unknown_fields)
        try:
            started = await self._start(asked, origin, engine, [(draft, None)])
        except ApiError as error:
            raise asked.blamed(error) from None
        return [choice._replace(tools=use) for choice in started]

    async def _start(
        self,
        asked: CommonRequest,
        origin: Origin,
        engine: Engine,
        drafts: Sequence[tuple[Draft, list[int] | None]],
    ) -> list[Choice]:
        """Start `n` trials of each draft, or of its ids; where one cannot start, or the client leaves, none goes on."""
        started: list[LiveTrial] = []
        is_over = threading.Event()
        trials, is_kept = self._bench.trials, asked.store is not False

        def start() -> None:
            seeded = _seeded(asked.sampling(engine.vocabulary.end_tokens), asked.n)
            for given, ids in drafts:
                for sampling in seeded:
                    draft = replace(given, sampling=sampling, is_kept=is_kept)
                    if ids is None:
                        started.append(trials.submit(draft, TrialLabel.API, origin))
                    else:
                        started.append(trials.submit_ids(draft, ids, TrialLabel.API, origin))
                    if is_over.is_set():  # a thread goes on after the task that awaits it was cancelled
                        stop(started)
                        return

        try:
            if _starts_at_once(asked, drafts):
                start()
            else:
                await asyncio.to_thread(start)
        except BaseException as error:
            is_over.set()
            stop(started)
            if isinstance(error, EngineError):
                raise api_error(error) from None
            raise
        return [Choice(trial, trial.draft.prompt) for trial in started]


def _starts_at_once(asked: CommonRequest, drafts: Sequence[tuple[Draft, list[int] | None]]) -> bool:
    """Return whether trials start without what may take seconds: a new grammar or schema to check, a conversation to
    render, a long text to tokenise."""
    size = sum(len(draft.prompt) + len(ids or ()) for draft, ids in drafts)
    is_plain = not (asked.grammar or asked.json_schema or any(draft.messages for draft, _ in drafts))
    is_small = len(drafts) * asked.n <= QUICK_TRIALS and len(asked.logit_bias or ()) <= QUICK_BIASES
    return is_plain and is_small and size <= QUICK_CHARACTERS


def stop(trials: Sequence[LiveTrial]) -> None:
    """Stop trials at their next decode step."""
    for trial in trials:
        trial.job.cancel()


async def all_of(jobs: Sequence[Job]) -> list[Completion]:
    """Wait for all jobs; raises the error of the first that fails. One alone takes fewer turns of the event loop."""
    return [await jobs[0]] if len(jobs) == 1 else list(await asyncio.gather(*jobs))


async def while_there(request: Request, answer: Awaitable[T]) -> T:
    """Wait for an answer. Raises ClientDisconnect where the client leaves first, and cancels the answer.

    The answer is computed in the current task, which the client's leaving cancels: a task of its own would cost a
    short answer two more turns of the event loop. So would the task that waits for the client to leave, which thus
    begins WATCHED_AFTER_S later.
    """
    task = asyncio.current_task()
    assert task is not None
    num_cancelled = task.cancelling()
    leaving: asyncio.Task[None] | None = None
    has_left = is_over = False

    def leave(_: object) -> None:
        nonlocal has_left
        if not is_over:
            has_left = True
            task.cancel()

    def watch() -> None:
        nonlocal leaving
        leaving = asyncio.ensure_future(_left(request))
        leaving.add_done_callback(leave)

    watching = asyncio.get_running_loop().call_later(WATCHED_AFTER_S, watch)
    try:
        return await answer
    except asyncio.CancelledError:
        if has_left and task.uncancel() <= num_cancelled:
            raise ClientDisconnect from None
        raise
    finally:
        is_over = True
        watching.cancel()
        if leaving is not None:
            leaving.cancel()


async def _left(request: Request) -> None:
    """Wait until the client of a request whose body was read has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _limits(*, stop: tuple[str, ...], **numbers: Any) -> Limits:
    """Return the limits of a request. Raises ConfigError."""
    return Limits(stop=stop, **numbers) if stop else _kept_limits(**numbers)


_kept_limits = lru_cache(maxsize=64)(Limits)
"""The same for numbers alone, checked once for clients that ask again and again."""


def _seeded(sampling: Sampling, n: int) -> list[Sampling]:
    """Return the sampling of each of `n` answers; their seeds count up from the given one."""
    if sampling.seed is None:
        return [sampling] * n
    return [sampling, *(replace(sampling, seed=(sampling.seed + number) % 0xFFFFFFFF) for number in range(1, n))]


def text_of(engine: Engine, ids: str | list[int], param: str = "prompt") -> str:
    """Return ids as text, a text unchanged. Raises ApiError for ids that the vocabulary has not."""
    if isinstance(ids, str):
        return ids
    num_vocab = len(engine.vocabulary)
    wrong = next((token for token in ids if not 0 <= token < num_vocab), None)
    if wrong is not None:
        said = f"{param}: {quoted(wrong)} is not a token id; the vocabulary has {num_vocab:,}"
        raise ApiError(400, said, param=param)
    return engine.vocabulary.join(ids).decode("utf-8", "replace")


def checked_length(engine: Engine, prompt: str | list[int]) -> str | list[int]:
    """Return a prompt. Raises ApiError for ids that cannot fit into the context, where its size is known."""
    n_ctx = engine.capabilities.n_ctx
    if n_ctx and isinstance(prompt, list) and len(prompt) > n_ctx + 1:  # one more may be scored
        raise api_error(PromptTooLong.of(f"{len(prompt):,}", n_ctx))
    return prompt
