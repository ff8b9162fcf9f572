"""Importance matrices: both formats are read, and anything else is refused before anything is written."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import ModelError
from engine.models.gguf import ModelFile
from engine.models.header import TensorInfo
from engine.models.quantisations import offers
from engine.models.quantise import QuantiseJob
from engine.models.reading import read_model

WITHIN_S = 60.0


def write_imatrix(path: Path, model: ModelFile, *, counts: int = 4, extra: int = 0) -> None:
    """Write an importance matrix in GGUF, with twice the weight on every second column; extra: surplus columns."""
    writer = gguf.GGUFWriter(path, "none")
    writer.add_type("imatrix")
    for tensor in model.tensors:
        if len(tensor.shape) == 2 and tensor.name.startswith("blk."):
            sums = np.tile([1.0, 2.0], tensor.shape[0] // 2 + extra)[: tensor.shape[0] + extra].astype(np.float32)
            writer.add_tensor(f"{tensor.name}.in_sum2", counts * sums[np.newaxis])
            writer.add_tensor(f"{tensor.name}.counts", np.full((1, 1), counts, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_old_imatrix(path: Path, model: ModelFile, num_calls: int = 4) -> None:
    """Write the same matrix in the older format."""
    tensors = [tensor for tensor in model.tensors if len(tensor.shape) == 2 and tensor.name.startswith("blk.")]
    with path.open("wb") as file:
        file.write(struct.pack("<i", len(tensors)))
        for tensor in tensors:
            name = tensor.name.encode()
            file.write(struct.pack("<i", len(name)) + name + struct.pack("<ii", num_calls, tensor.shape[0]))
            file.write((num_calls * np.tile([1.0, 2.0], tensor.shape[0] // 2)).astype("<f4").tobytes())


def write_truncated(path: Path, model: ModelFile) -> None:
    write_old_imatrix(path, model)
    os.truncate(path, 5000)


def tensor_bytes(path: Path, info: TensorInfo) -> bytes:
    return path.read_bytes()[info.offset :][: info.num_bytes]


@pytest.mark.slow
def test_an_importance_matrix_makes_the_smallest_types(source: ModelFile, tmp_path: Path) -> None:
    imatrix = tmp_path / "imatrix"
    write_imatrix(imatrix, source)
    found = {offer.name: offer for offer in offers(source, imatrix=imatrix)}
    assert not any("importance" in offer.refusal for offer in found.values())
    folder = tmp_path / "made"
    folder.mkdir()
    target = folder / "small.gguf"
    QuantiseJob(source, "IQ2_XXS", target, threads=2, imatrix=imatrix).start().result(WITHIN_S)
    file = read_model(target)
    assert abs(file.size - found["IQ2_XXS"].num_bytes) < 256
    assert 8 * file.weights_bytes / file.num_parameters < 4
    assert file.metadata["quantize.imatrix.file"] == "imatrix"
    assert file.metadata["quantize.imatrix.entries_count"] == 7 * source.n_layer


@pytest.mark.slow
def test_both_formats_of_an_importance_matrix_mean_the_same(source: ModelFile, tmp_path: Path) -> None:
    write_imatrix(tmp_path / "new", source, counts=3)
    write_old_imatrix(tmp_path / "old", source, num_calls=7)
    targets: list[list[bytes]] = []
    for name, imatrix in (("plain", None), ("first", tmp_path / "new"), ("second", tmp_path / "old")):
        target = tmp_path / f"{name}.gguf"
        QuantiseJob(source, "Q4_K_S", target, threads=2, imatrix=imatrix).start().result(WITHIN_S)
        targets.append([tensor_bytes(target, tensor) for tensor in read_model(target).tensors])
    assert targets[1] == targets[2] != targets[0]


def test_what_needs_an_importance_matrix_is_refused_without(source: ModelFile, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="needs an importance matrix"):
        QuantiseJob(source, "IQ2_XXS", tmp_path / "target.gguf", threads=1).start().result(WITHIN_S)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path, model: write_imatrix(path, model, extra=2), "has a different size"),
        (lambda path, model: path.write_bytes(b"no matrix at all"), "is not an importance matrix"),
        (lambda path, model: path.write_bytes(b""), "is not an importance matrix"),
        (lambda path, model: path.write_bytes(model.path.read_bytes()), "no tensor has the same name"),
        (write_truncated, "truncated within"),
        (lambda path, model: None, "cannot be read"),
        (lambda path, model: path.write_bytes(struct.pack("<i", 1 << 30)), "is not an importance matrix"),
    ],
)
def test_files_that_are_no_importance_matrix(
    spoil: Callable[..., object], said: str, source: ModelFile, tmp_path: Path
) -> None:
    path = tmp_path / "imatrix"
    spoil(path, source)
    with pytest.raises(ModelError, match=said):
        offers(source, imatrix=path)


def test_an_importance_matrix_of_nan_is_refused_before_writing(source: ModelFile, tmp_path: Path) -> None:
    path = tmp_path / "imatrix"
    write_old_imatrix(path, source)
    raw = bytearray(path.read_bytes())
    raw[-4:] = struct.pack("<f", float("nan"))
    path.write_bytes(raw)
    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(ModelError, match="non-finite"):
        QuantiseJob(source, "Q4_K_M", folder / "x.gguf", threads=1, imatrix=path).start().result(WITHIN_S)
    assert not os.listdir(folder)
