"""Vocabulary: a tokenizer's table of ids, bytes and kinds, with decoding to text; independent of llama.cpp."""

import codecs
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from engine.errors import ConfigError

T = TypeVar("T")


class TokenKind(IntFlag):
    """Kind of a token, as flags."""

    NORMAL = 0
    CONTROL = 1
    END = 2
    BYTE = 4


MAX_BYTES = 8 << 20
"""Limit of all pieces and names of one vocabulary: each trial keeps its own, and 262,144 tokens take about 2 MB."""

_CONTROL, _END = int(TokenKind.CONTROL), int(TokenKind.END)
"""As plain ints: `&` on an enumeration takes a dozen calls, and it is needed for each token."""


class Found(NamedTuple):
    """Result of a search: ids of the first tokens that match, best first, and how many more there are."""

    tokens: tuple[int, ...]
    num_more: int


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary table: bytes, name and kind of each token id.

    `pieces` are the bytes that a token adds to the text (control tokens add none); `names` holds the written name of
    control tokens by id. `add_space_prefix`: the tokenizer puts a space before a text, which decoding removes.
    """

    pieces: tuple[bytes, ...]
    kinds: bytes
    names: dict[int, str]
    bos: int | None
    add_bos: bool
    add_space_prefix: bool

    def __len__(self) -> int:
        return len(self.pieces)

    def is_end(self, token: int) -> bool:
        """Return True for end-of-generation tokens."""
        return bool(self.kinds[token] & _END)

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """All end-of-generation tokens."""
        return tuple(token for token, kind in enumerate(self.kinds) if kind & _END)

    def is_control(self, token: int) -> bool:
        """Return True for control tokens, which add no text."""
        return bool(self.kinds[token] & _CONTROL)

    def text(self, token: int) -> str:
        """Return one token as shown in a list: a control token's name, incomplete bytes as <F0>."""
        name = self.names.get(token)
        return readable(self.pieces[token]) if name is None else name

    def texts(self, tokens: Iterable[int]) -> str:
        """Return several tokens as one text: as `text`, with the characters that they only make together."""
        names, pieces = self.names, self.pieces
        parts = (names[one].encode("utf-8", "replace") if one in names else pieces[one] for one in tokens)
        return readable(b"".join(parts))

    def join(self, tokens: list[int] | tuple[int, ...]) -> bytes:
        """Return the concatenated bytes of several tokens."""
        return b"".join(self.pieces[token] for token in tokens)

    def search(self, query: str, most: int = 50) -> Found:
        """Return the tokens whose text (see `text`) contains `query`, case-sensitive; none for "".

        Digits find the token of that id first. Then come tokens that are the query, those that begin with it, and those
        that contain it, each in the order of ids; a token's leading space may be left out of the query. Takes some
        10 ms for 152,000 tokens; the first call also builds the index, which takes about 100 bytes a token.
        """
        if not query:
            return Found((), 0)
        texts, beginnings = self._texts, (query, f" {query}")
        named = int(query) if query.isascii() and query.isdigit() and len(query) < 10 else len(texts)
        by_id = [named] if named < len(texts) else []
        found = [token for token, text in enumerate(texts) if query in text and token != named]
        exact = [token for token in found if texts[token] in beginnings]
        begun = (token for token in found if texts[token].startswith(beginnings) and texts[token] not in beginnings)
        others = (token for token in found if not texts[token].startswith(beginnings))
        first = tuple(islice(chain(by_id, exact, begun, others), most))
        return Found(first, len(by_id) + len(found) - len(first))

    def has(self, text: str) -> bool:
        """Return True if a token has this text (see `text`)."""
        return text in self._distinct_texts

    @cached_property
    def _distinct_texts(self) -> frozenset[str]:
        return frozenset(self._texts)

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        return tuple(map(self.text, range(len(self))))

    def fewest_tokens(self, text: str, *, special: bool = False) -> int:
        """Return a lower bound of a text's token count, from its bytes and the longest piece.

        special: the text may hold control tokens by name.
        """
        longest = max(self._longest_piece, self._longest_name) if special else self._longest_piece
        return len(text.encode()) // longest

    @cached_property
    def _longest_piece(self) -> int:
        return max(map(len, self.pieces), default=1) or 1

    @cached_property
    def _longest_name(self) -> int:
        return max((len(name.encode()) for name in self.names.values()), default=1)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the table, the key under which history stores it once."""
        digest = hashlib.sha256(self.kinds)
        for piece in self.pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        for token, name in sorted(self.names.items()):
            digest.update(f"{token}={name}".encode())
        return digest.hexdigest()

    def whole(self) -> "Vocabulary":
        """Return the vocabulary as it is stored: complete, and no longer growing. Raises ConfigError for a part."""
        return self

    def part(self, tokens: Iterable[int]) -> "VocabularyPart":
        """Return the same vocabulary with only these tokens (and BOS), and the hash of the whole."""
        wanted = sorted({*tokens} | ({self.bos} if self.bos is not None else set()))
        sparse: Any = partial(Sparse, len(self))  # indexed like a tuple and bytes
        return VocabularyPart(
            pieces=sparse({token: self.pieces[token] for token in wanted}, b""),
            kinds=sparse({token: self.kinds[token] for token in wanted}, 0),
            names={token: self.names[token] for token in wanted if token in self.names},
            bos=self.bos,
            add_bos=self.add_bos,
            add_space_prefix=self.add_space_prefix,
            whole_hash=self.hash,
        )


@dataclass(frozen=True, kw_only=True)
class VocabularyPart(Vocabulary):
    """Vocabulary from a pickle: only the tokens that occur in it; the other entries exist but are empty."""

    whole_hash: str

    @property
    def hash(self) -> str:
        """The hash of the whole vocabulary."""
        return self.whole_hash

    def whole(self) -> Vocabulary:
        """Raise ConfigError: the other entries are not here."""
        raise ConfigError("A pickled completion contains only its own tokens, so it cannot be saved. Run it again.")


def checked_size(vocabulary: Vocabulary) -> Vocabulary:
    """Return the vocabulary if its pieces and names together are within MAX_BYTES. Raises ConfigError if not."""
    num_bytes = sum(map(len, vocabulary.pieces)) + sum(len(name.encode()) for name in vocabulary.names.values())
    if num_bytes > MAX_BYTES:
        raise ConfigError(
            f"the texts of the vocabulary's {len(vocabulary):,} tokens take {num_bytes:,} bytes; "
            f"at most {MAX_BYTES:,} are allowed"
        )
    return vocabulary


class Sparse(Sequence[T]):
    """Sparse sequence: most entries have the same value."""

    def __init__(self, length: int, known: Mapping[int, T], other: T) -> None:
        self._length, self._known, self._other = length, dict(known), other

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"token {index} of {self._length}")
        return self._known.get(index % self._length, self._other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sparse):
            return NotImplemented
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self._length, self._other))


def readable(piece: bytes) -> str:
    """Return `piece` decoded as UTF-8; bytes that are not a complete character appear as <F0>."""
    return piece.decode("utf-8", errors="angle_bytes")


def _angle_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(f"<{byte:02X}>" for byte in wrong), error.end


codecs.register_error("angle_bytes", _angle_bytes)


class TextDecoder:
    """Incremental decoder: emits characters at the token that completes them; invalid bytes become U+FFFD."""

    def __init__(self, vocabulary: Vocabulary, *, strip_first_space: bool = False) -> None:
        self._pieces = vocabulary.pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = strip_first_space and vocabulary.add_space_prefix

    def step(self, token: int) -> str:
        """Return the characters that this token adds."""
        piece = self._pieces[token]
        if self._strip and piece:
            self._strip = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """Return the remainder at the end: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)
