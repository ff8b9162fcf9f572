"""Networks of GGUF files for transformers: every tensor of the file as one of the network's, dequantised.

transformers' own reader passes over tensors that it does not know, such as factors of the positions; here one that is
left over refuses the file, so that what is compared with llama.cpp is the same network.
"""

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.errors import ModelError
from engine.models.folder_specs import gguf_problem
from engine.models.gguf import ModelFile
from engine.models.header import TensorInfo
from engine.models.reading import read_model

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d{1,4})\.([a-z_]{1,40})")
_FACTORS = "rope_freqs.weight"
_LM_HEAD = "lm_head.weight"


def load_gguf_network(path: str, dtype: torch.dtype) -> Any:
    """Return the network of a GGUF file with its weights in a type.

    Raises ModelError for an architecture that is not among GGUF_ARCHITECTURES, and for tensors that are missing, left
    over, of another shape, or of a type that cannot be dequantised.
    """
    file = read_model(Path(path))
    if problem := gguf_problem(file):
        raise ModelError(f"{path}: {problem}")
    tensors = {tensor.name: tensor for tensor in file.tensors}
    factors = tensors.pop(_FACTORS, None)
    config = _config(file, tensors)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=dtype)
    wanted = dict(network.named_parameters(remove_duplicate=False))
    found = {}
    data = np.memmap(path, np.uint8, "r")
    for name, tensor in tensors.items():
        ours = _name(name)
        if ours is None or ours not in wanted:
            raise ModelError(f"{path}: has the tensor {name[:200]!r}, which transformers' network does not have")
        values = torch.from_numpy(_values(data, tensor, file))
        if values.shape != wanted[ours].shape:
            raise ModelError(f"{path}: its tensor {name} has the shape {tuple(values.shape)}, not that of the network")
        found[ours] = values.to(dtype)
    left = sorted(wanted.keys() - found.keys() - ({_LM_HEAD} if config.tie_word_embeddings else set()))
    if left:
        raise ModelError(f"{path}: the weights lack {len(left):,} tensors, such as {left[0]}")
    network.load_state_dict(found, strict=False, assign=True)
    network.tie_weights()
    positions = network.model.rotary_emb = type(network.model.rotary_emb)(config)
    if factors is not None:
        positions.inv_freq = positions.inv_freq / torch.from_numpy(_values(data, factors, file).copy())
    return network


def _config(file: ModelFile, tensors: dict[str, TensorInfo]) -> Any:
    """Return transformers' configuration of a network."""
    return AutoConfig.for_model(
        file.architecture,
        vocab_size=file.n_vocab,
        hidden_size=file.n_embd,
        intermediate_size=file.n_ff,
        num_hidden_layers=file.n_layer,
        num_attention_heads=file.n_head,
        num_key_value_heads=file.n_head_kv[0],
        head_dim=file.head_k,
        max_position_embeddings=file.n_ctx_train,
        rms_norm_eps=_positive(file, "attention.layer_norm_rms_epsilon", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": _positive(file, "rope.freq_base", 10_000.0)},
        tie_word_embeddings="output.weight" not in tensors,
        **({"attention_bias": "blk.0.attn_q.bias" in tensors} if file.architecture == "llama" else {}),
    )


def _positive(file: ModelFile, key: str, default: float) -> float:
    """Return a number of the header. Raises ModelError for one that is not positive."""
    value = file.metadata.get(f"{file.architecture}.{key}", default)
    if not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ModelError(f"{file.path}: {key} is not a positive number")
    return float(value)


def _name(name: str) -> str | None:
    """Return transformers' name of a tensor, None for an unknown one."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    match = _LAYER.fullmatch(stem)
    part = _OF_LAYER.get(match[2]) if match else None
    return f"model.layers.{match[1]}.{part}.{kind}" if match and part else None


def _values(data: npt.NDArray[np.uint8], tensor: TensorInfo, file: ModelFile) -> npt.NDArray[np.float32]:
    """Return the values of a tensor, the length of a row last."""
    raw = data[tensor.offset : tensor.offset + tensor.num_bytes]
    rows = tensor.shape[:0:-1]
    try:
        found = gguf.dequantize(raw.reshape(*rows, -1), gguf.GGMLQuantizationType(tensor.type.number))
    except (NotImplementedError, ValueError) as error:
        raise ModelError(f"{file.path}: its type {tensor.type.name} cannot be turned into floats ({error})") from error
    values = np.array(found, np.float32).reshape(tensor.shape[::-1])
    part = tensor.name.split(".")[2:3]
    if file.architecture == "llama" and part in (["attn_q"], ["attn_k"]):
        return _halves_together(values, file.n_head if part == ["attn_q"] else file.n_head_kv[0])
    return values


def _halves_together(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Return rows of queries or keys as transformers rotates them: the halves of a head's pairs together.

    Files of the architecture llama have the two numbers of each pair side by side.
    """
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
