"""Child program that exports an embedding model as ONNX, as ONNX in 8 bits, or for OpenVINO."""

import socket
from collections.abc import Callable
from pathlib import Path

from engine.embedding.exports import FILES
from engine.errors import ModelError
from engine.process.serving import serve

LARGEST_FILE = (1 << 31) - (1 << 20)
"""Maximum bytes of one protobuf; larger models store the rest in external data files."""


def main(end: socket.socket, folder: str, exports: str, form: str, making: str) -> None:
    """Export the form on request; `making` is a folder for unfinished files, on the disk of `exports`."""
    serve(end, None, lambda _request: _make(folder, Path(exports), form, Path(making)))


def _make(folder: str, exports: Path, form: str, making: Path) -> None:
    try:
        make(folder, exports, form, making)
    except Exception as error:  # exporting third-party models can fail in ways without a common base class
        reason = str(error).strip().splitlines() or [""]
        how = reason[0] if isinstance(error, ModelError | OSError) else f"{type(error).__name__} {reason[0][:300]}"
        raise ModelError(f"{folder}: cannot be exported as {form}: {how.strip()}") from error


def make(folder: str, exports: Path, form: str, making: Path) -> None:
    """Write one form below `exports`, and first the ONNX form that it is derived from where that is missing."""
    if form != "onnx" and not (exports / "onnx" / FILES["onnx"]).is_file():
        make(folder, exports, "onnx", making)
    writers: dict[str, Callable[[Path], None]] = {
        "onnx": lambda into: _write_onnx(folder, into),
        "onnx-int8": lambda into: _write_int8(exports / "onnx", into),
        "openvino": lambda into: _write_openvino(exports / "onnx", into),
    }
    unfinished = making / form
    unfinished.mkdir()
    writers[form](unfinished)
    try:
        unfinished.rename(exports / form)
    except OSError:
        if not (exports / form / FILES[form]).is_file():  # otherwise another process has written it first
            raise


def _write_onnx(folder: str, into: Path) -> None:
    from engine.embedding.trace import write_onnx  # PyTorch takes seconds to import; the other forms do not need it

    write_onnx(folder, into)


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
    """Write the OpenVINO form; its weights are in a separate file, which each reading process maps."""
    import openvino

    model = openvino.Core().read_model(source / FILES["onnx"])
    openvino.save_model(model, into / FILES["openvino"], compress_to_fp16=False)
