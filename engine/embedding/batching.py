"""Batching of texts: tokenisation limited to what counts, and batches of similar length to minimise padding.

Pure functions.
"""

from collections.abc import Callable, Sequence

import numpy as np

from engine.embedding.backends import Tokens

CHARACTERS_PER_TOKEN = 8
"""More than the average of texts; where a text has longer tokens, the prefix is doubled until it suffices."""


def beginnings(tokenise: Callable[[Sequence[str]], Tokens], texts: Sequence[str], max_tokens: int) -> Tokens:
    """Tokenise texts of which at most `max_tokens` tokens count, without tokenising the whole of long texts.

    The result is as `tokenise` returns it; tokenizers may take quadratic time.
    """
    size = CHARACTERS_PER_TOKEN * max_tokens
    ids, cut = tokenise([text[:size] for text in texts])
    known_cut = set(cut)
    while more := [place for place, text in enumerate(texts) if len(text) > size and place not in known_cut]:
        size *= 2
        found = tokenise([texts[place][:size] for place in more])
        for place, row in zip(more, found.ids, strict=True):
            ids[place] = row
        known_cut.update(more[place] for place in found.cut)
    return Tokens(ids, sorted(known_cut))


def batches(lengths: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Group the indices of texts, longest first, into batches of at most `tokens_per_batch` tokens including padding.

    Each batch is padded to the length of its first text; a text longer than the budget is a batch of its own.
    """
    done: list[list[int]] = []
    for place in np.argsort(-np.asarray(lengths, np.int64), kind="stable").tolist():
        if done and max(lengths[done[-1][0]], 1) * (len(done[-1]) + 1) <= tokens_per_batch:
            done[-1].append(place)
        else:
            done.append([place])
    return done


def chunks(sizes: Sequence[int], most: int, most_texts: int | None = None) -> list[list[int]]:
    """Group the indices of texts, longest first, into chunks whose sizes sum to at most `most`, or of one text.

    most_texts: of a chunk, None for any number.
    """
    done: list[list[int]] = []
    total = 0
    for place in np.argsort(-np.asarray(sizes, np.int64), kind="stable").tolist():
        if done and total + sizes[place] <= most and len(done[-1]) != most_texts:
            done[-1].append(place)
            total += sizes[place]
        else:
            done.append([place])
            total = sizes[place]
    return done
