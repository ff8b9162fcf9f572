"""Opening of engines: the only place that decides what runs a model: a pool of worker processes, or a server."""

from collections.abc import Callable

from engine.backends.address import is_address
from engine.backends.connecting import embed_by, known_at, open_known
from engine.cluster.specs import ClusterSpec
from engine.embedding.embedder import Embedder
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.pool.pool import Pool
from engine.protocol import Engine
from engine.specs import PoolSpec


def open_engine(
    model: str,
    spec: PoolSpec,
    *,
    build: str = "",
    cluster: str | ClusterSpec = "",
    on_progress: Callable[[float], object] | None = None,
    on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None,
    on_step: Callable[[str], object] = lambda _doing: None,
) -> Engine:
    """Load `model` and return the engine that runs it; engine.Pool documents the parameters and the errors.

    model: a path, or the address of a known engine, of whose parameters only `parallel` counts: requests at once; it
    runs where it is, whatever the cluster.
    """
    if is_address(model):
        return open_known(known_at(model), spec.parallel, on_opening)
    return Pool(
        model, build=build, cluster=cluster, on_progress=on_progress, on_opening=on_opening, on_step=on_step,
        **spec.to_dict(),
    )  # fmt: skip


def open_embedder(
    spec: EmbedSpec, *, on_opening: Callable[[Callable[[], object]], object] = lambda _abort: None
) -> Embedder:
    """Return what embeds texts: a pool of this machine, or the external engine that `spec.backend` names.

    on_opening: called with a function that ends the load or the connection from any thread. Raises ModelError,
    ConfigError, ServerFailed.
    """
    if spec.engine:
        return embed_by(spec, on_opening)
    return EmbeddingPool(spec, on_opening=on_opening)
