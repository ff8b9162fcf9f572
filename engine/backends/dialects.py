"""Dialects: what the servers with an OpenAI-compatible API have beside it, as a table, and how one is recognised."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from engine.backends.sent import Sent, of_chat, of_completion, of_native
from engine.errors import ConfigError
from engine.specs import MAX_RECORDED, Request, Sampling

OPENAI_SAMPLING = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty"})
LLAMA_SAMPLING = frozenset(
    {
        *OPENAI_SAMPLING, "top_k", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
        "repeat_penalty", "penalty_last_n", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
        "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "samplers",
    }
)  # fmt: skip
OFF: Mapping[str, float] = {"top_k": 0, "min_p": 0.0, "top_p": 1.0, "repeat_penalty": 1.0}
"""Values of llama.cpp's samplers that switch them off, for servers that do not have them."""
NOT_REPORTED = "not reported by this server"
_BANNED = -1e9
"""A bias that no logit makes up for, as JSON has no infinity."""
_LONGEST = 1 << 16
"""Tokens for -1, the whole context, which llama-server does not take."""

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Form:
    """One form of request and answer. path: of the endpoint; body: of a request; read: reads an event, JSON."""

    path: str
    body: Callable[["Dialect", str, Prompt, Sampling, Request], dict[str, Any]]
    read: Callable[[bytes], Sent]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One kind of server.

    label: its name for people. forms: the endpoints that it may have, the one that reports most first. owners: what its
    models are owned by in /v1/models. path: a path that only this kind of server has, with a key of its answer.
    has_ids, candidates_max: as in Capabilities. sampling: parameters that it takes. has_grammars: GBNF and schemas.
    has_seeds: the same seed gives the same draws.
    """

    name: str
    label: str
    forms: tuple[Form, ...]
    owners: frozenset[str] = frozenset()
    path: tuple[str, str] | None = None
    sampling: frozenset[str] = OPENAI_SAMPLING
    candidates_max: int = 20
    has_ids: bool = False
    has_grammars: bool = False
    has_seeds: bool = False

    def checked(self, sampling: Sampling) -> Sampling:
        """Return the sampling that this server is asked for: samplers that it lacks are off unless they were set.

        Raises ConfigError for a parameter that it does not take.
        """
        default, lacking = Sampling(), dict[str, float]()
        for name in Sampling.__dataclass_fields__:
            if name in self.sampling or name in ("seed", "logit_bias", "grammar", "json_schema"):
                continue
            if getattr(sampling, name) not in (getattr(default, name), OFF.get(name)):
                raise ConfigError(f"{name} = {getattr(sampling, name)!r}: {self.label} does not take it: leave it out")
            if name in OFF:
                lacking[name] = OFF[name]
        if sampling.logit_bias and not self.has_ids:
            raise ConfigError(f"logit_bias: {self.label} does not return token ids, so no token can be named")
        if (sampling.grammar or sampling.json_schema) and not self.has_grammars:
            raise ConfigError(f"grammar and json_schema: {self.label} does not take them here")
        return replace(sampling, **lacking) if lacking else sampling  # type: ignore[arg-type]  # floats and ints by name


def _native_body(dialect: Dialect, model: str, prompt: Prompt, sampling: Sampling, request: Request) -> dict[str, Any]:
    """Body of llama-server's own /completion."""
    values = {name: getattr(sampling, name) for name in sorted(dialect.sampling)}
    spans = {
        name: _LONGEST if values[name] == -1 else values[name] for name in ("penalty_last_n", "dry_penalty_last_n")
    }
    return {
        **values,
        "model": model,
        "repeat_last_n": spans["penalty_last_n"],
        "dry_penalty_last_n": spans["dry_penalty_last_n"],
        "samplers": ["typ_p" if name == "typical_p" else name for name in sampling.samplers],
        "prompt": prompt,
        "n_predict": request.max_tokens,
        "n_probs": request.top_k,
        "stream": True,
        "return_tokens": True,
        "post_sampling_probs": False,
        "cache_prompt": request.reuse_prefix,
        "seed": sampling.seed,
        "logit_bias": [[token, max(bias, _BANNED)] for token, bias in sampling.logit_bias],
        **_grammar(sampling),
    }


