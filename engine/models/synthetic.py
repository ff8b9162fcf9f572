"""Models of random weights in the shape of real ones: as fast and as large as those, with nothing to say.

They measure speed and memory where no real model may be downloaded. The tensors get the types that llama.cpp's own
quantiser would give them (llama-quant.cpp, llama_tensor_get_type_impl), the vocabulary is made of pronounceable
pieces with byte tokens for everything else, and `logitbench.synthetic` in the metadata says what the file is.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

from engine.errors import ConfigError, ModelError
from engine.models.blocks import random_tensor
from engine.models.ggml import FILE_TYPES, TYPES_BY_NAME, TensorType

ALIGNMENT = 32
_CONTROL = ("<unk>", "<s>", "</s>")
_LOGIT_STD = 2.5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Dimensions of a decoder of the llama family; `is_tied`: the output matrix is the token embedding."""

    architecture: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    norm_eps: float
    rope_base: float
    is_tied: bool = False
    has_qkv_bias: bool = False
    add_bos: bool = True

    @property
    def n_embd_kv(self) -> int:
        """Width of a layer's keys."""
        return self.n_embd // self.n_head * self.n_head_kv


SHAPES = {
    "llama-1.1b-32k": Shape(
        architecture="llama",
        n_vocab=32_000,
        n_ctx_train=2048,
        n_embd=2048,
        n_layer=22,
        n_head=32,
        n_head_kv=4,
        n_ff=5632,
        norm_eps=1e-5,
        rope_base=10_000,
    ),
    "qwen2.5-0.5b": Shape(
        architecture="qwen2",
        n_vocab=151_936,
        n_ctx_train=32_768,
        n_embd=896,
        n_layer=24,
        n_head=14,
        n_head_kv=2,
        n_ff=4864,
        norm_eps=1e-6,
        rope_base=1_000_000,
        is_tied=True,
        has_qkv_bias=True,
        add_bos=False,
    ),
    "tiny": Shape(
        architecture="llama",
        n_vocab=1024,
        n_ctx_train=512,
        n_embd=256,
        n_layer=8,
        n_head=4,
        n_head_kv=2,
        n_ff=512,
        norm_eps=1e-5,
        rope_base=10_000,
    ),
    "tiny-tied": Shape(
        architecture="qwen2",
        n_vocab=2048,
        n_ctx_train=1024,
        n_embd=224,
        n_layer=9,
        n_head=7,
        n_head_kv=1,
        n_ff=512,
        norm_eps=1e-6,
        rope_base=1_000_000,
        is_tied=True,
        has_qkv_bias=True,
        add_bos=False,
    ),
}
QUANTISATIONS = ("Q4_K_M", "Q6_K", "Q8_0", "F16", "F32")


class Tensor(NamedTuple):
    """One tensor to write: rows x columns, or a vector where rows is 0, with the spread its weights shall have."""

    name: str
    rows: int
    columns: int
    type: TensorType
    mean: float
    std: float

    @property
    def num_values(self) -> int:
        return max(self.rows, 1) * self.columns


def write_synthetic(
    shape: str,
    path: str | Path,
    quantisation: str = "Q4_K_M",
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a model of random weights to `path`, replacing it whole; some megabytes of memory whatever its size.

    `progress` gets 0 to 1. The same arguments give the same bytes. Raises ConfigError for an unknown shape or
    quantisation, ModelError when the file cannot be written; nothing is left behind then.
    """
    if shape not in SHAPES:
        raise ConfigError(f"shape = {shape!r}: must be one of {', '.join(SHAPES)}")
    if quantisation not in QUANTISATIONS:
        raise ConfigError(f"quantisation = {quantisation!r}: must be one of {', '.join(QUANTISATIONS)}")
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    tensors = tensors_of(SHAPES[shape], quantisation)
    try:
        _write_header(partial, shape, quantisation, tensors)
        _append_data(partial, tensors, seed, progress or (lambda fraction: None))
        partial.replace(path)
    except OSError as error:
        raise ModelError(f"{path}: the synthetic model cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)


def tensors_of(shape: Shape, quantisation: str) -> list[Tensor]:
    """All tensors in the order of the file.

    Spreads are chosen so that activations keep their size through the layers, the logits spread by about 2.5 nats,
    and the embedding weighs little in the residual stream: with tied weights a model would else repeat its input.
    """
    embedding_std = _LOGIT_STD / math.sqrt(shape.n_embd)
    mixture = _Mixture(shape, quantisation)
    found: list[Tensor] = []

    def matrix(name: str, rows: int, columns: int, std: float = 0.0, layer: int = 0) -> None:
        kind = mixture.type_of(name, columns, layer)
        found.append(Tensor(f"{name}.weight", rows, columns, kind, 0.0, std or 1 / math.sqrt(columns)))

    def vector(name: str, columns: int, mean: float) -> None:
        found.append(Tensor(name, 0, columns, TYPES_BY_NAME["F32"], mean, 0.1))

    matrix("token_embd", shape.n_vocab, shape.n_embd, embedding_std)
    vector("output_norm.weight", shape.n_embd, 1.0)
    if not shape.is_tied:
        matrix("output", shape.n_vocab, shape.n_embd, embedding_std)
    for layer in range(shape.n_layer):
        block = f"blk.{layer}."
        vector(f"{block}attn_norm.weight", shape.n_embd, 1.0)
        for name, rows in (("attn_q", shape.n_embd), ("attn_k", shape.n_embd_kv), ("attn_v", shape.n_embd_kv)):
            matrix(block + name, rows, shape.n_embd, layer=layer)
            if shape.has_qkv_bias:
                vector(f"{block}{name}.bias", rows, 0.0)
        matrix(f"{block}attn_output", shape.n_embd, shape.n_embd, layer=layer)
        vector(f"{block}ffn_norm.weight", shape.n_embd, 1.0)
        matrix(f"{block}ffn_gate", shape.n_ff, shape.n_embd, layer=layer)
        matrix(f"{block}ffn_up", shape.n_ff, shape.n_embd, layer=layer)
        matrix(f"{block}ffn_down", shape.n_embd, shape.n_ff, layer=layer)
    return found


class _Mixture:
    """Which type llama.cpp's quantiser gives a matrix."""

    def __init__(self, shape: Shape, quantisation: str) -> None:
        self.shape = shape
        self.quantisation = quantisation
        self.default = TYPES_BY_NAME["Q4_K" if quantisation == "Q4_K_M" else quantisation]

    def type_of(self, name: str, columns: int, layer: int) -> TensorType:
        kind = self.default.name
        if kind in ("F32", "F16"):
            return self.default
        if name == "output" or (name == "token_embd" and self.shape.is_tied):
            kind = "Q8_0" if columns % self.default.block or kind == "Q8_0" else "Q6_K"
        elif self.quantisation == "Q4_K_M" and name.endswith(("attn_v", "ffn_down")) and self.has_more_bits(layer):
            kind = "Q6_K"
        if columns % TYPES_BY_NAME[kind].block:
            kind = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}[kind]
        return TYPES_BY_NAME[kind]

    def has_more_bits(self, layer: int) -> bool:
        """The first and last eighth of the layers, and every third between."""
        eighth = self.shape.n_layer // 8
        return layer < eighth or layer >= 7 * self.shape.n_layer // 8 or (layer - eighth) % 3 == 2


