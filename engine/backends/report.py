"""What a server supports, in words: what it reports of a token, and what each page can do with it."""

from typing import NamedTuple

from engine.backends.dialects import NOT_REPORTED
from engine.backends.probing import Found
from engine.protocol import Capabilities
from engine.units import counted

_OF = {"model": "of the model itself", "after samplers": "after the samplers", "unknown": "not known"}


class Fact(NamedTuple):
    """A row of a table: what it is about, and what holds."""

    about: str
    value: str


def found_facts(found: Found) -> list[Fact]:
    """Return what a server reports, a row for each fact."""
    can = found.capabilities
    return [
        Fact("Server", found.dialect.label),
        Fact("Model", found.model),
        Fact("Models", counted(len(found.models), "model")),
        Fact("Quantisation", found.quantisation or NOT_REPORTED),
        Fact("Context", counted(can.n_ctx, "token") if can.n_ctx else NOT_REPORTED),
        Fact("Concurrent requests", f"{can.num_sequences:,}"),
        Fact("Token ids", "yes" if can.has_ids else NOT_REPORTED),
        Fact("Candidates", f"up to {can.candidates_max:,}" if can.candidates_max else NOT_REPORTED),
        Fact("Log-probabilities", _OF[can.logprobs_of] if can.candidates_max else NOT_REPORTED),
        Fact("Log-probabilities of the prompt", "yes" if can.scores_prompts else NOT_REPORTED),
        Fact("Entropy, rank beyond the candidates", "yes" if can.is_exact else NOT_REPORTED),
        Fact("Seeds", "yes" if can.seeds else "not known"),
        Fact("Grammars and schemas", "yes" if can.grammars else "no"),
        Fact("Chat template", "yes" if can.has_chat_template else NOT_REPORTED),
    ]


def page_facts(can: Capabilities) -> list[Fact]:
    """Return what each page can do with an engine, a row for each page and part of it."""
    strip = f"tokens with up to {can.candidates_max:,} candidates" if can.candidates_max else "tokens without figures"
    return [
        Fact("Prompt lab", strip),
        Fact("Prompt lab: chat", "yes" if can.has_chat_template else "no: the server reports no chat template"),
        Fact("Prompt lab: score a prompt", "yes" if can.scores_prompts else "no"),
        Fact("Prompt lab: continue", "yes" if can.has_ids else "no: the server returns no token ids"),
        Fact("Prompt lab: X-ray, What if, forced tokens", "yes" if can.inspects else "no"),
        Fact("Compare", "as the variant of the loaded model, beside files of this machine"),
        Fact("Embeddings, Benchmark of embeddings", "by its /v1/embeddings, where it has an embedding model"),
        Fact("History", "yes"),
        Fact("Traffic", "the API in front of it, while it is connected or by serve --upstream"),
    ]
