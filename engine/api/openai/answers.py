"""Answers of the API: responses and chunks of streams for completions and chats, in OpenAI's shapes."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from engine.api.openai.call_shape import CallShape, marks_of, text_of
from engine.api.openai.generation import Choice
from engine.api.openai.logprobs import Shown, TokenTexts, content, legacy, of_prompt, shown
from engine.api.openai.requests import ChatRequest, CompletionRequest
from engine.api.openai.tool_calls import overlap
from engine.arrivals import arrivals
from engine.results import Completion

MANY_TOKENS = 256
"""Tokens whose candidates take more than 10 ms to write down."""
FINISHED = {"stop": "stop", "length": "length", "cancelled": "length"}
"""OpenAI's names. It has none for an answer that was stopped; programs read "length" as one that is not complete."""


class AnswerPart(NamedTuple):
    """Part of an answer that is streamed: its text, tokens with log-probabilities, token ids; finish: why it ended."""

    text: str
    tokens: Sequence[Shown] = ()
    ids: Sequence[int] = ()
    finish: str | None = None


class Chunk(NamedTuple):
    """One chunk of a stream: the answer that it belongs to, by number (one more than there are: the token counts)."""

    part: int
    content: Any


class Shape(Protocol):
    """Shape of the answers of one endpoint. marks: control tokens whose names belong to the text, by id."""

    marks: Mapping[int, str]

    def response(self, choices: Sequence[Choice], completions: Sequence[Completion]) -> dict[str, Any]: ...

    def first(self, index: int, choice: Choice) -> dict[str, Any] | None: ...

    def chunks(self, index: int, part: AnswerPart) -> list[dict[str, Any]]: ...

    def usage(self, completions: Sequence[Completion]) -> dict[str, Any]: ...


