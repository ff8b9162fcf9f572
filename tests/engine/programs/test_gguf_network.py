"""GGUF files run by transformers: the same network as in llama.cpp, tensor by tensor, or refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.errors import ConfigError, ModelError
from engine.models.folder_specs import GGUF_ARCHITECTURES, carried_over, folder_spec, gguf_problem, is_by_transformers
from engine.models.memory import estimate
from engine.models.reading import read_model
from engine.models.tokenizer import Tokenizer
from engine.pool.pool import Pool
from engine.programs.gguf_network import load_gguf_network
from engine.specs import PoolSpec, Sampling
from tests.engine.programs.test_transformers import EXACT, TEXTS, difference

FLOAT = PoolSpec(parallel=2, n_ctx=512, threads=1, dtype="float32")
Tensors = dict[str, npt.NDArray[np.float32]]


def rewritten(source: Path, target: Path, architecture: str, more: Tensors, **changed: Any) -> Path:
    """A copy of a file of 32-bit floats as another architecture, with more tensors and values of its header."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        key = name.replace("llama.", f"{architecture}.", 1)
        value, kinds = changed.pop(key, field.contents()), field.types
        writer.add_key_value(key, value, kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for key, value in changed.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    tensors = {tensor.name: np.array(tensor.data, np.float32) for tensor in reader.tensors}
    for name, values in (tensors | more).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def of_layers(parts: Mapping[str, int]) -> Tensors:
    """Tensors of random values near one for each of the eight layers."""
    random = np.random.default_rng(3)
    names = [(f"blk.{layer}.{part}", size) for layer in range(8) for part, size in parts.items()]
    return {name: random.normal(1, 0.1, size).astype(np.float32) for name, size in names}


FACTORS = np.linspace(1, 8, 32, dtype=np.float32)
"""Divisors of the frequencies of the positions, as Llama 3.1 has them."""
MADE: dict[str, tuple[str, Tensors]] = {
    "factors of positions": ("llama", {"rope_freqs.weight": FACTORS}),
    "an output of its own": ("llama", {"output.weight": np.eye(4096, 256, dtype=np.float32)}),
    "biases": ("qwen2", of_layers({"attn_q.bias": 256, "attn_k.bias": 256, "attn_v.bias": 256})),
    "norms of queries and keys": ("qwen3", of_layers({"attn_q_norm.weight": 64, "attn_k_norm.weight": 64})),
}


def distances(file: Path, text: str, rows: Path) -> tuple[float, float]:
    """Mean KL and the largest difference of a log-probability between llama.cpp and transformers, in nats."""
    tokenizer = Tokenizer(file)
    try:
        ids = tokenizer.tokenize(text)
        found = difference(file, file, folder_spec(read_model(file), FLOAT), ids, tokenizer, rows)
    finally:
        tokenizer.close()
    return found.kl_mean, found.logprob


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_file_of_floats_gives_the_same_distributions(text: str, float_model: Path, tmp_path: Path) -> None:
    kl, logprob = distances(float_model, text, tmp_path / "rows")
    assert kl <= 1e-6 and logprob <= 1e-3


@pytest.mark.parametrize(("architecture", "more"), MADE.values(), ids=MADE)
def test_every_tensor_of_a_network_counts(architecture: str, more: Tensors, float_model: Path, tmp_path: Path) -> None:
    file = rewritten(float_model, tmp_path / "made.gguf", architecture, more)
    kl, logprob = distances(file, TEXTS["a story"], tmp_path / "rows")
    assert kl <= 1e-6 and logprob <= 1e-3


def test_quantised_weights_are_near_and_their_arithmetic_is_not_the_same(story_model: Path, tmp_path: Path) -> None:
    kl, _ = distances(story_model, TEXTS["a story"], tmp_path / "rows")
    assert 1e-9 < kl < 1e-2  # llama.cpp multiplies eight-bit weights by eight-bit activations


def test_a_pool_draws_the_same_tokens(float_model: Path) -> None:
    asks: Any = {"max_tokens": 24, "reuse_prefix": False, "top_k": 5}
    with Pool(float_model, **EXACT.to_dict()) as ours, Pool(float_model, **FLOAT.to_dict()) as theirs:
        assert theirs.spec.type_k == "f32" and theirs.description == "LlamaForCausalLM, float32"
        for sampling in (Sampling(temperature=0), Sampling(seed=7)):
            own, other = (pool.submit("Once upon a time", sampling, **asks).result(120) for pool in (ours, theirs))
            assert [step.id for step in own.steps] == [step.id for step in other.steps]
            assert own.text == other.text


def test_parameters_and_memory_are_those_of_transformers(story_model: Path) -> None:
    file = read_model(story_model)
    assert is_by_transformers(file, FLOAT) and not is_by_transformers(file, PoolSpec())
    decided = folder_spec(file, FLOAT)
    assert (decided.dtype, decided.type_k, decided.share_weights) == ("float32", "f32", False)
    assert estimate(file, decided).copied == 4 * file.num_parameters
    other = carried_over(file, PoolSpec(type_k="q8_0", flash_attn=True), file, "bfloat16")
    assert folder_spec(file, other).type_k == "bf16"
    assert carried_over(file, decided, file).dtype is None  # what is compared with it is llama.cpp
    with pytest.raises(ConfigError, match="n_gpu_layers: is a parameter of llama.cpp"):
        folder_spec(file, PoolSpec(dtype="float32", n_gpu_layers=1))


@pytest.mark.parametrize(
    ("architecture", "changed", "message"),
    [
        ("phi3", {}, f"not among those of GGUF files that PyTorch runs: {', '.join(GGUF_ARCHITECTURES)}"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, "scaled positions"),
        ("llama", {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, "scaled positions"),
        ("llama", {"llama.rope.scaling.factor": 2.0}, "scaled positions"),
        ("qwen2", {"qwen2.rope.scale_linear": 2.0}, "scaled positions"),
        ("llama", {"llama.rope.scaling.type": "none", "llama.rope.scaling.attn_factor": 2.0}, "scaled positions"),
        ("llama", {"llama.attention.causal": False}, "later tokens"),
        ("llama", {"llama.expert_count": 4}, "experts"),
        ("llama", {"llama.rope.dimension_count": 32}, "a part of each head"),
    ],
)
def test_networks_that_would_be_others_are_refused(
    architecture: str, changed: dict[str, Any], message: str, float_model: Path, tmp_path: Path
) -> None:
    file = rewritten(float_model, tmp_path / "made.gguf", architecture, {}, **changed)
    with pytest.raises(ConfigError, match=message):
        Pool(file, **FLOAT.to_dict())


@pytest.mark.parametrize(
    "changed",
    [
        {"llama.rope.scaling.factor": 0.0},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0, "llama.rope.scaling.attn_factor": 1.0},
        {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0},
        {"llama.attention.causal": True},
    ],
)
def test_values_of_a_header_that_change_nothing_are_taken(
    changed: dict[str, Any], float_model: Path, tmp_path: Path
) -> None:
    assert not gguf_problem(read_model(rewritten(float_model, tmp_path / "made.gguf", "llama", {}, **changed)))


@pytest.mark.parametrize(
    ("architecture", "more", "message"),
    [
        ("llama", {"blk.0.attn_gate.weight": np.zeros((256, 256), np.float32)}, "does not have"),
        ("llama", {"blk.0.ffn_norm.weight": np.zeros(128, np.float32)}, "not that of the network"),
        ("qwen2", {}, "the weights lack 24 tensors"),
        ("llama", {"blk.9.attn_norm.weight": np.zeros(256, np.float32)}, "does not have"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    architecture: str, more: Tensors, message: str, float_model: Path, tmp_path: Path
) -> None:
    file = rewritten(float_model, tmp_path / "made.gguf", architecture, more)
    with pytest.raises(ModelError, match=message):
        load_gguf_network(str(file), torch.float32)
