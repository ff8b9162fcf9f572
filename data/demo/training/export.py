"""Write the trained network as a Llama GGUF: matrices as Q8_0, norms as F32, the vocabulary of SentencePiece."""

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import sentencepiece as spm
from network import Network

Q8_0 = gguf.GGMLQuantizationType.Q8_0
GENERAL = {
    "name": "Logitbench Story",
    "author": "the Logitbench developers",
    "version": "1.0",
    "license": "mit",
    "description": "A demonstration model: English story prose in the manner of public-domain children's books.",
    "url": "https://github.com/logitbench/logitbench",
}


def write_gguf(network: Network, tokenizer: spm.SentencePieceProcessor, path: Path) -> None:
    """Write PATH, replacing it whole; raises OSError when the folder cannot be written."""
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    add_metadata(writer, network)
    add_vocabulary(writer, tokenizer)
    add_tensors(writer, network)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)


def add_metadata(writer: gguf.GGUFWriter, network: Network) -> None:
    shape = network.shape
    writer.add_type("model")
    writer.add_name(GENERAL["name"])
    writer.add_author(GENERAL["author"])
    writer.add_version(GENERAL["version"])
    writer.add_license(GENERAL["license"])
    writer.add_description(GENERAL["description"])
    writer.add_size_label(f"{sum(p.numel() for p in network.parameters()) / 1e6:.1f}M")
    writer.add_languages(["en"])
    writer.add_tags(["text-generation", "demonstration"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_vocab_size(shape.vocab_size)


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: spm.SentencePieceProcessor) -> None:
    """The newline is a normal piece: llama.cpp would put a space after a user-defined one."""
    pieces, scores, types = [], [], []
    for index in range(tokenizer.vocab_size()):
        pieces.append(tokenizer.id_to_piece(index).encode())
        scores.append(tokenizer.get_score(index))
        if tokenizer.is_unknown(index):
            types.append(gguf.TokenType.UNKNOWN)
        elif tokenizer.is_control(index):
            types.append(gguf.TokenType.CONTROL)
        elif tokenizer.is_byte(index):
            types.append(gguf.TokenType.BYTE)
        else:
            types.append(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(tokenizer.unk_id())
    writer.add_bos_token_id(tokenizer.bos_id())
    writer.add_eos_token_id(tokenizer.eos_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def add_tensors(writer: gguf.GGUFWriter, network: Network) -> None:
    def matrix(name: str, values: npt.NDArray[np.float32]) -> None:
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(values), Q8_0), raw_dtype=Q8_0)

    weights = {name: tensor.float().numpy() for name, tensor in network.state_dict().items()}
    matrix("token_embd.weight", weights["token_embd.weight"])
    for index in range(network.shape.layers):
        ours, theirs = f"blocks.{index}", f"blk.{index}"
        for part, values in zip("qkv", np.split(weights[f"{ours}.attn_qkv.weight"], 3), strict=True):
            matrix(f"{theirs}.attn_{part}.weight", values)
        for part, values in zip(("gate", "up"), np.split(weights[f"{ours}.ffn_gate_up.weight"], 2), strict=True):
            matrix(f"{theirs}.ffn_{part}.weight", values)
        for part in ("attn_output", "ffn_down"):
            matrix(f"{theirs}.{part}.weight", weights[f"{ours}.{part}.weight"])
        for part in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{theirs}.{part}.weight", weights[f"{ours}.{part}.weight"])
    writer.add_tensor("output_norm.weight", weights["output_norm.weight"])
