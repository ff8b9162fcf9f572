"""What servers send of the tokens of an answer, in the forms of their APIs, read into one form."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine.errors import ServerFailed
from engine.specs import MAX_ID, MAX_RECORDED

MOST_PIECE_BYTES = 1 << 16
"""Of one token; servers without log-probabilities may send a whole answer as one."""
MOST_TOKENS = 4096
"""In one event, but for the tokens of a prompt."""
_LOWEST_LOGPROB = -9999.0
"""What servers send for minus infinity, which JSON cannot express."""
_ESCAPED = re.compile(r"(?:\\x[0-9a-fA-F]{2}){1,256}")


class SentCandidate(NamedTuple):
    """A candidate: its id, None where the server returns none, its bytes, None likewise, and its log-probability."""

    id: int | None
    piece: bytes | None
    logprob: float


class SentToken(NamedTuple):
    """A token; logprob NaN where it is not reported; top: its candidates, most probable first."""

    id: int | None
    piece: bytes | None
    logprob: float = math.nan
    top: tuple[SentCandidate, ...] = ()


class Sent(NamedTuple):
    """What one event of a stream brings.

    text: what the tokens add to the answer. prompt: the tokens of the prompt, where they are scored. finish: why the
    answer ended, "" while it goes on. The counts are those of the server, None where it does not report them.
    """

    tokens: Sequence[SentToken] = ()
    text: str = ""
    prompt: Sequence[SentToken] = ()
    finish: str = ""
    num_prompt: int | None = None
    num_cached: int | None = None
    num_generated: int | None = None


def of_native(event: Mapping[str, Any]) -> Sent:
    """Read an event of llama-server's own /completion."""
    tokens = _of_entries(event.get("completion_probabilities"), "top_logprobs")
    text = _text(event.get("content"))
    if not tokens:
        tokens = [SentToken(_id(one), None) for one in _list(event.get("tokens"))]
    tokens = _few(tokens)
    if event.get("stop") is not True:
        return Sent(tokens, text, num_generated=_count(event.get("tokens_predicted")))
    timings = event.get("timings")
    return Sent(
        tokens,
        text,
        finish={"limit": "length"}.get(str(event.get("stop_type")), "stop"),
        num_prompt=_count(event.get("tokens_evaluated")),
        num_cached=_count(timings.get("cache_n")) if isinstance(timings, dict) else None,
        num_generated=_count(event.get("tokens_predicted")),
    )


def of_completion(event: Mapping[str, Any]) -> Sent:
    """Read an event of /v1/completions."""
    sent, choice = _counted(event)
    if choice is None:
        return sent
    tokens = _of_logprobs(choice.get("logprobs"))
    if choice.get("prompt_token_ids") is not None:  # the chunk before the first token
        return sent._replace(prompt=tokens)
    ids = _list(choice.get("token_ids"))
    if not tokens:
        tokens = [SentToken(_id(one), None) for one in ids]
    return sent._replace(tokens=_few(tokens), text=_text(choice.get("text")), finish=_finish(choice))


def of_chat(event: Mapping[str, Any]) -> Sent:
    """Read an event of /v1/chat/completions; what the model thinks before it answers is part of the text."""
    sent, choice = _counted(event)
    if choice is None:
        return sent
    delta = choice.get("delta") or choice.get("message")
    text = ""
    if isinstance(delta, dict):
        thought = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        text = thought + _text(delta.get("content"))
    return sent._replace(tokens=_few(_of_logprobs(choice.get("logprobs"))), text=text, finish=_finish(choice))


def _few(tokens: list[SentToken]) -> list[SentToken]:
    """Return the generated tokens of one event. Raises ServerFailed where they are too many."""
    if len(tokens) > MOST_TOKENS:
        raise ServerFailed(f"the server sent {len(tokens):,} tokens in one event; at most {MOST_TOKENS:,} are read")
    return tokens


def _counted(event: Mapping[str, Any]) -> tuple[Sent, Mapping[str, Any] | None]:
    """Return the counts of an event, and its choice, None where it has none."""
    usage, choices = event.get("usage"), event.get("choices")
    sent = Sent()
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details")
        sent = Sent(
            num_prompt=_count(usage.get("prompt_tokens")),
            num_cached=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
            num_generated=_count(usage.get("completion_tokens")),
        )
    choice = choices[0] if isinstance(choices, list) and choices else None
    return sent, choice if isinstance(choice, dict) else None