class _Answers:
    """What both endpoints have in common."""

    kind = chunk_kind = prefix = ""
    marks: Mapping[int, str] = MappingProxyType({})

    def __init__(self, asked: CompletionRequest | ChatRequest, model: str, choices: Sequence[Choice]) -> None:
        self._n, self._gives_ids = asked.n, bool(asked.return_token_ids)
        self._prompt_top = asked.prompt_logprobs
        self._texts = TokenTexts(choices[0].trial.job.vocabulary)
        self._about = {
            "id": f"{self.prefix}-{choices[0].trial.id}",
            "created": int(choices[0].trial.created_at.timestamp()),
            "model": model,
        }
        self._streams_usage = asked.includes_usage

    def _of_prompt(self, done: Completion) -> dict[str, Any]:
        """Return what is asked about the tokens of a prompt."""
        asked: dict[str, Any] = {}
        if self._prompt_top is not None:
            asked["prompt_logprobs"] = of_prompt(self._texts, done.prompt_steps, self._prompt_top)
        if self._gives_ids:
            asked["prompt_token_ids"] = list(done.prompt_ids)
        return asked

    def _ids(self, ids: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(ids)} if self._gives_ids else {}

    def _whole(self, choices: Iterable[dict[str, Any]], completions: Sequence[Completion]) -> dict[str, Any]:
        """Return the response; each choice becomes JSON on its own, as with candidates it is ten times as large."""
        written = [msgspec.Raw(msgspec.json.encode(choice)) for choice in choices]
        return {**self._about, "object": self.kind, "choices": written, "usage": _usage(completions, self._n)}

    def _part(self, choice: dict[str, Any]) -> dict[str, Any]:
        usage = {"usage": None} if self._streams_usage else {}
        return {**self._about, "object": self.chunk_kind, "choices": [choice], **usage}

    def usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Return the last chunk of a stream, which counts tokens."""
        return {**self._about, "object": self.chunk_kind, "choices": [], "usage": _usage(completions, self._n)}


class CompletionAnswers(_Answers):
    """Answers of /v1/completions."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, asked: CompletionRequest, model: str, choices: Sequence[Choice]) -> None:
        super().__init__(asked, model, choices)
        self._asked, self._offsets = asked, [0] * len(choices)

    def response(self, choices: Sequence[Choice], completions: Sequence[Completion]) -> dict[str, Any]:
        """Return the whole response."""
        return self._whole(
            (self._choice(index, *each) for index, each in enumerate(zip(choices, completions, strict=True))),
            completions,
        )

    def _choice(self, index: int, choice: Choice, done: Completion) -> dict[str, Any]:
        asked = self._asked
        given = None
        if asked.logprobs is not None:
            tables = (done.prompt_steps, done.steps) if asked.echo else (done.steps,)
            given = self._logprobs([one for table in tables for one in shown(table, asked.logprobs)])
        text = choice.prompt + done.text if asked.echo else done.text
        return {
            "index": index,
            "text": text,
            "logprobs": given,
            "finish_reason": FINISHED[done.finish_reason],
            **self._of_prompt(done),
            **self._ids(done.ids),
        }

    def first(self, index: int, choice: Choice) -> dict[str, Any] | None:
        """Return the chunk before the first token: the prompt, where it is echoed, and its ids, where asked for."""
        if not self._asked.echo and not self._gives_ids:
            return None
        tokens: list[Shown] = []
        if self._asked.echo and self._asked.logprobs is not None:
            tokens = shown(choice.trial.job.prompt_steps, self._asked.logprobs)
        begins = self._chunk(index, AnswerPart(choice.prompt if self._asked.echo else "", tokens))
        if self._gives_ids:
            begins["choices"][0]["prompt_token_ids"] = list(choice.trial.job.prompt_ids or ())
        return begins

    def chunks(self, index: int, part: AnswerPart) -> list[dict[str, Any]]:
        """Return the chunk of a part."""
        return [self._chunk(index, part)]

    def _chunk(self, index: int, part: AnswerPart) -> dict[str, Any]:
        given = None
        if self._asked.logprobs is not None:
            given = self._logprobs(part.tokens, self._offsets[index])
        self._offsets[index] += sum(len(one.text) for one in part.tokens)
        choice = {"index": index, "text": part.text, "logprobs": given, "finish_reason": part.finish}
        return self._part({**choice, **self._ids(part.ids)})

    def _logprobs(self, tokens: Sequence[Shown], offset: int = 0) -> dict[str, Any]:
        """Return the legacy columns; where ids are asked for, also the entries of a chat, with the id of each token."""
        given = legacy(self._texts, tokens, offset)
        if self._gives_ids:
            given["content"] = content(self._texts, tokens, self._asked.logprobs or 0, has_ids=True)
        return given


