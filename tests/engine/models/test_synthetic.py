"""Synthetic models: llama.cpp loads them, their types are those of its quantiser, and their logits are finite."""

import ctypes
import re
import shutil
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest

from engine.errors import ConfigError, ModelError
from engine.llama.context import Chunk, Context
from engine.llama.library import start_backend
from engine.llama.model import Model
from engine.models.blocks import MAKERS, random_tensor
from engine.models.ggml import FILE_TYPES, TYPES_BY_NAME, TYPES_BY_NUMBER
from engine.models.planned import planned_model
from engine.models.reading import read_model
from engine.models.shapes import SHAPES, free_form, layers_like
from engine.models.synthetic import (
    PLANNED,
    QUANTISATIONS,
    has_more_bits,
    pieces,
    tensors_of,
    weights_bytes,
    write_synthetic,
)
from engine.specs import PoolSpec

SPEC = PoolSpec(parallel=1, n_ctx=256, share_weights=True)


def logits(path: Path, ids: list[int]) -> np.ndarray:
    model = Model(str(path), SPEC)
    context = Context(model, SPEC, 1, 1)
    try:
        context.fill([Chunk(0, ids, 0, 32)])
        assert context.decode() == 0
        return np.array([row.logits for row in context.logits(32)], np.float64)
    finally:
        context.close()
        model.close()


