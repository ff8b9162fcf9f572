"""Watched words: what a person types to watch, as the token sequences that write it.

A word has one writing or several, separated by |. A plain one that does not begin with white space is watched with
a space before it too: Yes stands for "Yes" and " Yes". In double quotes it is taken as it stands. #123 is the token of
that id, and the name of a control token is that token. \\n, \\t, \\r, \\", \\| and \\\\ are what they are in programs.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from engine.errors import ConfigError, quoted
from engine.protocol import Engine, continuation_ids
from engine.specs import MAX_WATCHED_IDS, TokenSets
from engine.validation import at_most, plain_text

MAX_WORDS = 16
MAX_WORD_CHARACTERS = 200
MAX_WRITINGS = 16
_IN_QUOTES = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*', re.DOTALL)
_PLAIN = re.compile(r"(?:[^|\\]|\\.)*", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "|": "|", "\\": "\\"}
_TOKEN_ID = re.compile("#([0-9]{1,10})")


class Variant(NamedTuple):
    """Token sequence that writes a word. typed: what to type to watch exactly this one."""

    typed: str
    ids: tuple[int, ...]


class Word(NamedTuple):
    """Word to watch: the variants whose probabilities are added up, and others that a person may add to them.

    Where a writing is a single token with or without the space, its variant of several tokens is only offered: each
    token after the first takes a forward pass at every position.
    """

    typed: str
    watched: tuple[Variant, ...]
    offered: tuple[Variant, ...]

    @property
    def single_ids(self) -> tuple[int, ...]:
        """Token ids of the watched variants that are a single token."""
        return tuple(variant.ids[0] for variant in self.watched if len(variant.ids) == 1)

    @property
    def phrases(self) -> TokenSets:
        """Token ids of the watched variants of several tokens."""
        return tuple(variant.ids for variant in self.watched if len(variant.ids) > 1)

    @property
    def passes(self) -> int:
        """Tokens that its phrases have computed at each position, besides the text's own."""
        return sum(len(ids) - 1 for ids in self.phrases)


class _Writing(NamedTuple):
    text: str
    is_exact: bool


def read_word(engine: Engine, typed: str) -> Word:
    """Return a typed word with the tokens of the engine's model.

    Raises ConfigError where it is empty, too long, malformed, names no token of the model, or has more than
    MAX_WATCHED_IDS ids in all.
    """
    watched, offered = list[Variant](), list[Variant]()
    for writing in at_most(MAX_WRITINGS, f"{quoted(typed)}: {{}} writings", _writings(typed)):
        variants = _variants(engine, writing)
        has_single = any(len(variant.ids) == 1 for variant in variants)
        for variant in variants:
            (offered if has_single and len(variant.ids) > 1 else watched).append(variant)
    shortest = _disjoint(watched)
    num_ids = sum(len(variant.ids) for variant in shortest)
    if num_ids > MAX_WATCHED_IDS:
        raise ConfigError(f"{quoted(typed)} has {num_ids:,} tokens; at most {MAX_WATCHED_IDS} are allowed: shorten it")
    return Word(typed, shortest, tuple(one for one in _disjoint([*shortest, *offered]) if one not in shortest))


def single_tokens(engine: Engine, typed: str) -> tuple[int, ...]:
    """Return the token ids of a word that is watched while text is generated.

    Raises ConfigError as `read_word`, and where a variant has several tokens.
    """
    word = read_word(engine, typed)
    for variant in word.watched:
        if len(variant.ids) > 1:
            raise ConfigError(
                f"{quoted(typed)}: {variant.typed} has {len(variant.ids)} tokens, and while text is generated only "
                "single tokens can be watched: watch its first one"
            )
    return word.single_ids


def token_sets(engine: Engine, typed: Iterable[str]) -> TokenSets:
    """Return the sets of those words that can be watched while text is generated; the others are left out."""
    sets: list[tuple[int, ...]] = []
    for one in typed:
        with suppress(ConfigError):
            sets.append(single_tokens(engine, one))
    return tuple(dict.fromkeys(sets))


def _writings(typed: str) -> Iterator[_Writing]:
    """Yield the writings of a typed word."""
    text, start = plain_text("a watched word", typed, MAX_WORD_CHARACTERS), 0
    while True:
        in_quotes = _IN_QUOTES.match(text, start)
        found = in_quotes or _PLAIN.match(text, start)
        assert found is not None  # a plain writing may be empty
        is_last = found.end() == len(text)
        if not in_quotes and found[0].lstrip().startswith('"'):
            raise ConfigError(f'{quoted(typed)}: the quote is not closed; for a quote itself type \\"')
        if not is_last and text[found.end()] != "|":
            raise ConfigError(f"{quoted(typed)}: between two writings stands |, and a backslash itself is \\\\")
        written = found[1] if in_quotes else _trimmed(found[0], is_first=start == 0, is_last=is_last)
        if not written:
            raise ConfigError(f"{quoted(typed)}: a word is empty: type what to watch, such as Yes")
        yield _Writing(written, is_exact=in_quotes is not None)
        if is_last:
            return
        start = found.end() + 1


def _trimmed(text: str, *, is_first: bool, is_last: bool) -> str:
    """Return a plain writing without the spaces beside a |."""
    text = text if is_first else text.lstrip()
    return text if is_last else text.rstrip()


def _variants(engine: Engine, writing: _Writing) -> list[Variant]:
    vocabulary = engine.vocabulary
    if not writing.is_exact:
        named = next((token for token, name in vocabulary.names.items() if name == writing.text), None)
        by_id = _TOKEN_ID.fullmatch(writing.text)
        token = int(by_id[1]) if by_id else named
        if token is not None and token >= len(vocabulary):
            raise ConfigError(f"{writing.text}: this model's tokens end at #{len(vocabulary) - 1:,}")
        if token is not None:
            return [Variant(f"#{token}", (token,))]
    text = _unescaped(writing.text)
    texts = [text] if writing.is_exact or text[0].isspace() else [text, f" {text}"]
    found = [Variant(_in_quotes(each), tuple(continuation_ids(engine, each))) for each in texts]
    written = [one for one, each in zip(found, texts, strict=True) if vocabulary.join(one.ids) == each.encode()]
    if not written:
        raise ConfigError(f"{quoted(text)}: this model's tokenizer does not keep it as it stands, so it has no tokens")
    return written


def _unescaped(text: str) -> str:
    unknown = next((found[0] for found in _ESCAPE.finditer(text) if found[1] not in _ESCAPED), None)
    if unknown:
        raise ConfigError(f"{quoted(text)}: {quoted(unknown)} means nothing here; a backslash itself is \\\\")
    return _ESCAPE.sub(lambda found: _ESCAPED[found[1]], text)


def _in_quotes(text: str) -> str:
    """Return what to type for exactly this text."""
    signs = {character: f"\\{sign}" for sign, character in _ESCAPED.items() if sign != "|"}
    return f'"{"".join(signs.get(character, character) for character in text)}"'


def _disjoint(variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Return the variants without those that another one begins or equals: wherever they come, it comes."""
    kept: list[Variant] = []
    for variant in sorted(variants, key=lambda one: len(one.ids)):
        if not any(variant.ids[: len(one.ids)] == one.ids for one in kept):
            kept.append(variant)
    return tuple(kept)
