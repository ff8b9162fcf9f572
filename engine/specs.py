"""Parameters of sampling, pools and requests: frozen, validated on construction, unknown names rejected."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from engine.errors import ConfigError, quoted
from engine.validation import Spec, at_most, is_real, plain_text, whole_number

Samplers = tuple[str, ...]
TokenSets = tuple[tuple[int, ...], ...]
LoadMode = Literal["mmap", "mlock", "none"]
DType = Literal["float32", "bfloat16"]
Lane = Literal["browser", "api", "batch"]

DEFAULT_SAMPLERS: Samplers = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
LANES: tuple[Lane, ...] = get_args(Lane)
DTYPES: tuple[DType, ...] = get_args(DType)
MAX_CLIENT_CHARACTERS = MAX_NODE_CHARACTERS = 200
MAX_SEQUENCES = 256
UNKNOWN_CTX = 1 << 24
"""n_ctx of an external engine that does not report how many tokens a sequence holds; no known context is as large."""
MAX_RECORDED = 1024
MAX_WATCHED = 64
"""Watched words of a request: each takes a pass over the logits of every step."""
MAX_WATCHED_IDS = 64
"""Token ids of one watched word."""
SCORED_BYTES = 64 << 20
"""Logits of scored prompts in one decode, in bytes; at least FEWEST_SCORED rows of them."""
FEWEST_SCORED = 32
MAX_ID = (1 << 31) - 1
MAX_BIAS = 3.4e38
"""Near the largest finite 32-bit float."""

# Limits on one request, so that none delays all sequences of its worker for long.
MAX_PROMPT_CHARACTERS = 1 << 21
"""About half a million tokens of English, which take about a second to tokenise; a prompt of ids may be longer."""
MAX_PROMPT_IDS = 1 << 24
MAX_GRAMMAR_CHARACTERS = 1 << 18
MAX_SCHEMA_CHARACTERS = 1 << 20
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1000
MAX_BIASES = 10_000
MAX_BREAKERS = 32
"""llama.cpp compares each with every vocabulary token before the first step: 0.1 to 0.2 s for 32 with 32,000 tokens."""
MAX_BREAKER_BYTES = 40
"""llama.cpp truncates longer ones (llama-sampler.cpp, MAX_CHAR_LEN)."""


def given_prompt(prompt: str | Sequence[int]) -> str | list[int]:
    """Return a prompt as plain text or a list of ids. Raises ConfigError for anything else."""
    if isinstance(prompt, str):
        return plain_text("prompt", prompt, MAX_PROMPT_CHARACTERS)
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Iterable):
        raise ConfigError(f"prompt = {quoted(prompt)}: must be text or token ids")
    ids = []
    for place, given in enumerate(at_most(MAX_PROMPT_IDS, "prompt: {} ids", prompt), 1):
        token = whole_number(given)
        if token is None or not 0 <= token <= MAX_ID:
            raise ConfigError(f"prompt: {quoted(given)}, number {place:,} of its ids, is not a token id")
        ids.append(token)
    return ids


@dataclass(frozen=True, kw_only=True)
class Sampling(Spec):
    """Sampling parameters; the defaults are llama.cpp's (common/common.h, common_params_sampling).

    temperature 0 takes the most probable token. top_k 0, top_p 1, min_p 0, typical_p 1, top_n_sigma -1,
    xtc_probability 0, repeat_penalty 1, dry_multiplier 0 and mirostat 0 switch that stage off. penalty_last_n and
    dry_penalty_last_n count tokens (-1: the whole context). logit_bias maps token ids to values added to the logits
    (nats); -inf bans a token. grammar is GBNF; json_schema is a schema that is converted to GBNF: text, or a mapping or
    a Pydantic model, which are stored as text; only one of the two may be given. seed None: a random one, reported in
    the Completion. samplers: the order of the sampler chain.
    """

    goes_into = "Sampling(...), which submit, map and complete take as `sampling`"

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str = ""
    json_schema: str = ""
    seed: int | None = None
    samplers: Samplers = DEFAULT_SAMPLERS

    def __post_init__(self) -> None:
        self._texts("samplers", len(DEFAULT_SAMPLERS), 100)
        self._texts("dry_sequence_breakers", MAX_BREAKERS, MAX_BREAKER_BYTES)
        longest = max((len(breaker.encode()) for breaker in self.dry_sequence_breakers), default=0)
        if longest > MAX_BREAKER_BYTES:
            raise ConfigError(
                f"dry_sequence_breakers: one has {longest} bytes; at most {MAX_BREAKER_BYTES} are allowed: shorten it"
            )
        self._real("temperature", 0, 100)
        self._whole("top_k", 0, 1 << 30)
        for name in ("top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold"):
            self._real(name, 0, 1)
        self._real("top_n_sigma", -1)
        self._real("repeat_penalty", 0.01, 100)
        for name in ("frequency_penalty", "presence_penalty"):
            self._real(name, -100, 100)
        for name in ("penalty_last_n", "dry_penalty_last_n"):
            self._whole(name, -1, 1 << 24)
        self._real("dry_multiplier", 0)
        self._real("dry_base", 1)
        self._whole("dry_allowed_length", 0, 1 << 24)
        self._whole("mirostat", 0, 2)
        self._real("mirostat_tau", 0)
        self._real("mirostat_eta", 0, 1)
        self._set("logit_bias", _biases(self.logit_bias))
        self._check_samplers()
        self._set("grammar", plain_text("grammar", self.grammar, MAX_GRAMMAR_CHARACTERS))
        self._set("json_schema", plain_text("json_schema", _schema_text(self.json_schema), MAX_SCHEMA_CHARACTERS))
        if "\0" in self.grammar:
            raise ConfigError("grammar: contains a zero byte, at which llama.cpp would end it: remove it")
        if self.grammar and self.json_schema:
            raise ConfigError("grammar and json_schema are both given: give only one")
        if self.seed is not None:
            self._whole("seed", 0, 0xFFFFFFFE)

    def _check_samplers(self) -> None:
        for name in self.samplers:
            if name not in DEFAULT_SAMPLERS:
                raise ConfigError(f"samplers: unknown stage {quoted(name)}; known: {', '.join(DEFAULT_SAMPLERS)}")
        if len(set(self.samplers)) != len(self.samplers):
            raise ConfigError("samplers: a stage is listed twice")


def _schema_text(given: object) -> str:
    """Return a JSON schema as text: of a Pydantic model its own schema, of a mapping its JSON."""
    if hasattr(given, "model_json_schema"):
        given = given.model_json_schema()
    if isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"json_schema = {quoted(given)}: must be a schema as text or mapping, or a Pydantic model")
    try:
        return json.dumps(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"json_schema: is not JSON ({error})") from None


def _pairs(given: object) -> list[Any]:
    """Return the items of a mapping, or the given pairs."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"logit_bias = {quoted(given)}: must map token ids to numbers")
    return at_most(MAX_BIASES, "logit_bias: {} entries", given.items() if isinstance(given, Mapping) else given)


