"""Embedding pool: workers sharing one model; stable order, progress, cancellation, bounded queue, recovery."""

from engine.embedding import messages as m
from engine.embedding.backends import check_usable, kind_named
from engine.embedding.choice import chosen_backend
from engine.embedding.embedder import Embedder
from engine.embedding.models import find_model
from engine.embedding.program import OnOpening
from engine.embedding.specs import AUTO, EmbedSpec
from engine.embedding.text_queue import TextQueue
from engine.embedding.worker_group import EmbeddingWorkers, WorkerFigures
from engine.errors import ConfigError


class EmbeddingPool(Embedder):
    """Pool for one embedding model in several processes; EmbedSpec documents the parameters.

    The constructor returns when the model is loaded, after some seconds, most of them for its libraries. Raises
    ModelError or ConfigError. Use as a context manager or close() it. All methods may be called from any thread.

    on_opening: called with a function that cancels the load from any thread.
    """

    max_tokens: int

    def __init__(self, spec: EmbedSpec | None = None, *, on_opening: OnOpening | None = None) -> None:
        if not isinstance(spec, EmbedSpec | None):
            raise ConfigError(f"spec = {spec!r}: must be an EmbedSpec, such as EmbedSpec(model=...)")
        spec = spec or EmbedSpec()
        if spec.engine:
            raise ConfigError(f"backend = {spec.backend!r}: is a server, not a pool; engine.embed(...) asks it")
        model = find_model(spec.model)
        backend = chosen_backend(model) if spec.backend == AUTO else spec.backend
        check_usable(backend, model)
        load = m.LoadEmbeddingModel(
            protocol=m.PROTOCOL,
            path=str(model.path),
            exports=str(model.kept_in()) if kind_named(backend).is_exported else "",
            backend=backend,
            threads=spec.resolved_threads,
            tokens_per_batch=spec.resolved_tokens_per_batch,
            normalise=spec.normalise,
        )
        queue = TextQueue()
        self._workers = EmbeddingWorkers(load, spec.workers, queue, on_opening)
        loaded, prefixes = self._workers.loaded, (model.query_prefix, model.document_prefix)
        super().__init__(spec, model.name, prefixes, backend, loaded.dim, queue, self._workers)
        self.model, self.max_tokens, self.num_vocab = model, loaded.max_tokens, loaded.num_vocab
        self.load_s = loaded.load_s

    def measure(self) -> WorkerFigures:
        """Return memory, processor time and work of each process; the fork server holds what its workers share."""
        return self._workers.measure()
