"""Description of the API in OpenAPI 3.1: every route with its body, answers and errors, from the Structs."""

from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from engine.api.openai import requests as ask
from engine.api.openai import responses as answer
from engine.api.openai.batches import MOST_LISTED, BatchRequest
from engine.api.openai.embeddings import EmbeddingRequest
from engine.api.openai.files import FORM, LINES, FileRequest
from engine.api.openai.files import MOST_LISTED as MOST_FILES_LISTED
from engine.api.openai.guard import OPEN
from engine.api.openai.jobs import MOST_WAIT_S, JobRequest

TITLE = "Logitbench"
ABOUT = (
    "OpenAI-compatible API of a local model, with the exact log-probability of every token. Each call that generates "
    "is a trial of the workbench; the header x-logitbench-trial of its answer names it."
)
VERSION = "1"
JSON, EVENTS, TEXT, PAGE = "application/json", "text/event-stream", "text/plain", "text/html"
COMPONENT = "#/components/schemas/{name}"

ALWAYS = (400, 403)
"""Errors of every route: a foreign Host; a web page as the sender."""

WITH_BODY = (408, 413, 429)
"""Errors of routes with a body: sent too slowly, too large, too many at once."""

USES_MODEL = (404, 502, 503)
"""Errors of routes that use a model: another model is named; an external engine fails; none is loaded, a measurement is
running, or an external engine cannot be reached."""

COMPUTES = (*USES_MODEL, 422)
"""Errors of routes by which a model computes: those above, and a request on which its worker ended."""

FORGOTTEN = (404, 410)
"""Errors of a job that is not known: there was none, or the history still has its trial."""

STORED = (500, 507)
"""Errors of routes that read or write files: a damaged one, a disk that is full or cannot be used."""

WAIT: dict[str, Any] = {
    "name": "wait",
    "in": "query",
    "description": "Seconds to wait for the end",
    "schema": {"type": "integer", "minimum": 0, "maximum": int(MOST_WAIT_S)},
}
PURPOSE: dict[str, Any] = {
    "name": "purpose",
    "in": "query",
    "description": "Only files for this purpose",
    "schema": {"type": "string", "enum": ["batch", "batch_output"]},
}
LAST_EVENT: dict[str, Any] = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The last event that the client has seen",
    "schema": {"type": "string"},
}


def page_of(most: int) -> tuple[dict[str, Any], ...]:
    """Return the parameters of a list that has pages of at most so many items."""
    limit = {"type": "integer", "minimum": 1, "maximum": most}
    order = {"type": "string", "enum": ["asc", "desc"]}
    described = {
        "limit": ("Items of the page", limit),
        "after": ("The last id of the page before", {"type": "string"}),
        "order": ("By time, newest first unless asc", order),
    }
    return tuple(
        {"name": name, "in": "query", "description": text, "schema": schema}
        for name, (text, schema) in described.items()
    )


class Operation(NamedTuple):
    """One route. answer: Struct of its JSON, None for another media type; may_stream: server-sent events on request.

    body: Struct of what it takes, as JSON unless `takes` is another media type; status: of the answer; parameters:
    those of the query and the headers, as OpenAPI writes them.
    """

    method: str
    path: str
    summary: str
    answer: type[msgspec.Struct] | None
    body: type[msgspec.Struct] | None = None
    errors: tuple[int, ...] = ()
    takes: str = JSON
    media: str = JSON
    may_stream: bool = False
    status: int = 200
    parameters: tuple[dict[str, Any], ...] = ()


