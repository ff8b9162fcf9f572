"""An engine without a model, for tests of what uses an engine: its tokens are bytes, its probabilities a fixed table.

It keeps the contract of engine.protocol.Engine, which tests/engine/contract demands of it as of the pool. What a test
asserts of tokens, probabilities or times must come from a real engine.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, Unpack

import numpy as np

from engine.chat_options import ChatOptions
from engine.delivery import check_may_wait, listening
from engine.errors import ConfigError, EngineError, PoolClosed, PromptTooLong, QueueFull
from engine.ids import checked_id, new_id
from engine.jobs import Job
from engine.map_progress import OnProgress
from engine.pool.in_order import BATCH, checked_prompts, completions
from engine.protocol import Capabilities, Startup, WorkerInfo
from engine.settings import Settings
from engine.specs import Origin, PoolSpec, Request, RequestOptions, Sampling, given_prompt
from engine.step_parts import INSPECTED, step_dtype
from engine.validation import given_spec
from engine.vocabulary import TokenKind, Vocabulary

END = 256
_PIECES = (*(bytes([byte]) for byte in range(256)), b"")
VOCABULARY = Vocabulary(
    _PIECES, bytes(256) + bytes([TokenKind.END | TokenKind.CONTROL]), {END: "<end>"}, None, False, False
)
_LOGITS = np.random.default_rng(1).normal(0, 3, (257, 257))
_LOGITS[:, [*range(97), *range(123, 256)]] = -60.0  # it writes small letters
_LOGITS[:, END] = -4.0


class FakeEngine:
    """One "model" that answers at once, or with `step_s` seconds for each step of all its sequences."""

    def __init__(
        self, model: str = "fake.gguf", spec: PoolSpec | None = None, *, step_s: float = 0.0, most_waiting: int = 0
    ) -> None:
        asked = spec or PoolSpec()
        self.model, self.spec = model, replace(asked, share_weights=bool(asked.share_weights))
        self.vocabulary = VOCABULARY
        self.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        self.threads = self.spec.threads or 1
        self.startup = Startup(0.0, 0.0, 0.0)
        self.ending: PoolClosed | None = None
        self._step_s = step_s
        self._most_waiting = most_waiting or Settings.from_environment().max_queue
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: list[_Running] = []
        self._num_decodes = self._num_tokens = 0
        self._is_held = self._is_paused = self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="fake-engine", daemon=True)
        self._thread.start()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(self.spec.n_ctx, self.spec.instances * self.spec.parallel, has_chat_template=True)

    @property
    def num_open(self) -> int:
        with self._changed:
            return len(self._waiting) + len(self._running)

    # jobs

    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        generated: int = 0,
        forced: int = 0,
        job_id: str | None = None,
        origin: Origin | None = None,
        **options: Unpack[RequestOptions],
    ) -> Job:
        request = Request(**options, generated=generated, forced=forced)  # type: ignore[arg-type]
        job = self._job(prompt, sampling, request, job_id, origin)
        if not self.try_add(job):
            raise QueueFull("too many jobs wait")
        return job

    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        return_exceptions: bool = False,
        progress: OnProgress = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Any]:
        prompts = checked_prompts(prompts)
        request = Request(**options)  # type: ignore[arg-type]
        self._check_open()
        return completions(
            prompts,
            lambda prompt: self._job(prompt, sampling, request, origin=BATCH),
            self,
            is_failing=not return_exceptions,
            num_sequences=self.capabilities.num_sequences,
            progress=progress,
        )

    def _job(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None,
        request: Request,
        job_id: str | None = None,
        origin: Origin | None = None,
    ) -> Job:
        return Job(
            new_id() if job_id is None else checked_id(job_id),
            given_prompt(prompt),
            given_spec("sampling", sampling, Sampling),
            request,
            VOCABULARY,
            cancel=self._cancel,
            position=self._position,
            origin=origin,
        )

    def try_add(self, job: Job) -> bool:
        """Queue a job; False where the queue is full."""
        with self._changed:
            self._check_open()
            if len(self._waiting) >= self._most_waiting:
                return False
            self._waiting.append(job)
            self._changed.notify_all()
        return True

    def wait_for_room(self, _origin: Origin, first: Job | None = None) -> None:
        """Wait until the queue has room, or `first` is over."""
        with self._changed:
            while len(self._waiting) >= self._most_waiting and not (self._is_closed or (first and first.done())):
                check_may_wait()
                self._changed.wait(0.01)

    def _cancel(self, job: Job) -> None:
        with self._changed:
            job.is_cancelled = True
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        job.on_cancelled()

    def _position(self, job: Job) -> int:
        with self._changed:
            return self._waiting.index(job) if job in self._waiting else 0

    @contextmanager
    def held(self) -> Iterator[None]:
        self._set("_is_held", True)
        try:
            yield
        finally:
            self._set("_is_held", False)

    def pause(self) -> None:
        self._set("_is_paused", True)

    def resume(self) -> None:
        self._set("_is_paused", False)

    def _set(self, name: str, value: bool) -> None:
        with self._changed:
            setattr(self, name, value)
            self._changed.notify_all()

    # calls

    def check_sampling(self, sampling: Sampling) -> None:
        del sampling  # it has no grammars
        self._check_open()

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        if not isinstance(text, str):
            raise ConfigError(f"text = {text!r}: must be text")
        self._check_open()
        return list(text.encode())

    def render_chat(
        self, messages: Sequence[dict[str, str]], options: ChatOptions | None = None
    ) -> tuple[str, list[int]]:
        del options
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return text, self.tokenize(text)

    def measure(self, timeout: float | None = None) -> list[dict[str, float]]:
        del timeout
        seconds = ("decode_s", "prefill_s", "loop_s", "tokenise_s", "distribution_s", "sample_s", "cpu_s", "thread_s")
        counts = {"pid": 0.0, "num_decodes": float(self._num_decodes), "num_tokens": float(self._num_tokens)}
        return [dict.fromkeys((*seconds, "decode_cpu_s", "pss_bytes", "private_bytes"), 0.0) | counts]

    def workers(self) -> list[WorkerInfo]:
        with self._changed:
            return [WorkerInfo(0, (), len(self._running), len(self._waiting), "idle", 0.0, self.threads, self.threads)]

    # its end

    def close(self, reason: str = "closed while this job was open") -> None:
        with self._changed:
            left = [*self._waiting, *(one.job for one in self._running)]
            self._waiting.clear()
            self._running.clear()
            self._is_closed = True
            self.ending = self.ending or PoolClosed(reason)
            self._changed.notify_all()
        for job in left:
            job.fail(PoolClosed(reason))

    def _check_open(self) -> None:
        if self._is_closed:
            raise PoolClosed("this engine is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # its loop

    def _loop(self) -> None:
        with listening():
            while True:
                with self._changed:
                    while not self._is_closed and (self._is_held or not (self._running or self._can_start())):
                        self._changed.wait()
                    if self._is_closed:
                        return
                    begun = []
                    while self._can_start():
                        begun.append(_Running(self._waiting.popleft(), time.monotonic()))
                        self._running.append(begun[-1])
                    running = list(self._running)
                time.sleep(self._step_s)
                ended = [one for one in running if self._is_over(one, is_new=one in begun)]
                with self._changed:
                    self._num_decodes += 1
                    self._running = [one for one in self._running if one not in ended]
                    self._changed.notify_all()

    def _can_start(self) -> bool:
        is_free = len(self._running) < self.capabilities.num_sequences
        return bool(self._waiting) and is_free and not self._is_paused

    def _is_over(self, one: "_Running", *, is_new: bool) -> bool:
        try:
            if is_new:
                one.begin(self.spec.n_ctx)
            self._num_tokens += 1
            return one.step()
        except EngineError as error:
            one.job.fail(error)
            return True


class _Running:
    """A job that is computed."""

    def __init__(self, job: Job, started: float) -> None:
        self.job, self._started, self._last = job, started, job.submitted
        self._first = 0.0
        self._ids: list[int] = []

    def begin(self, n_ctx: int) -> None:
        job = self.job
        self._ids = list(job.prompt.encode()) if isinstance(job.prompt, str) else list(job.prompt)
        if len(self._ids) > n_ctx:
            raise PromptTooLong(f"the prompt is {len(self._ids):,} tokens; the context holds {n_ctx:,}")
        if job.request.generated >= max(len(self._ids), 1) or not self._ids:
            raise ConfigError("the prompt is empty, or all of it counts as generated")
        if any(token > END for token in self._ids):
            raise ConfigError("a token id beyond the vocabulary")
        self._most = min(job.request.max_tokens, n_ctx - len(self._ids) + 1)
        seed = job.sampling.seed if job.sampling.seed is not None else time.monotonic_ns() % (1 << 31)
        self._random = np.random.default_rng(seed)
        self._random.random(job.request.generated)
        job.on_started(self._ids, num_cached=0, seed=seed, queue_s=self._started - job.submitted, load_s=0.0)
        if job.request.prompt_logprobs:
            for before, token in zip(self._ids, self._ids[1:], strict=False):
                job.on_steps(self._row(before, token, draw=np.nan), is_prompt=True)

    def step(self) -> bool:
        """Draw a token; True once the job is over."""
        job, given = self.job, len(self.job.steps)
        if job.is_cancelled or self._most <= 0:
            return self._end("cancelled" if job.is_cancelled else "length")
        logits = _LOGITS[self._ids[-1]].copy()
        for token, bias in job.sampling.logit_bias:
            logits[token] += bias
        draw = float(self._random.random())
        if job.sampling.temperature == 0:
            token = int(np.argmax(logits))
        else:
            token = int(np.searchsorted(np.cumsum(_softmax(logits)), draw))
        job.on_steps(self._row(self._ids[-1], min(token, END), draw))
        self._ids.append(min(token, END))
        self._first = self._first or time.monotonic()
        text = job.vocabulary.join(self._ids[len(job.prompt_ids or ()) - job.request.generated :])
        for stop in job.request.stop:
            if stop.encode() in text:
                return self._end("stop", len(text[: text.index(stop.encode())]))
        if self._ids[-1] == END:
            return self._end("stop")
        return given + 1 >= self._most and self._end("length")

    def _end(self, reason: str, num_bytes: int | None = None) -> bool:
        now = time.monotonic()
        text = self.job.vocabulary.join(self.job.steps.ids)
        self.job.on_ended(
            reason,
            len(text) if num_bytes is None else num_bytes,
            prefill_s=(self._first or now) - self._started,
            decode_s=now - (self._first or now),
        )
        return True

    def _row(self, before: int, token: int, draw: float) -> bytes:
        k = self.job.request.top_k
        row = np.zeros(1, step_dtype(k))
        now = time.monotonic()
        row["record"]["id"], row["record"]["elapsed_s"], self._last = token, now - self._last, now
        if k or (self.job.request.prompt_logprobs and np.isnan(draw)):
            logprobs = np.log(_softmax(_LOGITS[before]))
            best = np.argsort(-logprobs, kind="stable")[:k]
            row["record"]["logprob"], row["record"]["draw"] = logprobs[token], draw
            row["record"]["rank"] = 1 + np.sum(logprobs > logprobs[token])
            row["record"]["entropy"] = -np.sum(np.exp(logprobs) * logprobs)
            row["record"]["p_final"] = np.nan if np.isnan(draw) else np.exp(logprobs[token])
            row["record"]["flags"] = INSPECTED
            row["top_ids"][0], row["top_logprobs"][0] = best, logprobs[best]
            row["top_p_final"][0] = np.exp(logprobs[best])
        return row.tobytes()


def _softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    weights: np.ndarray[Any, Any] = np.exp(logits - logits.max())
    shares: np.ndarray[Any, Any] = weights / weights.sum()
    return shares


def open_fake(
    model: str,
    spec: PoolSpec,
    *,
    build: str = "",
    on_progress: Callable[[float], object] | None = None,
    on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None,
) -> FakeEngine:
    """An OpenEngine that needs no model's file."""
    del build
    engine = FakeEngine(model, replace(spec))
    on_opening(engine.close)
    if on_progress:
        on_progress(1.0)
    return engine
