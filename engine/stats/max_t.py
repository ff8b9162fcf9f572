"""Step-down max-T: several comparisons with one control in the same rounds, tested together by sign flips."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from engine.stats.intervals import Floats

MOST_EXACT = 13
"""Number of rounds up to which all 2^(n - 1) flips are tried, a flip and its opposite being one; beyond it, random
ones."""
NUM_FLIPS = 19_999
_AT_ONCE = 4_096
_TIE = 1e-5
Signs = npt.NDArray[np.float32]


def max_t(differences: Floats, *, seed: int = 0, num_flips: int = NUM_FLIPS) -> Floats:
    """Return p-values, shape (m,), of "the column is symmetric about 0", corrected for the number of columns.

    differences: shape (n rounds, m columns), NaN where a column lacks the round. The statistic of a column is |sum of
    d| / sqrt(sum of d^2) over its own rounds, so that a noisy column does not mask a steady one. One sign flips a round
    in all columns at once, which preserves what they share, such as the control. The p-value of a column is the share
    of flips in which the largest statistic among it and all columns with smaller ones reaches its own (Westfall and
    Young 1993, step-down max-T); the correction is valid whichever of the columns differ. A column without a value
    other than 0 gets 1.
    """
    given = np.nan_to_num(differences)
    lengths = np.sqrt((given**2).sum(0))
    scaled = (given / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    seen = np.abs(scaled.sum(0, dtype=np.float64))
    order = np.argsort(seen, kind="stable")
    columns, reached = scaled.T[order], seen[order] - _TIE
    num_beyond, num_tried = np.zeros(len(seen)), 0
    for signs in _signs(len(given), seed, num_flips):
        largest = np.zeros(signs.shape[1], np.float32)
        for column, statistics in enumerate(columns @ signs):
            np.maximum(largest, np.abs(statistics), out=largest)
            num_beyond[column] += np.count_nonzero(largest >= reached[column])
        num_tried += signs.shape[1]
    p_values = np.empty(len(seen))
    p_values[order] = np.maximum.accumulate((num_beyond / max(num_tried, 1))[::-1])[::-1]
    p_values[lengths == 0] = 1.0
    return p_values


def _signs(num_rounds: int, seed: int, num_flips: int) -> Iterator[Signs]:
    """Yield flips as columns of signs, shape (rounds, flips) each time; the observed signs are among them."""
    if num_rounds <= MOST_EXACT:
        numbers = np.arange(1 << max(num_rounds - 1, 0))
        yield (1 - 2 * (numbers >> np.arange(num_rounds)[:, None] & 1)).astype(np.float32)
        return
    yield np.ones((num_rounds, 1), np.float32)
    random = np.random.default_rng(seed)
    for start in range(0, num_flips, _AT_ONCE):
        num = min(_AT_ONCE, num_flips - start)
        bits = random.integers(0, 256, (num_rounds, -(-num // 8)), np.uint8)
        yield 1 - 2 * np.unpackbits(bits, axis=1, count=num).astype(np.float32)
