"""/openapi.json and /docs: every route is described, and answers are as described."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from engine.api.openai.app import make_app
from engine.api.openai.guard import OPEN
from engine.api.openai.openapi import JSON, OPERATIONS, document
from engine.api.openai.responses import ErrorResponse
from engine.api.openai.traffic import Traffic
from tests.engine.api.openai.conftest import Answer, Api

HEAD = "HEAD"
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def described(method: str, path: str, answer: Answer) -> None:
    """Check an answer against the description of its route."""
    (media,) = re.findall(r"^[\w/.+-]+", answer.headers["content-type"])
    assert media in document()["paths"][path][method]["responses"][str(answer.status)]["content"]
    operation = next(one for one in OPERATIONS if (one.method.lower(), one.path) == (method, path))
    if media == JSON:
        kind = operation.answer or dict if answer.status == operation.status else ErrorResponse
        msgspec.json.decode(answer.body, type=kind)


def test_every_route_is_described(api: Api) -> None:
    app = make_app(api.bench, Traffic(), key="k", pages=lambda: "")
    routes = [route for route in app.routes if isinstance(route, Route)]
    found = {(method.lower(), route.path_format) for route in routes for method in (route.methods or set()) - {HEAD}}
    assert found == {(method, path) for path, methods in document()["paths"].items() for method in methods}


def test_schemas_have_names_of_their_own() -> None:
    # Two structs of one name would be called by their modules.
    assert [name for name in document()["components"]["schemas"] if not name.isidentifier()] == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("get", "/health", None),
        ("get", "/metrics", None),
        ("get", "/openapi.json", None),
        ("get", "/docs", None),
        ("get", "/v1/models", None),
        ("post", "/v1/completions", {"prompt": "Once", "max_tokens": 2, "logprobs": 2, "echo": True}),
        ("post", "/v1/completions", {"prompt": ["Once", "The"], "max_tokens": 2, "n": 2}),
        ("post", "/v1/completions", {"prompt": "Once", "max_tokens": 2, "stream": True}),
        ("post", "/v1/completions", {"prompt": 5}),
        ("post", "/v1/completions", {"prompt": "a", "model": "gpt-5"}),
        ("post", "/v1/chat/completions", CHAT),
        ("post", "/v1/embeddings", {"input": [""], "model": "gpt-5"}),
        ("post", "/v1/embeddings", {"input": []}),
        ("post", "/tokenize", {"prompt": "Once"}),
        ("post", "/detokenize", {"tokens": [1, 2404]}),
        ("get", "/tokenizer_info", None),
        ("get", "/v1/jobs", None),
        ("post", "/v1/jobs", {"endpoint": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 2}}),
        ("post", "/v1/jobs", {"endpoint": "/v1/models", "body": {}}),
        ("get", "/v1/files", None),
        ("post", "/v1/files", {"purpose": "batch"}),
        ("get", "/v1/batches", None),
        ("post", "/v1/batches", {"input_file_id": "file-5", "endpoint": "/v1/completions", "completion_window": "24h"}),
    ],
)
def test_answers_are_as_described(api: Api, method: str, path: str, body: Any) -> None:
    described(method, path, api.ask(path, body))
    if path not in OPEN:
        described(method, path, api.ask(path, body, key="wrong"))
    described(method, path, api.ask(path, body, host="evil.example"))


def test_the_description_needs_no_key(api: Api) -> None:
    answer = api.ask("/openapi.json", key="")
    assert answer.json == msgspec.json.decode(msgspec.json.encode(document()))
    needs_no_key = {
        path for path, methods in answer.json["paths"].items() if methods.get("get", {}).get("security") == []
    }
    assert needs_no_key == OPEN


class Page(HTMLParser):
    """Tags, anchors and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.ids, self.links = set[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.ids += [found] if (found := given.get("id")) else []
        self.links += [found for name in ("href", "src") if (found := given.get(name))]


def test_the_page_shows_every_route_and_loads_nothing_else(api: Api) -> None:
    answer = api.ask("/docs", key="")
    text = answer.body.decode()
    page = Page(text)
    assert not page.tags & {"script", "link", "img", "iframe", "form"}
    assert len(page.ids) == len(set(page.ids))
    assert {link for link in page.links if link != "/openapi.json"} <= {f"#{name}" for name in page.ids}
    assert all(path in text for path in document()["paths"])
    assert set(document()["components"]["schemas"]) <= set(page.ids)
    policy = answer.headers["content-security-policy"]
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ") and "unsafe" not in policy


def test_a_method_that_a_route_lacks_is_named_with_those_that_it_has(api: Api) -> None:
    answer = api.ask("/v1/completions", method="DELETE")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert api.ask("/v1/jobs", method="PUT").headers["allow"] == "GET, HEAD, POST"
    assert answer.json["error"]["code"] == "unknown_url"
    assert api.ask("/nope").json["error"]["code"] == "unknown_url"
