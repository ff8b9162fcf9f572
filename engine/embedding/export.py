"""`python -m engine.embedding.export FOLDER EXPORTS FORM`: an embedding model as ONNX, in 8 bits, or for OpenVINO.

Says on standard output what went wrong, and ends with status 1 then. Ends at once when its standard input is closed.
"""

import json
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from engine.embedding.exports import ABOUT, FILES, TOKENIZER
from engine.embedding.torch_backend import TorchModel
from engine.errors import ModelError

OPSET = 17
"""The first with LayerNormalization as one operator."""

LARGEST_FILE = (1 << 31) - (1 << 20)
"""Bytes of one protobuf; what a larger model has beyond it lies in files beside it."""


def main() -> None:
    folder, exports, form = sys.argv[1:]
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    said, sys.stdout = sys.stdout, sys.stderr
    try:
        make(folder, Path(exports), form)
    except (ModelError, OSError) as error:
        print(error, file=said)
        sys.exit(1)
    except Exception as error:  # what can go wrong in a graph of a stranger's making has no common name
        reason = str(error).strip().splitlines() or [""]
        print(f"{type(error).__name__} {reason[0][:300]}".strip(), file=said)
        sys.exit(1)


def make(folder: str, exports: Path, form: str) -> None:
    """Write one form, and the one it is made from where that is missing, below `exports`."""
    if form != "onnx" and not (exports / "onnx" / FILES["onnx"]).is_file():
        make(folder, exports, "onnx")
    writers: dict[str, Callable[[Path], None]] = {
        "onnx": lambda into: _write_onnx(folder, into),
        "onnx-int8": lambda into: _write_int8(exports / "onnx", into),
        "openvino": lambda into: _write_openvino(exports / "onnx", into),
    }
    exports.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{form}-", dir=exports))
    try:
        writers[form](making)
        making.rename(exports / form)
    except OSError:
        if not (exports / form / FILES[form]).is_file():  # else another process was faster
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


class _Graph(torch.nn.Module):  # type: ignore[misc]
    """All modules of a model, from ids and mask to vectors."""

    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self.modules_of_model, self._model = model.modules, model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self._model(input_ids, attention_mask)


def _write_onnx(folder: str, into: Path) -> None:
    """Trace the model, with plain attention: the fused one branches on what is in the mask, which a trace cannot."""
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


def _write_int8(source: Path, into: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    size = sum(file.stat().st_size for file in source.iterdir())
    quantize_dynamic(
        source / FILES["onnx"],
        into / FILES["onnx-int8"],
        weight_type=QuantType.QInt8,
        per_channel=True,
        use_external_data_format=size > LARGEST_FILE,
        extra_options={"MatMulConstBOnly": True},
    )


def _write_openvino(source: Path, into: Path) -> None:
    """Weights lie in a file of their own, which each process that reads it maps."""
    import openvino

    model = openvino.Core().read_model(source / FILES["onnx"])
    openvino.save_model(model, into / FILES["openvino"], compress_to_fp16=False)


def _end_with_the_caller() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
