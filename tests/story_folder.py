"""The model that ships as a folder of safetensors, as Hugging Face publishes models: the same network and vocabulary.

Its tensors have the values of the GGUF file's, as 32-bit floats.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_folder(source: Path, folder: Path) -> Path:
    """Write a Llama GGUF file with a SentencePiece vocabulary as a folder, and return the folder."""
    folder.mkdir()
    reader = gguf.GGUFReader(source)
    values = {name: field.contents() for name, field in reader.fields.items()}
    heads = values["llama.attention.head_count"]
    tensors = dict(_tensor(each, heads) for each in reader.tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(values)))
    _tokenizer(values).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return folder


def _config(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": values["llama.attention.head_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "max_position_embeddings": values["llama.context_length"],
        "rms_norm_eps": values["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": values["llama.rope.freq_base"]},
        "tie_word_embeddings": True,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "dtype": "float32",
    }


def _tensor(tensor: Any, heads: int) -> tuple[str, npt.NDArray[np.float32]]:
    """Name and values of a tensor in the folder; queries and keys with the halves of each head's pairs together."""
    name, found = tensor.name.removesuffix(".weight"), gguf.dequantize(tensor.data, tensor.tensor_type)
    if not name.startswith("blk."):
        return f"{_OUTER[name]}.weight", found
    _, layer, part = name.split(".")
    if part in ("attn_q", "attn_k"):
        pairs = found.reshape(heads, -1, 2, found.shape[1])
        found = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(found.shape)
    return f"model.layers.{layer}.{_OF_LAYER[part]}.weight", found


def _tokenizer(values: dict[str, Any]) -> Tokenizer:
    """Byte-pair encoding with the merges that SentencePiece's scores mean, the space written as it does."""
    pieces, scores = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.scores"]
    ids = {piece: number for number, piece in enumerate(pieces)}
    merges = [
        (scores[ids[piece]], ids[piece[:at]], ids[piece[at:]], (piece[:at], piece[at:]))
        for piece, kind in zip(pieces, values["tokenizer.ggml.token_type"], strict=True)
        for at in range(1, len(piece))
        if kind == gguf.TokenType.NORMAL and piece[:at] in ids and piece[at:] in ids
    ]
    merges.sort(key=lambda merge: (-merge[0], merge[1], merge[2]))
    found = Tokenizer(
        models.BPE(ids, [pair for *_order, pair in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    found.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    found.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    found.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", ids["<s>"])])
    found.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return found