def _biases(given: object) -> tuple[tuple[int, float], ...]:
    biases = tuple(map(_bias, _pairs(given)))
    seen = set[int]()
    for token, _ in biases:
        if token in seen:
            raise ConfigError(f"logit_bias names token {token:,} twice: give each token one number")
        seen.add(token)
    return biases


def _bias(given: Any) -> tuple[int, float]:
    """Return one checked pair of token id and bias."""
    match given:
        case (token, bias) if is_real(bias) and (bias == -math.inf or abs(bias) <= MAX_BIAS):
            whole = whole_number(token)
            if whole is not None and 0 <= whole <= MAX_ID:
                return whole, float(bias)
    raise ConfigError(
        f"logit_bias {quoted(given)}: needs a token id and a number from -{MAX_BIAS:g} to {MAX_BIAS:g}, or -inf"
    )


class PoolOptions(TypedDict, total=False):
    """The parameters of PoolSpec, as keywords of Pool."""

    instances: int
    threads: int | None
    threads_batch: int | None
    parallel: int
    n_ctx: int
    n_batch: int | None
    n_ubatch: int | None
    share_weights: bool | None
    pin: bool
    flash_attn: bool | None
    type_k: str
    type_v: str
    n_gpu_layers: int
    load: LoadMode
    dtype: DType | None