def _completion_body(
    dialect: Dialect, model: str, prompt: Prompt, sampling: Sampling, request: Request
) -> dict[str, Any]:
    """Body of /v1/completions."""
    body = {**_common(dialect, model, sampling, request), "prompt": prompt}
    if request.top_k:
        body["logprobs"] = request.top_k
    if dialect.has_ids:
        body |= {"return_token_ids": True, "cache_prompt": request.reuse_prefix, **_grammar(sampling)}
    if request.prompt_logprobs:
        body |= {"echo": True, "logprobs": request.top_k}
    return body


def _chat_body(dialect: Dialect, model: str, prompt: Prompt, sampling: Sampling, request: Request) -> dict[str, Any]:
    """Body of /v1/chat/completions: the prompt is one message of a person."""
    body = {**_common(dialect, model, sampling, request), "messages": [{"role": "user", "content": prompt}]}
    if request.top_k:
        body |= {"logprobs": True, "top_logprobs": request.top_k}
    return body


def _common(dialect: Dialect, model: str, sampling: Sampling, request: Request) -> dict[str, Any]:
    body = {
        **{name: getattr(sampling, name) for name in sorted(dialect.sampling)},
        "model": model,
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): max(bias, _BANNED) for token, bias in sampling.logit_bias}
    return body


def _grammar(sampling: Sampling) -> dict[str, Any]:
    if sampling.grammar:
        return {"grammar": sampling.grammar}
    return {"json_schema": msgspec.json.decode(sampling.json_schema)} if sampling.json_schema else {}


NATIVE = Form("/completion", _native_body, of_native)
COMPLETION = Form("/v1/completions", _completion_body, of_completion)
CHAT = Form("/v1/chat/completions", _chat_body, of_chat)

OURS = Dialect(
    name="logitbench", label="Logitbench", forms=(COMPLETION,), owners=frozenset({"logitbench"}),
    sampling=OPENAI_SAMPLING | {"top_k", "min_p", "typical_p", "repeat_penalty"}, has_ids=True, has_grammars=True,
    has_seeds=True,
)  # fmt: skip
LLAMA_SERVER = Dialect(
    name="llama-server", label="llama-server", forms=(NATIVE,), owners=frozenset({"llamacpp"}),
    path=("/props", "default_generation_settings"), sampling=LLAMA_SAMPLING, candidates_max=MAX_RECORDED,
    has_ids=True, has_grammars=True, has_seeds=True,
)  # fmt: skip
OTHER = Dialect(name="openai", label="An OpenAI-compatible server", forms=(COMPLETION, CHAT))
DIALECTS = (
    OURS,
    LLAMA_SERVER,
    Dialect(name="vllm", label="vLLM", forms=(COMPLETION, CHAT), owners=frozenset({"vllm"})),
    Dialect(name="sglang", label="SGLang", forms=(COMPLETION, CHAT), owners=frozenset({"sglang"})),
    Dialect(
        name="ollama", label="Ollama", forms=(CHAT, COMPLETION), owners=frozenset({"library"}),
        path=("/api/version", "version"),
    ),
    Dialect(
        name="llama-cpp-python", label="llama_cpp.server", forms=(COMPLETION, CHAT), owners=frozenset({"me"}),
        sampling=OPENAI_SAMPLING | {"top_k", "min_p", "repeat_penalty"}, has_seeds=True,
    ),
    Dialect(name="lmstudio", label="LM Studio", forms=(COMPLETION, CHAT), owners=frozenset({"organization_owner"})),
    Dialect(name="openvino", label="OpenVINO Model Server", forms=(COMPLETION, CHAT), owners=frozenset({"OVMS"})),
    OTHER,
)  # fmt: skip
"""Kinds of servers. What a server reports of log-probabilities is measured, but for the first two."""


def gives_ids(name: str) -> bool:
    """Return whether the servers of a dialect give the token ids of their model; False for an unknown name."""
    return any(dialect.name == name and dialect.has_ids for dialect in DIALECTS)


def dialect_of(owner: str, answers: Mapping[str, object]) -> Dialect:
    """Return the dialect of a server, by the owner of its models and what it answers at the paths of the table."""
    for dialect in DIALECTS:
        if owner in dialect.owners:
            return dialect
    for dialect in DIALECTS:
        if dialect.path is not None:
            path, key = dialect.path
            answer = answers.get(path)
            if isinstance(answer, dict) and key in answer:
                return dialect
    return OTHER
