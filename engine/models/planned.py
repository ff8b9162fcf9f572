"""Planned models: models without a file, described by their shape alone."""

from pathlib import Path

from engine.models.gguf import ModelFile
from engine.models.header import TensorInfo
from engine.models.shapes import Shape
from engine.models.synthetic import ALIGNMENT, tensors_of


def planned_model(name: str, shape: Shape, quantisation: str) -> ModelFile:
    """Return the ModelFile of a file of that shape, without writing it. Raises ConfigError as tensors_of does."""
    infos, end = [], 0
    for tensor in tensors_of(shape, quantisation):
        dimensions = (tensor.columns, tensor.rows) if tensor.rows else (tensor.columns,)
        infos.append(TensorInfo(tensor.name, dimensions, tensor.type, end))
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
        metadata={},
        tensors=tuple(infos),
    )
