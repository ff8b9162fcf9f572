"""A tokenizer's table of ids, bytes and kinds, and the way from bytes to readable text; knows no llama.cpp."""

import codecs
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property, partial
from typing import Any, TypeVar

from engine.errors import ConfigError

T = TypeVar("T")


class TokenKind(IntFlag):
    """What a token is besides its bytes."""

    NORMAL = 0
    CONTROL = 1
    END = 2
    BYTE = 4


_CONTROL, _END = int(TokenKind.CONTROL), int(TokenKind.END)
"""As plain numbers: an enumeration's & is a dozen calls, and each token asks."""


@dataclass(frozen=True)
class Vocabulary:
    """Bytes, name and kind of each token id.

    `pieces` are the bytes that a token adds to the text (control tokens add none); `names` holds the written name of
    control tokens by id. `add_space_prefix`: the tokenizer puts a space before a text, which reading back removes.
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
        """True for end-of-generation tokens."""
        return bool(self.kinds[token] & _END)

    def is_control(self, token: int) -> bool:
        """True for tokens that steer and add no text."""
        return bool(self.kinds[token] & _CONTROL)

    def text(self, token: int) -> str:
        """One token by itself, as shown in a list: a control token's name, incomplete bytes as <F0>."""
        name = self.names.get(token)
        return readable(self.pieces[token]) if name is None else name

    def join(self, tokens: list[int] | tuple[int, ...]) -> bytes:
        """The bytes of several tokens, one after the other."""
        return b"".join(self.pieces[token] for token in tokens)

    def fewest_tokens(self, text: str) -> int:
        """Tokens that a text has at least, by its bytes and the longest piece."""
        return len(text.encode()) // self._longest_piece

    @cached_property
    def _longest_piece(self) -> int:
        return max(map(len, self.pieces), default=1) or 1

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the table, the key under which history keeps it once."""
        digest = hashlib.sha256(self.kinds)
        for piece in self.pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        for token, name in sorted(self.names.items()):
            digest.update(f"{token}={name}".encode())
        return digest.hexdigest()

    def part(self, tokens: Iterable[int]) -> "VocabularyPart":
        """The same vocabulary with these tokens alone, and the hash of the whole."""
        wanted = sorted({*tokens} | ({self.bos} if self.bos is not None else set()))
        sparse: Any = partial(Sparse, len(self))  # read by their index, as a tuple and bytes are
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
    """What came with a pickle: the tokens that occur in it; others are there, and empty."""

    whole_hash: str

    @property
    def hash(self) -> str:
        """The hash of the whole vocabulary."""
        return self.whole_hash


def whole(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary, to be kept. Raises ConfigError for a part of one."""
    if isinstance(vocabulary, VocabularyPart):
        raise ConfigError("A completion that was pickled has only its own tokens, so it cannot be kept. Run it again.")
    return vocabulary


class Sparse(Sequence[T]):
    """A sequence of which most entries are the same."""

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
    """UTF-8 text of `piece`; bytes that are no whole character read as <F0>."""
    return piece.decode("utf-8", errors="angle_bytes")


def _angle_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(f"<{byte:02X}>" for byte in wrong), error.end


codecs.register_error("angle_bytes", _angle_bytes)


class TextDecoder:
    """Token bytes in, characters out at the token that completes them; bytes that never can be text become U+FFFD."""

    def __init__(self, vocabulary: Vocabulary, *, strip_first_space: bool = False) -> None:
        self._pieces = vocabulary.pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = strip_first_space and vocabulary.add_space_prefix

    def step(self, token: int) -> str:
        """The characters that this token adds."""
        piece = self._pieces[token]
        if self._strip and piece:
            self._strip = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that never was completed."""
        return self._decoder.decode(b"", final=True)
