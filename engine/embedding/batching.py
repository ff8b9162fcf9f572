"""Which texts are computed together: those of like length, so that little is padding. Pure; sizes in, places out."""

from collections.abc import Sequence

import numpy as np


def batches(lengths: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Places of texts, the longest first, in batches of at most `tokens_per_batch` tokens with their padding.

    Each batch is padded to its first text; a text longer than the budget is a batch of its own.
    """
    done: list[list[int]] = []
    for place in np.argsort(-np.asarray(lengths, np.int64), kind="stable").tolist():
        if done and max(lengths[done[-1][0]], 1) * (len(done[-1]) + 1) <= tokens_per_batch:
            done[-1].append(place)
        else:
            done.append([place])
    return done


def chunks(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Places of texts, the longest first, in chunks whose sizes add up to at most `most`, or of one text."""
    done: list[list[int]] = []
    total = 0
    for place in np.argsort(-np.asarray(sizes, np.int64), kind="stable").tolist():
        if done and total + sizes[place] <= most:
            done[-1].append(place)
            total += sizes[place]
        else:
            done.append([place])
            total = sizes[place]
    return done
