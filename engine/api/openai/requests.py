"""Requests of the API: their fields, checked strictly, and the sampling and limits that they ask for."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from engine.api.openai.errors import ApiError, refusal
from engine.api.openai.messages import ChatMessage
from engine.api.openai.tools import (
    NamedTool,
    ToolChoice,
    Tools,
    ToolUse,
    call_schema,
    checked_tools,
    template_tools,
    tool_use,
)
from engine.api.openai.traffic import printable
from engine.chat_options import ChatOptions
from engine.errors import ConfigError
from engine.specs import Sampling

MOST_LOGPROBS = 20
MOST_CHOICES = 64
MOST_STOPS = 4
MOST_ANSWERS = 256
"""Prompts times `n`: as many as may wait in the queue by default."""
MOST_BIASES = 1024
MOST_TOKENS = 1 << 18
MOST_GENERATED = 1 << 24
"""Tokens that one answer may be asked for, as for `engine.specs.Request`."""
MOST_UNKNOWN, LONGEST_UNKNOWN = 16, 60
"""Names of unknown fields that a trial keeps, and characters of each."""
LONGEST_VARIABLES = 1 << 16
RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
"""Variables of a chat template that a request sets by fields of their own, or not at all."""
RECORDED_TOP_K = 20
"""Candidates saved with each token of an answer where the request asks for no more."""

_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?([^`.\[]*+)[^`]*+`\Z")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
"""How msgspec names the path to a wrong value, here its first part, and a missing field."""

Endpoint = Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings"]
"""Paths of the endpoints that compute."""

T = TypeVar("T", bound="CommonRequest")
Count = Annotated[int, msgspec.Meta(ge=0)]
Ids = Annotated[list[Count], msgspec.Meta(min_length=1)]
_ONE_KIND = [{"type": "string"}, *({"items": {"type": kind}} for kind in ("string", "integer", "array"))]
Prompts = Annotated[
    str | Annotated[list[str | Count | Ids], msgspec.Meta(min_length=1)],
    msgspec.Meta(extra_json_schema={"allOf": [{"anyOf": _ONE_KIND}]}),
]
"""A text, several texts, the token ids of one text, or those of several."""
MaxTokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_GENERATED)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-100, le=100)]


class StreamOptions(msgspec.Struct, frozen=True):
    """include_usage: a last chunk of a stream counts tokens."""

    include_usage: bool = False


class CommonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of all requests that generate, with OpenAI's defaults; the samplers that OpenAI has not are off.

    Those that OpenAI's clients may send as null have their default then; `given_n` and the like are as sent.
    """

    model: str = ""
    max_tokens: MaxTokens | None = None
    given_n: Annotated[int, msgspec.Meta(ge=1, le=MOST_CHOICES)] | None = msgspec.field(default=None, name="n")
    given_stream: bool | None = msgspec.field(default=None, name="stream")
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    store: bool | None = None
    user: str | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    repeat_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=100)] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    ignore_eos: bool = False
    cache_prompt: bool = True
    prompt_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    return_token_ids: bool | None = None
    metadata: dict[str, Any] | None = None

    @property
    def n(self) -> int:
        """Answers of each prompt."""
        return 1 if self.given_n is None else self.given_n

    @property
    def stream(self) -> bool:
        """Whether the answer comes in chunks."""
        return self.given_stream is True

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings. Raises ApiError for more than four."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        stops = tuple(stop for stop in given if stop)
        if len(stops) > MOST_STOPS:
            raise refusal(f"stop has {len(stops):,} texts; at most {MOST_STOPS} are allowed", "stop")
        return stops

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own tokens are scored. Raises ApiError for a stream, which has no place for them."""
        if self.prompt_logprobs is not None and self.stream:
            raise refusal("prompt_logprobs cannot be streamed: send stream = false", "prompt_logprobs")
        return self.prompt_logprobs is not None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def blamed(self, error: ApiError) -> ApiError:
        """Return an error of the engine as one of the field that it comes from."""
        return error

    def sampling(self, end_tokens: Sequence[int]) -> Sampling:
        """Return the sampling parameters; `end_tokens` are banned where the request ignores them.

        Raises ApiError for a value out of range.
        """
        if len(self.logit_bias or ()) > MOST_BIASES:
            raise refusal(
                f"logit_bias has {len(self.logit_bias or ()):,} entries; at most {MOST_BIASES:,} are allowed",
                "logit_bias",
            )
        bias = {_token_of(token): value for token, value in (self.logit_bias or {}).items()}
        if self.ignore_eos:
            bias |= dict.fromkeys(end_tokens, float("-inf"))
        numbers = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "typical_p": self.typical_p,
            "repeat_penalty": self.repeat_penalty,
            "seed": self.seed if self.seed is None else self.seed % 0xFFFFFFFF,
        }
        given = {name: value for name, value in numbers.items() if value is not None}
        others = {"grammar": self.grammar, "json_schema": self.json_schema, "logit_bias": bias or None}
        held = {name: value for name, value in others.items() if value is not None}
        try:
            return _sampling(**given, **held) if held else _kept_sampling(**given)
        except ConfigError as error:
            raise ApiError(400, str(error), param=str(error).partition(" ")[0].rstrip(":")) from None


class CompletionRequest(CommonRequest, frozen=True, kw_only=True):
    """Body of POST /v1/completions. prompt: a text, several texts, the ids of one prompt, or those of several."""

    prompt: Prompts
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    given_echo: bool | None = msgspec.field(default=None, name="echo")

    @property
    def echo(self) -> bool:
        """Whether the answer begins with the prompt."""
        return self.given_echo is True

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts. Raises ApiError for a list of mixed kinds, an empty one and a very long one."""
        given = several(self.prompt, "prompt")
        if len(given) > 1 and len(given) * self.n > MOST_ANSWERS:
            raise refusal(
                f"{len(given):,} prompts with n = {self.n}: at most {MOST_ANSWERS} answers are allowed", "prompt"
            )
        return given


