"""Embedder: what the pool and external engines have in common: jobs of texts, their order, queue and prefixes."""

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, Self

from engine.embedding import messages as m
from engine.embedding.batching import chunks
from engine.embedding.job import EmbedJob, EmbedResult, Piece
from engine.embedding.specs import EmbedSpec
from engine.embedding.text_queue import TextQueue
from engine.embedding.worker_group import CLOSED, WorkerFigures
from engine.errors import ConfigError, JobTimeout, quoted
from engine.owner import OwnerProcess
from engine.step_parts import Floats

MAX_TEXT_TOKENS = 1 << 20
_BATCHES_PER_PIECE = 8
_PIECES_PER_WORKER = 4
_BYTES_PER_TOKEN = 4

Text = str | Sequence[int]
"""A text, or its token ids with all special tokens that the model expects."""


class Group(Protocol):
    """What takes the pieces of an embedder from its queue: worker processes, or threads that ask a server."""

    def measure(self) -> WorkerFigures | None:
        """Return the figures of its processes, None where they were not started here."""

    def close(self, reason: str = CLOSED) -> None:
        """End all work; unfinished jobs fail with PoolClosed and this reason. Safe to call twice."""


class Embedder:
    """Base of EmbeddingPool and of the embedder of an external engine. All methods may be called from any thread.

    name: of the model; backend: the one in use; dim: vector dimension; max_tokens: length to which texts are truncated,
    None where texts that are too long are refused, as by external engines; num_vocab: token ids are below it, 0 where
    only texts are taken; load_s: load seconds of the model and its libraries, for a server those of connecting.
    """

    max_tokens: int | None = None
    num_vocab = 0
    load_s = 0.0

    def __init__(
        self, spec: EmbedSpec, name: str, prefixes: tuple[str, str], backend: str, dim: int, queue: TextQueue,
        group: Group,
    ) -> None:  # fmt: skip
        self.spec, self.name, self.backend, self.dim = spec, name, backend, dim
        self._prefixes, self._queue, self._process = prefixes, queue, OwnerProcess()
        self._group = group
        self._close = weakref.finalize(self, group.close)

    def embed(
        self,
        texts: Iterable[Text],
        *,
        is_query: bool | None = None,
        on_progress: Callable[[float], object] | None = None,
        timeout: float | None = None,
    ) -> Floats:
        """Return vectors in the order of the texts, float32 (n, dim): the `vectors` of `compute`.

        Warns (UserWarning) where texts exceed `max_tokens`, as they are truncated to it.
        """
        done = self.compute(texts, is_query=is_query, on_progress=on_progress, timeout=timeout)
        warn_of_cut(done, self.max_tokens, stacklevel=3)
        return done.vectors

    def compute(
        self,
        texts: Iterable[Text],
        *,
        is_query: bool | None = None,
        on_progress: Callable[[float], object] | None = None,
        timeout: float | None = None,
    ) -> EmbedResult:
        """Embed texts; the result also has which texts were truncated. Waits where submit would raise QueueFull.

        is_query None: as in the spec. on_progress is called with 0 to 1, from a thread of the pool. Raises JobTimeout
        after `timeout` seconds of computing, and what submit and EmbedJob.result raise.
        """
        job, pieces = self._prepare(texts, self._prefix(is_query), on_progress)
        self._queue.put(job, pieces, is_patient=True)
        try:
            return job.result(timeout)
        except JobTimeout as error:
            job.cancel()
            raise JobTimeout(
                f"no vectors after {timeout:g} s, {job.num_done:,} of {job.num_texts:,} texts so far: job cancelled"
            ) from error

    def submit(
        self,
        texts: Iterable[Text],
        *,
        is_query: bool | None = None,
        has_prefix: bool = True,
        on_progress: Callable[[float], object] | None = None,
    ) -> EmbedJob:
        """Start a job; has_prefix False: without the model's prefix. Raises ConfigError unless given a list of texts,
        QueueFull when too many wait, PoolClosed."""
        job, pieces = self._prepare(texts, self._prefix(is_query) if has_prefix else "", on_progress)
        self._queue.put(job, pieces, is_patient=False)
        return job

    def _prefix(self, is_query: bool | None) -> str:
        query, document = self._prefixes
        return query if (self.spec.is_query if is_query is None else is_query) else document

    def _prepare(
        self, texts: Iterable[Text], prefix: str, on_progress: Callable[[float], object] | None
    ) -> tuple[EmbedJob, list[Piece]]:
        """Return a job and its pieces, longest texts first, so that all workers finish at about the same time."""
        self._process.check_pool()
        most = self.max_tokens or MAX_TEXT_TOKENS
        encoded = _encoded(texts, self.num_vocab, most + 1)  # one too many shows that a text is cut
        sizes = [len(text) // _BYTES_PER_TOKEN + 2 if isinstance(text, bytes) else len(text) for text in encoded]
        job = EmbedJob(len(encoded), self.dim, self._queue.remove, on_progress)
        pieces = [
            Piece(job, places, m.Embed([encoded[place] for place in places], prefix), sum(sizes[p] for p in places))
            for places in self._places(sizes)
        ]
        return job, pieces

    def _places(self, sizes: Sequence[int]) -> list[list[int]]:
        """Return the indices of the texts of each piece, given their estimated tokens."""
        budget = self.spec.resolved_tokens_per_batch
        share = sum(sizes) // (self.spec.workers * _PIECES_PER_WORKER)
        return chunks(sizes, max(budget, min(share, _BATCHES_PER_PIECE * budget)))

    def measure(self) -> WorkerFigures | None:
        """Return the figures of its processes, None where they were not started here."""
        return self._group.measure()

    def close(self, reason: str = CLOSED) -> None:
        """End all work; unfinished jobs fail with PoolClosed, with `reason` as its message. Safe to call twice."""
        self._group.close(reason)
        self._close.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def warn_of_cut(done: EmbedResult, max_tokens: int | None, *, stacklevel: int) -> None:
    """Warn that texts were truncated, if any were. stacklevel: as for warnings.warn, this function being 1."""
    if done.num_cut and max_tokens is not None:
        warnings.warn(
            f"{done.num_cut:,} of {len(done.vectors):,} texts exceed the {max_tokens:,} tokens that this model reads "
            "and were truncated: split them",
            stacklevel=stacklevel,
        )


def _encoded(texts: Iterable[Text], num_vocab: int, most: int) -> list[bytes | list[int]]:
    """Encode texts as UTF-8, half of a surrogate pair as a question mark; check ids, and keep `most` of each."""
    if isinstance(texts, str | bytes):
        raise ConfigError("texts: must be a list of texts, not a single text")
    if not isinstance(texts, Iterable):
        raise ConfigError(f"texts = {texts!r}: must be a list of texts")
    listed = list(texts)
    found: list[bytes | list[int]] = []
    for number, text in enumerate(listed, 1):
        name = f"text {number:,} of {len(listed):,}"
        if isinstance(text, str):
            found.append(text.encode("utf-8", "replace"))
        elif isinstance(text, list | tuple):
            found.append(_checked_ids(text, name, num_vocab)[:most])
        else:
            raise ConfigError(f"{name} is not text but {type(text).__name__}")
    return found


def _checked_ids(ids: Sequence[int], name: str, num_vocab: int) -> list[int]:
    """Return token ids. Raises ConfigError for none and for one that the vocabulary has not."""
    if not num_vocab:
        raise ConfigError(f"{name} is a list of token ids; an external engine takes texts")
    if not ids:
        raise ConfigError(f"{name} has no tokens")
    wrong = next((token for token in ids if type(token) is not int or not 0 <= token < num_vocab), None)
    if wrong is not None:
        raise ConfigError(f"{name}: {quoted(wrong)} is not a token id; the vocabulary has {num_vocab:,}")
    return list(ids)
