"""Synthetic models: random weights in the shape of real models, with their speed and size but meaningless output.

They measure speed and memory where no real model may be downloaded. The tensors get the types that llama.cpp's own
quantiser would give them (llama-quant.cpp, llama_tensor_get_type_impl), the vocabulary consists of pronounceable
pieces with byte tokens for everything else, and `logitbench.synthetic` in the metadata marks the file.
"""

import itertools
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

from engine.errors import ConfigError, ModelError
from engine.models.blocks import random_tensor
from engine.models.ggml import FILE_TYPES, TYPES_BY_NAME, TensorType
from engine.models.shapes import Shape, shape_named
from engine.units import quantity

ALIGNMENT = 32
_CONTROL = ("<unk>", "<s>", "</s>")
_LOGIT_STD = 2.5
QUANTISATIONS = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "Q4_0", "F16", "F32")
"""Quantisations that can be written."""

PLANNED = (
    *QUANTISATIONS, "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q5_K_S", "Q4_1", "Q5_0", "Q5_1", "IQ4_XS",
    "IQ4_NL", "BF16",
)  # fmt: skip
"""Quantisations whose tensor types, and thus sizes, are known."""

_FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
"""Types of rows that are no multiple of 256."""


class Tensor(NamedTuple):
    """Tensor to write: rows x columns, or a vector where rows is 0, with mean and standard deviation of its weights."""

    name: str
    rows: int
    columns: int
    type: TensorType
    mean: float
    std: float

    @property
    def num_values(self) -> int:
        return max(self.rows, 1) * self.columns

    @property
    def num_bytes(self) -> int:
        return self.type.size_of(self.num_values)


