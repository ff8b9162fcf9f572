"""Opening of engines: the only place that decides what runs a model; so far always a pool of worker processes."""

from collections.abc import Callable

from engine.pool.pool import Pool
from engine.protocol import Engine
from engine.specs import PoolSpec


def open_engine(
    model: str,
    spec: PoolSpec,
    *,
    build: str = "",
    on_progress: Callable[[float], object] | None = None,
    on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None,
) -> Engine:
    """Load `model` and return the engine that runs it; engine.Pool documents the parameters and the errors."""
    return Pool(model, build=build, on_progress=on_progress, on_opening=on_opening, **spec.to_dict())
