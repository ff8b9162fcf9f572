"""What servers send of the tokens of an answer, in the forms of their APIs, read into one form."""

import math
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import msgspec

from engine.errors import ServerFailed
from engine.specs import MAX_ID, MAX_RECORDED

MOST_PIECE_BYTES = 1 << 16
"""Of one token; servers without log-probabilities may send a whole answer as one."""
MOST_TOKENS = 4096
"""In one event, but for the tokens of a prompt."""
_LOWEST_LOGPROB = -9999.0
"""What servers send for minus infinity, which JSON cannot express."""
_ESCAPED = re.compile(r"(?:\\x[0-9a-fA-F]{2}){1,256}")
_NULL = b"null"
_NO_BYTES, _NO_IDS = msgspec.Raw(_NULL), msgspec.Raw(_NULL)
_LOGPROB = attrgetter("logprob")

Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
Logprob = Annotated[float, msgspec.Meta(le=1e-3)]
Text = Annotated[str, msgspec.Meta(max_length=MOST_PIECE_BYTES)]
_Bytes = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=256)]], msgspec.Meta(max_length=MOST_PIECE_BYTES)]
_MOST_TOP = msgspec.Meta(max_length=MAX_RECORDED + 1)
T = TypeVar("T")
Name = str | tuple[str | None, bytes] | None
"""What tells a token of a server without ids apart from others: its text, and its bytes as JSON where it has them."""


class SentCandidate(msgspec.Struct, gc=False, rename={"raw": "bytes"}):
    """A candidate: its id, None where the server returns none, its text, and its log-probability, None likewise.

    raw: its bytes as JSON. `piece` reads them, which is not needed for a token whose id is known.
    """

    id: Id | None = None
    token: Text | None = None
    logprob: Logprob | None = None
    raw: msgspec.Raw = _NO_BYTES

    @property
    def nats(self) -> float:
        """Its log-probability as it is recorded: NaN where it is not reported, at most 0."""
        return math.nan if self.logprob is None else _recorded(self.logprob)

    @property
    def name(self) -> Name:
        """What tells it apart from other tokens of a server without ids: text and bytes."""
        return self.token if self.raw is _NO_BYTES else (self.token, bytes(self.raw))

    @property
    def piece(self) -> bytes | None:
        """Its bytes, None where the server sends neither them nor a text. Raises ServerFailed."""
        return piece_of(self.name)


class SentToken(SentCandidate, gc=False):
    """A token with its candidates, as they came."""

    top_logprobs: Annotated[list[SentCandidate], _MOST_TOP] | None = None

    @property
    def top(self) -> Sequence[SentCandidate]:
        """Its candidates that have a log-probability, most probable first."""
        candidates = self.top_logprobs or []
        if _is_in_order([one.logprob for one in candidates]):
            return candidates
        return sorted([one for one in candidates if one.logprob is not None], key=_LOGPROB, reverse=True)

    def named(self, k: int) -> tuple[Sequence[Name], list[float]]:
        """Return the names of the first k of `top`, and their log-probabilities as they are recorded."""
        top = self.top[:k]
        return [one.token if one.raw is _NO_BYTES else one.name for one in top], nats_of(top)


class _ColumnToken(SentToken, gc=False):
    """A token of OpenAI's legacy form. Its candidates stay one dict, of log-probabilities by text: nothing needs an
    object for each while an answer is read.
    """

    by_text: dict[Text, Logprob | None] = {}

    @property
    def top(self) -> Sequence[SentCandidate]:
        return SentToken(top_logprobs=[SentCandidate(None, *one) for one in self.by_text.items()]).top

    def named(self, k: int) -> tuple[Sequence[Name], list[float]]:
        logprobs = list(self.by_text.values())
        if not _is_in_order(logprobs):
            return super().named(k)
        return list(self.by_text)[:k], _all_recorded(logprobs[:k])  # type: ignore[arg-type]  # none of them is None


def _is_in_order(logprobs: list[float | None]) -> bool:
    """Return whether all candidates have a log-probability, and the most probable is the first."""
    try:
        return logprobs == sorted(logprobs, reverse=True) and logprobs != [None]  # type: ignore[type-var]
    except TypeError:
        return False


def nats_of(top: Sequence[SentCandidate]) -> list[float]:
    """Return the log-probabilities of candidates as they are recorded, which SentToken.top has put in order."""
    return _all_recorded([one.logprob for one in top])  # type: ignore[misc]  # those of `top` are not None


def _all_recorded(logprobs: list[float]) -> list[float]:
    """Return log-probabilities, the highest first, as they are recorded."""
    if logprobs and (logprobs[0] > 0.0 or logprobs[-1] <= _LOWEST_LOGPROB):
        return [_recorded(one) for one in logprobs]
    return logprobs


def _recorded(logprob: float) -> float:
    return -math.inf if logprob <= _LOWEST_LOGPROB else min(logprob, 0.0)


def piece_of(name: Name) -> bytes | None:
    """Return the bytes of a token by its name, None where the server sends neither them nor a text.

    Raises ServerFailed.
    """
    if isinstance(name, tuple):
        name, raw = name
        if raw != _NULL:
            return bytes(decoded(raw, _BYTES))
    return None if name is None else _unescaped(name)


class Sent(msgspec.Struct, gc=False):
    """What one event of a stream brings.

    text: what the tokens add to the answer. prompt: the tokens of the prompt, where they are scored. finish: why the
    answer ended, "" while it goes on. The counts are those of the server, None where it does not report them. error:
    what it says of its failure.
    """

    tokens: Sequence[SentToken] = ()
    text: str = ""
    prompt: Sequence[SentToken] = ()
    finish: str = ""
    num_prompt: int | None = None
    num_cached: int | None = None
    num_generated: int | None = None
    error: Any = None