def write_synthetic(
    shape: str | Shape,
    path: str | Path,
    quantisation: str = "Q4_K_M",
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a model of random weights to `path`, replacing it atomically; uses some megabytes of memory for any size.

    `shape`: a name in SHAPES or dimensions; `progress` is called with 0 to 1. The same arguments give the same bytes.
    Raises ConfigError for an unknown shape or quantisation, ModelError when the file cannot be written or the disk has
    too little room; no partial file remains then.
    """
    chosen = shape_named(shape) if isinstance(shape, str) else shape
    if quantisation not in QUANTISATIONS:
        raise ConfigError(f"quantisation = {quantisation!r}: must be one of {', '.join(QUANTISATIONS)}")
    tensors = tensors_of(chosen, quantisation)
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        _check_room(path, sum(tensor.num_bytes for tensor in tensors))
        _write_header(partial, shape if isinstance(shape, str) else shape.summary, chosen, quantisation, tensors)
        _append_data(partial, tensors, seed, progress or (lambda fraction: None))
        partial.replace(path)
    except OSError as error:
        raise ModelError(f"{path}: the synthetic model cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)


def weights_bytes(shape: Shape, quantisation: str) -> int:
    """Return the bytes of all tensors, without the vocabulary. Raises ConfigError for an unknown quantisation."""
    return sum(tensor.num_bytes for tensor in tensors_of(shape, quantisation))


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise ModelError(
            f"{path}: the synthetic model needs {quantity(needed, 'B')} and the disk has {quantity(free, 'B')} left: "
            "choose another folder, a smaller shape or a smaller quantisation"
        )


def tensors_of(shape: Shape, quantisation: str) -> list[Tensor]:
    """Return all tensors in the order of the file.

    Standard deviations are chosen so that activations keep their magnitude through the layers, the logits have a
    standard deviation of about 2.5 nats, and the embedding has little weight in the residual stream: with tied weights
    a model would otherwise repeat its input. In phi2 it has as much weight as a layer, because all tokens share the
    mean that GELU adds; gemma3 multiplies it by the square root of its width, and the norms after attention and
    feed-forward net are as large. Raises ConfigError for an unknown quantisation.
    """
    tensors = _Tensors(shape, quantisation)
    is_phi, is_gemma = shape.architecture == "phi2", shape.architecture == "gemma3"
    output_std = _LOGIT_STD / math.sqrt(shape.n_embd)
    tensors.matrix("token_embd", shape.n_vocab, shape.n_embd, std=1.0 if is_phi else output_std)
    tensors.norm("output_norm")
    if not shape.is_tied:
        tensors.matrix("output", shape.n_vocab, shape.n_embd, std=output_std, has_bias=is_phi)
    for layer in range(shape.n_layer):
        if is_phi:
            tensors.phi_layer(layer)
        else:
            tensors.llama_layer(layer)
        if is_gemma:
            tensors.gemma_norms(layer)
    return tensors.found


class _Tensors:
    """Builder of the tensor list of a shape."""

    def __init__(self, shape: Shape, quantisation: str) -> None:
        self.found: list[Tensor] = []
        self._shape = shape
        self._mixture = _Mixture(shape, quantisation)

    def matrix(
        self, name: str, rows: int, columns: int, *, layer: int = 0, std: float = 0.0, has_bias: bool = False
    ) -> None:
        kind = self._mixture.type_of(name, columns, layer)
        self.found.append(Tensor(f"{name}.weight", rows, columns, kind, 0.0, std or 1 / math.sqrt(columns)))
        if has_bias:
            self._vector(f"{name}.bias", rows, 0.0)

    def norm(self, name: str) -> None:
        self._vector(f"{name}.weight", self._shape.n_embd, 1.0)
        if self._shape.architecture == "phi2":
            self._vector(f"{name}.bias", self._shape.n_embd, 0.0)

    def _vector(self, name: str, columns: int, mean: float) -> None:
        self.found.append(Tensor(name, 0, columns, TYPES_BY_NAME["F32"], mean, 0.1))

    def llama_layer(self, layer: int) -> None:
        shape, block = self._shape, f"blk.{layer}."
        has_bias = shape.architecture == "qwen2"
        self.norm(f"{block}attn_norm")
        for name, rows in (("attn_q", shape.n_embd_q), ("attn_k", shape.n_embd_kv), ("attn_v", shape.n_embd_kv)):
            self.matrix(block + name, rows, shape.n_embd, layer=layer, has_bias=has_bias)
        self.matrix(f"{block}attn_output", shape.n_embd, shape.n_embd_q, layer=layer)
        self.norm(f"{block}ffn_norm")
        self.matrix(f"{block}ffn_gate", shape.n_ff, shape.n_embd, layer=layer)
        self.matrix(f"{block}ffn_up", shape.n_ff, shape.n_embd, layer=layer)
        self.matrix(f"{block}ffn_down", shape.n_embd, shape.n_ff, layer=layer)

    def gemma_norms(self, layer: int) -> None:
        shape, block = self._shape, f"blk.{layer}."
        for name in ("attn_q_norm", "attn_k_norm"):
            self._vector(f"{block}{name}.weight", shape.n_head_dim, 1.0)
        for name in ("post_attention_norm", "post_ffw_norm"):
            self._vector(f"{block}{name}.weight", shape.n_embd, math.sqrt(shape.n_embd))

    def phi_layer(self, layer: int) -> None:
        shape, block = self._shape, f"blk.{layer}."
        self.norm(f"{block}attn_norm")
        for name, rows, columns in (
            ("attn_qkv", shape.n_embd_q + 2 * shape.n_embd_kv, shape.n_embd),
            ("attn_output", shape.n_embd, shape.n_embd_q),
            ("ffn_up", shape.n_ff, shape.n_embd),
            ("ffn_down", shape.n_embd, shape.n_ff),
        ):
            self.matrix(block + name, rows, columns, layer=layer, has_bias=True)


class _Mixture:
    """Choice of tensor types as in llama.cpp's quantiser."""

    def __init__(self, shape: Shape, quantisation: str) -> None:
        if quantisation not in PLANNED:
            raise ConfigError(f"quantisation = {quantisation!r}: must be one of {', '.join(PLANNED)}")
        self.shape, self.quantisation = shape, quantisation
        base = quantisation if quantisation in TYPES_BY_NAME else quantisation.rsplit("_", 1)[0]
        self.default = TYPES_BY_NAME[base]

    def type_of(self, name: str, columns: int, layer: int) -> TensorType:
        kind = self.default.name
        if kind in ("F32", "F16", "BF16"):
            return self.default
        if name == "output" or (name == "token_embd" and self.shape.is_tied):
            kind = "Q8_0" if columns % self.default.block or kind == "Q8_0" else "Q6_K"
        elif name.endswith(("attn_v", "attn_qkv")):
            kind = self._of_values(layer)
        elif name.endswith("ffn_down"):
            kind = self._of_projection(layer)
        elif name.endswith("attn_output"):
            kind = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(self.quantisation, kind)
        if columns % TYPES_BY_NAME[kind].block:
            kind = _FALLBACKS[kind]
        return TYPES_BY_NAME[kind]

    def _of_values(self, layer: int) -> str:
        """Return the type of the matrix of a layer's values."""
        is_narrow = self.shape.n_head >= 4 * self.shape.n_head_kv
        match self.quantisation:
            case "Q2_K":
                return "Q4_K" if is_narrow else "Q3_K"
            case "Q3_K_M":
                return "Q5_K" if self._place(layer)[0] < 2 else "Q4_K"
            case "Q3_K_L":
                return "Q5_K"
            case "Q4_K_S" if self._place(layer)[0] < 4:
                return "Q5_K"
            case "IQ4_XS" | "IQ4_NL" if is_narrow:
                return "Q5_K"
            case "Q4_K_M" | "Q5_K_M" if has_more_bits(*self._place(layer)):
                return "Q6_K"
        return self.default.name

    def _of_projection(self, layer: int) -> str:
        """Return the type of the matrix that ends a layer's feed-forward net."""
        place, count = self._place(layer)
        match self.quantisation:
            case "Q2_K":
                return "Q3_K"
            case "Q3_K_M":
                return "Q5_K" if place < count // 16 else "Q4_K"
            case "Q3_K_L":
                return "Q5_K"
            case "Q4_K_S" | "IQ4_XS" | "IQ4_NL" if place < count // 8:
                return "Q5_K"
            case "Q4_K_M" | "Q5_K_M" if has_more_bits(place, count):
                return "Q6_K"
        return self.default.name

    def _place(self, layer: int) -> tuple[int, int]:
        """Return the number of a layer, and of all layers, of the model whose types it gets."""
        return self.shape.copies_of or (layer, self.shape.n_layer)


def has_more_bits(layer: int, n_layer: int) -> bool:
    """Return whether a mixed quantisation uses more bits in this layer: first and last eighth, every third between."""
    eighth = n_layer // 8
    return layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2


def pieces(count: int) -> list[str]:
    """Return `count` distinct pieces for a SentencePiece vocabulary: printable ASCII characters, then syllable words.

    Each word occurs with and without a preceding space and consists of shorter pieces, so that the tokenizer's merges
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


def _write_header(path: Path, name: str, shape: Shape, quantisation: str, tensors: list[Tensor]) -> None:
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
        if shape.n_head_width:
            writer.add_key_length(shape.n_head_width)
            writer.add_value_length(shape.n_head_width)
        if shape.sliding_window:
            writer.add_sliding_window(shape.sliding_window)
        if shape.architecture == "phi2":
            writer.add_layer_norm_eps(shape.norm_eps)
        else:
            writer.add_layer_norm_rms_eps(shape.norm_eps)
        writer.add_rope_dimension_count(shape.n_rot or shape.n_head_dim)
        writer.add_rope_freq_base(shape.rope_base)
        _add_vocabulary(writer, shape)
        for tensor in tensors:
            dimensions = (tensor.rows, tensor.columns) if tensor.rows else (tensor.columns,)
            kind = gguf.GGMLQuantizationType(tensor.type.number)
            writer.add_tensor_info(tensor.name, dimensions, np.dtype(np.float32), tensor.num_bytes, kind)
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
    total = sum(tensor.num_bytes for tensor in tensors)
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