class ResponseFormat(msgspec.Struct, frozen=True):
    """Form of the answer: text, json_object, or json_schema with its schema."""

    type: str = "text"
    json_schema: dict[str, Any] | None = None


class ChatRequest(CommonRequest, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    def tool_use(self, template: str) -> ToolUse:
        """Return how the answer may call tools, for a model with this chat template. Raises ApiError."""
        choice = self.tool_choice or ("auto" if self.tools else "none")
        return tool_use(self.tools or (), choice, template, is_parallel=self.parallel_tool_calls is not False)

    def options(self, use: ToolUse) -> ChatOptions:
        """Return what the chat template gets besides the messages. Raises ApiError."""
        variables = self.chat_template_kwargs or {}
        wrong = min(RESERVED & variables.keys(), default=None)
        if wrong is not None:
            raise refusal(f"chat_template_kwargs: {wrong} is not a variable to set here", "chat_template_kwargs")
        encoded = msgspec.json.encode(variables).decode() if variables else ""
        if len(encoded) > LONGEST_VARIABLES:
            raise refusal(
                f"chat_template_kwargs has {len(encoded):,} characters of JSON; at most {LONGEST_VARIABLES:,} are "
                "allowed",
                "chat_template_kwargs",
            )
        if self.continue_final_message and self.add_generation_prompt:
            raise refusal(
                "continue_final_message and add_generation_prompt are both true: give only one",
                "continue_final_message",
            )
        begins = not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
        return ChatOptions(
            tools=template_tools(use.given) if use.given else "",
            variables=encoded,
            add_generation_prompt=begins,
            continue_final_message=self.continue_final_message,
        )

    def checked(self) -> "ChatRequest":
        """Return the request with its response format, or the call that it demands, as a schema.

        Raises ApiError for what is not supported.
        """
        if not self.messages:
            raise refusal("messages is empty: send at least one", "messages")
        if self.top_logprobs and not self.logprobs:
            raise refusal("top_logprobs needs logprobs = true", "top_logprobs")
        checked_tools(self.tools or ())
        if self.tool_choice not in (None, "none") and not self.tools:
            raise refusal("tool_choice needs tools", "tool_choice")
        if self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool):
            return self._held_to_a_call(self.tool_choice)
        if self._is_plain:
            return self
        if self.grammar or self.json_schema is not None:
            raise refusal("response_format: leave out grammar and json_schema, or send it as text", "response_format")
        match self.response_format:
            case ResponseFormat(type="json_object"):
                schema: dict[str, Any] = {"type": "object"}
            case ResponseFormat(type="json_schema", json_schema={"schema": dict(given)}):
                schema = given
            case _:
                raise refusal(
                    "response_format: must have the type text, json_object, or json_schema with a schema",
                    "response_format",
                )
        return msgspec.structs.replace(self, json_schema=schema)

    def blamed(self, error: ApiError) -> ApiError:
        """Return an error of the rendered text, or of the schema, as one of the field that this comes from."""
        if error.param == "prompt":
            return ApiError(error.status, str(error), param="messages", code=error.code)
        if error.param != "json_schema":
            return error
        is_held = self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)
        field = "tools" if is_held else "response_format" if self.response_format is not None else error.param
        return refusal(str(error).replace(error.param, field, 1), field)

    @property
    def _is_plain(self) -> bool:
        """Whether no response format holds the answer."""
        return self.response_format is None or self.response_format.type == "text"

    def _held_to_a_call(self, choice: ToolChoice) -> "ChatRequest":
        if self.grammar or self.json_schema is not None or not self._is_plain:
            raise refusal(
                "tool_choice demands a call: leave out grammar, json_schema and response_format", "tool_choice"
            )
        return msgspec.structs.replace(self, json_schema=call_schema(self.tools or (), choice))


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /tokenize: one of prompt, content (llama-server's name) and messages, which are rendered.

    add_special_tokens: a text begins with the token that the model's file asks for; by default for prompt only.
    """

    one_of: ClassVar[tuple[str, ...]] = ("prompt", "content", "messages")

    model: str = ""
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    messages: list[ChatMessage] | msgspec.UnsetType = msgspec.UNSET
    add_special_tokens: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /detokenize."""

    tokens: Annotated[list[int], msgspec.Meta(max_length=MOST_TOKENS)]


def several(given: Prompts, param: str, most: int | None = None) -> list[str | list[int]]:
    """Return the texts of a field, each as text or token ids. Raises ApiError for mixed kinds and more than `most`."""
    if isinstance(given, str):
        return [given]
    if all(isinstance(one, int) for one in given):
        return [given]  # type: ignore[list-item]
    if most is not None and len(given) > most:
        raise refusal(f"{param}: {len(given):,} texts are too many; at most {most:,} are allowed", param)
    if len({type(one) for one in given}) > 1:
        raise refusal(f"{param}: must be a text, a list of texts, token ids, or a list of lists of ids", param)
    return given  # type: ignore[return-value]


R = TypeVar("R", bound=msgspec.Struct)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decoded(body: bytes, kind: type[R]) -> R:
    """Return the request in a body; unknown fields are ignored. Raises ApiError where it is malformed."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        found = (_PLACE.search(text), _MISSING.match(text))
        name = next((match[1] for match in found if match and match[1]), None)
        raise ApiError(400, f"{name or 'the body'}: {_PLACE.sub('', text)}", param=name) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON: {error}") from None


def unknown_fields(body: bytes, kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of the fields of a body that a request has not: the first 16, cut, of printable characters.

    Raises ApiError for a name that is no UTF-8.
    """
    try:
        given = _FIELDS.decode(body)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not JSON: {error}") from None
    unknown = islice((name for name in given if name not in kind.__struct_encode_fields__), MOST_UNKNOWN)
    return tuple(printable(name[:LONGEST_UNKNOWN]) for name in unknown)


def _sampling(**given: Any) -> Sampling:
    """Return the sampling parameters of a request, with OpenAI's defaults. Raises ConfigError."""
    return Sampling(**{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, **given})


_kept_sampling = lru_cache(maxsize=64)(_sampling)
"""The same for numbers alone, checked once for clients that ask again and again."""


def _token_of(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise refusal(f"logit_bias: {text[:40]!r} is not a token id", "logit_bias")
    return int(text)
