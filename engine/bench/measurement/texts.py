"""Texts of an embedding sample: the user's own, or generated from the words of the bundled sentences."""

import itertools
import math

import numpy as np

from engine.bench.planning.plan import TextWorkload
from engine.embedding.sentences import shipped_sentences

_LONGEST = 16
"""Maximum length of a text, as a multiple of the average."""


class Texts:
    """Endless stream of texts; the same seed gives the same texts, None different ones each time."""

    def __init__(self, workload: TextWorkload, seed: int | None) -> None:
        self._workload = workload
        self._random = np.random.default_rng(seed)
        texts = workload.texts
        first = int(self._random.integers(len(texts))) if texts else 0
        self._own = itertools.cycle(texts[first:] + texts[:first])
        self._words = " ".join(shipped_sentences()).split()

    def take(self, num: int | None = None) -> list[str]:
        """Return the next `num` texts; by default as many as one request of the workload has."""
        asked = self._workload
        num = asked.num_texts if num is None else num
        if asked.texts:
            return list(itertools.islice(self._own, num))
        # The logarithm of a log-normal's mean is above that of its median by half the variance.
        lengths = self._random.lognormal(math.log(asked.num_words) - asked.spread**2 / 2, asked.spread, num)
        words = np.clip(np.rint(lengths), 1, _LONGEST * asked.num_words).astype(int).tolist()
        starts = self._random.integers(0, len(self._words), num).tolist()
        return [self._text(start, length) for start, length in zip(starts, words, strict=True)]

    def _text(self, start: int, length: int) -> str:
        return " ".join(self._words[(start + place) % len(self._words)] for place in range(length))
