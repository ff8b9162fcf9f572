"""WebSocket that streams a trial's tokens to the page while they are decoded.

One socket serves every strip and every text field of a page. The page sends `{"jobs": {trial: next_index}}` whenever it
needs more trials; the server answers with batches of new steps, at most one per 16 ms while a trial runs, and with a
final message on how the trial ended. A token's text is sent once per socket; candidates are plain arrays.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from engine.errors import ConfigError, EngineError, sentence
from engine.jsonable import figure
from engine.llama.frozen import Flip
from engine.steps import StepTable
from engine.vocabulary import Vocabulary
from engine.workbench.resampling import SampledAgain
from pages.parts.live_ask import MAX_JOBS, Ask, Change, Latest, Step, Text, Watch, read_ask
from pages.parts.wire import Words, columns, sampled_again
from pages.parts.word_feed import WatchesWords, WordFeed

SOCKET_PATH = "/logitbench/live"
BATCH_S = 0.016
STATUS_S = 0.2
WORDS_S = 0.1
MAX_BATCH = 128
MAX_TEXT_TOKENS = 4_000  # of a text that is typed: more are counted but not sent
GREETING_S = 10.0
POLICY_VIOLATION = 1008


class Watched(Protocol):
    """Interface of a running or finished trial as a strip uses it; provided by `engine.workbench`.

    `status` has any of: state ("queued", "loading", "running", "done", "failed"), queue_position (1 is next),
    progress (of loading, 0 to 1), num_prompt, num_prefilled, num_cached, num_generated, max_tokens, num_context, n_ctx,
    tok_per_s, ttft_ms, seed, decoded_at (seconds since the epoch when the last step was decoded).
    `ending` has: finish_reason, sentence (why it stopped, in words), error (text or ""), seed, timings, text_bytes
    (length of the text in bytes: what follows belongs to the stop string).
    """

    @property
    def prompt_steps(self) -> StepTable:
        """Tokens of the prompt."""

    @property
    def steps(self) -> StepTable:
        """Tokens decided so far; another thread appends."""

    @property
    def logit_bias(self) -> Sequence[tuple[int, float]]:
        """Token ids with what was added to their logits, in nats; -inf bans a token."""

    def add_listener(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Register a callback that another thread calls after any change; return a function that removes it."""

    def done(self) -> bool:
        """Return True if no step will follow."""

    def status(self) -> dict[str, Any]:
        """Return live figures, ready for JSON."""

    def ending(self) -> dict[str, Any]:
        """Return how the trial ended, ready for JSON; called only when done."""


class Trials(Protocol):
    """Interface of the trials that the socket needs."""

    def watch(self, trial_id: str) -> Watched | None:
        """Return the trial, or None if it is unknown; may read from the history."""

    def flips(self, trial_id: str, step: int) -> list[Flip]:
        """Return at which sampling parameters a step draws another token. Raises EngineError where that is unknown."""

    def resample(self, trial_id: str, changed: Mapping[str, float], shown: int | None = None) -> SampledAgain:
        """Return what the steps draw with changed parameters. Raises EngineError where that is unknown."""


