"""Parameters of an embedding pool: model, backend, workers; frozen and validated on construction."""

from dataclasses import dataclass
from typing import TypedDict

from engine.embedding.backends import KINDS
from engine.errors import ConfigError, quoted
from engine.machine.cores import threads_for
from engine.protocol import EXTERNAL
from engine.validation import Spec, plain_text

AUTO = "auto"
BACKENDS = (AUTO, *(kind.name for kind in KINDS))
MAX_WORKERS, MAX_REQUESTS = 256, 16
"""Processes of a pool, and requests that an external engine gets at once."""
MAX_NAME = 300

TOKENS_PER_BATCH = 512
"""Default tokens per batch and thread, chosen so that the activations stay in its cache.

MiniLM on one core of the reference machine: 256, 512, 1,024, 2,048, 4,096 tokens at 3.1, 3.3, 3.1, 2.9, 2.5 thousand
tokens per second in float32; in bfloat16 the best is 512 too.
"""


class EmbedOptions(TypedDict, total=False):
    """The parameters of EmbedSpec but `model`, as keywords of `embed`."""

    backend: str
    workers: int
    threads: int | None
    tokens_per_batch: int | None
    is_query: bool
    normalise: bool


@dataclass(frozen=True, kw_only=True)
class EmbedSpec(Spec):
    """Parameters of a pool: one embedding model in `workers` processes.

    model: folder, name or GGUF file; empty for the all-MiniLM-L6-v2 that is installed with the workbench. backend
    "auto": the fastest of those measured on this machine whose vectors match float32 (see `choice`), torch where none
    was measured, llama for a GGUF file. threads: per worker; None: the usable cores divided by workers.
    tokens_per_batch: padding included, None: 512 per thread; a longer text is a batch of its own. is_query: texts are
    queries, which some models mark by a prefix; else they are documents. normalise: vectors of length 1.

    backend "external:NAME": the external engine of that name (`engines list`) embeds the texts, by its /v1/embeddings.
    Then model is the name of one of its models, empty for the engine's own; workers: requests at once, at most 16; the
    engine has its own threads and batches.
    """

    options = EmbedOptions

    model: str = ""
    backend: str = AUTO
    workers: int = 1
    threads: int | None = None
    tokens_per_batch: int | None = None
    is_query: bool = False
    normalise: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", str(self.model))
        if "\0" in self.model:
            raise ConfigError(f"model = {self.model!r}: must be the name or path of a model")
        if isinstance(self.backend, str) and self.backend.startswith(EXTERNAL):
            self._check_external()
        else:
            self._one_of("backend", BACKENDS)
        self._whole("workers", 1, MAX_REQUESTS if self.engine else MAX_WORKERS)
        if self.threads is not None:
            self._whole("threads", 1, 512)
        if self.tokens_per_batch is not None:
            self._whole("tokens_per_batch", 1, 1 << 20)
        for name in ("is_query", "normalise"):
            self._one_of(name, (True, False))

    def _check_external(self) -> None:
        name = plain_text("backend", self.engine, MAX_NAME)
        model = plain_text("model", self.model, MAX_NAME)
        if not name or not name.isprintable() or not model.isprintable():
            raise ConfigError(f"backend = {quoted(self.backend)}: name an engine, and one of its models, on one line")
        for given in ("threads", "tokens_per_batch"):
            if getattr(self, given) is not None:
                raise ConfigError(f"{given}: an external engine has its own: remove it")

    @property
    def engine(self) -> str:
        """Name of the external engine that embeds the texts; empty for a pool of this machine."""
        return self.backend.removeprefix(EXTERNAL) if self.backend.startswith(EXTERNAL) else ""

    @property
    def resolved_threads(self) -> int:
        """Threads of each worker."""
        return self.threads or threads_for(self.workers)

    @property
    def resolved_tokens_per_batch(self) -> int:
        """Tokens per batch of one worker, padding included."""
        return self.tokens_per_batch or TOKENS_PER_BATCH * self.resolved_threads
