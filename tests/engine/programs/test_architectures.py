"""Architectures of transformers with the KV cache of this engine: the same logits as without a cache, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from engine.errors import ModelError
from engine.llama.context import Chunk
from engine.programs.transformers_context import TransformersContext
from engine.specs import PoolSpec

NUM_VOCAB = 300
SPEC = PoolSpec(parallel=3, n_ctx=64, dtype="float32")
_USUAL: dict[str, Any] = {
    "vocab_size": NUM_VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_OF_GPT2: dict[str, Any] = {
    "vocab_size": NUM_VOCAB, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_WINDOW = {"head_dim": 16, "sliding_window": 16}
RUN: dict[str, dict[str, Any]] = {
    "llama": _USUAL,
    "qwen2": _USUAL,
    "qwen3": _USUAL | {"head_dim": 16},
    "mistral": _USUAL | {"sliding_window": 16},
    "gemma2": _USUAL | _WINDOW,
    "gemma3_text": _USUAL | _WINDOW,
    "exaone4": _USUAL | _WINDOW,
    "phi3": _USUAL,
    "gpt2": _OF_GPT2,
    "gpt_neox": _USUAL,
    "mixtral": _USUAL | {"num_local_experts": 4, "num_experts_per_tok": 2},
    # its last layers have no keys and values of their own
    "gemma3n_text": _USUAL
    | _WINDOW
    | {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": NUM_VOCAB,
        "hidden_size_per_layer_input": 8,
        "altup_num_inputs": 2,
        "laurel_rank": 4,
        "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
}
REFUSED: dict[str, dict[str, Any]] = {
    "mamba": {"vocab_size": NUM_VOCAB, "hidden_size": 64, "num_hidden_layers": 2},
    "bloom": {"vocab_size": NUM_VOCAB, "hidden_size": 64, "n_layer": 2, "n_head": 4},
}


def save(kind: str, values: dict[str, Any], folder: Path) -> Any:
    """Write a network of random weights, and return it."""
    torch.manual_seed(1)
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values)).float().eval()
    for weights in network.parameters():
        if weights.dim() > 1:
            weights.data.mul_(3)  # so that probabilities differ
    network.save_pretrained(folder)
    return network


@pytest.mark.parametrize("kind", RUN)
def test_a_text_in_parts_beside_others_has_the_logits_of_the_whole_text(kind: str, tmp_path: Path) -> None:
    network = save(kind, RUN[kind], tmp_path)
    context = TransformersContext(str(tmp_path), SPEC, NUM_VOCAB, 1, 1)
    texts = [[(step * place + 5) % NUM_VOCAB for place in range(50)] for step in (11, 7)]
    rows: list[list[Any]] = [[], []]
    for start in range(0, 50, 7):
        chunks = [Chunk(2 * number, text[start : start + 7], start, 7) for number, text in enumerate(texts)]
        chunks = [chunk._replace(num_rows=len(chunk.ids)) for chunk in chunks]
        num_rows = context.fill(chunks)
        context.decode()
        found = [row.logits.copy() for row in context.logits(num_rows)]
        for number in (0, 1):
            rows[number] += found[number * num_rows // 2 :][: num_rows // 2]
    for text, ours in zip(texts, rows, strict=True):
        with torch.inference_mode():
            whole = network(torch.tensor([text]), use_cache=False).logits[0].float().numpy()
        assert np.abs(np.stack(ours) - whole).max() < 1e-4
        assert whole.std() > 0.1


@pytest.mark.parametrize("kind", ["llama", "gemma3n_text"])
def test_a_copied_prefix_continues_as_the_whole_text(kind: str, tmp_path: Path) -> None:
    network = save(kind, RUN[kind], tmp_path)
    context = TransformersContext(str(tmp_path), SPEC, NUM_VOCAB, 1, 1)
    text = [(11 * place + 5) % NUM_VOCAB for place in range(30)]
    context.fill([Chunk(0, text[:20], 0, 0)])
    context.decode()
    context.copy(0, 2)
    num_rows = context.fill([Chunk(2, text[20:], 20, 1)])
    context.decode()
    (row,) = context.logits(num_rows)
    with torch.inference_mode():
        whole = network(torch.tensor([text]), use_cache=False).logits[0, -1].float().numpy()
    assert np.abs(row.logits - whole).max() < 1e-4


def test_a_window_is_seen_in_the_logits(tmp_path: Path) -> None:
    network = save("mistral", RUN["mistral"], tmp_path)
    text = [(11 * place + 5) % NUM_VOCAB for place in range(50)]
    with torch.inference_mode():
        narrow = network(torch.tensor([text]), use_cache=False).logits[0, -1]
        network.config.sliding_window = None
        wide = network(torch.tensor([text]), use_cache=False).logits[0, -1]
    assert (narrow - wide).abs().max() > 1e-3


@pytest.mark.parametrize("kind", REFUSED)
def test_an_architecture_without_keys_and_values_is_refused(kind: str, tmp_path: Path) -> None:
    save(kind, REFUSED[kind], tmp_path)
    with pytest.raises(ModelError, match="its architecture"):
        TransformersContext(str(tmp_path), SPEC, NUM_VOCAB, 1, 1)


def test_a_cache_that_would_give_other_probabilities_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("llama", RUN["llama"], tmp_path)
    monkeypatch.setattr("engine.programs.transformers_context.mask_of", lambda step, dtype, window=0: torch.zeros(
        len(step.seq_ids), 1, step.num_tokens, step.length, dtype=dtype
    ))  # fmt: skip
    with pytest.raises(ModelError, match="other probabilities with a KV cache"):
        TransformersContext(str(tmp_path), SPEC, NUM_VOCAB, 1, 1)


def test_missing_tensors_are_never_made_up(tmp_path: Path) -> None:
    save("llama", RUN["llama"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 tensors, such as model\.layers\.1\.mlp\.up_proj"):
        TransformersContext(str(tmp_path), SPEC, NUM_VOCAB, 1, 1)


def test_tensors_of_other_sizes_are_refused(tmp_path: Path) -> None:
    save("llama", RUN["llama"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(ModelError, match="transformers cannot load this model"):
        TransformersContext(str(tmp_path), SPEC, NUM_VOCAB, 1, 1)


def test_what_pytorch_cannot_compute_is_an_error_that_says_why(tmp_path: Path) -> None:
    save("llama", RUN["llama"], tmp_path)
    context = TransformersContext(str(tmp_path), SPEC, NUM_VOCAB, 1, 1)
    context.fill([Chunk(0, [NUM_VOCAB + 7], 0, 1)])
    with pytest.raises(ModelError, match="PyTorch cannot compute these tokens"):
        context.decode()
