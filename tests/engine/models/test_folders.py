"""Model folders: what is read of their configuration and weights, and all that is refused."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError, ModelError
from engine.models.folders import is_model_folder
from engine.models.identity import model_hash
from engine.models.library import BrokenFile, find_model, list_models
from engine.models.memory import estimate
from engine.models.quantisations import offers
from engine.models.quantise import QuantiseJob
from engine.models.reading import read_model
from engine.models.safetensors import read_tensors
from engine.pool.pool import Pool
from engine.specs import PoolSpec


@pytest.fixture
def folder(story_folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to be damaged."""
    return Path(shutil.copytree(story_folder, tmp_path / "damaged"))


def change(path: Path, **values: Any) -> None:
    """Change values of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def table(path: Path, entries: object, data: bytes = b"", length: int | None = None) -> None:
    """Write a safetensors file with this table."""
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def test_a_folder_says_what_its_gguf_file_says(story_folder: Path, story_model: Path) -> None:
    ours, file = read_model(story_folder), read_model(story_model)
    assert ours.is_folder and not file.is_folder
    for name in (
        "architecture", "num_parameters", "n_vocab", "n_ctx_train", "n_embd", "n_layer", "n_ff", "n_head", "n_head_kv",
        "head_k", "head_v", "sliding_window",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(file, name), name
    assert (ours.name, ours.quantisation, ours.parts) == ("story", "F32", 1)
    assert ours.size == (story_folder / "model.safetensors").stat().st_size
    assert ours.weights_bytes == 4 * ours.num_parameters
    assert {path.name for path in ours.files} == {
        "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


def test_a_folder_in_shards_is_one_model(folder: Path) -> None:
    whole = read_model(folder)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    shards = dict.fromkeys((tensor.name for tensor in whole.tensors), "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert is_model_folder(folder)
    assert read_model(folder).tensors == whole.tensors


def test_the_library_lists_and_finds_a_folder(story_folder: Path, models_folder: Path) -> None:
    shutil.copytree(story_folder, models_folder / "llama" / "story")
    (found,) = list_models(models_folder)
    assert not isinstance(found, BrokenFile)
    assert (found.name, found.path) == ("story", models_folder / "llama" / "story")
    assert find_model("story").path == find_model(str(found.path)).path == found.path


def test_a_folder_of_embeddings_is_no_model_of_the_library(folder: Path, models_folder: Path) -> None:
    (folder / "modules.json").write_text("[]")
    shutil.move(folder, models_folder / "embeddings")
    assert list_models(models_folder) == []


def test_a_link_out_of_the_library_is_not_followed(folder: Path, models_folder: Path) -> None:
    kept = models_folder / "story"
    shutil.copytree(folder, kept)
    (kept / "model.safetensors").unlink()
    (kept / "model.safetensors").symlink_to(folder / "model.safetensors")
    (found,) = list_models(models_folder)
    assert isinstance(found, BrokenFile) and "outside its folder" in found.reason


def test_a_change_of_its_configuration_is_seen_at_once(folder: Path, models_folder: Path) -> None:
    kept = models_folder / "story"
    shutil.copytree(folder, kept)
    (before,) = list_models(models_folder)
    change(kept / "config.json", max_position_embeddings=256)
    (after,) = list_models(models_folder)
    assert not isinstance(before, BrokenFile) and not isinstance(after, BrokenFile)
    assert (before.n_ctx_train, after.n_ctx_train) == (512, 256)


def test_its_hash_is_of_all_that_decides_its_answers(folder: Path, story_folder: Path) -> None:
    first = model_hash(folder)
    assert first == model_hash(story_folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')  # the tokens that end a text
    ends = model_hash(folder)
    change(folder / "config.json", rms_norm_eps=1e-3)
    assert len({first, ends, model_hash(folder), ""}) == 4


def test_its_memory_is_that_of_its_type(story_folder: Path) -> None:
    file = read_model(story_folder)
    full, half = (estimate(file, PoolSpec(instances=2, dtype=dtype)) for dtype in ("float32", "bfloat16"))
    assert full.weights == 2 * 4 * file.num_parameters == 2 * half.weights
    assert full.kv == 2 * half.kv == 8 * 512 * file.n_layer * 2 * file.n_embd * 4
    assert "float32" in full.arithmetic and "bfloat16" in half.arithmetic


def test_the_estimate_covers_what_a_worker_takes(story_folder: Path) -> None:
    with Pool(story_folder, parallel=2, n_ctx=512, threads=1) as pool:
        pool.submit("Once upon a time", max_tokens=4).result(60)
        used = pool.measure(60)[0]["pss_bytes"]
        needed = estimate(pool.file, pool.spec)
    assert 0.7 * used < needed.total < 1.5 * used


def test_a_folder_is_not_quantised(story_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only GGUF files are quantised"):
        offers(read_model(story_folder))
    with pytest.raises(ConfigError, match="convert_hf_to_gguf"):
        QuantiseJob(read_model(story_folder), "Q4_0", tmp_path / "x.gguf", threads=1)


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def configured(name: str = "config.json", **values: Any) -> Callable[[Path], object]:
    return lambda folder: change(folder / name, **values)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def indexed(content: object) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "kept.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    return write


def longer(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"\0")


WRONG: dict[str, Callable[[Path], object]] = {
    "without config.json": without("config.json"),
    "has no tokenizer.json": without("tokenizer.json"),
    "neither model.safetensors nor": without("model.safetensors"),
    "pytorch_model.bin": pickled,
    "auto_map": configured(auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"}),
    "tokenizer_config.json: asks to run": configured(
        "tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]}
    ),
    "weights are quantised": configured(quantization_config={"quant_method": "gptq"}),
    "does not predict the next token": configured(architectures=["BertModel"]),
    "no architecture": configured(architectures=[]),
    "`architectures`": configured(architectures=None),
    "`$.vocab_size`": configured(vocab_size=-1),
    "describes a larger network": configured(vocab_size=1 << 30),
    "than the weights beside it": configured(intermediate_size=1 << 30),
    "hidden_size is missing": configured(hidden_size=None),
    "num_hidden_layers is 5,000": configured(num_hidden_layers=5000),
    "cannot be read": lambda folder: (folder / "config.json").write_text("[" * 100_000),
    "too long": lambda folder: table(folder / "model.safetensors", {}, length=1 << 40),
    "is damaged": lambda folder: table(folder / "model.safetensors", {"a": {"dtype": "F32", "shape": [-1]}}),
    "which does not match its shape": lambda folder: table(
        folder / "model.safetensors",
        {"a": {"dtype": "F32", "shape": [1 << 30, 1 << 20], "data_offsets": [0, 4]}},
        b"1234",
    ),
    "has the type 'F8_E4M3'": lambda folder: table(
        folder / "model.safetensors", {"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, b"1"
    ),
    "does not begin where": lambda folder: table(
        folder / "model.safetensors",
        {name: {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]} for name in "ab"},
        b"1234",
    ),
    "its table of tensors gives": longer,
    "no safetensors file beside it": indexed({"weight_map": {"a": "../../etc/passwd.safetensors"}}),
    "is missing: download": indexed({"weight_map": {"a": "model-00001-of-00002.safetensors"}}),
    "names 0 files": indexed({"weight_map": {}}),
    "index.json: cannot be read": indexed({"weight_map": ["a"]}),
    "adapter": lambda folder: (folder / "adapter_config.json").write_text("{}"),
}


@pytest.mark.parametrize("says", WRONG)
def test_what_cannot_be_run_is_refused_with_the_reason(folder: Path, says: str) -> None:
    WRONG[says](folder)
    with pytest.raises(ModelError) as raised:
        read_model(folder)
    assert says in str(raised.value)
    with pytest.raises(ModelError):
        Pool(folder)


def test_a_device_in_place_of_the_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")
    with pytest.raises(ModelError):
        read_tensors(folder / "model.safetensors")
