"""POST /v1/embeddings: vectors of texts by the workbench's embedding model."""

import asyncio
import base64
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from engine.api.openai.errors import BUSY_RETRY_S, QUEUE_RETRY_S, ApiError, api_error, refusal
from engine.api.openai.requests import Prompts, several
from engine.api.openai.responses import Embedding, Model
from engine.embedding.embedder import Text
from engine.embedding.job import EmbedResult
from engine.embedding.models import find_model
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, EngineError, ModelError, quoted
from engine.step_parts import Floats
from engine.workbench.workbench import Workbench

MOST_INPUTS = 2048
SMALLEST_LENGTH = 1e-12
NUM_THREADS = 4
"""Requests that are being embedded at the same time; more wait."""
MOST_OPEN, MOST_OPEN_BYTES = 256, 64 << 20
"""Requests that may be open at once, and the bytes of their bodies; ids take ten times as many in memory."""


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /v1/embeddings. input: a text, several texts, the token ids of one text, or those of several.

    Texts are embedded as they are: a model that wants a prefix such as "query: " gets it from the client. Ids are those
    of the embedding model, all special tokens included. dimensions: the first so many numbers, normalised again.
    truncate: of a text that is too long the beginning is embedded; else the request is refused.
    """

    input: Prompts
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    truncate: bool = False
    user: str | None = None


class Embedder:
    """Embedder of requests with the embedding model that is open in the workbench, else the one that ships."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._threads = ThreadPoolExecutor(NUM_THREADS, "logitbench-embeddings")
        self._num_open = self._num_bytes = 0

    def model(self) -> Model | None:
        """Return the model that requests may name, None where none is installed. Reads files."""
        try:
            spec = self._bench.embedding.open_spec or EmbedSpec()
            return Model(id=find_model(spec.model).name)
        except ModelError:
            return None

    def start(
        self, asked: EmbeddingRequest, chosen: "Chosen", num_bytes: int, is_unwanted: Callable[[], bool]
    ) -> asyncio.Future["Embedded | None"]:
        """Begin a request whose body has `num_bytes`; the future has its answer, or None once unwanted.

        Raises ApiError, as does the future. The event loop calls it.
        """
        texts = several(asked.input, "input", MOST_INPUTS)
        if self._num_open >= MOST_OPEN or (self._num_open and self._num_bytes + num_bytes > MOST_OPEN_BYTES):
            text = f"{self._num_open:,} requests of {self._num_bytes:,} bytes are open, as many as may be at once"
            raise ApiError(
                429, f"{text}: try again later.", type="rate_limit_error", code="queue_full", retry_s=QUEUE_RETRY_S
            )
        self._count(1, num_bytes)
        began = asyncio.get_running_loop().run_in_executor(
            self._threads, self._embed, asked, chosen, texts, is_unwanted
        )
        began.add_done_callback(lambda _: self._count(-1, -num_bytes))
        return began

    def _count(self, num: int, num_bytes: int) -> None:
        self._num_open += num
        self._num_bytes += num_bytes

    def _embed(
        self, asked: EmbeddingRequest, chosen: "Chosen", texts: Sequence[Text], is_unwanted: Callable[[], bool]
    ) -> "Embedded | None":
        name, spec = chosen
        if not self._bench.embedding.is_free_for(spec):
            text = "The workbench is using another embedding model: ask again later."
            raise ApiError(503, text, type="server_error", code="model_busy", retry_s=BUSY_RETRY_S)
        try:
            found = self._bench.embedding.compute(texts, spec, is_unwanted)
        except EngineError as error:
            raise _refusal(error) from None
        if found is None:
            return None
        result, most = found
        assert result.num_tokens is not None and most is not None  # of a pool, which counts them
        if result.num_cut and not asked.truncate:
            place = int(np.flatnonzero(result.is_cut)[0])
            text = f"input: text {place + 1:,} of {len(texts):,} has more tokens than the {most:,} that {name} reads"
            raise refusal(f"{text}: split it, or send truncate = true", "input", "context_length_exceeded")
        return Embedded(_body(asked, name, result), result.num_tokens)

    def choose(self, asked: str) -> "Chosen":
        """Return the model of this name: the open one or the one that ships. Reads files; raises ApiError."""
        known: dict[str, EmbedSpec] = {}
        try:
            for spec in filter(None, (self._bench.embedding.open_spec, EmbedSpec())):
                known.setdefault(find_model(spec.model).name, spec)
        except ModelError as error:
            if not known:
                raise ApiError(404, str(error), param="model", code="model_not_found") from None
        name = asked or next(iter(known))
        if name not in known:
            text = f"The embedding model {quoted(name)} is not here; there is {' and '.join(map(repr, known))}."
            raise ApiError(404, text, param="model", code="model_not_found")
        return Chosen(name, known[name])


class Chosen(NamedTuple):
    """Model of a request: its name and parameters."""

    name: str
    spec: EmbedSpec


class Embedded(NamedTuple):
    """Answer to a request: its body as JSON, and the tokens of its texts."""

    body: bytes
    num_tokens: int


def _body(asked: EmbeddingRequest, name: str, result: EmbedResult) -> bytes:
    """Return the body of an answer; one vector at a time is a list of numbers."""
    vectors = _shortened(result.vectors, asked.dimensions)
    form = _in_base64 if asked.encoding_format == "base64" else _in_numbers
    data = [
        msgspec.Raw(msgspec.json.encode(Embedding(index=at, embedding=form(row)))) for at, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": result.num_tokens, "total_tokens": result.num_tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": name, "usage": usage})


def _shortened(vectors: Floats, dimensions: int | None) -> Floats:
    """Return the first `dimensions` numbers of each vector, with length 1. Raises ApiError for more than there are."""
    if dimensions is None:
        return vectors
    if dimensions > vectors.shape[1]:
        raise refusal(f"dimensions: {quoted(dimensions)} is more than the model's {vectors.shape[1]:,}", "dimensions")
    short = vectors[:, :dimensions]
    lengths = np.linalg.norm(short, axis=1, keepdims=True)
    shortened: Floats = short / np.maximum(lengths, SMALLEST_LENGTH)
    return shortened


def _in_numbers(row: Floats) -> list[float] | str:
    numbers: list[float] = row.tolist()
    return numbers


def _in_base64(row: Floats) -> list[float] | str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _refusal(error: EngineError) -> ApiError:
    """Return the response for an error of the embedding model; what it cannot embed is the request's fault."""
    if type(error) is ConfigError:
        return refusal(str(error), "input")
    return api_error(error)
