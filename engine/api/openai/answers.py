"""Answers of the API: responses and chunks of streams for completions and chats, in OpenAI's shapes."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from engine.api.openai.generation import Choice
from engine.api.openai.logprobs import Shown, content, legacy, shown
from engine.api.openai.requests import ChatRequest, CompletionRequest
from engine.results import Completion

FINISHED = {"stop": "stop", "length": "length", "cancelled": "stop"}


class Shape(Protocol):
    """Shape of the answers of one endpoint. num_prompts: of the request, each of which has `n` choices."""

    def response(self, choices: Sequence[Choice], completions: Sequence[Completion]) -> dict[str, Any]: ...

    def first(self, index: int, choice: Choice) -> dict[str, Any] | None: ...

    def chunk(self, index: int, text: str, tokens: Sequence[Shown], finish: str | None) -> dict[str, Any]: ...

    def usage(self, completions: Sequence[Completion]) -> dict[str, Any]: ...


class _Answers:
    """What both endpoints have in common."""

    kind = chunk_kind = prefix = ""

    def __init__(self, asked: CompletionRequest | ChatRequest, model: str, choices: Sequence[Choice]) -> None:
        self._n = asked.n
        self._vocabulary = choices[0].trial.job.vocabulary
        self._about = {
            "id": f"{self.prefix}-{choices[0].trial.id}",
            "created": int(choices[0].trial.created_at.timestamp()),
            "model": model,
        }
        self._streams_usage = asked.includes_usage

    def _whole(self, choices: list[dict[str, Any]], completions: Sequence[Completion]) -> dict[str, Any]:
        return {**self._about, "object": self.kind, "choices": choices, "usage": _usage(completions, self._n)}

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
            [self._choice(index, *each) for index, each in enumerate(zip(choices, completions, strict=True))],
            completions,
        )

    def _choice(self, index: int, choice: Choice, done: Completion) -> dict[str, Any]:
        asked = self._asked
        given = None
        if asked.logprobs is not None:
            steps = [*done.prompt_steps, *done.steps] if asked.echo else list(done.steps)
            given = legacy(self._vocabulary, [shown(step, asked.logprobs) for step in steps])
        text = choice.prompt + done.text if asked.echo else done.text
        return {"index": index, "text": text, "logprobs": given, "finish_reason": FINISHED[done.finish_reason]}

    def first(self, index: int, choice: Choice) -> dict[str, Any] | None:
        """Return the chunk before the first token: the prompt, where it is echoed."""
        if not self._asked.echo:
            return None
        tokens: list[Shown] = []
        if self._asked.logprobs is not None:
            tokens = [shown(step, self._asked.logprobs) for step in choice.trial.job.prompt_steps]
        return self.chunk(index, choice.prompt, tokens, None)

    def chunk(self, index: int, text: str, tokens: Sequence[Shown], finish: str | None) -> dict[str, Any]:
        """Return one chunk of a stream."""
        given = None
        if self._asked.logprobs is not None:
            given = legacy(self._vocabulary, tokens, self._offsets[index])
        self._offsets[index] += sum(len(one.text) for one in tokens)
        return self._part({"index": index, "text": text, "logprobs": given, "finish_reason": finish})


class ChatAnswers(_Answers):
    """Answers of /v1/chat/completions."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, asked: ChatRequest, model: str, choices: Sequence[Choice]) -> None:
        super().__init__(asked, model, choices)
        self._asked = asked

    def response(self, choices: Sequence[Choice], completions: Sequence[Completion]) -> dict[str, Any]:
        """Return the whole response."""
        num_top = self._asked.top_logprobs or 0
        return self._whole(
            [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": done.text, "refusal": None},
                    "logprobs": self._logprobs([shown(step, num_top) for step in done.steps]),
                    "finish_reason": FINISHED[done.finish_reason],
                }
                for index, done in enumerate(completions)
            ],
            completions,
        )

    def first(self, index: int, _choice: Choice) -> dict[str, Any] | None:
        """Return the chunk before the first token: the role."""
        delta = {"role": "assistant", "content": ""}
        return self._part({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})

    def chunk(self, index: int, text: str, tokens: Sequence[Shown], finish: str | None) -> dict[str, Any]:
        """Return one chunk of a stream."""
        delta = {"content": text} if text or finish is None else {}
        return self._part({"index": index, "delta": delta, "logprobs": self._logprobs(tokens), "finish_reason": finish})

    def _logprobs(self, tokens: Sequence[Shown]) -> dict[str, Any] | None:
        if not self._asked.logprobs:
            return None
        return {"content": content(self._vocabulary, tokens, self._asked.top_logprobs or 0), "refusal": None}


class Feed:
    """Text of a stream before its stop strings: holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.num_sent = 0

    def push(self, text: str) -> str:
        """Return the text that can be sent now."""
        self._held += text
        at = min((place for stop in self._stops if (place := self._held.find(stop)) >= 0), default=None)
        if at is None:
            at = len(self._held) - max((_overlap(self._held, stop) for stop in self._stops), default=0)
        sent, self._held = self._held[:at], self._held[at:]
        self.num_sent += len(sent)
        return sent


async def chunks_of(
    index: int, choice: Choice, shape: Shape, num_top: int | None, stops: Sequence[str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of one answer as its tokens are decoded; num_top None: without log-probabilities.

    Raises the EngineError that ends it.
    """
    feed, is_first = Feed(stops), True
    async for step in choice.trial.job:
        if is_first and (begins := shape.first(index, choice)) is not None:
            yield begins
        is_first = False
        tokens = [] if num_top is None else [shown(step, num_top)]
        yield shape.chunk(index, feed.push(step.text), tokens, None)
    done = choice.completion
    if is_first and (begins := shape.first(index, choice)) is not None:
        yield begins
    yield shape.chunk(index, done.text[feed.num_sent :], [], FINISHED[done.finish_reason])


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` with which `stop` begins."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-size:])), 0)


def _usage(completions: Sequence[Completion], n: int) -> dict[str, Any]:
    """Return the token counts: each prompt once, every answer."""
    num_prompt = sum(len(done.prompt_ids) for done in completions[::n])
    num_generated = sum(len(done.steps) for done in completions)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": sum(done.timings.num_cached for done in completions[::n])},
    }
