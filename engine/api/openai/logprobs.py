"""Log-probabilities of tokens in OpenAI's two forms: the legacy one of completions, and that of chats."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.steps import TokenStep
from engine.vocabulary import Vocabulary


class Shown(NamedTuple):
    """A token, the text it adds, its log-probability (None for a prompt's first) and its candidates, best first.

    Log-probabilities are float32, so that the chosen token's equals that of the candidate that it is.
    """

    id: int
    text: str
    logprob: float | None
    top: tuple[tuple[int, float], ...]


def shown(step: TokenStep, num_top: int) -> Shown:
    """Return one step with its `num_top` most probable candidates, and the chosen token if it is not among them."""
    exact = step.logprob
    if exact is None:
        return Shown(step.id, step.text, None, ())
    candidates = step.top_logprobs
    logprob = next((value for token, value in candidates if token == step.id), float(np.float32(exact)))
    top = candidates[:num_top]
    if all(token != step.id for token, _ in top):
        top.append((step.id, logprob))
    return Shown(step.id, step.text, logprob, tuple(top))


def token_text(vocabulary: Vocabulary, token: int) -> str:
    """Return a token as clients expect it: control tokens by name, incomplete characters as `bytes:\\xf0`."""
    name = vocabulary.names.get(token)
    if name is not None:
        return name
    piece = vocabulary.pieces[token]
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
        "token_logprobs": [_finite(one.logprob) for one in tokens],
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


def of_prompt(vocabulary: Vocabulary, steps: Iterable[TokenStep], num_top: int) -> list[dict[str, Any] | None]:
    """Return `prompt_logprobs` in vLLM's form: for each token the candidates by id, the token itself first."""
    return [None if step.logprob is None else _by_id(vocabulary, step, num_top) for step in steps]


def _by_id(vocabulary: Vocabulary, step: TokenStep, num_top: int) -> dict[str, Any]:
    given = shown(step, num_top)
    ranked = {token: (rank, logprob) for rank, (token, logprob) in enumerate(given.top[:num_top], 1)}
    both = {step.id: (step.rank, given.logprob)} | {token: one for token, one in ranked.items() if token != step.id}
    return {
        str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": token_text(vocabulary, token)}
        for token, (rank, logprob) in both.items()
    }


def _entry(vocabulary: Vocabulary, token: int, logprob: float | None, *, has_id: bool) -> dict[str, Any]:
    return {
        **({"id": token} if has_id else {}),
        "token": token_text(vocabulary, token),
        "logprob": _finite(logprob),
        "bytes": list(vocabulary.pieces[token]),
    }


def _by_text(vocabulary: Vocabulary, one: Shown) -> dict[str, float | None] | None:
    """Return the candidates by text; of two tokens with the same text the more probable one."""
    if one.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for token, logprob in one.top:
        found.setdefault(token_text(vocabulary, token), _finite(logprob))
    return found


def _finite(logprob: float | None) -> float | None:
    """Return the number, with OpenAI's -9999.0 for minus infinity, which JSON has not."""
    return -9999.0 if logprob == float("-inf") else logprob
