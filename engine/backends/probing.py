"""Probing of a server: what kind it is, its models, and what it reports of the tokens of an answer, by asking it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine.backends.dialects import DIALECTS, LLAMA_SERVER, OURS, Dialect, Form, dialect_of
from engine.backends.link import Link, refused
from engine.backends.seen_vocabulary import MOST_TOKENS, SeenVocabulary
from engine.backends.sent import SentToken
from engine.backends.server_text import whole_vocabulary
from engine.errors import ConfigError, EngineError, PromptTooLong, QueueFull, ServerFailed, quoted
from engine.protocol import Capabilities, LogprobsOf
from engine.specs import MAX_ID, MAX_SEQUENCES, Request, Sampling
from engine.vocabulary import TokenKind, Vocabulary

DEFAULT_SEQUENCES = 8
BEGINS_WITHIN_S = 60.0
"""First event of an answer to the probe: a short prompt, but a server may load the model for it."""
MOST_MODELS = 1_000
MOST_NAME = 300
_PROMPT = "Once upon a time there was a"
_SAME = 1e-3
"""Nats by which log-probabilities of the same distribution may differ between two answers."""


class Found(NamedTuple):
    """What a server is and reports. models: names of its models; model: the one that is used.

    num_parameters: 0 where it is not reported; quantisation: "" likewise. vocabulary: all tokens, or those seen so far.
    """

    dialect: Dialect
    form: Form
    models: tuple[str, ...]
    model: str
    capabilities: Capabilities
    chat_template: str
    quantisation: str
    num_parameters: int
    vocabulary: Vocabulary


async def probe(link: Link, model: str = "") -> Found:
    """Ask a server what it is. model: the name of the one to use, "" for its first.

    Raises ConfigError for a model that it does not have, ServerFailed where it cannot be used.
    """
    entries = await _entries(link)
    owner = next((text for one in entries if (text := _text(one.get("owned_by")))), "")
    paths = [dialect.path[0] for dialect in DIALECTS if dialect.path is not None]
    answers = {path: await link.find(path) for path in paths}
    dialect = dialect_of(owner, answers)
    names = tuple(text for one in entries if (text := _text(one.get("id"))))
    chosen = _chosen(names, model, link)
    entry = next((one for one in entries if one.get("id") == chosen), {})
    if dialect is LLAMA_SERVER:
        return await _llama_server(link, names, chosen, entry, answers["/props"])
    if dialect is OURS:
        return await _ours(link, names, chosen, entry)
    return await _other(link, dialect, names, chosen, entry)


async def _entries(link: Link) -> list[Mapping[str, Any]]:
    """Return what /v1/models says of each model."""
    listed = await link.ask("/v1/models")
    data = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(data, list):
        raise ServerFailed(f"{link.address.root} has no list of models at /v1/models: is this the address of the API?")
    return [one for one in data[:MOST_MODELS] if isinstance(one, dict)]


def _chosen(names: Sequence[str], model: str, link: Link) -> str:
    if model and model not in names and names:
        known = ", ".join(quoted(name) for name in names[:10])
        raise ConfigError(f"{link.address.root} has no model {quoted(model)}; it has {known}")
    if not model and not names:
        raise ServerFailed(f"{link.address.root} lists no model: load one there, or name one")
    return model or names[0]


async def _llama_server(
    link: Link, names: tuple[str, ...], model: str, entry: Mapping[str, Any], props: object
) -> Found:
    """What llama-server says of itself in /props."""
    known: Mapping[str, Any] = props if isinstance(props, dict) else {}
    settings, meta = known.get("default_generation_settings"), entry.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    template = _text(known.get("chat_template"), 1 << 20)
    first = await link.ask("/tokenize", {"model": model, "content": "a", "add_special": True, "with_pieces": True})
    tokens = first.get("tokens") if isinstance(first, dict) else None
    bos, has_space = _beginning(tokens)
    vocabulary = SeenVocabulary.empty(
        bos=bos, add_space_prefix=has_space, num_tokens=_whole(meta.get("n_vocab"), MOST_TOKENS)
    )
    await _learn_end(link, vocabulary, model, _text(known.get("eos_token")))
    return Found(
        LLAMA_SERVER,
        LLAMA_SERVER.forms[0],
        names,
        model,
        Capabilities(
            n_ctx=_whole(settings.get("n_ctx") if isinstance(settings, dict) else None),
            num_sequences=min(max(_whole(known.get("total_slots")), 1), MAX_SEQUENCES),
            has_chat_template=bool(template),
            candidates_max=LLAMA_SERVER.candidates_max,
            scores_prompts=False,
            is_exact=False,
            inspects=False,
        ),
        template,
        _text(meta.get("ftype")),
        _whole(meta.get("n_params"), 1 << 53),
        vocabulary,
    )


async def _learn_end(link: Link, vocabulary: SeenVocabulary, model: str, name: str) -> None:
    """Note the token that ends a text, which llama-server gives by its name."""
    body = {"model": model, "content": name, "add_special": False, "parse_special": True, "with_pieces": True}
    match await link.ask("/tokenize", body) if name else None:
        case {"tokens": [{"id": int(end)}]}:
            vocabulary.learn(end, b"", TokenKind.END | TokenKind.CONTROL, name)


def _beginning(tokens: object) -> tuple[int | None, bool]:
    """Return the id with which texts begin, and whether the tokenizer puts a space before them, from those of "a"."""
    match tokens:
        case [{"id": int(bos)}, {"piece": str(piece)}, *_]:
            return bos, piece.startswith(" ")
        case [{"piece": str(piece)}]:
            return None, piece.startswith(" ")
    return None, False


async def _ours(link: Link, names: tuple[str, ...], model: str, entry: Mapping[str, Any]) -> Found:
    """What our own API says of itself in /tokenizer_info."""
    info = await link.ask("/tokenizer_info")
    known: Mapping[str, Any] = info if isinstance(info, dict) else {}
    template = _text(known.get("chat_template"), 1 << 20)
    return Found(
        OURS,
        OURS.forms[0],
        names,
        model,
        Capabilities(
            n_ctx=_whole(entry.get("max_model_len")),
            num_sequences=DEFAULT_SEQUENCES,
            has_chat_template=bool(template),
            candidates_max=OURS.candidates_max,
            is_exact=False,
            inspects=False,
        ),
        template,
        "",
        0,
        await whole_vocabulary(link),
    )


async def _other(link: Link, dialect: Dialect, names: tuple[str, ...], model: str, entry: Mapping[str, Any]) -> Found:
    """What a server shows of itself by its answers to a short prompt."""
    reasons = []
    for form in dialect.forms:
        for k in (dialect.candidates_max, 5, 0):
            try:
                token = await _first_token(link, dialect, form, model, k)
            except (PromptTooLong, QueueFull):
                raise
            except (ConfigError, ServerFailed) as error:
                if isinstance(error, ServerFailed) and error.status in (None, 401, 403):
                    raise
                reasons.append(str(error))
                continue
            num_candidates = min(len(token.top), k)
            has_logprob = token.logprob is not None
            has_candidates = has_logprob and num_candidates > 0
            of = await _logprobs_of(link, dialect, form, model, token, k) if has_candidates else "unknown"
            return Found(
                dialect,
                form,
                names,
                model,
                Capabilities(
                    n_ctx=_whole(entry.get("max_model_len")),
                    num_sequences=DEFAULT_SEQUENCES,
                    has_chat_template=False,
                    has_ids=False,
                    tokenizes=False,
                    candidates_max=num_candidates if has_logprob else 0,
                    logprobs_of=of,
                    scores_prompts=False,
                    is_exact=False,
                    inspects=False,
                    grammars=False,
                    seeds=dialect.has_seeds,
                ),
                "",
                "",
                0,
                SeenVocabulary.empty(),
            )
    raise ServerFailed(
        f"{link.address.root} does not generate: {reasons[-1] if reasons else 'it has no endpoint for it'}"
    )


async def _first_token(
    link: Link, dialect: Dialect, form: Form, model: str, k: int, temperature: float = 0.0
) -> SentToken:
    """Return the first token that a server generates. Raises EngineError where it refuses or sends none."""
    sampling = dialect.checked(Sampling(temperature=temperature, top_p=1.0))
    body = form.body(dialect, model, _PROMPT, sampling, Request(max_tokens=1, top_k=k))
    async with link.stream(form.path, body, BEGINS_WITHIN_S) as events:
        async for together in events:
            for sent in map(form.read, together):
                if sent.error:
                    raise refused(sent.error)
                if sent.tokens or sent.text:
                    return sent.tokens[0] if sent.tokens else SentToken(token=sent.text)
    raise ServerFailed("it sent no token", status=200)


async def _logprobs_of(link: Link, dialect: Dialect, form: Form, model: str, cold: SentToken, k: int) -> LogprobsOf:
    """Return what log-probabilities are of, by comparing those of two temperatures."""
    try:
        warm, hot = [await _first_token(link, dialect, form, model, k, temperature) for temperature in (0.5, 1.5)]
    except EngineError:
        return "unknown"
    pairs = {one.piece: one.nats for one in warm.top}
    both = [(pairs[one.piece], one.nats) for one in hot.top if one.piece in pairs and math.isfinite(one.nats)]
    if not both:
        return "unknown"
    return "model" if max(abs(one - other) for one, other in both) <= _SAME else "after samplers"


def _text(given: object, most: int = MOST_NAME) -> str:
    return given if isinstance(given, str) and len(given) <= most else ""


def _whole(given: object, most: int = MAX_ID) -> int:
    return given if type(given) is int and 0 <= given <= most else 0
