"""Small GGUF files made by hand, valid and invalid."""

import struct
from pathlib import Path

U32, F32, TEXT, ARRAY, U64 = 4, 6, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def u32(name: str, value: int) -> bytes:
    return key(name, U32, struct.pack("<I", value))


def array(name: str, kind: int, length: int, values: bytes) -> bytes:
    return key(name, ARRAY, struct.pack("<IQ", kind, length) + values)


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


KEYS = [
    key("general.architecture", TEXT, text("llama")),
    key("general.name", TEXT, text("Handmade")),
    key("general.license", TEXT, text("mit")),
    key("tokenizer.chat_template", TEXT, text("{{ messages }}" * 1000)),
    u32("general.file_type", 7),
    u32("llama.context_length", 128),
    u32("llama.embedding_length", 64),
    u32("llama.block_count", 2),
    u32("llama.attention.head_count", 4),
    u32("llama.attention.sliding_window", 32),
    array("llama.attention.head_count_kv", U32, 2, struct.pack("<2I", 2, 1)),
    array("tokenizer.ggml.tokens", TEXT, 3, text("a") + text("bc") + text("")),
    array("tokenizer.ggml.scores", F32, 3, struct.pack("<3f", 0, 1, 2)),
]
TENSORS = [tensor("token_embd.weight", (64, 3), 8, 0), tensor("output_norm.weight", (64,), 0, 224)]
DATA = bytes(224 + 256)


def gguf(
    keys: list[bytes] = KEYS,
    tensors: list[bytes] = TENSORS,
    data: bytes = DATA,
    *,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    num_tensors: int | None = None,
    num_keys: int | None = None,
) -> bytes:
    counts = (len(tensors) if num_tensors is None else num_tensors, len(keys) if num_keys is None else num_keys)
    header = magic + version + struct.pack("<QQ", *counts) + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


def write(folder: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path
