"""Responses of the API as Structs: what openapi.json says of them. Fields that it does not name are never sent."""

from typing import Annotated, Any, Literal

import msgspec

from engine.api.openai.requests import Endpoint

Finish = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]
Logprob = Annotated[float, msgspec.Meta(le=0)]
Purpose = Literal["batch", "batch_output"]
BatchStatus = Literal["validating", "in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled"]


class Response(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of responses."""


class ErrorDetail(Response, frozen=True, kw_only=True):
    """What is wrong. param: the field at fault; code: a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Response, frozen=True, kw_only=True):
    """Answer to a request that was refused or failed."""

    error: ErrorDetail


class Health(Response, frozen=True, kw_only=True):
    """A model is loaded."""

    status: Literal["ok"]


class Model(Response, frozen=True, kw_only=True):
    """Model that requests may name. max_model_len: tokens of one prompt with its answer, or of one text to embed, null
    where an external engine does not report it. owned_by: "upstream" for one without ids of all its tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "logitbench"
    max_model_len: int | None = None


class Models(Response, frozen=True, kw_only=True):
    """The model that generates and, where it is installed, the one that embeds."""

    object: Literal["list"] = "list"
    data: list[Model]


class PromptTokensDetails(Response, frozen=True, kw_only=True):
    """cached_tokens: prompt tokens taken from the cache."""

    cached_tokens: int


class Usage(Response, frozen=True, kw_only=True):
    """Token counts: each prompt once, every answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TokenLogprob(Response, frozen=True, kw_only=True):
    """A token with its log-probability in nats. id: only where ids are asked for."""

    id: int | msgspec.UnsetType = msgspec.UNSET
    token: str
    logprob: Logprob
    bytes: list[int]


class ChatToken(TokenLogprob, frozen=True, kw_only=True):
    """A token of an answer with the most probable ones in its place."""

    top_logprobs: list[TokenLogprob]


class CompletionLogprobs(Response, frozen=True, kw_only=True):
    """A column for each property, a row for each token; log-probabilities in nats, null for a prompt's first token.

    content: the same tokens as in a chat, with their ids, where ids are asked for.
    """

    tokens: list[str]
    token_logprobs: list[Logprob | None]
    top_logprobs: list[dict[str, Logprob] | None]
    text_offset: list[int]
    content: list[ChatToken] | msgspec.UnsetType = msgspec.UNSET


class PromptLogprob(Response, frozen=True, kw_only=True):
    """A candidate for a token of the prompt: log-probability in nats, rank (1 for the most probable), and its text.

    rank: null where an external engine does not report it.
    """

    logprob: Logprob
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of the prompt the candidates by id, the token itself first; null for the first token."""


class CompletionChoice(Response, frozen=True, kw_only=True):
    """One answer. prompt_logprobs, token_ids, prompt_token_ids: only where they are asked for."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class CompletionResponse(Response, frozen=True, kw_only=True):
    """Answers to the prompts; those of the first prompt come first."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatLogprobs(Response, frozen=True, kw_only=True):
    """The tokens of an answer."""

    content: list[ChatToken]
    refusal: None


class CalledFunction(Response, frozen=True, kw_only=True):
    """Function that the model calls. arguments: JSON as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Response, frozen=True, kw_only=True):
    """Call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Response, frozen=True, kw_only=True):
    """Message of the model. content: null where it only calls tools; tool_calls: only where it calls some."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(Response, frozen=True, kw_only=True):
    """One answer. token_ids: only where they are asked for."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatResponse(Response, frozen=True, kw_only=True):
    """Answers to a chat. prompt_logprobs, prompt_token_ids: only where they are asked for."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Embedding(Response, frozen=True, kw_only=True):
    """Vector of length 1: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Response, frozen=True, kw_only=True):
    """Tokens of all texts, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(Response, frozen=True, kw_only=True):
    """A vector for each text, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class TokenizeResponse(Response, frozen=True, kw_only=True):
    """Ids of a text. max_model_len: as many fit into the context; null where an external engine does not report it."""

    tokens: list[int]
    count: int
    max_model_len: int | None


class DetokenizeResponse(Response, frozen=True, kw_only=True):
    """Text of ids."""

    prompt: str


class TokenizerInfo(Response, frozen=True, kw_only=True):
    """Tokenizer of the model. add_bos_token: texts begin with bos_token; model_max_length: tokens of the context, null
    where an external engine does not report it."""

    bos_token: str | None
    eos_token: str | None
    add_bos_token: bool
    chat_template: str | None
    model_max_length: int | None


class WholeVocabulary(Response, frozen=True, kw_only=True):
    """All tokens of the model, in the order of their ids.

    pieces: bytes that each adds to a text, in base64; kinds: flags, 1 for control tokens, 2 for the ends of a text, 4
    for single bytes; names: of control tokens, by id; bos: the id with which texts begin, where add_bos says so;
    add_space_prefix: the tokenizer puts a space before a text.
    """

    pieces: list[str]
    kinds: list[int]
    names: dict[str, str]
    bos: int | None
    add_bos: bool
    add_space_prefix: bool


class Job(Response, frozen=True, kw_only=True):
    """Call in the background. trials: ids; response: what its endpoint answers, once it is over; times in Unix seconds.

    A cancelled one has what it had by then.
    """

    id: str
    object: Literal["job"]
    endpoint: str
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled"]
    created_at: int
    finished_at: int | None
    trials: list[str]
    error: ErrorDetail | None
    response: dict[str, Any] | None = None


class Jobs(Response, frozen=True, kw_only=True):
    """Jobs that are known, newest first, without their responses."""

    object: Literal["list"]
    data: list[Job]


class File(Response, frozen=True, kw_only=True):
    """Input of a batch, or what a batch answered. filename: what its sender calls it; created_at: Unix seconds."""

    id: str
    object: Literal["file"] = "file"
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    created_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"


class Files(Response, frozen=True, kw_only=True):
    """One page of the files. has_more: more follow after last_id."""

    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(Response, frozen=True, kw_only=True):
    """A file that was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchError(Response, frozen=True, kw_only=True):
    """Why a batch failed, or what it waits for."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(Response, frozen=True, kw_only=True):
    """Errors of a batch as a whole; those of its lines are in its error file."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(Response, frozen=True, kw_only=True):
    """Lines of a batch: all, answered, and answered with an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Response, frozen=True, kw_only=True):
    """Requests in a file, answered in the background. model: the one that answers all of its lines.

    Files of answers and of errors exist once it is over. A batch never expires; times are Unix seconds.
    """

    id: str
    object: Literal["batch"] = "batch"
    endpoint: Endpoint
    model: str | None = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None


class Batches(Response, frozen=True, kw_only=True):
    """One page of the batches, newest first. has_more: more follow after last_id."""

    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