OPERATIONS = (
    Operation("GET", "/health", "Whether a model is loaded", answer.Health, errors=(503,)),
    Operation("GET", "/metrics", "Figures of this server for Prometheus", None, media=TEXT),
    Operation("GET", "/openapi.json", "This description", None),
    Operation("GET", "/docs", "This description as a page", None, media=PAGE),
    Operation("GET", "/v1/models", "The models that requests may name", answer.Models, errors=(503,)),
    Operation("GET", "/v1/models/{id}", "One model", answer.Model, errors=(404, 503)),
    Operation(
        "POST", "/v1/completions", "Continue prompts", answer.CompletionResponse, ask.CompletionRequest,
        COMPUTES, may_stream=True,
    ),
    Operation(
        "POST", "/v1/chat/completions", "Answer a chat", answer.ChatResponse, ask.ChatRequest,
        COMPUTES, may_stream=True,
    ),
    Operation(
        "POST", "/v1/embeddings", "Vectors of texts", answer.EmbeddingResponse, EmbeddingRequest, COMPUTES
    ),
    Operation(
        "POST", "/tokenize", "Ids of a text or a chat", answer.TokenizeResponse, ask.TokenizeRequest, USES_MODEL
    ),
    Operation("POST", "/detokenize", "Text of ids", answer.DetokenizeResponse, ask.DetokenizeRequest, (503,)),
    Operation("GET", "/tokenizer_info", "Special tokens and chat template", answer.TokenizerInfo, errors=(503,)),
    Operation("GET", "/vocabulary", "All tokens with their bytes", answer.WholeVocabulary, errors=(404, 503)),
    Operation("GET", "/v1/jobs", "The jobs that are known", answer.Jobs),
    Operation(
        "POST", "/v1/jobs", "Begin a call that goes on without its client", answer.Job, JobRequest, COMPUTES,
        status=202,
    ),
    Operation("GET", "/v1/jobs/{id}", "One job", answer.Job, errors=FORGOTTEN, parameters=(WAIT,)),
    Operation("DELETE", "/v1/jobs/{id}", "Cancel a job", answer.Job, errors=FORGOTTEN),
    Operation(
        "GET", "/v1/jobs/{id}/events", "Chunks of a job as events", None, errors=FORGOTTEN, media=EVENTS,
        parameters=(LAST_EVENT,),
    ),
    Operation(
        "GET", "/v1/files", "Files of requests and of answers", answer.Files, errors=STORED,
        parameters=(*page_of(MOST_FILES_LISTED), PURPOSE),
    ),
    Operation("POST", "/v1/files", "Upload a file of requests", answer.File, FileRequest, STORED, takes=FORM),
    Operation("GET", "/v1/files/{id}", "One file", answer.File, errors=(404, *STORED)),
    Operation("DELETE", "/v1/files/{id}", "Delete a file", answer.Deleted, errors=(404, 409, *STORED)),
    Operation("GET", "/v1/files/{id}/content", "Content of a file", None, errors=(404, *STORED), media=LINES),
    Operation(
        "GET", "/v1/batches", "Batches, newest first", answer.Batches, errors=STORED, parameters=page_of(MOST_LISTED)
    ),
    Operation(
        "POST", "/v1/batches", "Answer a file of requests in the background", answer.Batch, BatchRequest,
        (404, 503, *STORED),
    ),
    Operation("GET", "/v1/batches/{id}", "One batch", answer.Batch, errors=(404, *STORED)),
    Operation("POST", "/v1/batches/{id}/cancel", "Cancel a batch", answer.Batch, errors=(404, 409, 503, *STORED)),
)  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """Return the whole description, ready for JSON."""
    structs = {struct for one in OPERATIONS for struct in (one.body, one.answer) if struct is not None}
    schemas = msgspec.json.schema_components([answer.ErrorResponse, *sorted(structs, key=str)], ref_template=COMPONENT)
    for struct in structs:
        names: tuple[str, ...] = getattr(struct, "one_of", ())
        schemas[1][struct.__name__] |= {"oneOf": [{"required": [name]} for name in names]} if names else {}
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _described(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "description": ABOUT, "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas[1],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "The key of the server."}},
        },
        "security": [{"key": []}],
    }


def _described(one: Operation) -> dict[str, Any]:
    """Return one operation as OpenAPI writes it."""
    is_open = one.path in OPEN
    content = {one.media: {"schema": _ref(one.answer) if one.answer else _plain(one.media)}}
    if one.media == EVENTS or one.may_stream:
        content[EVENTS] = {}  # OpenAPI 3.1 has no words for the data of an event
    responses = {str(one.status): {"description": "The answer", "content": content}}
    for status in sorted({*ALWAYS, *one.errors, *(() if is_open else (401,)), *(WITH_BODY if one.body else ())}):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {JSON: {"schema": _ref(answer.ErrorResponse)}},
        }
    described: dict[str, Any] = {
        "operationId": f"{one.method.lower()}{one.path.translate(str.maketrans('/.', '__', '{}'))}",
        "summary": one.summary,
        "parameters": list(one.parameters),
        "responses": responses,
    }
    if "{id}" in one.path:
        described["parameters"].append({"name": "id", "in": "path", "required": True, "schema": {"type": "string"}})
    if one.body is not None:
        described["requestBody"] = {"required": True, "content": {one.takes: {"schema": _ref(one.body)}}}
    return described | ({"security": []} if is_open else {})


def _ref(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": COMPONENT.format(name=struct.__name__)}


def _plain(media: str) -> dict[str, Any]:
    return {"type": "object" if media == JSON else "string"}