class ChatAnswers(_Answers):
    """Answers of /v1/chat/completions."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, asked: ChatRequest, model: str, choices: Sequence[Choice]) -> None:
        super().__init__(asked, model, choices)
        self._asked = asked
        self._calls = [CallShape(choice.trial.id, choice.tools) for choice in choices]
        if choices[0].tools.form is not None:
            self.marks = marks_of(self._texts.vocabulary)

    def response(self, choices: Sequence[Choice], completions: Sequence[Completion]) -> dict[str, Any]:
        """Return the whole response."""
        found = (self._choice(index, done) for index, done in enumerate(completions))
        return {**self._whole(found, completions), **self._of_prompt(completions[0])}

    def _choice(self, index: int, done: Completion) -> dict[str, Any]:
        num_top, calls = self._asked.top_logprobs or 0, self._calls[index]
        return {
            "index": index,
            "message": {"role": "assistant", "refusal": None, **calls.message(text_of(done, self.marks))},
            "logprobs": self._logprobs(shown(done.steps, num_top)),
            "finish_reason": calls.finish(FINISHED[done.finish_reason]),
            **self._ids(done.ids),
        }

    def first(self, index: int, choice: Choice) -> dict[str, Any] | None:
        """Return the chunk before the first token: the role, and the ids of the prompt, where asked for."""
        delta = {"role": "assistant", "content": None if self._calls[index].is_held else ""}
        begins = self._part({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})
        return begins | ({"prompt_token_ids": list(choice.trial.job.prompt_ids or ())} if self._gives_ids else {})

    def chunks(self, index: int, part: AnswerPart) -> list[dict[str, Any]]:
        """Return the chunks of a part: one, or one for each piece of a call; the first has its tokens."""
        calls = self._calls[index]
        deltas = calls.deltas(part.text, is_end=part.finish is not None)
        if not deltas and (part.tokens or (part.ids and self._gives_ids)):
            deltas = [{}]
        found = [self._delta(index, delta, AnswerPart("")) for delta in deltas[1:]]
        if deltas:
            found.insert(0, self._delta(index, deltas[0], part._replace(finish=None)))
        if part.finish is not None:
            found.append(self._delta(index, {}, AnswerPart("", finish=calls.finish(part.finish))))
        return found

    def _delta(self, index: int, delta: dict[str, Any], part: AnswerPart) -> dict[str, Any]:
        logprobs = self._logprobs(part.tokens)
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": part.finish}
        return self._part({**choice, **self._ids(part.ids)})

    def _logprobs(self, tokens: Sequence[Shown]) -> dict[str, Any] | None:
        if not self._asked.logprobs:
            return None
        num_top = self._asked.top_logprobs or 0
        return {"content": content(self._texts, tokens, num_top, has_ids=self._gives_ids), "refusal": None}


class Feed:
    """Text of a stream before its stop strings: holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.num_sent = 0

    def push(self, text: str) -> str:
        """Return the text that can be sent now."""
        if not self._stops:
            self.num_sent += len(text)
            return text
        self._held += text
        at = min((place for stop in self._stops if (place := self._held.find(stop)) >= 0), default=None)
        if at is None:
            at = len(self._held) - max((overlap(self._held, stop) for stop in self._stops), default=0)
        sent, self._held = self._held[:at], self._held[at:]
        self.num_sent += len(sent)
        return sent


async def chunks_of(
    index: int, choice: Choice, shape: Shape, num_top: int | None, stops: Sequence[str]
) -> AsyncIterator[list[Chunk]]:
    """Yield the chunks of one answer as its tokens are decoded, those of tokens that came together as one list, which
    may be empty; num_top None: without log-probabilities.

    Raises the EngineError that ends it.
    """
    job, feed, is_first = choice.trial.job, Feed(stops), True
    async with aclosing(arrivals(job)) as found:
        async for here in found:
            chunks = await _first(index, choice, shape) if is_first else []
            is_first = False
            for one in shown(job.steps, num_top, here):
                text = feed.push(shape.marks.get(one.id, "") + one.text)
                chunks += shape.chunks(index, AnswerPart(text, () if num_top is None else (one,), (one.id,)))
            yield [Chunk(index, chunk) for chunk in chunks]
    done = choice.completion
    chunks = await _first(index, choice, shape) if is_first else []
    rest = text_of(done, shape.marks)[feed.num_sent :]
    chunks += shape.chunks(index, AnswerPart(rest, finish=FINISHED[done.finish_reason]))
    yield [Chunk(index, chunk) for chunk in chunks]


async def _first(index: int, choice: Choice, shape: Shape) -> list[dict[str, Any]]:
    """Return the chunk before the first token, if there is one; where a long prompt has log-probabilities, a thread
    makes it."""
    if len(choice.trial.job.prompt_steps) < MANY_TOKENS:
        found = shape.first(index, choice)
    else:
        found = await asyncio.to_thread(shape.first, index, choice)
    return [] if found is None else [found]


def _usage(completions: Sequence[Completion], n: int) -> dict[str, Any]:
    """Return the token counts: each prompt once, every answer."""
    num_prompt = sum(done.timings.num_prompt for done in completions[::n])
    num_generated = sum(done.timings.num_generated for done in completions)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": sum(done.timings.num_cached for done in completions[::n])},
    }