class Tokenises(Protocol):
    """Interface of what tokenises a text: an engine or a file's tokenizer."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Texts of the tokens."""

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of a text. Raises EngineError."""


class Tokenizers(Protocol):
    """Interface of the workbench that the socket needs for a text that is typed."""

    def tokenizer_of(self, path: Path | None) -> Tokenises:
        """Return what tokenises for a model file, None for the loaded one. Raises EngineError."""


_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)


class Feed:
    """Messages of one trial that one page has not received yet."""

    def __init__(self, trial: str, watched: Watched, words: Words, first: int, *, latency: bool) -> None:
        self.trial, self.watched, self.words = trial, watched, words
        self.latency = latency
        self.is_over = self.has_more = False
        self._next, self._next_prompt = first, 0
        self._status: dict[str, Any] = {}
        self._status_at = -STATUS_S
        self._greeting: dict[str, Any] = {"live": not watched.done()}
        if watched.logit_bias:
            self._greeting["bias"] = [[token, figure(bias)] for token, bias in watched.logit_bias]

    def message(self) -> dict[str, Any] | None:
        """Return the next message, or None if nothing is new.

        Sets `is_over` with the last message, and `has_more` if the message was full.
        """
        is_done = self.watched.done()
        body, self._greeting = self._greeting, {}
        prompt, steps = self.watched.prompt_steps, self.watched.steps
        # A retried job begins its prompt again, with the same tokens: the page has the first of them already.
        if (batch := min(len(prompt) - self._next_prompt, MAX_BATCH)) > 0:
            body["prompt"] = self._columns(prompt, self._next_prompt, batch)
            self._next_prompt += batch
        # The page numbers its tokens from the first of the prompt, so the whole prompt is sent before any step.
        is_prompt_sent = self._next_prompt >= len(prompt)
        if is_prompt_sent and (batch := min(len(steps) - self._next, MAX_BATCH)) > 0:
            body["steps"] = self._columns(steps, self._next, batch)
            self._next += batch
        self.has_more = not is_prompt_sent or self._next < len(steps)
        self.is_over = is_done and not self.has_more
        self._add_status(body)
        if self.is_over:
            body["end"] = self.watched.ending()
        if body and self.latency:
            body["at"] = time.time()
        return {"job": self.trial, **body} if body else None

    def _columns(self, table: StepTable, first: int, count: int) -> dict[str, Any]:
        return {
            "first": first,
            **self.words.new_in(table, first, first + count),
            **columns(table, first, first + count),
        }

    def _add_status(self, body: dict[str, Any]) -> None:
        now = time.monotonic()
        is_first = self._status.get("state") != "running" or self._next == 0
        if not (self.is_over or is_first or self.latency or now - self._status_at >= STATUS_S):
            return
        status = self.watched.status()
        if status != self._status:
            body["status"], self._status, self._status_at = status, status, now


class Page:
    """One open socket: its feeds, each in a task of its own so that none waits for another."""

    def __init__(self, socket: WebSocket, trials: Trials, tokenizers: Tokenizers, watcher: WatchesWords) -> None:
        self._socket, self._trials, self._tokenizers, self._watcher = socket, trials, tokenizers, watcher
        self._words = Words()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._flips = Latest(self._answer_flips)
        self._changes = Latest(self._answer_change)
        self._texts = Latest(self._answer_text)
        self._watching: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()

    async def serve(self) -> None:
        """Answer until the page leaves, the server stops or the page violates the protocol (closed with 1008)."""
        try:
            message = await asyncio.wait_for(self._socket.receive_text(), GREETING_S)
            while True:
                self._follow(read_ask(message))
                message = await self._socket.receive_text()
        except (msgspec.MsgspecError, KeyError, TimeoutError):
            await self._socket.close(POLICY_VIOLATION, "unreadable message")
        except WebSocketDisconnect:
            pass
        finally:
            latest = (self._flips, self._changes, self._texts)
            tasks = [*self._tasks.values(), *(task for one in latest for task in one.tasks)]
            tasks += [self._watching] if self._watching else []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, ask: Ask) -> None:
        for trial, first in ask.jobs.items():
            if (old := self._tasks.pop(trial, None)) is not None:
                old.cancel()
            elif len(self._tasks) >= MAX_JOBS:
                self._tasks.pop(next(iter(self._tasks))).cancel()
            self._tasks[trial] = asyncio.create_task(self._feed(trial, first, latency=ask.latency))
        if ask.flips is not None:
            self._flips.ask(ask.flips)
        if ask.resample is not None:
            self._changes.ask(ask.resample, ask.resample.job)
        if ask.text is not None:
            self._texts.ask(ask.text)
        if ask.watch is not None:
            if self._watching is not None:
                self._watching.cancel()
            self._watching = asyncio.create_task(self._watch(ask.watch))

    async def _answer_flips(self, asked: Step) -> None:
        watched = await asyncio.to_thread(self._trials.watch, asked.job)
        if watched is None:
            return
        try:
            found = await asyncio.to_thread(self._trials.flips, asked.job, asked.step)
        except EngineError:
            found = []
        text = watched.steps.vocabulary.text
        flips = [{**msgspec.structs.asdict(flip), "text": text(flip.id)} for flip in found]
        message = {"job": asked.job, "flips": {"step": asked.step, "found": flips}}
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._send(partial(dict, message))

    async def _answer_change(self, asked: Change) -> None:
        body: dict[str, Any] = {"changed": asked.changed, "shown": asked.shown}
        words: Callable[[], dict[str, Any]] = dict
        try:
            watched = await asyncio.to_thread(self._trials.watch, asked.job)
            if watched is None:
                raise ConfigError("there is no such trial: it was deleted or not saved")
            again = await asyncio.to_thread(self._trials.resample, asked.job, asked.changed, asked.shown)
            body |= sampled_again(again, watched.steps, asked.shown)
            words = partial(self._words.new_of, watched.steps.vocabulary, np.array(again.result.ids))
        except EngineError as error:
            body["error"] = sentence(error)
        except Exception:
            _log.exception("Trial %s could not be sampled again", asked.job)
            body["error"] = "An internal error prevented it; see the log."
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._send(lambda: {"job": asked.job, "resampled": {**body, **words()}})

    async def _answer_text(self, asked: Text) -> None:
        answer: dict[str, Any] = {"field": asked.field, "number": asked.number, "characters": len(asked.text)}

        def tokenised() -> tuple[Vocabulary, list[int]]:
            source = self._tokenizers.tokenizer_of(Path(asked.model) if asked.model else None)
            return source.vocabulary, source.tokenize(asked.text, special=asked.special)

        def message() -> dict[str, Any]:
            return {"text": answer | self._words.of(vocabulary, ids[:MAX_TEXT_TOKENS]) | {"count": len(ids)}}

        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            try:
                vocabulary, ids = await asyncio.to_thread(tokenised)
            except EngineError as error:
                await self._send(partial(dict, text={**answer, "error": sentence(error)}))
            else:
                await self._send(message)

    async def _watch(self, asked: Watch) -> None:
        """Send the figures of watched words as they come; when cancelled, stop computing them."""
        feed = WordFeed(asked, self._words)
        try:
            await asyncio.to_thread(feed.begin, self._watcher)
            while not feed.is_over:
                await self._send(feed.message)
                await asyncio.sleep(WORDS_S)
        except EngineError as error:
            await self._send(partial(feed.refusal, sentence(error)))
        except (WebSocketDisconnect, RuntimeError):
            return
        finally:
            feed.stop()

    async def _send(self, make: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Send and return the message that `make` returns; calls are serialised, so that no message is skipped."""
        async with self._sending:
            message = make()
            if message is not None:
                await self._socket.send_text(_encode(message).decode())
        return message

    async def _feed(self, trial: str, first: int, *, latency: bool) -> None:
        try:
            watched = await asyncio.to_thread(self._trials.watch, trial)
            if watched is None:
                await self._fail(trial, "Unknown trial: it was deleted or not saved. Run it again.")
            else:
                await self._relay(Feed(trial, watched, self._words, first, latency=latency))
        except EngineError as error:
            await self._fail(trial, sentence(error))
        except (WebSocketDisconnect, RuntimeError):
            # The page left during a send; `serve` is notified too and closes the socket.
            return
        except Exception:
            _log.exception("The tokens of trial %s could not be sent", trial)
            await self._fail(
                trial, "The tokens could not be sent because of an internal error; see the log. Reload the page."
            )

    async def _fail(self, trial: str, error: str) -> None:
        await self._send(lambda: {"job": trial, "live": False, "end": {"error": error}})

    async def _relay(self, feed: Feed) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        remove = feed.watched.add_listener(wake)
        changed.set()
        try:
            while not feed.is_over:
                with contextlib.suppress(TimeoutError):
                    # Without news the status is polled: queue positions change, and a rate is held back for a moment.
                    async with asyncio.timeout(STATUS_S):
                        await changed.wait()
                changed.clear()
                message = await self._send(feed.message)
                if feed.has_more:  # what is there already is sent at once; other feeds have their turn between batches
                    changed.set()
                elif message is not None and message.keys() & {"steps", "prompt"}:
                    await asyncio.sleep(BATCH_S)
        finally:
            remove()


def routes(
    trials: Callable[[], Trials], tokenizers: Callable[[], Tokenizers], watcher: Callable[[], WatchesWords]
) -> list[BaseRoute]:
    """Return the routes for app.py; the functions are called for each new page."""

    async def live(socket: WebSocket) -> None:
        await socket.accept()
        await Page(socket, trials(), tokenizers(), watcher()).serve()

    return [WebSocketRoute(SOCKET_PATH, live)]
