"""Modules of components: each is served by the address that its loader names, as it was declared."""

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.testclient import TestClient

from pages.parts import component, token_strip


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=component.routes(), middleware=[Middleware(GZipMiddleware)]))


def test_a_module_is_served_as_it_was_declared_and_never_changes(client: TestClient) -> None:
    (path,) = component.modules(["logitbench_token_strip"])
    for encoding in ("gzip", "identity", "gzip"):
        answer = client.get(path, headers={"Accept-Encoding": encoding})
        assert answer.text == token_strip.script()
        assert answer.headers["content-type"].startswith("text/javascript")
        assert "immutable" in answer.headers["cache-control"]


def test_another_text_has_another_address() -> None:
    component.component("logitbench_of_a_test", js="export default () => 1;", css="")
    component.component("logitbench_of_a_test", js="export default () => 2;", css="")
    paths = component.modules(["logitbench_of_a_test"])
    assert len(set(paths)) == 2


def test_no_other_address_is_answered(client: TestClient) -> None:
    for name in ("logitbench_token_strip.js", "logitbench_token_strip.0000000000000000.js", "..%2Fapp.py"):
        assert client.get(f"{component.PATH}/{name}").status_code == 404