def _finish(choice: Mapping[str, Any]) -> str:
    reason = choice.get("finish_reason")
    return "" if not isinstance(reason, str) else "length" if reason == "length" else "stop"


def _of_logprobs(given: object) -> list[SentToken]:
    """Return the tokens of OpenAI's `logprobs`: entries with bytes, or the legacy columns of texts."""
    if not isinstance(given, dict):
        return []
    if given.get("content"):
        return _of_entries(given["content"], "top_logprobs")
    texts, logprobs = _list(given.get("tokens")), _list(given.get("token_logprobs"))
    tops = _list(given.get("top_logprobs")) or [None] * len(texts)
    if not len(texts) == len(logprobs) == len(tops):
        raise ServerFailed("the server sent lists of log-probabilities of different lengths")
    return [
        SentToken(None, _piece(text), _logprob(logprob), _by_text(top))
        for text, logprob, top in zip(texts, logprobs, tops, strict=True)
    ]


def _by_text(top: object) -> tuple[SentCandidate, ...]:
    if top is None:
        return ()
    if not isinstance(top, dict):
        raise ServerFailed("the server sent candidates that are not an object")
    return _sorted([SentCandidate(None, _piece(text), _logprob(logprob)) for text, logprob in top.items()])


def _of_entries(given: object, name: str) -> list[SentToken]:
    """Return the tokens of entries that have their candidates under `name`."""
    return [
        SentToken(*_entry(one), _sorted([SentCandidate(*_entry(each)) for each in _list(one.get(name))]))
        for one in _entries(given)
    ]


def _entries(given: object) -> list[Mapping[str, Any]]:
    entries = _list(given)
    if not all(isinstance(one, dict) for one in entries):
        raise ServerFailed("the server sent log-probabilities in another form than its API says")
    return entries


def _entry(one: object) -> tuple[int | None, bytes | None, float]:
    if not isinstance(one, dict):
        raise ServerFailed("the server sent candidates in another form than its API says")
    number, raw = one.get("id"), one.get("bytes")
    piece = _piece(one.get("token")) if raw is None else _bytes(raw)
    return None if number is None else _id(number), piece, _logprob(one.get("logprob"))


def _sorted(candidates: list[SentCandidate]) -> tuple[SentCandidate, ...]:
    """Return candidates in order, the most probable first."""
    if len(candidates) > MAX_RECORDED + 1:
        raise ServerFailed(
            f"the server sent {len(candidates):,} candidates of a token; at most {MAX_RECORDED:,} are read"
        )
    return tuple(sorted(candidates, key=lambda one: -one.logprob))


def _list(given: object) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise ServerFailed("the server sent tokens that are not a list")
    return given


def _id(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MAX_ID:
        raise ServerFailed(f"the server sent {str(given)[:40]!r} as a token id")
    return given


def _logprob(given: object) -> float:
    """Return a log-probability: NaN where it is not reported, at most 0."""
    if given is None:
        return math.nan
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given) or given > 1e-3:
        raise ServerFailed(f"the server sent {str(given)[:40]!r} as a log-probability")
    return -math.inf if given <= _LOWEST_LOGPROB else min(float(given), 0.0)


def _count(given: object) -> int | None:
    is_count = isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= MAX_ID
    return given if is_count else None  # type: ignore[return-value]  # is_count says that it is an int


def _text(given: object) -> str:
    return given if isinstance(given, str) else ""


def _piece(given: object) -> bytes:
    """Return the bytes of a token's text; OpenAI writes those that are no whole character as bytes:\\xf0."""
    if not isinstance(given, str) or len(given) > MOST_PIECE_BYTES:
        raise ServerFailed("the server sent a token without a text, or with a very long one")
    escaped = given.removeprefix("bytes:")
    if escaped != given and _ESCAPED.fullmatch(escaped):
        return bytes.fromhex(escaped.replace("\\x", ""))
    return given.encode("utf-8", "replace")


def _bytes(given: object) -> bytes:
    if not isinstance(given, list) or len(given) > MOST_PIECE_BYTES:
        raise ServerFailed("the server sent the bytes of a token in another form than its API says")
    try:
        return bytes(given)
    except (ValueError, TypeError):
        raise ServerFailed("the server sent the bytes of a token in another form than its API says") from None
