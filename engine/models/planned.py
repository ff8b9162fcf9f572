"""Planned models: models without a file, described by their shape alone."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from engine.models.experts import Experts
from engine.models.ggml import TYPES_BY_NAME
from engine.models.gguf import ModelFile
from engine.models.header import TensorInfo, Value
from engine.models.shapes import Shape
from engine.models.synthetic import ALIGNMENT, Tensor, tensors_of

_NETS = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
"""Ends of the names of the tensors of which every expert has one."""


def planned_model(name: str, shape: Shape, quantisation: str, experts: Experts | None = None) -> ModelFile:
    """Return the ModelFile of a file of that shape, without writing it. Raises ConfigError as tensors_of does.

    experts: of a mixture, whose `shape` is that of a model with one of them.
    """
    infos, end = [], 0
    for tensor in _with_experts(tensors_of(shape, quantisation), shape, experts):
        infos.append(tensor._replace(offset=end))
        end += -(-tensor.num_bytes // ALIGNMENT) * ALIGNMENT
    return ModelFile(
        path=Path(name),
        size=end,
        parts=1,
        architecture=shape.architecture,
        name=name,
        quantisation=quantisation,
        license="",
        num_parameters=sum(info.num_values for info in infos),
        n_vocab=shape.n_vocab,
        n_ctx_train=shape.n_ctx_train,
        n_embd=shape.n_embd,
        n_layer=shape.n_layer,
        n_ff=shape.n_ff,
        n_head=shape.n_head,
        n_head_kv=(shape.n_head_kv,) * shape.n_layer,
        head_k=shape.n_head_dim,
        head_v=shape.n_head_dim,
        sliding_window=shape.sliding_window,
        chat_template="",
        metadata=_header_of(shape, experts) if experts else {},
        tensors=tuple(infos),
    )


def _with_experts(tensors: Iterable[Tensor], shape: Shape, experts: Experts | None) -> Iterator[TensorInfo]:
    """Yield the tensors, those of the feed-forward nets for all experts at once, with what chooses among them."""
    for tensor in tensors:
        dimensions = (tensor.columns, tensor.rows) if tensor.rows else (tensor.columns,)
        if experts is None or not tensor.name.endswith(_NETS):
            yield TensorInfo(tensor.name, dimensions, tensor.type, 0)
            continue
        stem = tensor.name.removesuffix(".weight")
        kind = TYPES_BY_NAME[experts.type] if experts.type else tensor.type
        yield TensorInfo(f"{stem}_exps.weight", (*dimensions, experts.total), kind, 0)
        if stem.endswith("ffn_gate"):
            router = (shape.n_embd, experts.total)
            yield TensorInfo(f"{stem}_inp.weight", router, TYPES_BY_NAME["F32"], 0)


def _header_of(shape: Shape, experts: Experts) -> dict[str, Value]:
    """Return what the header of a mixture says of its experts."""
    facts = {
        "expert_count": experts.total, "expert_used_count": experts.used, "expert_feed_forward_length": shape.n_ff,
    }  # fmt: skip
    return {f"{shape.architecture}.{key}": value for key, value in facts.items()}
