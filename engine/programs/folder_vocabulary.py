"""Vocabulary and tokenizer of a model folder: tokenizer.json, and its table as llama.cpp's samplers need it.

Grammars and DRY work on llama.cpp's vocabulary. So the table is written to a GGUF file without weights, with the texts
that llama.cpp's own converter would write (convert_hf_to_gguf.py); tokenizer.json itself tokenises.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import msgspec
from tokenizers import Tokenizer

from engine.errors import EngineError, ModelError
from engine.files import decoded_json, read_regular
from engine.llama.model import Model
from engine.models.folders import CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, chat_template, read_config
from engine.specs import PoolSpec

MOST_BYTES = 128 << 20
MOST_TOKENS = 1 << 21
_SPACE = "\u2581"
_DUMMY_MERGES = ["a b"]
"""llama.cpp's loader insists on merges, which only its own tokenizer would use."""


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Bpe(msgspec.Struct):
    type: str = ""
    vocab: dict[str, int] | list[tuple[str, float]] = {}
    unk_token: str | None = None
    byte_fallback: bool = False


class _File(msgspec.Struct):
    """What is read of a tokenizer.json; the pre-tokenizer and decoder are looked through for the types of their
    parts."""

    model: _Bpe
    added_tokens: list[_Added] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None


class _Token(NamedTuple):
    text: str
    type: gguf.TokenType


