"""Log-probabilities of tokens in OpenAI's two forms: the legacy one of completions, and that of chats."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.step_parts import INSPECTED
from engine.steps import StepTable
from engine.vocabulary import Vocabulary

LEAST = -9999.0
"""What OpenAI writes for minus infinity, which JSON has not."""


class Shown(NamedTuple):
    """A token, the text it adds, its log-probability (None for a prompt's first) and its candidates, best first.

    Log-probabilities are float32, so that the chosen token's equals that of the candidate that it is, and finite.
    """

    id: int
    text: str
    logprob: float | None
    top_ids: Sequence[int] = ()
    top_logprobs: Sequence[float] = ()


class TokenTexts(dict[int, str]):
    """Texts of tokens as clients expect them: control tokens by name, incomplete characters as `bytes:\\xf0`.

    Each is made when it is first read: candidates are few tokens, again and again.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def __missing__(self, token: int) -> str:
        name = self.vocabulary.names.get(token)
        text = self[token] = _piece_text(self.vocabulary.pieces[token]) if name is None else name
        return text


def shown(steps: StepTable, num_top: int | None, here: range | None = None) -> list[Shown]:
    """Return successive steps, by default all, each with its `num_top` most probable candidates, and the chosen token
    if it is not among them; num_top None: without log-probabilities.

    Columns are read for all of them at once, and as few as there can be: numpy takes most of the time of a short piece.
    """
    here = range(len(steps)) if here is None else here
    rows = slice(here.start, here.stop)
    records, texts = steps.records[rows], steps.texts_of(here)
    ids = records["id"].tolist()
    if num_top is None:
        return [Shown(token, text, None) for token, text in zip(ids, texts, strict=True)]
    columns = records["flags"], records["logprob"].astype(np.float32), steps.top_ids[rows], steps.top_logprobs[rows]
    rest: list[list[Any]] = [column.tolist() for column in columns]
    return [_shown(num_top, *one) for one in zip(ids, texts, *rest, strict=True)]


def _shown(
    num_top: int, token: int, text: str, flags: int, logprob: float, ids: list[int], logprobs: list[float]
) -> Shown:
    """Return one step. ids, logprobs: its candidates, with -1 behind the last."""
    if not flags & INSPECTED or math.isnan(logprob):
        return Shown(token, text, None)
    if token in ids:
        logprob = logprobs[ids.index(token)]
    num = min(num_top, ids.index(-1)) if -1 in ids else num_top
    del ids[num:], logprobs[num:]
    if token not in ids:
        ids.append(token)
        logprobs.append(logprob)
    if -math.inf in logprobs:
        logprob, logprobs = max(logprob, LEAST), [max(one, LEAST) for one in logprobs]
    return Shown(token, text, logprob, ids, logprobs)


def _piece_text(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def legacy(texts: TokenTexts, tokens: Sequence[Shown], offset: int = 0) -> dict[str, Any]:
    """Return `logprobs` of a completion; `offset`: characters of the text before the first token."""
    offsets = []
    for one in tokens:
        offsets.append(offset)
        offset += len(one.text)
    return {
        "tokens": [texts[one.id] for one in tokens],
        "token_logprobs": [one.logprob for one in tokens],
        "top_logprobs": [_by_text(texts, one) for one in tokens],
        "text_offset": offsets,
    }


def content(texts: TokenTexts, tokens: Iterable[Shown], num_top: int, *, has_ids: bool = False) -> list[dict[str, Any]]:
    """Return `logprobs.content` of a chat. has_ids: with the id of each token, as llama-server sends it."""
    return [
        {
            **_entry(texts, one.id, one.logprob, has_id=has_ids),
            "top_logprobs": [_entry(texts, *each, has_id=has_ids) for each in _best(one, num_top)],
        }
        for one in tokens
    ]


def of_prompt(texts: TokenTexts, steps: StepTable, num_top: int) -> list[dict[str, Any] | None]:
    """Return `prompt_logprobs` in vLLM's form: for each token the candidates by id, the token itself first."""
    ranks = steps.records["rank"].tolist()
    return [
        None if one.logprob is None else _by_id(texts, one, rank or None, num_top)
        for one, rank in zip(shown(steps, num_top), ranks, strict=True)
    ]


def _best(one: Shown, num_top: int) -> Iterable[tuple[int, float]]:
    """Return the candidates without a chosen token that is not among the `num_top` most probable."""
    return zip(one.top_ids[:num_top], one.top_logprobs[:num_top], strict=True)


def _by_id(texts: TokenTexts, given: Shown, rank: int | None, num_top: int) -> dict[str, Any]:
    ranked = {token: (place, logprob) for place, (token, logprob) in enumerate(_best(given, num_top), 1)}
    both = {given.id: (rank, given.logprob)} | {token: one for token, one in ranked.items() if token != given.id}
    return {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": texts[token]}
        for token, (rank, logprob) in both.items()
    }


def _entry(texts: TokenTexts, token: int, logprob: float | None, *, has_id: bool) -> dict[str, Any]:
    entry = {"token": texts[token], "logprob": logprob, "bytes": list(texts.vocabulary.pieces[token])}
    return {"id": token, **entry} if has_id else entry


def _by_text(texts: TokenTexts, one: Shown) -> dict[str, float] | None:
    """Return the candidates by text; of two tokens with the same text the more probable one."""
    if one.logprob is None:
        return None
    written = [texts[token] for token in one.top_ids]
    found = dict(zip(written, one.top_logprobs, strict=True))
    if len(found) < len(written):  # the last one of a text was kept
        found |= dict(zip(reversed(written), reversed(one.top_logprobs), strict=True))
    return found
