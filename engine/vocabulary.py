"""A tokenizer's table of ids, bytes and kinds, and the way from bytes to readable text; knows no llama.cpp."""

import codecs
import hashlib
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property


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
