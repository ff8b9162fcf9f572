"""Mixtures of experts: layers with many feed-forward nets, of which each token uses a few."""

from typing import NamedTuple

from engine.models.gguf import ModelFile
from engine.models.header import TensorInfo

_LOOKED_UP = ("per_layer_token_embd.weight", "position_embd.weight")


class Experts(NamedTuple):
    """Experts of each layer: `total` feed-forward nets, of which a token uses `used`.

    type: tensor type that the experts have at every quantisation, empty where they follow it.
    """

    total: int
    used: int
    type: str = ""


def experts_of(model: ModelFile) -> Experts | None:
    """Return the experts of a model, as its header has them; None where every token uses all weights."""
    total, used = model.whole("expert_count"), model.whole("expert_used_count")
    return Experts(total, used) if 0 < used < total else None


def is_of_experts(tensor: TensorInfo) -> bool:
    """Return whether a tensor holds the weights of all experts of a layer."""
    return "_exps." in tensor.name


def active_parameters(model: ModelFile) -> int:
    """Return the number of parameters that a token uses: all of them, or of a mixture the chosen experts' and the rest.

    Embeddings count in full, as in most published figures.
    """
    experts = experts_of(model)
    share = experts.used / experts.total if experts else 1.0
    return round(sum(tensor.num_values * (share if is_of_experts(tensor) else 1.0) for tensor in model.tensors))


def weights_read(model: ModelFile, num_sequences: float) -> float:
    """Return the bytes of weights that one step reads for `num_sequences` sequences.

    All tensors count except embeddings, of which only single rows are looked up. Of a mixture of experts, the experts
    that at least one sequence is expected to choose count: a share of 1 − (1 − used / all) ^ sequences.
    """
    is_tied = all(tensor.name != "output.weight" for tensor in model.tensors)
    looked_up = _LOOKED_UP if is_tied else (*_LOOKED_UP, "token_embd.weight")
    experts = experts_of(model)
    chosen = 1 - (1 - experts.used / experts.total) ** num_sequences if experts else 1.0
    return sum(
        tensor.num_bytes * (chosen if is_of_experts(tensor) else 1.0)
        for tensor in model.tensors
        if tensor.name not in looked_up
    )
