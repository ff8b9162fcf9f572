"""Log-probabilities of tokens in OpenAI's two forms: the legacy one of completions, and that of chats."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.step_parts import INSPECTED
from engine.steps import StepTable
from engine.vocabulary import Vocabulary

MOST_TEXTS = 1 << 14
"""Texts of tokens that are kept: candidates are few words, again and again."""


class Shown(NamedTuple):
    """A token, the text it adds, its log-probability (None for a prompt's first) and its candidates, best first.

    Log-probabilities are float32, so that the chosen token's equals that of the candidate that it is, and finite.
    """

    id: int
    text: str
    logprob: float | None
    top: tuple[tuple[int, float], ...]


def shown(steps: StepTable, num_top: int | None, here: range | None = None) -> list[Shown]:
    """Return successive steps, by default all, each with its `num_top` most probable candidates, and the chosen token
    if it is not among them; num_top None: without log-probabilities.

    Columns are read for all of them at once: one by one, numpy takes most of the time.
    """
    here = range(len(steps)) if here is None else here
    rows = slice(here.start, here.stop)
    records, texts = steps.records[rows], steps.texts_of(here)
    ids = records["id"].tolist()
    if num_top is None:
        return [Shown(token, text, None, ()) for token, text in zip(ids, texts, strict=True)]
    logprobs = np.where(records["flags"] & INSPECTED, records["logprob"], np.nan).astype(np.float32)
    columns = _finite(logprobs), steps.top_ids[rows].tolist(), _finite(steps.top_logprobs[rows])
    return [_shown(*one, num_top) for one in zip(ids, texts, *columns, strict=True)]


def _shown(token: int, text: str, logprob: float, ids: list[int], logprobs: list[float], num_top: int) -> Shown:
    """Return one step. logprob: NaN where it has none; ids, logprobs: its candidates, with -1 behind the last."""
    if math.isnan(logprob):
        return Shown(token, text, None, ())
    num = min(num_top, ids.index(-1)) if -1 in ids else num_top
    if token in ids:
        logprob = logprobs[ids.index(token)]
    top = tuple(zip(ids[:num], logprobs[:num], strict=True))
    return Shown(token, text, logprob, top if token in ids[:num] else (*top, (token, logprob)))


def _finite(logprobs: npt.NDArray[np.float32]) -> Any:
    """Return the numbers as lists, with OpenAI's -9999.0 for minus infinity, which JSON has not."""
    return np.where(np.isneginf(logprobs), np.float32(-9999.0), logprobs).tolist()


def token_text(vocabulary: Vocabulary, token: int) -> str:
    """Return a token as clients expect it: control tokens by name, incomplete characters as `bytes:\\xf0`."""
    name = vocabulary.names.get(token)
    if name is not None:
        return name
    return _piece_text(vocabulary.pieces[token])


@lru_cache(MOST_TEXTS)
def _piece_text(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def legacy(vocabulary: Vocabulary, tokens: Sequence[Shown], offset: int = 0) -> dict[str, Any]:
    """Return `logprobs` of a completion; `offset`: characters of the text before the first token."""
    texts = [token_text(vocabulary, one.id) for one in tokens]
    offsets = []
    for one in tokens:
        offsets.append(offset)
        offset += len(one.text)
    return {
        "tokens": texts,
        "token_logprobs": [one.logprob for one in tokens],
        "top_logprobs": [_by_text(vocabulary, one) for one in tokens],
        "text_offset": offsets,
    }


def content(
    vocabulary: Vocabulary, tokens: Iterable[Shown], num_top: int, *, has_ids: bool = False
) -> list[dict[str, Any]]:
    """Return `logprobs.content` of a chat. has_ids: with the id of each token, as llama-server sends it."""
    return [
        {
            **_entry(vocabulary, one.id, one.logprob, has_id=has_ids),
            "top_logprobs": [_entry(vocabulary, *each, has_id=has_ids) for each in one.top[:num_top]],
        }
        for one in tokens
    ]


def of_prompt(vocabulary: Vocabulary, steps: StepTable, num_top: int) -> list[dict[str, Any] | None]:
    """Return `prompt_logprobs` in vLLM's form: for each token the candidates by id, the token itself first."""
    ranks = steps.records["rank"].tolist()
    return [
        None if one.logprob is None else _by_id(vocabulary, one, rank or None, num_top)
        for one, rank in zip(shown(steps, num_top), ranks, strict=True)
    ]


def _by_id(vocabulary: Vocabulary, given: Shown, rank: int | None, num_top: int) -> dict[str, Any]:
    ranked = {token: (place, logprob) for place, (token, logprob) in enumerate(given.top[:num_top], 1)}
    both = {given.id: (rank, given.logprob)} | {token: one for token, one in ranked.items() if token != given.id}
    return {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": token_text(vocabulary, token)}
        for token, (rank, logprob) in both.items()
    }


def _entry(vocabulary: Vocabulary, token: int, logprob: float | None, *, has_id: bool) -> dict[str, Any]:
    return {
        **({"id": token} if has_id else {}),
        "token": token_text(vocabulary, token),
        "logprob": logprob,
        "bytes": list(vocabulary.pieces[token]),
    }


def _by_text(vocabulary: Vocabulary, one: Shown) -> dict[str, float] | None:
    """Return the candidates by text; of two tokens with the same text the more probable one."""
    if one.logprob is None:
        return None
    found: dict[str, float] = {}
    for token, logprob in one.top:
        found.setdefault(token_text(vocabulary, token), logprob)
    return found