def pieces(count: int) -> list[str]:
    """`count` different pieces for a SentencePiece vocabulary: the printable ASCII characters, then words of syllables.

    Each word stands with and without a space before it and is made of shorter ones, so that the tokenizer's merges
    reach it.
    """
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvwxyz" for vowel in "aeiou"]

    def all_pieces() -> Iterator[str]:
        yield "▁"
        yield from (chr(code) for code in range(33, 127))
        for length in itertools.count(1):
            for word in map("".join, itertools.product(syllables, repeat=length)):
                yield word
                yield "▁" + word

    return list(itertools.islice(all_pieces(), count))


def _write_header(path: Path, name: str, quantisation: str, tensors: list[Tensor]) -> None:
    shape = SHAPES[name]
    writer = gguf.GGUFWriter(path, shape.architecture)
    try:
        writer.add_type("model")
        writer.add_name(f"Synthetic {name}")
        writer.add_description("Random weights in the shape of a real model, made to measure speed and memory")
        writer.add_bool("logitbench.synthetic", True)
        writer.add_file_type(next(number for number, file_type in FILE_TYPES.items() if file_type == quantisation))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_vocab_size(shape.n_vocab)
        writer.add_context_length(shape.n_ctx_train)
        writer.add_embedding_length(shape.n_embd)
        writer.add_block_count(shape.n_layer)
        writer.add_feed_forward_length(shape.n_ff)
        writer.add_head_count(shape.n_head)
        writer.add_head_count_kv(shape.n_head_kv)
        writer.add_layer_norm_rms_eps(shape.norm_eps)
        writer.add_rope_dimension_count(shape.n_embd // shape.n_head)
        writer.add_rope_freq_base(shape.rope_base)
        _add_vocabulary(writer, shape)
        for tensor in tensors:
            dimensions = (tensor.rows, tensor.columns) if tensor.rows else (tensor.columns,)
            kind = gguf.GGMLQuantizationType(tensor.type.number)
            num_bytes = tensor.type.size_of(tensor.num_values)
            writer.add_tensor_info(tensor.name, dimensions, np.dtype(np.float32), num_bytes, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, shape: Shape) -> None:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    normal = pieces(shape.n_vocab - len(_CONTROL) - len(byte_tokens))
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * len(byte_tokens) + [gguf.TokenType.NORMAL] * len(normal)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*_CONTROL, *byte_tokens, *normal])
    writer.add_token_scores([0.0] * (len(_CONTROL) + len(byte_tokens)) + [-float(rank) for rank in range(len(normal))])
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(shape.add_bos)
    writer.add_add_space_prefix(True)


def _append_data(path: Path, tensors: list[Tensor], seed: int, progress: Callable[[float], None]) -> None:
    total = sum(tensor.type.size_of(tensor.num_values) for tensor in tensors)
    written = 0
    with path.open("ab") as file:
        file.write(bytes(-file.tell() % ALIGNMENT))
        for index, tensor in enumerate(tensors):
            for blocks in random_tensor(tensor.type, tensor.num_values, tensor.std, [seed, index]):
                if tensor.mean:
                    blocks = (blocks.view(np.float32) + np.float32(tensor.mean)).view(np.uint8)
                file.write(blocks.data)
                written += blocks.nbytes
                progress(written / total)
            file.write(bytes(-file.tell() % ALIGNMENT))
