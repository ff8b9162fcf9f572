"""The embedding model that is installed with the workbench as a GGUF file, which no registry has."""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from safetensors.numpy import load_file

from engine.embedding.models import find_model

POOLING = "bert.pooling_type"
_SPACE = "\u2581"
_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
"""The model's names, and llama.cpp's for the architecture bert."""


def write_minilm(path: Path, kind: str = "Q8_0", pooling: gguf.PoolingType | None = gguf.PoolingType.MEAN) -> Path:
    """Write all-MiniLM-L6-v2 with its matrices in the type `kind`; without a pooling where that is None."""
    folder = find_model("").path
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    _add_vocabulary(writer, folder)
    for name, values in load_file(folder / "model.safetensors").items():
        if name.startswith(("embeddings.", "encoder.")) and not name.endswith("position_ids"):
            _add_tensor(writer, name, values, gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    """Words begin with a visible space, and pieces that go on inside a word lose their ##."""
    written = (folder / "vocab.txt").read_text("utf-8").splitlines()
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    tokens = [
        token if token in special else token[2:] if token.startswith("##") else _SPACE + token for token in written
    ]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in written])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(written.index("[CLS]"))
    writer.add_sep_token_id(written.index("[SEP]"))
    writer.add_unk_token_id(written.index("[UNK]"))
    writer.add_pad_token_id(written.index("[PAD]"))
    writer.add_mask_token_id(written.index("[MASK]"))


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType) -> None:
    base, _, what = name.rpartition(".")
    block = ""
    if base.startswith("encoder.layer."):
        number, _, base = base.removeprefix("encoder.layer.").partition(".")
        block = f"blk.{number}."
    is_matrix = values.ndim == 2 and base not in ("embeddings.token_type_embeddings", "embeddings.position_embeddings")
    used = kind if is_matrix else gguf.GGMLQuantizationType.F32
    data = quantize(values.astype(np.float32), used)
    writer.add_tensor(f"{block}{_NAMES[base]}.{what}", data, raw_dtype=used)
