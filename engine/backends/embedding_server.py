"""Embedder on an external engine: texts by its /v1/embeddings, in bounded requests, as the same jobs as a pool's."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, wait

from engine.backends.address import checked_address, key_of
from engine.backends.dialects import OURS
from engine.backends.embedding_replies import MOST_TEXTS, Reply, reply_of, unit_vectors
from engine.backends.known import KnownEngine
from engine.backends.link import Link
from engine.backends.server_loop import ServerLoop
from engine.delivery import listening
from engine.embedding import messages as m
from engine.embedding.batching import chunks
from engine.embedding.embedder import Embedder
from engine.embedding.job import EmbedJob, Piece
from engine.embedding.models import prefixes_by_name
from engine.embedding.specs import EmbedSpec
from engine.embedding.text_queue import TextQueue
from engine.embedding.worker_group import CLOSED
from engine.errors import ConfigError, EngineError, PoolClosed, PromptTooLong, ServerFailed, quoted
from engine.units import counted

_log = logging.getLogger(__name__)

PATH = "/v1/embeddings"
MOST_REQUEST_BYTES = 1 << 20
"""Texts of one request, in UTF-8; also of a single text."""
BEGINS_WITHIN_S = 600.0
"""Answer to a request: 64 long texts on a slow machine, which may have to load the model first."""
POLL_S = 0.1
"""Time after which a request notices that its job was cancelled."""
MOST_LISTED = 20
PROBE = "Logitbench"
"""Text that is embedded first, to learn the number of dimensions."""


class ServerEmbedder(Embedder):
    """A model on an external engine, with the methods of EmbeddingPool; vectors are normalised here.

    The constructor asks for the vector of one word. Raises ConfigError for a key that is missing or a model that the
    engine does not have, ServerFailed where it cannot be reached or has no embeddings. on_opening: called with a
    function that ends the connection from any thread; PoolClosed is raised then.
    """

    def __init__(
        self,
        engine: KnownEngine,
        spec: EmbedSpec,
        on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None,
    ) -> None:
        began = time.monotonic()
        address = checked_address(engine.url)
        loop, link = ServerLoop(), Link(address, key_of(engine.api_key_env))
        try:
            on_opening(lambda: loop.close(link.close()))
            model, first = loop.call(_first(link, spec.model, engine.model))
            name = first.model or model or engine.name
            queue = TextQueue()
            asking = _Asking(loop, link, queue, model, first.vectors.shape[1], spec)
        except BaseException:
            loop.close(link.close())
            raise
        super().__init__(spec, name, prefixes_by_name(name, model), spec.backend, first.vectors.shape[1], queue, asking)
        self.load_s = time.monotonic() - began

    def _places(self, sizes: Sequence[int]) -> list[list[int]]:
        """Return the texts of each request, longest first, at most MOST_TEXTS and MOST_REQUEST_BYTES in each."""
        most = MOST_REQUEST_BYTES // 4  # sizes are in tokens of four bytes
        places = chunks(sizes, most, MOST_TEXTS)
        if places and sizes[place := places[0][0]] > most:
            raise ConfigError(
                f"text {place + 1:,} of {len(sizes):,} is larger than the {MOST_REQUEST_BYTES:,} bytes of a request: "
                "split it"
            )
        return places


async def _first(link: Link, model: str, usual: str) -> tuple[str, Reply]:
    """Return the name by which the model is asked for, and the reply to PROBE.

    model: the one that is asked for, "" for the engine's own. usual: the one that the engine was added with, which for
    our own API is the one that generates.
    """
    listed = await link.find("/v1/models")
    data = listed.get("data") if isinstance(listed, dict) else None
    entries = [one for one in data[:MOST_LISTED] if isinstance(one, dict)] if isinstance(data, list) else []
    names = [name for one in entries if isinstance(name := one.get("id"), str) and len(name) <= 300]
    is_ours = any(one.get("owned_by") in OURS.owners for one in entries)
    chosen = model or ("" if is_ours else usual or next(iter(names), ""))
    try:
        return chosen, await _asked(link, chosen, [PROBE], None)
    except (ConfigError, ServerFailed) as error:
        if isinstance(error, ServerFailed) and error.status in (None, 401, 403):
            raise
        known = f"; it lists {', '.join(map(quoted, names))}" if names else ""
        raise ServerFailed(
            f"no embeddings at {link.address.root}{PATH} by {quoted(chosen) if chosen else 'its own model'}: {error}. "
            f"Name an embedding model of it, or start it with one{known}"
        ) from None


async def _asked(link: Link, model: str, texts: list[str], dim: int | None) -> Reply:
    body = {"input": texts, "encoding_format": "float"} | ({"model": model} if model else {})
    async with link.stream(PATH, body, BEGINS_WITHIN_S) as events:
        async for together in events:
            if together:
                return reply_of(together[0], len(texts), dim)
    raise ServerFailed("the server sent no vectors", status=200)


class _Asking:
    """Threads that take texts from the queue and ask the server for their vectors, each one request at a time."""

    def __init__(self, loop: ServerLoop, link: Link, queue: TextQueue, model: str, dim: int, spec: EmbedSpec) -> None:
        self._loop, self._link, self._queue = loop, link, queue
        self._model, self._dim, self._normalises = model, dim, spec.normalise
        for _ in range(spec.workers):
            threading.Thread(target=self._answer_all, name="logitbench-embedding", daemon=True).start()

    def _answer_all(self) -> None:
        while (piece := self._queue.take()) is not None:
            if piece.job.done():  # it was cancelled meanwhile
                continue
            answer = self._answer(piece)
            with listening():
                if isinstance(answer, m.Vectors):
                    piece.job.on_answer(piece, answer)
                else:
                    piece.job.fail(answer)

    def _answer(self, piece: Piece) -> m.Vectors | EngineError:
        prefix, began = piece.message.prefix, time.monotonic()
        texts = [prefix + text.decode() for text in piece.message.texts if isinstance(text, bytes)]
        try:
            reply = self._reply(piece.job, texts)
            vectors = unit_vectors(reply.vectors) if self._normalises else reply.vectors
        except (ConfigError, PromptTooLong) as error:
            return type(error)(f"{error}. {_longest(piece)}")
        except EngineError as error:
            return error
        except Exception as error:  # the thread goes on with the next texts
            _log.exception("vectors of %s cannot be read", self._link.address.root)
            return ServerFailed(f"the vectors of {self._link.address.root} cannot be read ({type(error).__name__})")
        return m.Vectors(vectors.tobytes(), reply.num_tokens, [], time.monotonic() - began)

    def _reply(self, job: EmbedJob, texts: list[str]) -> Reply:
        """Return the reply to a request, which ends with its job. Raises PoolClosed, and what the request raises."""
        asked = self._loop.begin(_asked(self._link, self._model, texts, self._dim))
        while not asked.done():
            if job.done():
                asked.cancel()
            wait([asked], POLL_S)
        try:
            return asked.result()
        except CancelledError:
            raise PoolClosed(CLOSED) from None

    def measure(self) -> None:
        """Return None: its processes were not started here."""

    def close(self, reason: str = CLOSED) -> None:
        """End all requests; unfinished jobs fail with PoolClosed and this reason. Safe to call twice."""
        self._queue.close(PoolClosed(reason))
        self._loop.close(self._link.close())


def _longest(piece: Piece) -> str:
    """Return which of the texts that a server refused is the longest, as a sentence: pieces begin with it."""
    num, size = counted(len(piece.places), "text"), counted(len(piece.message.texts[0]), "byte")
    return f"Of the {num} in this request, text {piece.places[0] + 1:,} is the longest, with {size}"