class _NativeEvent(msgspec.Struct, gc=False):
    content: Any = None
    tokens: list[Id] | None = None
    stop: Any = None
    tokens_predicted: Any = None
    completion_probabilities: list[SentToken] | None = None
    stop_type: Any = None
    tokens_evaluated: Any = None
    timings: Any = None
    error: Any = None


class _Logprobs(msgspec.Struct, gc=False):
    """OpenAI's `logprobs`: entries with bytes, or the legacy columns of texts."""

    content: list[SentToken] | None = None
    tokens: list[Text] | None = None
    token_logprobs: list[Logprob | None] | None = None
    top_logprobs: list[Annotated[dict[Text, Logprob | None], _MOST_TOP] | None] | None = None


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(msgspec.Struct, gc=False):
    text: Any = None
    delta: _Delta | None = None
    message: _Delta | None = None
    logprobs: _Logprobs | None = None
    finish_reason: Any = None
    token_ids: list[Id] | None = None
    prompt_token_ids: msgspec.Raw = _NO_IDS


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_BYTES: msgspec.json.Decoder[list[int]] = msgspec.json.Decoder(_Bytes)
_NATIVE, _OPENAI = msgspec.json.Decoder(_NativeEvent), msgspec.json.Decoder(_Event)


def decoded(content: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Return what JSON holds. Raises ServerFailed where it is none, or has another form than the decoder's."""
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        raise ServerFailed(f"the server sent an answer in another form than its API says ({error})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServerFailed(f"the server's answer is not JSON ({error})") from None


def of_native(content: bytes) -> Sent:
    """Read an event of llama-server's own /completion. Raises ServerFailed."""
    event = decoded(content, _NATIVE)
    tokens = event.completion_probabilities or [SentToken(one) for one in event.tokens or ()]
    text, num = _text(event.content), _count(event.tokens_predicted)
    if event.stop is not True:
        return Sent(_few(tokens), text, num_generated=num, error=event.error)
    timings = event.timings
    return Sent(
        _few(tokens),
        text,
        finish="length" if event.stop_type == "limit" else "stop",
        num_prompt=_count(event.tokens_evaluated),
        num_cached=_count(timings.get("cache_n")) if isinstance(timings, dict) else None,
        num_generated=num,
        error=event.error,
    )


def of_completion(content: bytes) -> Sent:
    """Read an event of /v1/completions. Raises ServerFailed."""
    event = decoded(content, _OPENAI)
    if not event.choices:
        return _counted(Sent(), event)
    choice = event.choices[0]
    tokens = _of_logprobs(choice.logprobs)
    if choice.prompt_token_ids is not _NO_IDS and bytes(choice.prompt_token_ids) != _NULL:  # before the first token
        return _counted(Sent(prompt=tokens), event)
    tokens = tokens or [SentToken(one) for one in choice.token_ids or ()]
    return _counted(Sent(_few(tokens), _text(choice.text), finish=_finish(choice)), event)


def of_chat(content: bytes) -> Sent:
    """Read an event of /v1/chat/completions; what the model thinks before it answers is part of the text.

    Raises ServerFailed.
    """
    event = decoded(content, _OPENAI)
    if not event.choices:
        return _counted(Sent(), event)
    choice = event.choices[0]
    text = ""
    if (delta := choice.delta or choice.message) is not None:
        text = (_text(delta.reasoning_content) or _text(delta.reasoning)) + _text(delta.content)
    return _counted(Sent(_few(_of_logprobs(choice.logprobs)), text, finish=_finish(choice)), event)


def _counted(sent: Sent, event: _Event) -> Sent:
    """Return what an event brings, with its counts and its error, which most events do not have."""
    sent.error, usage = event.error, event.usage
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details")
        sent.num_prompt = _count(usage.get("prompt_tokens"))
        sent.num_cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        sent.num_generated = _count(usage.get("completion_tokens"))
    return sent


def _few(tokens: list[SentToken]) -> list[SentToken]:
    """Return the generated tokens of one event. Raises ServerFailed where they are too many."""
    if len(tokens) > MOST_TOKENS:
        raise ServerFailed(f"the server sent {len(tokens):,} tokens in one event; at most {MOST_TOKENS:,} are read")
    return tokens


def _finish(choice: _Choice) -> str:
    reason = choice.finish_reason
    return "" if not isinstance(reason, str) else "length" if reason == "length" else "stop"


def _of_logprobs(sent: _Logprobs | None) -> list[SentToken]:
    """Return the tokens of OpenAI's `logprobs`."""
    if sent is None:
        return []
    if sent.content:
        return sent.content
    texts, logprobs = sent.tokens or [], sent.token_logprobs or []
    tops = sent.top_logprobs or [None] * len(texts)
    if not len(texts) == len(logprobs) == len(tops):
        raise ServerFailed("the server sent lists of log-probabilities of different lengths")
    return [
        _ColumnToken(None, text, logprob, by_text=top or {})
        for text, logprob, top in zip(texts, logprobs, tops, strict=True)
    ]


def _count(given: object) -> int | None:
    return given if type(given) is int and 0 <= given <= MAX_ID else None


def _text(given: object) -> str:
    return given if isinstance(given, str) else ""


def _unescaped(text: str) -> bytes:
    """Return the bytes of a token's text; OpenAI writes those that are no whole character as bytes:\\xf0."""
    if text.startswith("bytes:") and _ESCAPED.fullmatch(escaped := text.removeprefix("bytes:")):
        return bytes.fromhex(escaped.replace("\\x", ""))
    return text.encode("utf-8", "replace")