@pytest.fixture(scope="module", params=["tiny", "tiny-tied", "tiny-phi", "tiny-gemma"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synthetic") / f"{request.param}.gguf"
    write_synthetic(request.param, path)
    return path


def test_all_logits_are_finite_and_neither_flat_nor_certain(written: Path) -> None:
    num_vocab = read_model(written).n_vocab
    ids = np.random.default_rng(0).integers(259, num_vocab, 64).tolist()
    rows = logits(written, ids)
    assert rows.shape == (32, num_vocab)
    assert np.isfinite(rows).all()
    probabilities = np.exp(rows - rows.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=1)
    assert 1.5 < rows.std() < 4
    assert (entropy > 0.5).all()
    assert np.median(entropy) > 2
    assert (entropy < np.log(num_vocab) - 0.5).all()
    assert len(set(rows.argmax(axis=1))) > 8


def test_text_goes_to_ids_and_back_exactly(synthetic: Path) -> None:
    model = Model(str(synthetic), SPEC, vocab_only=True)
    texts = ["badace fi.", "  two  spaces\n\n\ttab", "Zoë said “hé” 😀 <s> </s> <0x41>", "x", "ﷺ\u202e\0mixed"]
    for given in texts:
        ids = model.tokenize(given, add_bos=False)
        assert model.detokenize(ids).decode() == given
    assert len(model.tokenize("badace fi", add_bos=False)) < len("badace fi") / 2
    assert len(model.vocabulary) == read_model(synthetic).n_vocab
    model.close()


@pytest.mark.parametrize("shape", ["tiny", "tiny-tied", "tiny-phi", "tiny-gemma"])
@pytest.mark.parametrize("quantisation", sorted({*PLANNED} - {"F32", "F16", "BF16"}))
def test_types_are_those_of_llama_cpps_own_quantiser(tmp_path: Path, shape: str, quantisation: str) -> None:
    source, target = tmp_path / "f32.gguf", tmp_path / "quantised.gguf"
    write_synthetic(shape, source, "F32")
    start_backend()
    params = llama.llama_model_quantize_default_params()
    params.ftype = next(number for number, name in FILE_TYPES.items() if name == quantisation)
    params.nthread = 1
    assert llama.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0
    theirs = {tensor.name: tensor.type.name for tensor in read_model(target).tensors}
    assert {tensor.name: tensor.type.name for tensor in tensors_of(SHAPES[shape], quantisation)} == theirs


@pytest.mark.parametrize("name", MAKERS)
def test_decoded_blocks_have_the_spread_asked_for(name: str) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = TYPES_BY_NAME[name]
    raw = np.concatenate(list(random_tensor(kind, 1 << 18, 0.02, [1, 2])))
    if name in ("F32", "F16"):
        values = raw.view(np.float32 if name == "F32" else np.float16).astype(np.float64)
    else:
        assert raw.shape == (1024 * 256 // kind.block, kind.num_bytes)
        values = dequantize(raw, GGMLQuantizationType(kind.number)).astype(np.float64)
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.02 * 0.02
    assert values.std() == pytest.approx(0.02, rel=0.03)


def test_tensor_types_are_those_of_the_loaded_ggml() -> None:
    ggml = ctypes.CDLL(llama._lib._name)
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    for number in range(43):
        kind = TYPES_BY_NUMBER.get(number)
        block = ggml.ggml_blck_size(number)
        assert (kind is None) == (block == 0)
        if kind is not None:
            name = ggml.ggml_type_name(number).decode().upper()
            assert (kind.name, kind.block, kind.num_bytes) == (name, block, ggml.ggml_type_size(number))


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("llama-1.1b-32k", 1_100_048_384),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("mistral-nemo-12b", 12_247_782_400),
        ("mistral-small-24b", 23_572_403_200),
        ("phi-3-mini", 3_821_079_552),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("gemma-3-12b", 11_766_034_176),
        ("gemma-3-27b", 27_009_346_304),
        ("mistral-7b", 7_241_732_096),
        ("phi-2", 2_779_683_840),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-7b", 7_615_616_512),
        ("gemma-3-270m", 268_098_176),
        ("gemma-3-1b", 999_885_952),
        ("gemma-3-4b", 3_880_263_168),
    ],
)
def test_shapes_have_the_sizes_of_the_models_they_stand_for(name: str, num_parameters: int) -> None:
    assert sum(tensor.num_values for tensor in tensors_of(SHAPES[name], "Q4_K_M")) == num_parameters


def test_weights_are_as_large_as_announced_before_writing(written: Path) -> None:
    model = read_model(written)
    assert model.weights_bytes == weights_bytes(SHAPES[model.name.removeprefix("Synthetic ")], "Q4_K_M")


def test_a_model_that_was_only_planned_is_the_one_that_would_be_written(written: Path) -> None:
    model = read_model(written)
    planned = planned_model(model.name, SHAPES[model.name.removeprefix("Synthetic ")], "Q4_K_M")
    names = (
        "architecture", "name", "quantisation", "num_parameters", "n_vocab", "n_ctx_train", "n_embd", "n_layer",
        "n_ff", "n_head", "n_head_kv", "head_k", "head_v", "sliding_window", "weights_bytes",
    )  # fmt: skip
    assert [getattr(planned, name) for name in names] == [getattr(model, name) for name in names]
    begins = model.tensors[0].offset
    assert [tensor._replace(offset=tensor.offset + begins) for tensor in planned.tensors] == list(model.tensors)


def test_layers_alone_have_the_types_of_the_layer_they_stand_for() -> None:
    shape = SHAPES["llama-1.1b-32k"]
    whole = {tensor.name: tensor.type.name for tensor in tensors_of(shape, "Q4_K_M")}
    for layer in range(22):
        alone = tensors_of(layers_like(shape, layer, 2), "Q4_K_M")
        types = {tensor.name: tensor.type.name for tensor in alone if tensor.name.startswith("blk.")}
        assert types == {name: whole[re.sub(r"blk\.\d", f"blk.{layer}", name)] for name in types}
        assert len(types) == 2 * 9
        assert (types["blk.1.ffn_down.weight"] == "Q6_K") == has_more_bits(layer, 22)


def test_pieces_are_unique_and_made_of_shorter_ones() -> None:
    found = pieces(40_000)
    known = set(found)
    assert len(known) == 40_000
    long = [piece for piece in found if len(piece.lstrip("▁")) > 2]
    assert all(piece[:-2] in known for piece in long)


def test_writing_is_repeatable_tells_its_progress_and_marks_the_file(tmp_path: Path) -> None:
    shares: list[float] = []
    write_synthetic("tiny", tmp_path / "a.gguf", seed=3, progress=shares.append)
    write_synthetic("tiny", tmp_path / "b.gguf", seed=3)
    write_synthetic("tiny", tmp_path / "c.gguf", seed=4)
    a, b, c = ((tmp_path / f"{name}.gguf").read_bytes() for name in "abc")
    assert a == b != c
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    model = read_model(tmp_path / "a.gguf")
    assert model.is_synthetic
    assert model.name == "Synthetic tiny"
    assert model.quantisation == "Q4_K_M"


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_every_quantisation_is_written_whole(tmp_path: Path, quantisation: str) -> None:
    write_synthetic("tiny", tmp_path / "m.gguf", quantisation)
    model = read_model(tmp_path / "m.gguf")
    assert model.quantisation == quantisation
    assert model.num_parameters == 5_247_232
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_free_form_is_written_and_runs(tmp_path: Path) -> None:
    shape = free_form(layers=2, width=192, heads=6, kv_heads=2, vocab=1024, context=256)
    write_synthetic(shape, tmp_path / "m.gguf")
    model = read_model(tmp_path / "m.gguf")
    assert model.name == "Synthetic llama, 2 layers of 192"
    assert (model.n_layer, model.n_embd, model.n_head, model.n_head_kv, model.n_ff) == (2, 192, 6, (2, 2), 512)
    assert np.isfinite(logits(model.path, list(range(300, 364)))).all()


def test_a_disk_with_too_little_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(1 << 40, 1 << 40, 1_500_000))
    with pytest.raises(ModelError, match=r"needs 3\.20 MB and the disk has 1\.50 MB left: choose another folder"):
        write_synthetic("tiny", tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"shape = 'huge': must be one of llama-1\.1b-32k"):
        write_synthetic("huge", tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match="quantisation = 'Q3': must be one of Q4_K_M"):
        write_synthetic("tiny", tmp_path / "m.gguf", "Q3")
    with pytest.raises(ModelError, match="cannot be written"):
        write_synthetic("tiny", tmp_path / "none" / "m.gguf")
    assert not list(tmp_path.iterdir())
