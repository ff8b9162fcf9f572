"""Seen vocabulary: the tokens of a server, as far as its answers have shown them."""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

from engine.errors import ServerFailed
from engine.vocabulary import Sparse, T, TokenKind, Vocabulary

MOST_TOKENS = 1 << 20
"""Ids of one vocabulary; those of models today end below 300,000."""
END_NAME = "<end>"
_CONTROL = int(TokenKind.CONTROL)


class _Growing(Sparse[T]):
    """A sparse sequence to which entries are added."""

    def put(self, index: int, value: T) -> None:
        self._known[index] = value
        self.grow(index + 1)

    def extend(self, values: Collection[T]) -> None:
        self._known.update(enumerate(values, self._length))
        self._length += len(values)

    def grow(self, length: int) -> None:
        """Have at least so many entries."""
        self._length = max(self._length, length)

    def items(self) -> list[tuple[int, T]]:
        return list(self._known.copy().items())  # a copy at once, as another thread may add


class SeenVocabulary(Vocabulary):
    """Vocabulary that grows with the tokens that a server sends: under its own ids, or numbered as they come.

    A token that was not seen has no bytes. Any thread may add tokens. The hash is that of what has been
    seen so far.
    """

    pieces: _Growing[bytes]  # type: ignore[assignment]  # indexed like a tuple and bytes
    kinds: _Growing[int]  # type: ignore[assignment]
    _num_tokens: int
    _numbers: dict[bytes | tuple[bytes], int]
    _lock: threading.Lock

    @classmethod
    def empty(cls, *, bos: int | None = None, add_space_prefix: bool = False, num_tokens: int = 0) -> Self:
        """Return a vocabulary without tokens. bos: the id with which texts begin, None where there is none.

        num_tokens: how many the server has, 0 where that is not known.
        """
        pieces, kinds = _Growing[bytes](num_tokens, {}, b""), _Growing[int](num_tokens, {}, 0)
        made = cls(pieces, kinds, {}, bos, bos is not None, add_space_prefix)  # type: ignore[arg-type]
        vars(made).update(_num_tokens=num_tokens, _numbers={}, _lock=threading.Lock())
        return made

    def beginning(self) -> Self:
        """Return a vocabulary of the same tokenizer that has seen nothing yet, for the tokens of one job."""
        return self.empty(bos=self.bos, add_space_prefix=self.add_space_prefix, num_tokens=self._num_tokens)

    def knows(self, token: int) -> bool:
        """Return whether the bytes of an id are known."""
        return token in self.pieces._known

    def learn(self, token: int, piece: bytes, kind: int = 0, name: str = "") -> None:
        """Note the bytes of an id of the server, unless they are known. kind: a TokenKind; name: of a control token.

        Raises ServerFailed for an id beyond the vocabulary: it would be one of another model.
        """
        self._check(token)
        with self._lock:
            if token in self.pieces._known:
                return
            self._put({token: piece}, {token: kind} if kind else {}, {token: name})

    def _check(self, token: int) -> None:
        """Raise ServerFailed for an id beyond the vocabulary."""
        if token >= (self._num_tokens or MOST_TOKENS):
            raise ServerFailed(
                f"the server sent the token id {token:,}, beyond the {self._num_tokens or MOST_TOKENS:,} of its model"
            )

    def learn_from(self, other: "SeenVocabulary", tokens: Iterable[int]) -> list[int]:
        """Note ids as another vocabulary knows them; return those that are unknown to both."""
        mine, theirs = self.pieces._known, other.pieces._known
        if not (new := [token for token in tokens if token not in mine]):
            return new
        pieces = {token: theirs[token] for token in new if token in theirs}
        kinds = {token: other.kinds[token] for token in other.kinds._known.keys() & pieces.keys()}
        with self._lock:
            self._put(pieces, kinds, other.names)
        return [] if len(pieces) == len(new) else [token for token in new if token not in pieces]

    def _put(self, pieces: Mapping[int, bytes], kinds: Mapping[int, int], names: Mapping[int, str]) -> None:
        """Add ids, whose bytes other threads see last. kinds: of those that have one; names: of control tokens."""
        length = max(pieces, default=-1) + 1
        self.kinds.grow(length)
        for token, kind in kinds.items():
            self.kinds.put(token, kind | self.kinds._known.get(token, 0))  # which may be marked as an end already
            if kind & _CONTROL:
                self.names[token] = names.get(token, "")
        self.pieces._known.update(pieces)
        self.pieces.grow(length)

    def mark_end(self, token: int) -> None:
        """Note that an id ends a text."""
        with self._lock:
            self.kinds.put(token, int(TokenKind.END | TokenKind.CONTROL))
            self.names.setdefault(token, END_NAME)

    def number(self, piece: bytes, name: bytes = b"") -> int:
        """Return the number of a token of a server without ids, a new one where its bytes were not seen before.

        name: what the server calls a token that has none.
        """
        key = (name,) if name and not piece else piece
        found = self._numbers.get(key)
        return self._number_of_new({key: piece}) if found is None else found

    def numbers(self, pieces: Sequence[bytes]) -> list[int]:
        """As `number`, of several tokens."""
        known = self._numbers
        new: dict[bytes | tuple[bytes], bytes] = {piece: piece for piece in pieces if piece not in known}
        if new:
            self._number_of_new(new)
        return [known[piece] for piece in pieces]

    def _number_of_new(self, new: Mapping[bytes | tuple[bytes], bytes]) -> int:
        """Number tokens in their order by what tells them apart, each with its bytes; return the first number."""
        with self._lock:
            first = len(self.pieces)
            self._check(first + len(new) - 1)
            self.kinds.grow(first + len(new))
            self.pieces.extend(new.values())  # which other threads see last
        self._numbers.update(zip(new, range(first, first + len(new)), strict=True))
        return first

    def number_of_end(self) -> int:
        """Return the number of the end of a text, for a server that does not send a token for it."""
        self.mark_end(end := self.number(b"", END_NAME.encode()))
        return end

    @property
    def end_tokens(self) -> tuple[int, ...]:  # grows
        """The end-of-generation tokens that were seen."""
        return tuple(token for token, kind in self.kinds.items() if kind & TokenKind.END)

    @property
    def _texts(self) -> tuple[str, ...]:  # grows
        return tuple(map(self.text, range(len(self))))

    @property
    def _distinct_texts(self) -> frozenset[str]:  # grows
        return frozenset(self.text(token) for token, _ in self.pieces.items())

    @property
    def hash(self) -> str:  # grows
        """The hash of what was seen so far, as of a vocabulary that has nothing else."""
        return self.whole().hash

    def whole(self) -> Vocabulary:
        """Return what was seen so far, as a vocabulary that does not grow; ids that were not seen have no bytes."""
        pieces, kinds = [b""] * len(self), bytearray(len(self))
        for token, piece in self.pieces.items():
            pieces[token], kinds[token] = piece, self.kinds[token]
        return Vocabulary(tuple(pieces), bytes(kinds), dict(self.names), self.bos, self.add_bos, self.add_space_prefix)