@dataclass(frozen=True, kw_only=True)
class PoolSpec(Spec):
    """Parameters of a pool: one model in `instances` processes of `parallel` sequences; n_ctx is tokens per sequence.

    threads None: adaptive, the number that is currently fastest, up to the usable cores divided by instances, and
    exactly that maximum while a job with reuse_prefix=False runs; a number is fixed. threads_batch None: as threads.
    n_batch and n_ubatch None: llama.cpp's 2048 and 512, no more than n_ctx needs. share_weights: leave the weights in
    the page cache, shared by all instances, instead of repacking them privately; None: what this machine computes
    faster for `parallel` requests, measured for some seconds with the first model of a quantisation. pin: each instance
    runs on its own cores. n_gpu_layers -1: all. dtype: type of weights, arithmetic, keys and values in transformers,
    which runs folders of safetensors, and a GGUF file where it is given; None: a folder's bfloat16, else float32.
    """

    goes_into = "Pool(...)"
    options = PoolOptions

    instances: int = 1
    threads: int | None = None
    threads_batch: int | None = None
    parallel: int = 8
    n_ctx: int = 512
    n_batch: int | None = None
    n_ubatch: int | None = None
    share_weights: bool | None = None
    pin: bool = False
    flash_attn: bool | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    n_gpu_layers: int = 0
    load: LoadMode = "mmap"
    dtype: DType | None = None

    def __post_init__(self) -> None:
        self._whole("instances", 1, 256)
        for name in ("threads", "threads_batch"):
            if getattr(self, name) is not None:
                self._whole(name, 1, 512)
        self._whole("parallel", 1, MAX_SEQUENCES)
        self._whole("n_ctx", 16, UNKNOWN_CTX)
        for name in ("n_batch", "n_ubatch"):
            if getattr(self, name) is not None:
                self._whole(name, 1, 1 << 20)
        if self.n_batch and self.n_ubatch and self.n_ubatch > self.n_batch:
            raise ConfigError(f"n_ubatch = {self.n_ubatch:,}: must not exceed n_batch = {self.n_batch:,}")
        self._one_of("share_weights", (True, False, None))
        self._one_of("pin", (True, False))
        self._one_of("flash_attn", (True, False, None))
        self._one_of("type_k", KV_TYPES)
        self._one_of("type_v", KV_TYPES)
        self._whole("n_gpu_layers", -1, 1 << 16)
        self._one_of("load", ("mmap", "mlock", "none"))
        self._one_of("dtype", (*DTYPES, None))

    @property
    def padded_n_ctx(self) -> int:
        """Tokens that one sequence is actually allocated: llama.cpp pads to a multiple of 256."""
        return -(-self.n_ctx // 256) * 256

    @property
    def resolved_n_ubatch(self) -> int:
        """Tokens of one physical batch: 512 unless given, at most what all sequences hold and at most n_batch."""
        return self.n_ubatch or min(512, self.padded_n_ctx * self.parallel, self.n_batch or 512)

    @property
    def resolved_n_batch(self) -> int:
        """Tokens of one llama_decode call; at least one per sequence."""
        return max(self.n_batch or max(self.resolved_n_ubatch, min(2048, self.padded_n_ctx)), self.parallel)

    def scored_rows(self, n_vocab: int) -> int:
        """Return how many tokens of scored prompts one decode takes: what SCORED_BYTES of logits hold, and no more than
        one physical batch."""
        return min(max(SCORED_BYTES // (4 * max(n_vocab, 1)), FEWEST_SCORED), self.resolved_n_ubatch)

    def most_rows(self, n_vocab: int) -> int:
        """Return the maximum rows of logits of one decode: scored tokens, and one of each sequence."""
        return min(self.resolved_n_batch, self.parallel + self.scored_rows(n_vocab))


class RequestOptions(TypedDict, total=False):
    """The parameters of Request that any prompt can have, as keywords of `submit`, `map` and `complete`."""

    max_tokens: int
    top_k: int
    stop: str | Sequence[str]
    prompt_logprobs: bool
    reuse_prefix: bool
    stages: bool
    watched: TokenSets


class CompleteOptions(PoolOptions, RequestOptions, total=False):
    """The parameters of PoolSpec and of Request, as keywords of `complete`."""


@dataclass(frozen=True, kw_only=True)
class Request(Spec):
    """Parameters of one job, as passed to `Pool.submit`, except the prompt.

    max_tokens 0 only scores the prompt. top_k: candidates recorded with each step; 0 records no statistics at all.
    stop: strings that end the text. prompt_logprobs: statistics for the prompt's own tokens (a prefix is reused only
    from prompts that were scored with the same top_k). reuse_prefix False recomputes the prompt. generated: how many of
    the last prompt ids count as generated. forced: how many prompt ids after those are the first steps of this job:
    recorded like any others, and counted in max_tokens, but not drawn. stages: with each generated token, record what
    each sampler stage left; needs top_k. watched: words, each a set of token ids: with each token, also those of a
    scored prompt, record their summed probability and the rank of the best of them.
    """

    goes_into = "submit, map and complete themselves"
    options = RequestOptions

    max_tokens: int = 128
    top_k: int = 0
    stop: tuple[str, ...] = ()
    prompt_logprobs: bool = False
    reuse_prefix: bool = True
    generated: int = 0
    stages: bool = False
    forced: int = 0
    watched: TokenSets = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self._set("stop", (self.stop,))
        self._texts("stop", MAX_STOPS, MAX_STOP_CHARACTERS)
        if "" in self.stop:
            raise ConfigError(f"stop = {quoted(self.stop)}: must be non-empty texts")
        self._whole("max_tokens", 0, 1 << 24)
        self._whole("top_k", 0, MAX_RECORDED)
        self._whole("generated", 0, 1 << 24)
        self._whole("forced", 0, 1 << 24)
        if self.forced > self.max_tokens:
            raise ConfigError(f"forced = {self.forced:,}: max_tokens = {self.max_tokens:,} must be at least as many")
        for name in ("prompt_logprobs", "reuse_prefix", "stages"):
            self._one_of(name, (True, False))
        self._set("watched", _token_sets(self.watched))
        if self.stages and not self.top_k:
            raise ConfigError("stages = True records which candidates each stage cut: give a top_k of at least 1")


def _token_sets(given: object) -> TokenSets:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f"watched = {quoted(given)}: must be a list of words, each a list of token ids")
    return tuple(map(_token_set, at_most(MAX_WATCHED, "watched: {} words", given)))


def _token_set(given: object) -> tuple[int, ...]:
    """Return the ids of one watched word, checked."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f"watched: {quoted(given)}: must be a list of token ids")
    ids: list[int] = []
    for one in at_most(MAX_WATCHED_IDS, "watched: a word of {} token ids", given):
        token = whole_number(one)
        if token is None or not 0 <= token <= MAX_ID:
            raise ConfigError(f"watched: {quoted(one)} is not a token id")
        if token in ids:
            raise ConfigError(f"watched names token {token:,} twice in one word: its probability would count twice")
        ids.append(token)
    if not ids:
        raise ConfigError("watched: a word without token ids: give it at least one")
    return tuple(ids)


@dataclass(frozen=True, kw_only=True)
class Origin(Spec):
    """Who submits a job, for its turn in the queue.

    lane: someone who watches it in a browser, a call of the API, or a batch, of which 4, 2 and 1 jobs start in turn.
    client: a name, stored with the trial of a call; clients of a lane take turns.
    """

    lane: Lane = "browser"
    client: str = ""

    def __post_init__(self) -> None:
        self._one_of("lane", LANES)
        self._set("client", plain_text("client", self.client, MAX_CLIENT_CHARACTERS))