class FolderVocabulary(Model):
    """Vocabulary, tokenizer and chat template of a model folder; `handle` has no weights.

    num_vocab is the number of logits, which may be larger than that of tokens. Raises ModelError for a tokenizer that
    cannot be read or is of an unknown kind.
    """

    def __init__(self, folder: str) -> None:
        path = Path(folder)
        config = read_config(path, CONFIG, is_needed=True)
        if not config["vocab_size"] <= MOST_TOKENS:
            raise ModelError(f"{path / CONFIG}: has a vocabulary of more than {MOST_TOKENS:,} tokens")
        content, file = _read(path)
        with _library_errors(f"{path / TOKENIZER}: is damaged"), tempfile.NamedTemporaryFile(suffix=".gguf") as table:
            self._tokenizer = Tokenizer.from_buffer(content)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            _write(Path(table.name), path, config, file, self._tokenizer)
            super().__init__(table.name, PoolSpec(), vocab_only=True)
        self.path = folder
        self._bos = [self.vocabulary.bos] if self.vocabulary.add_bos and self.vocabulary.bos is not None else []
        self._template = chat_template(path)

    @property
    def chat_template(self) -> str:
        """The folder's chat template; empty when it has none."""
        return self._template

    def tokenize(self, text: str, *, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the ids of `text`, by tokenizer.json; parameters as for Model. Raises ModelError."""
        self._tokenizer.encode_special_tokens = not special
        with _library_errors(f"{self.path}: this text cannot be tokenised"):
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if max(ids, default=0) >= self.num_vocab:
            raise ModelError(f"{self.path}: its tokenizer gives token {max(ids):,}, for which the network has no input")
        return [*(self._bos if add_bos else []), *ids]


def vocabulary_of(model: str) -> Model:
    """Return vocabulary and tokenizer of a model folder, or those that a GGUF file holds, without its weights."""
    return FolderVocabulary(model) if Path(model).is_dir() else Model(model, PoolSpec(), vocab_only=True)


@contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """Raise ModelError for any error of the library, whose panics are no Exception."""
    try:
        yield
    except (EngineError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ModelError(f"{what} ({str(error)[:300]})") from error


def _read(path: Path) -> tuple[bytes, _File]:
    try:
        content = read_regular(path / TOKENIZER, MOST_BYTES)
        file = decoded_json(content, _File)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path / TOKENIZER}: cannot be read ({error}): download it again") from error
    if len(file.model.vocab) + len(file.added_tokens) > MOST_TOKENS:
        raise ModelError(f"{path / TOKENIZER}: has more than {MOST_TOKENS:,} tokens")
    return content, file


def _write(target: Path, path: Path, config: Mapping[str, Any], file: _File, tokenizer: Tokenizer) -> None:
    """Write the table as a GGUF file without weights."""
    parts = _kinds(file.normalizer) | _kinds(file.pre_tokenizer) | _kinds(file.decoder)
    if "ByteLevel" in parts:
        kind = "gpt2"
    elif file.model.byte_fallback or "Metaspace" in parts:
        kind = "llama"
    else:
        raise ModelError(
            f"{path / TOKENIZER}: is of the kind {file.model.type[:50]!r}, which is neither byte-level BPE nor "
            "SentencePiece"
        )
    num_vocab = config["vocab_size"]
    tokens = _tokens(path, file, num_vocab, is_spm=kind == "llama")
    ids = {token.text: number for number, token in enumerate(tokens)}
    ends = _ends(path, config, ids)
    with_special = tokenizer.encode("a").ids
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    added = with_special[: len(with_special) - len(plain)] if with_special[-len(plain) :] == plain else []
    bos = _id(read_config(path, TOKENIZER_CONFIG).get("bos_token"), ids, config.get("bos_token_id"))
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token.text.encode() for token in tokens])
    writer.add_token_types([token.type for token in tokens])
    if kind == "gpt2":
        writer.add_token_merges(_DUMMY_MERGES)
    writer.add_bos_token_id(added[0] if added else ends[0] if bos is None else bos)
    writer.add_eos_token_id(ends[0])
    for add, end in zip((writer.add_eot_token_id, writer.add_eom_token_id), ends[1:], strict=False):
        add(end)
    unknown = _id(file.model.unk_token, ids)
    if unknown is not None:
        writer.add_unk_token_id(unknown)
    writer.add_add_bos_token(bool(added))
    writer.add_add_space_prefix(kind == "llama" and _adds_space(tokenizer))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _tokens(path: Path, file: _File, num_vocab: int, *, is_spm: bool) -> list[_Token]:
    """Return text and type of each id that has a logit; ids without a token are unused ones."""
    vocab = file.model.vocab
    listed = (
        vocab.items() if isinstance(vocab, dict) else ((text, number) for number, (text, _score) in enumerate(vocab))
    )
    found: dict[int, _Token] = {}
    for text, number in listed:
        is_byte = is_spm and len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        is_unknown = text == file.model.unk_token
        usual = gguf.TokenType.UNKNOWN if is_unknown else gguf.TokenType.NORMAL
        found[number] = _Token(text, gguf.TokenType.BYTE if is_byte else usual)
    for one in file.added_tokens:
        is_unknown = one.content == file.model.unk_token
        special = gguf.TokenType.UNKNOWN if is_unknown else gguf.TokenType.CONTROL
        found[one.id] = _Token(one.content, special if one.special else gguf.TokenType.USER_DEFINED)
    tokens = [found.get(number, _Token(f"[PAD{number}]", gguf.TokenType.UNUSED)) for number in range(num_vocab)]
    if len({token.text for token in tokens}) < num_vocab:
        raise ModelError(f"{path / TOKENIZER}: gives two ids the same text, or has too few tokens")
    return tokens


def _ends(path: Path, config: Mapping[str, Any], ids: Mapping[str, int]) -> list[int]:
    """Return the ids that end a text. Raises ModelError where there is none."""
    given = read_config(path, GENERATION_CONFIG).get("eos_token_id", config.get("eos_token_id"))
    listed: Sequence[Any] = given if isinstance(given, list) else [given]
    named = _id(read_config(path, TOKENIZER_CONFIG).get("eos_token"), ids)
    ends = [end for end in (*listed, named) if isinstance(end, int) and 0 <= end < len(ids)]
    if not ends:
        raise ModelError(f"{path / CONFIG}: has no eos_token_id, so that no text would end")
    return list(dict.fromkeys(ends))


def _id(named: Any, ids: Mapping[str, int], default: Any = None) -> int | None:
    """Return the id of a token that a configuration names by its text or in an object with that text."""
    text = named.get("content") if isinstance(named, dict) else named
    found = ids.get(text) if isinstance(text, str) else default
    return found if isinstance(found, int) and 0 <= found < len(ids) else None


def _kinds(part: Any) -> set[str]:
    """Return the types of a part of a tokenizer, and of those that it consists of."""
    if not isinstance(part, dict):
        return set()
    inner = [*part.get("pretokenizers", ()), *part.get("decoders", ()), *part.get("normalizers", ())]
    return {str(part.get("type"))}.union(*map(_kinds, inner))


def _adds_space(tokenizer: Tokenizer) -> bool:
    """Return whether a text gets a space in front."""
    first = tokenizer.encode("a", add_special_tokens=False).tokens[:1]
    return bool(first) and first[0].startswith(_SPACE)
