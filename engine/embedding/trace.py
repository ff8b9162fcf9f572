"""Export of a PyTorch model to ONNX by tracing."""

import json
import warnings
from pathlib import Path

import torch

from engine.embedding.exports import ABOUT, FILES, TOKENIZER
from engine.embedding.torch_backend import TorchModel

OPSET = 17
"""The first opset with LayerNormalization as a single operator."""


class _Graph(torch.nn.Module):  # type: ignore[misc]
    """Module to trace: all modules of a model, from ids and mask to vectors."""

    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self.modules_of_model, self._model = model.modules, model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self._model(input_ids, attention_mask)


def write_onnx(folder: str, into: Path) -> None:
    """Write the model in `folder`, its tokenizer and its ABOUT file into an existing folder.

    Uses plain attention: the fused one branches on the contents of the mask, which a trace cannot. Raises ModelError.
    """
    model = TorchModel(folder, dtype=torch.float32, attn_implementation="eager")
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, model.pad, model.pad]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    axes = {0: "texts", 1: "tokens"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Graph(model).eval(),
            (ids, mask),
            str(into / FILES["onnx"]),
            input_names=["input_ids", "attention_mask"],
            output_names=["vectors"],
            dynamic_axes={"input_ids": axes, "attention_mask": axes, "vectors": {0: "texts"}},
            opset_version=OPSET,
            dynamo=False,
        )
    model.tokenizer.save(str(into / TOKENIZER))
    about = {"max_tokens": model.max_tokens, "pad": model.pad, "dim": model.dim}
    (into / ABOUT).write_text(json.dumps(about))
