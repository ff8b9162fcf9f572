"""Files made to mislead the reader: whatever they claim, they are read or refused by name, in little memory."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelError
from engine.models.gguf import ModelFile
from engine.models.reading import read_model
from tests.engine.models.headers import KEYS, TENSORS, TEXT, U32, array, gguf, key, tensor, text, u32, write

MOST_MEMORY = 20 << 20
FEW, F64 = st.integers(0, 40), 12
ABSURD = st.sampled_from([0, 1, 7, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
COUNTS = st.one_of(FEW, ABSURD)
NAMES = st.one_of(
    st.sampled_from(["general.alignment", "llama.block_count", "llama.attention.head_count_kv", "split.count", ""]),
    st.text(max_size=8),
)


@st.composite
def keys(draw: st.DrawFn) -> bytes:
    """Draw a key whose type, length and value need not agree."""
    name, raw = draw(NAMES), draw(st.binary(max_size=64))
    match draw(st.sampled_from(["scalar", "text", "array"])):
        case "scalar":
            return key(name, draw(st.integers(0, 14)), raw)
        case "text":
            return key(name, TEXT, struct.pack("<Q", draw(COUNTS)) + raw)
        case _:
            return array(name, draw(st.integers(0, 14)), draw(COUNTS), raw)


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    """Draw a tensor of any shape, type and offset."""
    shape = draw(st.lists(COUNTS, max_size=5))
    return tensor(draw(st.text(max_size=80)), tuple(shape), draw(st.integers(0, 45)), draw(COUNTS))


FILES = st.builds(
    gguf,
    st.lists(st.one_of(keys(), st.sampled_from(KEYS)), max_size=20),
    st.lists(st.one_of(tensors(), st.sampled_from(TENSORS)), max_size=4),
    st.binary(max_size=600),
    num_tensors=st.one_of(st.none(), COUNTS),
    num_keys=st.one_of(st.none(), COUNTS),
)


def answer(path: Path) -> ModelFile | None:
    """Return the model, or None if it was refused by its name; fail on anything else, and if memory is not bounded."""
    tracemalloc.start()
    try:
        return read_model(path)
    except ModelError as error:
        assert str(error).startswith(str(path.parent))
        return None
    finally:
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
        tracemalloc.stop()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "m-00001-of-00002.gguf"


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(content=FILES)
def test_absurd_counts_and_lengths_are_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    model = answer(path)
    if model is not None:
        assert all(one.offset + one.num_bytes <= len(content) for one in model.tensors)


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(at=st.integers(0, len(gguf()) - 1), damage=st.binary(min_size=1, max_size=12), cut=st.integers(0, 40))
def test_a_damaged_file_is_read_or_refused(path: Path, at: int, damage: bytes, cut: int) -> None:
    whole = gguf()
    path.write_bytes((whole[:at] + damage + whole[at + len(damage) :])[: len(whole) - cut])
    model = answer(path)
    assert model is None or (cut == 0 and model.weights_bytes <= len(whole))


GREEDY = {
    "strings in arrays": [array("k", TEXT, (1 << 21) + 1, bytes(8 << 21))],
    "numbers in short arrays": [array(f"k{number}", F64, 1024, bytes(8 << 10)) for number in range(257)],
    "bytes of text": [key(f"k{number}", TEXT, text("x" * 4096)) for number in range(1024)],
}


@pytest.mark.parametrize("what", GREEDY)
def test_more_than_any_model_needs_is_refused(tmp_path: Path, what: str) -> None:
    greedy = GREEDY[what]
    path = write(tmp_path, gguf([*KEYS, *greedy]))
    with pytest.raises(ModelError, match=f"has more than [0-9,]+ {what} in its header"):
        read_model(path)
    assert answer(path) is None
    assert isinstance(answer(write(tmp_path, gguf([*KEYS, *greedy[1 + len(greedy) // 8 :]]))), ModelFile)


def test_the_parts_of_a_model_share_one_budget(tmp_path: Path) -> None:
    strings = array("k", TEXT, (1 << 20) - 3, bytes((8 << 20) - 24))
    for number in range(3):
        content = gguf([*KEYS, strings, u32("split.no", number), u32("split.count", 3)])
        write(tmp_path, content, f"m-0000{number + 1}-of-00003.gguf")
    with pytest.raises(ModelError, match=r"m-00003-of-00003\.gguf: has more than 2,097,152 strings"):
        read_model(tmp_path / "m-00001-of-00003.gguf")


def test_as_many_tensors_as_allowed_take_little_memory(tmp_path: Path) -> None:
    many = [tensor(f"t{number}".ljust(63, "x"), (0, 1, 1, 1), 0, 0) for number in range(1 << 15)]
    model = answer(write(tmp_path, gguf(tensors=many)))
    assert model is not None
    assert len(model.tensors) == 1 << 15


@pytest.mark.parametrize("change", ["none", "a token", "a token longer", "truncated"])
def test_a_vocabulary_seen_before_is_read_as_one_that_was_not(tmp_path: Path, change: str) -> None:
    def with_tokens(tokens: list[str]) -> bytes:
        vocabulary = array("tokenizer.ggml.tokens", TEXT, len(tokens), b"".join(map(text, tokens)))
        return gguf([vocabulary, *(k for k in KEYS if b"tokenizer.ggml.tokens" not in k), u32("after", 7)])

    tokens = [f"piece{number}" for number in range(2_000)]
    assert read_model(write(tmp_path, with_tokens(tokens))).metadata["after"] == 7
    tokens[1_000] = {"a token": "PIECE1000", "a token longer": "a longer piece"}.get(change, tokens[1_000])
    content = with_tokens(tokens)
    path = write(tmp_path, content[:20_000] if change == "truncated" else content, "again.gguf")
    if change == "truncated":
        with pytest.raises(ModelError, match=r"again\.gguf: is truncated"):
            read_model(path)
    else:
        model = read_model(path)
        assert (model.n_vocab, model.metadata["after"]) == (2_000, 7)


def test_one_key_of_each_kind_is_kept(tmp_path: Path) -> None:
    model = answer(write(tmp_path, gguf([*KEYS, array("few", U32, 2, struct.pack("<2I", 1, 2))])))
    assert model is not None
    assert model.metadata["few"] == (1, 2)
