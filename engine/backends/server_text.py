"""Texts and token ids of a server that has a tokenizer, which is asked once for each token or for all of them."""

from base64 import b64decode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from engine.backends.dialects import LLAMA_SERVER, Dialect, Form
from engine.backends.link import Link, refused
from engine.backends.seen_vocabulary import MOST_TOKENS, SeenVocabulary
from engine.backends.sent import Sent, SentToken
from engine.errors import ConfigError, ServerFailed
from engine.specs import MAX_ID, MAX_PROMPT_IDS
from engine.vocabulary import TokenKind, Vocabulary, checked_size

MOST_KEPT, LONGEST_KEPT = 64, 1 << 14
"""Texts whose ids are kept, and the characters of each at most."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]


class ServerText:
    """Tokenizer of a server. A `vocabulary` that is not whole learns the bytes of every token that it meets.

    model: its name, for servers that have several.
    """

    def __init__(self, link: Link, dialect: Dialect, vocabulary: Vocabulary, model: str) -> None:
        self._link, self._dialect, self._vocabulary, self._model = link, dialect, vocabulary, model
        self._ids: OrderedDict[tuple[str, bool], list[int]] = OrderedDict()

    async def ids(self, text: str, *, is_special: bool = False) -> list[int]:
        """Return the ids of a text, with the token that begins texts. Raises ServerFailed.

        A text that was asked for lately is not asked for again: requests for more answers to one prompt begin with it.
        """
        key = text, is_special
        ids = self._ids.pop(key, None) or await self._asked_ids(text, is_special=is_special)
        if len(text) <= LONGEST_KEPT:
            self._ids[key] = ids
        if len(self._ids) > MOST_KEPT:
            self._ids.popitem(last=False)
        return list(ids)

    async def _asked_ids(self, text: str, *, is_special: bool) -> list[int]:
        if self._dialect is not LLAMA_SERVER:
            # The server parses control tokens in all texts, so that `is_special` changes nothing.
            return _ids(_of(await self._ask("/tokenize", {"prompt": text, "add_special_tokens": True}), "tokens"))
        pieces = await self._pieces(text, add_special=True, parse_special=is_special)
        for token, piece in pieces:
            await self._learn(token, piece, may_be_control=is_special)
        return [token for token, _ in pieces]

    def read(self, form: Form, event: bytes, num_before: int) -> tuple[Sent, int]:
        """Read an event after so many tokens; return it, and how many llama-server has left out before those in it.

        Raises what it reports.
        """
        sent = form.read(event)
        if sent.error:
            raise refused(sent.error)
        num_unsent = (sent.num_generated or 0) - num_before - len(sent.tokens)
        is_incomplete = num_unsent > 0 and sent.tokens and self._dialect is LLAMA_SERVER
        return sent, num_unsent if is_incomplete else 0

    async def with_unsent(self, sent: Sent, num_unsent: int) -> Sent:
        """Return an event of llama-server with the tokens that it left out before it.

        It sends nothing for a token that ends within a character, and then the whole character as that of the token
        which completes it. The others are those of the character, if the last of these is the token that was sent.
        Where it is not, as the model has spelled the character in another way than the tokenizer would, the event is
        returned as it is: the answer goes on without these steps.
        """
        pieces = (await self._pieces(sent.text, add_special=False, parse_special=False))[-num_unsent - 1 :]
        ids, joined = [token for token, _ in pieces], b"".join(piece for _, piece in pieces)
        last = sent.tokens[-1]
        if len(pieces) <= num_unsent or ids[-1] != last.id or joined != sent.text.encode():
            return sent
        assert isinstance(self._vocabulary, SeenVocabulary)
        for token, piece in pieces:
            self._vocabulary.learn(token, piece)
        return replace(sent, tokens=[*(SentToken(token) for token in ids[:-1]), last])

    async def _pieces(self, text: str, *, add_special: bool, parse_special: bool) -> list[tuple[int, bytes]]:
        """Return the ids and the bytes of a text's tokens, as llama-server returns them."""
        body = {"content": text, "add_special": add_special, "parse_special": parse_special, "with_pieces": True}
        return [_piece(one) for one in _of(await self._ask("/tokenize", body), "tokens")]

    async def learn(self, ids: Sequence[int]) -> None:
        """Ask for the texts of ids whose bytes are not known, one by one."""
        if not isinstance(self._vocabulary, SeenVocabulary):
            return
        for token in dict.fromkeys(ids):
            if not self._vocabulary.knows(token):
                name = "content" if self._dialect is LLAMA_SERVER else "prompt"
                text = _of(await self._ask("/detokenize", {"tokens": [token]}), name, str)
                await self._learn(token, text.encode("utf-8", "replace"), may_be_control=True)

    async def chat_ids(self, messages: Sequence[dict[str, str]]) -> tuple[str, list[int]]:
        """Return messages as the server's chat template renders them, and their ids."""
        if self._dialect is LLAMA_SERVER:
            text = _of(await self._ask("/apply-template", {"messages": list(messages)}), "prompt", str)
            return text, await self.ids(text, is_special=True)
        ids = _ids(_of(await self._ask("/tokenize", {"messages": list(messages)}), "tokens"))
        return _of(await self._ask("/detokenize", {"tokens": ids}), "prompt", str), ids

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return what the server answers about its model."""
        return await self._link.ask(path, {"model": self._model, **body})

    async def _learn(self, token: int, piece: bytes, *, may_be_control: bool) -> None:
        """Note a token of llama-server, which gives a control token its name: that is no text.

        may_be_control: whether it comes from a text in which control tokens are parsed, or from somewhere else.
        """
        assert isinstance(self._vocabulary, SeenVocabulary)
        if self._vocabulary.knows(token):
            return
        if token == self._vocabulary.bos or (may_be_control and await self._is_control(token, piece)):
            self._vocabulary.learn(token, b"", TokenKind.CONTROL, piece.decode("utf-8", "replace"))
        else:
            self._vocabulary.learn(token, piece)

    async def _is_control(self, token: int, piece: bytes) -> bool:
        """Return whether a token is only found in its own text where control tokens are parsed."""
        if not piece.startswith((b"<", b"[")):
            return False
        text = piece.decode("utf-8", "replace")
        found = [
            any(token == one for one, _ in await self._pieces(text, add_special=False, parse_special=parse_special))
            for parse_special in (True, False)
        ]
        return found == [True, False]


async def whole_vocabulary(link: Link) -> Vocabulary:
    """Return the vocabulary that our own API gives. Raises ServerFailed."""
    answer = await link.ask("/vocabulary")
    try:
        sent = msgspec.convert(answer, _Vocabulary, str_keys=True)
        pieces = tuple(b64decode(piece, validate=True) for piece in sent.pieces)
        if len(sent.kinds) != len(pieces) or not pieces or (sent.bos is not None and sent.bos >= len(pieces)):
            raise ValueError("numbers of tokens differ")
        named = {token: name for token, name in sent.names.items() if token < len(pieces)}
        return checked_size(Vocabulary(pieces, bytes(sent.kinds), named, sent.bos, sent.add_bos, sent.add_space_prefix))
    except (ValueError, TypeError) as error:
        raise ServerFailed(f"the server's vocabulary cannot be read: {error}") from None


class _Vocabulary(msgspec.Struct):
    pieces: Annotated[list[str], msgspec.Meta(max_length=MOST_TOKENS)]
    kinds: Annotated[list[Count], msgspec.Meta(max_length=MOST_TOKENS)]
    names: dict[Count, str]
    bos: Count | None
    add_bos: bool
    add_space_prefix: bool


def _of(answer: object, name: str, kind: type = list) -> Any:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, kind):
        raise ServerFailed(f"the server's answer has no {name}")
    return found


def _ids(given: Sequence[object]) -> list[int]:
    if len(given) > MAX_PROMPT_IDS or not all(type(one) is int and 0 <= one <= MAX_ID for one in given):
        raise ServerFailed("the server sent token ids that are none")
    return list(given)  # type: ignore[arg-type]  # checked above


def _piece(one: object) -> tuple[int, bytes]:
    """Return id and bytes of a token of llama-server, which sends bytes where they are no text."""
    match one:
        case {"id": int(token), "piece": str(text)}:
            return _ids([token])[0], text.encode("utf-8", "replace")
        case {"id": int(token), "piece": list(raw)} if all(type(byte) is int and 0 <= byte < 256 for byte in raw):
            return _ids([token])[0], bytes(raw)
    raise ServerFailed("the server sent the tokens of a text in another form than its API says")


def checked_template(template: str) -> str:
    """Return a chat template. Raises ConfigError where the server has none."""
    if not template:
        raise ConfigError("This server reports no chat template, so a chat cannot be rendered. Use a completion.")
    return template
