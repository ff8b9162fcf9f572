"""GGUF header reader on valid files, on every kind of invalid one, and under fuzzing."""

import random
import re
import struct
import tracemalloc
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.models.gguf import ModelFile
from engine.models.header import MAX_KEYS
from engine.models.pieces import MAX_HEADER
from engine.models.reading import read_model
from tests.engine.models.headers import KEYS, TENSORS, TEXT, U32, array, gguf, key, tensor, text, u32, write


def test_a_right_file(tmp_path: Path) -> None:
    path = write(tmp_path, gguf())
    model = read_model(path)
    assert (model.path, model.size, model.parts) == (path, path.stat().st_size, 1)
    assert (model.architecture, model.name, model.license) == ("llama", "Handmade", "mit")
    assert (model.quantisation, model.num_parameters, model.n_vocab) == ("Q8_0", 64 * 4, 3)
    assert (model.n_ctx_train, model.n_embd, model.n_layer, model.n_head) == (128, 64, 2, 4)
    assert (model.n_head_kv, model.head_k, model.head_v, model.sliding_window) == ((2, 1), 16, 16, 32)
    assert model.chat_template == "{{ messages }}" * 1000
    assert model.metadata["tokenizer.ggml.scores"] == (0.0, 1.0, 2.0)
    assert model.weights_bytes == 6 * 34 + 64 * 4
    assert model.tensors[1].offset + model.tensors[1].num_bytes == model.size
    assert not model.is_synthetic


def test_version_2_and_alignment(tmp_path: Path) -> None:
    assert read_model(write(tmp_path, gguf(version=struct.pack("<I", 2)))).name == "Handmade"
    aligned = [*KEYS, u32("general.alignment", 16)]
    tensors = [TENSORS[0], tensor("output_norm.weight", (64,), 0, 208)]
    assert read_model(write(tmp_path, gguf(aligned, tensors))).tensors[1].num_bytes == 256


def test_it_says_what_the_gguf_package_says(synthetic: Path) -> None:
    from gguf import GGUFReader

    model, theirs = read_model(synthetic), GGUFReader(synthetic)
    assert [(t.name, t.shape, t.type.name, t.offset, t.num_bytes) for t in model.tensors] == [
        (t.name, tuple(map(int, t.shape)), t.tensor_type.name, t.data_offset, t.n_bytes) for t in theirs.tensors
    ]
    assert model.n_vocab == len(theirs.fields["tokenizer.ggml.tokens"].data)


