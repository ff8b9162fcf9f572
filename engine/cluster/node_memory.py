"""Memory of a model on a node, compared with what is free there before anything is sent or loaded."""

from engine.errors import MemoryRefused
from engine.models.gguf import ModelFile
from engine.models.memory import MemoryEstimate, check_fits, estimate
from engine.specs import PoolSpec


def check_fits_on(node: str, available: int, model: ModelFile, spec: PoolSpec) -> MemoryEstimate:
    """Return the estimate of what a pool needs on a node; spec.instances: its workers there.

    available: bytes that are free on the node. Raises MemoryRefused, which names the node, where it needs more.
    """
    try:
        return check_fits(model, spec, estimate(model, spec, available))
    except MemoryRefused as error:
        raise MemoryRefused(f"Node {node}: {error}") from None
