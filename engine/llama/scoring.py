"""Scoring of given tokens with whole distributions, in a child process; of two models, with the KL divergence.

Two models are compared one after the other: the first writes its whole rows of logits into a file, of which the second
reads them again, so that both need not be in memory at the same time.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.machine.cores import threads_for
from engine.process.channel import Message
from engine.process.child import huge_pages
from engine.process.program import Program
from engine.specs import PoolSpec
from engine.steps import StepTable
from engine.vocabulary import Vocabulary

BATCH_S = 600.0
"""Timeout of a batch: 512 tokens of the largest models take minutes on a small machine."""


class LoadScoring(Message, frozen=True):
    """Load a model; the answer is the size of its vocabulary.

    rows: file of rows of logits, which is written, or read if `compares`; num_candidates: recorded with each token.
    """

    model: str
    spec: PoolSpec
    threads: int
    rows: str
    compares: bool
    num_candidates: int


class Batch(Message, frozen=True):
    """Decode the next tokens; the last of them predict `predicted`, which are scored."""

    ids: list[int]
    predicted: list[int]


class Scored(Message, frozen=True):
    """Records of the scored tokens, rows of step_dtype; KL divergence from the rows that were read, float64 each,
    in nats, empty where rows were written."""

    steps: bytes
    kl: bytes


class ScoredSteps(NamedTuple):
    """Figures of n scored tokens. kl: KL divergence of this model from the first one at each token, in nats, shape
    (n,); empty for the first one."""

    steps: StepTable
    kl: npt.NDArray[np.float64]


def row_bytes(num_vocab: int) -> int:
    """Return the bytes of one row of logits in the file."""
    return 4 * num_vocab


class ScoringModel:
    """A model in a child process that scores one text.

    model: a GGUF file, or for transformers with the parameters that engine.models.folder_specs decides. rows: file that
    gets its rows of logits, or has those of the first model if it `compares`. Both methods raise as `Program.ask`, and
    ModelError where the tokens cannot be decoded. Any thread may call close().
    """

    def __init__(self, model: Path, spec: PoolSpec, rows: Path, *, compares: bool, num_candidates: int) -> None:
        self._spec, self._k = spec, num_candidates
        is_torch = model.is_dir() or spec.dtype is not None
        program = "engine.programs.folder_scoring" if is_torch else "engine.llama.scoring_program"
        self._program = Program(program, does="scores tokens", answers=int | Scored, environment=huge_pages())
        self._load = LoadScoring(str(model), spec, spec.threads or threads_for(1), str(rows), compares, num_candidates)

    def load(self, patience_s: float) -> None:
        """Load the weights, for at most `patience_s` seconds."""
        self._num_vocab: int = self._program.ask(self._load, patience_s, self._load.model)

    def steps(
        self, ids: Sequence[int], first: int, vocabulary: Vocabulary, tell: Callable[[float], object]
    ) -> ScoredSteps:
        """Return the figures of the tokens from index `first` on, at least 1; `tell` is called with 0 to 1."""
        table, kl = StepTable(vocabulary, self._k), []
        for start, stop in self._batches(len(ids) - 1, first - 1):
            predicted = [ids[index + 1] for index in range(max(start, first - 1), stop)]
            found: Scored = self._program.ask(Batch(list(ids[start:stop]), predicted), BATCH_S)
            table.append_bytes(found.steps)
            kl.append(np.frombuffer(found.kl, np.float64))
            tell(stop / (len(ids) - 1))
        return ScoredSteps(table, np.concatenate(kl))

    def _batches(self, num: int, first_row: int) -> list[tuple[int, int]]:
        """Return the first and last token of each batch: full ones, then those whose rows of logits fit."""
        edges = [*range(0, first_row, self._spec.resolved_n_ubatch)]
        edges += [*range(first_row, num, self._spec.scored_rows(self._num_vocab)), num]
        return list(pairwise(edges))

    def close(self) -> None:
        """End the process; a request in progress raises WorkerDied."""
        self._program.close()