WRONG = {
    "is empty": b"",
    "not a GGUF file": b"PK\3\4" + bytes(100),
    "truncated: the version": b"GGUF\3",
    "GGUF version 1;": gguf(version=struct.pack("<I", 1)),
    "GGUF version 4;": gguf(version=struct.pack("<I", 4)),
    "big-endian": gguf(version=struct.pack(">I", 3)),
    "claims 2 tensors and 8,193 keys": gguf(num_keys=MAX_KEYS + 1),
    "claims 18,446,744,073,709,551,615 tensors": gguf(num_tensors=(1 << 64) - 1),
    "key 13 'general.name' is given twice": gguf([*KEYS, KEYS[1]]),
    "is empty$": gguf([*KEYS, u32("", 1)]),
    "2,000 bytes long": gguf([*KEYS, u32("k" * 2000, 1)]),
    "unknown type 13": gguf([*KEYS, key("k", 13, b"")]),
    "unknown type 9": gguf([*KEYS, array("k", 9, 1, b"")]),
    "truncated: k needs 9,223,372,036,854,775,807": gguf([*KEYS, key("k", TEXT, struct.pack("<Q", (1 << 63) - 1))]),
    "truncated: k needs 73,786,976,294,838,206,460": gguf([*KEYS, array("k", U32, (1 << 64) - 1, b"")]),
    "truncated: k needs 147,573,952,589,676,412,920": gguf([*KEYS, array("k", TEXT, (1 << 64) - 1, b"")]),
    "truncated: k needs 8 bytes": gguf([*KEYS, array("k", TEXT, 2, struct.pack("<Q", 1 << 62))]),
    "not a power of two": gguf([*KEYS, u32("general.alignment", 24)]),
    "5 dimensions": gguf(tensors=[tensor("t", (1,) * 5, 0, 0)]),
    "unknown type 99": gguf(tensors=[tensor("t", (32,), 99, 0)]),
    "rows of 33 values, not a multiple of Q8_0's block of 32": gguf(tensors=[tensor("t", (33,), 8, 0)]),
    "impossible shape": gguf(tensors=[tensor("t", (1 << 40, 1 << 40), 0, 0)]),
    "same name": gguf(tensors=[tensor("t", (32,), 0, 0), tensor("t", (32,), 0, 128)]),
    "expected at 0": gguf(tensors=[tensor("t", (32,), 0, 32)]),
    "tensor output_norm.weight .2 of 2. ends at byte": gguf()[:-1],
    "no weights": gguf(tensors=[], data=b""),
    "general.type is 'adapter'": gguf([*KEYS, key("general.type", TEXT, text("adapter"))]),
    "no general.architecture": gguf(KEYS[1:]),
    "block_count is missing": gguf([k for k in KEYS if b"block_count" not in k]),
    "block_count is 0": gguf([k for k in KEYS if b"block_count" not in k] + [u32("llama.block_count", 0)]),
    "2 values for 3 layers": gguf([k for k in KEYS if b"block_count" not in k] + [u32("llama.block_count", 3)]),
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_wrong_file_is_refused_with_its_name_and_the_reason(tmp_path: Path, reason: str) -> None:
    path = write(tmp_path, WRONG[reason])
    with pytest.raises(ModelError, match=f"^{re.escape(str(path))}: .*{reason}"):
        read_model(path)


def test_missing_folder_and_unreadable(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none.gguf", "no such file"),
        (tmp_path, "is a folder"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(ModelError, match=reason):
            read_model(path)
    with pytest.raises(ModelError, match="not a regular file"):
        read_model("/dev/zero")


def test_a_header_without_end_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = write(tmp_path, gguf([*KEYS, array("k", TEXT, MAX_HEADER // 8, b"")]))
    with path.open("r+b") as file:
        file.truncate(MAX_HEADER * 4)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="header of more than 128 MiB"):
            read_model(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_large_vocabulary_is_stepped_over_in_little_memory(tmp_path: Path) -> None:
    tokens = b"".join(text(f"piece{index}") for index in range(152_000))
    keys = [k for k in KEYS if b"tokenizer.ggml.tokens" not in k]
    path = write(tmp_path, gguf([*keys, array("tokenizer.ggml.tokens", TEXT, 152_000, tokens)]))
    tracemalloc.start()
    try:
        assert read_model(path).n_vocab == 152_000
        assert tracemalloc.get_traced_memory()[1] < 7 << 20
    finally:
        tracemalloc.stop()


def test_long_texts_are_cut_and_a_long_template_is_left_out(tmp_path: Path) -> None:
    keys = [k for k in KEYS if b"template" not in k and b"general.name" not in k]
    keys += [key("general.name", TEXT, text("é" * 5000)), key("tokenizer.chat_template", TEXT, text("x" * 300_000))]
    model = read_model(write(tmp_path, gguf(keys)))
    assert model.name == "é" * 2048
    assert model.chat_template == ""


def test_a_split_model_is_read_from_its_first_part(tmp_path: Path) -> None:
    def part(index: int, tensors: list[bytes]) -> bytes:
        return gguf([*KEYS, u32("split.no", index), u32("split.count", 2)], tensors)

    first = write(tmp_path, part(0, TENSORS), "m-00001-of-00002.gguf")
    with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf: there is no such file"):
        read_model(first)
    second = write(tmp_path, part(1, [tensor("output.weight", (64, 3), 8, 0)]), "m-00002-of-00002.gguf")
    model = read_model(first)
    assert model.parts == 2
    assert model.size == first.stat().st_size + second.stat().st_size
    assert [tensor.name for tensor in model.tensors] == ["token_embd.weight", "output_norm.weight", "output.weight"]
    with pytest.raises(ModelError, match="open the one named"):
        read_model(second)


SHORT = [k for k in KEYS if b"template" not in k]


def _answers(path: Path, content: bytes) -> bool:
    """Return True when the file is read, False when it is refused by its name; anything else fails the test."""
    path.write_bytes(content)
    reason = ""
    try:
        return isinstance(read_model(path), ModelFile)
    except ModelError as error:
        reason = str(error)
    assert reason.startswith(str(path))
    return False


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = gguf(SHORT)
    path = tmp_path / "cut.gguf"
    assert _answers(path, whole)
    assert not any(_answers(path, whole[:length]) for length in range(len(whole)))


def test_random_damage_is_read_or_refused_in_little_memory(tmp_path: Path) -> None:
    whole = gguf(SHORT)
    header = len(whole) - 480
    chance = random.Random(7)
    path = tmp_path / "damaged.gguf"
    answers = []
    tracemalloc.start()
    try:
        for _trial in range(1000):
            damaged = bytearray(whole)
            for _flip in range(chance.choice((1, 1, 2, 8))):
                damaged[chance.randrange(header)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            answers.append(_answers(path, bytes(damaged)))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert 0 < sum(answers) < len(answers)
