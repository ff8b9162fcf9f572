"""Text and ids: the vocabulary's bytes against llama.cpp's own detokeniser."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Pool
from engine.errors import ConfigError, ModelError
from engine.history.trial_file import TokenizerPart
from engine.llama.model import Model
from engine.models import synthetic
from engine.models.synthetic import pieces
from engine.specs import PoolSpec
from engine.vocabulary import MAX_BYTES, TextDecoder, TokenKind

HOSTILE = "<script>alert(1)</script> &amp; **bold** $x$ `a` 👩‍👩‍👧 \u202eright\u202c \u200b\x00\x1b[31m naïve 汉字\nnew"


@pytest.mark.parametrize("text", ["Once upon a time", "a\nb", " two  spaces", "", "👩‍👩‍👧", HOSTILE])
def test_text_survives_ids_and_back(model: Model, text: str) -> None:
    ids = model.tokenize(text)
    assert ids[0] == model.vocabulary.bos
    decoder = TextDecoder(model.vocabulary, strip_first_space=True)
    assert "".join(map(decoder.step, ids)) + decoder.finish() == text


def test_joined_bytes_equal_the_detokeniser_for_random_ids(model: Model) -> None:
    rng = random.Random(1)
    for _ in range(200):
        ids = [rng.randrange(model.num_vocab) for _ in range(rng.randrange(1, 40))]
        joined = model.vocabulary.join(ids)
        assert model.detokenize(ids) in (joined, joined.removeprefix(b" "))


def test_kinds_tell_control_end_and_byte_tokens(model: Model) -> None:
    kinds = model.vocabulary.kinds
    ends = [token for token in range(model.num_vocab) if kinds[token] & TokenKind.END]
    assert [model.vocabulary.text(token) for token in ends] == ["</s>"]
    assert sum(bool(kind & TokenKind.BYTE) for kind in kinds) == 256
    assert model.vocabulary.join(ends) == b""


def test_incomplete_bytes_read_as_angle_brackets(model: Model) -> None:
    token = model.vocabulary.pieces.index(b"\xf0")
    assert model.vocabulary.text(token) == "<F0>"


def test_a_character_appears_at_the_token_that_completes_it(model: Model) -> None:
    ids = model.tokenize("👩", add_bos=False)
    decoder = TextDecoder(model.vocabulary)
    parts = [decoder.step(token) for token in ids]
    assert parts[-1] == "👩"
    assert set(parts[:-1]) <= {"", " "}


def test_control_tokens_in_text_are_text(model: Model) -> None:
    assert 2 not in model.tokenize("</s>")
    assert 2 in model.tokenize("</s>", special=True)


def test_ids_outside_the_vocabulary_are_refused(model: Model) -> None:
    with pytest.raises(ConfigError, match="4,095"):
        model.check_ids([1, 4096])


def test_a_file_that_llama_cpp_refuses_is_a_model_error(tmp_path: object) -> None:
    with pytest.raises(ModelError, match="could not load"):
        Model(f"{tmp_path}/none.gguf", PoolSpec())


def test_a_vocabulary_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def padded(count: int) -> list[str]:
        return [piece + "x" * 20_000 for piece in pieces(count)]

    path = str(tmp_path / "padded.gguf")
    monkeypatch.setattr(synthetic, "pieces", padded)
    synthetic.write_synthetic("tiny", path, "F16")
    with pytest.raises(ConfigError, match=r"texts of the vocabulary's 1,024 tokens take 15,3.* at most 8,388,608"):
        Pool(path)


def test_a_vocabulary_of_a_file_is_held_to_the_same_size(model: Model) -> None:
    vocabulary = model.vocabulary
    assert TokenizerPart.of(vocabulary).read() == vocabulary
    padded = replace(vocabulary, pieces=(b"x" * MAX_BYTES, *vocabulary.pieces[1:]))
    with pytest.raises(ConfigError, match="at most 8,388,608"):
        TokenizerPart.of(padded).read()
