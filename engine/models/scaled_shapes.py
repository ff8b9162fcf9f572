"""Shapes of models that are not published: dimensions of a published one scaled to a size, or split into experts."""

from dataclasses import replace

from engine.models.experts import Experts
from engine.models.planned import planned_model
from engine.models.shapes import Shape

_STEP = 256
"""Width and feed-forward net are multiples of this: the block of the K-quantisations."""


def scaled(shape: Shape, size: float) -> Shape:
    """Return a shape of `size` parameters: width and layers grow alike, the feed-forward net has the rest.

    The vocabulary keeps its size where that is at most a third of the parameters; heads keep their width and groups.
    """
    growth = (size / planned_model("", shape, "F16").num_parameters) ** (1 / 3)
    width = max(1, round(shape.n_embd * growth / _STEP)) * _STEP
    layers = max(1, round(shape.n_layer * growth))
    is_grouped = shape.n_head_kv < shape.n_head
    heads_kv = shape.n_head_kv if is_grouped else max(1, round(shape.n_head * growth))
    heads = max(1, round(shape.n_head * growth / heads_kv)) * heads_kv
    fitting = replace(
        shape, n_embd=width, n_layer=layers, n_vocab=min(shape.n_vocab, int(size / 3 / (2 - shape.is_tied) / width)),
        n_head=heads, n_head_kv=heads_kv, n_head_width=shape.n_head_dim, n_ff=_STEP,
    )  # fmt: skip
    others = planned_model("", fitting, "F16").num_parameters
    wide = _values_per_width(fitting)
    return replace(fitting, n_ff=max(1, round((size - others) / wide / _STEP) + 1) * _STEP)


def split(shape: Shape, used: int, size: float) -> tuple[Shape, Experts]:
    """Return a mixture of `size` parameters, of which a token uses about as many as `shape` has.

    `used` experts together are as wide as its feed-forward net; the number of experts, at least `used`, has the rest.
    """
    one = replace(shape, n_ff=max(1, round(shape.n_ff / used / _STEP)) * _STEP)
    each = _values_per_width(one) * one.n_ff
    others = planned_model("", one, "F16").num_parameters - each
    return one, Experts(max(used, round((size - others) / each)), used)


def _values_per_width(shape: Shape) -> int:
    """Return the number of weights of the feed-forward nets of all layers, for each of their inner values."""
    return (2 if shape.architecture == "phi2" else 3) * shape.n_embd * shape.n_layer
