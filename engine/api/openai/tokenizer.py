"""Tokenizer of the loaded model, as programs that score texts ask for it."""

from base64 import b64encode
from typing import Any

import msgspec

from engine.api.openai.errors import ApiError, api_error, refusal
from engine.api.openai.generation import Generator, text_of
from engine.api.openai.requests import DetokenizeRequest, TokenizeRequest
from engine.api.openai.responses import DetokenizeResponse, TokenizeResponse, WholeVocabulary
from engine.backends.seen_vocabulary import SeenVocabulary
from engine.errors import EngineError
from engine.protocol import Engine
from engine.workbench.model_manager import ModelState

EOS_KEY = "tokenizer.ggml.eos_token_id"


def tokenized(generator: Generator, asked: TokenizeRequest) -> TokenizeResponse:
    """Return the ids of a text, in which control tokens by name are parsed, or of a chat. Raises ApiError."""
    engine = generator.engine()
    generator.check_model(asked.model)
    if sum(getattr(asked, name) is not msgspec.UNSET for name in asked.one_of) != 1:
        raise refusal("give one of prompt, content and messages", "prompt")
    try:
        ids = _ids(engine, asked)
    except EngineError as error:
        raise api_error(error) from None
    return TokenizeResponse(tokens=ids, count=len(ids), max_model_len=engine.capabilities.n_ctx or None)


def _ids(engine: Engine, asked: TokenizeRequest) -> list[int]:
    if asked.messages is not msgspec.UNSET:
        return engine.render_chat([message.plain() for message in asked.messages])[1]
    text = asked.content if asked.prompt is msgspec.UNSET else asked.prompt
    is_special = asked.add_special_tokens
    if is_special is None:
        is_special = asked.prompt is not msgspec.UNSET
    ids, vocabulary = engine.tokenize(text or "", special=True), engine.vocabulary
    return ids[1:] if not is_special and vocabulary.add_bos and ids[:1] == [vocabulary.bos] else ids


def detokenized(generator: Generator, asked: DetokenizeRequest) -> DetokenizeResponse:
    """Return the text of ids. Raises ApiError."""
    return DetokenizeResponse(prompt=text_of(generator.engine(), asked.tokens, "tokens"))


def has_whole_vocabulary(engine: Engine) -> bool:
    """Return whether all tokens are known: those of most external engines only as far as answers have shown them."""
    return not isinstance(engine.vocabulary, SeenVocabulary)


def whole_vocabulary(engine: Engine) -> WholeVocabulary:
    """Return all tokens, so that a program can show the ids of answers without asking for each.

    Raises ApiError where they are not known.
    """
    if not has_whole_vocabulary(engine):
        raise ApiError(404, "The external engine that answers here does not report its whole vocabulary.")
    vocabulary = engine.vocabulary
    return WholeVocabulary(
        pieces=[b64encode(piece).decode() for piece in vocabulary.pieces],
        kinds=list(vocabulary.kinds),
        names={str(token): name for token, name in vocabulary.names.items()},
        bos=vocabulary.bos,
        add_bos=vocabulary.add_bos,
        add_space_prefix=vocabulary.add_space_prefix,
    )


def tokenizer_info(engine: Engine, state: ModelState) -> dict[str, Any]:
    """Return the special tokens by name, None for one that the model has not, and the chat template, None likewise."""
    vocabulary, file = engine.vocabulary, state.file
    eos = None if file is None else file.metadata.get(EOS_KEY)
    if not (isinstance(eos, int) and 0 <= eos < len(vocabulary)):
        eos = next(iter(vocabulary.end_tokens), None)
    return {
        "bos_token": None if vocabulary.bos is None else vocabulary.text(vocabulary.bos),
        "eos_token": None if eos is None else vocabulary.text(eos),
        "add_bos_token": vocabulary.add_bos,
        "chat_template": (file.chat_template if file is not None else "") or None,
        "model_max_length": engine.capabilities.n_ctx or None,
    }
