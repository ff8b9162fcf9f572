"""Vocabularies of model folders: byte-level BPE, padding, ends of a text, chat templates, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.errors import ModelError
from engine.llama.grammar_sampler import Grammar
from engine.models.folders import MOST_CONFIG_BYTES
from engine.programs.folder_vocabulary import FolderVocabulary
from engine.vocabulary import TokenKind

NUM_VOCAB = 400
TEXTS = ["Once upon a time there was a king.", "Été 🦊 naïve\n\n\tx  y", " <|im_start|>user", "call <tool> now"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Configuration and byte-level tokenizer of a chat model, with fewer tokens than logits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    tokenizer.add_tokens([AddedToken("<tool>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = {name: tokenizer.token_to_id(name) for name in names}
    config = {"model_type": "qwen2", "vocab_size": NUM_VOCAB, "eos_token_id": ids["<|im_end|>"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ends = {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]}
    (tmp_path / "generation_config.json").write_text(json.dumps(ends))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": None, "eos_token": {"content": "<|im_end|>"}, "chat_template": "{{ messages }}"})
    )
    return tmp_path


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_pieces_are_the_bytes_of_the_text(folder: Path) -> None:
    model = FolderVocabulary(str(folder))
    vocabulary = model.vocabulary
    assert len(vocabulary) == NUM_VOCAB
    for text in TEXTS:
        ids = model.tokenize(text)
        assert vocabulary.join(ids) == text.encode()
        assert model.detokenize(ids) == text.encode()
    model.close()


def test_control_tokens_are_parsed_only_where_asked(folder: Path) -> None:
    model = FolderVocabulary(str(folder))
    start = next(token for token, name in model.vocabulary.names.items() if name == "<|im_start|>")
    assert start not in model.tokenize("<|im_start|>user")
    assert model.tokenize("<|im_start|>user", special=True)[0] == start
    tool = next(token for token, piece in enumerate(model.vocabulary.pieces) if piece == b"<tool>")
    assert tool in model.tokenize("call <tool> now")
    model.close()


def test_all_ends_of_a_text_are_known_and_no_bos_is_added(folder: Path) -> None:
    model = FolderVocabulary(str(folder))
    vocabulary = model.vocabulary
    assert {vocabulary.names[token] for token in vocabulary.end_tokens} == {"<|im_end|>", "<|endoftext|>"}
    assert not vocabulary.add_bos and not vocabulary.add_space_prefix
    assert vocabulary.kinds[-1] == TokenKind.NORMAL and vocabulary.pieces[-1] == b""  # without a token
    assert model.chat_template == "{{ messages }}"
    model.close()


def test_a_grammar_works_on_its_tokens(folder: Path) -> None:
    model = FolderVocabulary(str(folder))
    grammar = Grammar(model.vocab, 'root ::= "king"')
    allowed = {vocabulary_text(model, token) for token in range(NUM_VOCAB) if grammar.allows(token)}
    assert "k" in allowed
    assert all("king".startswith(text) for text in allowed)
    grammar.close()
    model.close()


def vocabulary_text(model: FolderVocabulary, token: int) -> str:
    return model.vocabulary.pieces[token].decode("utf-8", "replace")


def test_a_template_of_its_own_file_comes_first(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ bos_token }}")
    model = FolderVocabulary(str(folder))
    assert model.chat_template == "{{ bos_token }}"
    model.close()


def nested(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model":' * 50_000)


def of_another_kind(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    tokenizer.save(str(folder / "tokenizer.json"))


def damaged(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"] = [["nothing", "here"]]
    (folder / "tokenizer.json").write_text(json.dumps(content))


def panicking(folder: Path) -> None:
    """Merges shorter than the prefix that they should begin with, on which the library panics."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["continuing_subword_prefix"] = "x" * 400
    (folder / "tokenizer.json").write_text(json.dumps(content))


def without_end(folder: Path) -> None:
    change(folder / "config.json", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    change(folder / "tokenizer_config.json", eos_token=None)


def twice(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 399})
    (folder / "tokenizer.json").write_text(json.dumps(content))


WRONG: dict[str, Callable[[Path], object]] = {
    "tokenizer.json: cannot be read": nested,
    "is of the kind 'WordLevel'": of_another_kind,
    "tokenizer.json: is damaged": damaged,
    "out of range for slice": panicking,
    "has no eos_token_id": without_end,
    "gives two ids the same text": twice,
    "more than 2,097,152 tokens": lambda folder: change(folder / "config.json", vocab_size=1 << 30),
    "generation_config.json: cannot be read": lambda folder: (folder / "generation_config.json").write_text(
        " " * (MOST_CONFIG_BYTES + 1)
    ),
}


@pytest.mark.parametrize("says", WRONG)
def test_what_cannot_be_used_is_refused_with_the_reason(folder: Path, says: str) -> None:
    WRONG[says](folder)
    with pytest.raises(ModelError, match=says):
        FolderVocabulary(str(folder))


def test_a_token_without_input_is_an_error_of_its_text(folder: Path) -> None:
    change(folder / "config.json", vocab_size=256)
    change(folder / "config.json", eos_token_id=5)
    (folder / "generation_config.json").unlink()
    model = FolderVocabulary(str(folder))
    with pytest.raises(ModelError, match="for which the network has no input"):
        model.tokenize("Once upon a time there was a king.")
    model.close()
