"""Web pages of other origins: those that a setting names may call the API, all others are refused."""

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from engine.api.openai.app import cross_origin
from engine.api.openai.guard import Guard

PAGE, KEY = "http://localhost:3000", "a key"
BEARER = {"authorization": f"Bearer {KEY}"}


async def answer(_request: Request) -> Response:
    return JSONResponse({}, headers={"x-logitbench-trial": "1"})


def client_of(*origins: str) -> TestClient:
    guard = Middleware(Guard, key=KEY, origins=origins)
    routes = [Route("/v1/models", answer, methods=["GET", "POST", "DELETE"])]
    app = Starlette(routes=routes, middleware=[*cross_origin(origins), guard])
    return TestClient(app, base_url="http://127.0.0.1:8080")


@pytest.fixture
def client() -> Iterator[TestClient]:
    with client_of(PAGE, "https://chat.example") as opened:
        yield opened


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_named_page_asks_first_and_reads_the_answer(client: TestClient, method: str) -> None:
    asks = {"origin": PAGE, "access-control-request-method": method}
    asks |= {"access-control-request-headers": "authorization", "access-control-request-private-network": "true"}
    allowed = client.options("/v1/models", headers=asks)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert allowed.headers["access-control-allow-private-network"] == "true"
    found = client.request(method, "/v1/models", headers={"origin": PAGE, **BEARER})
    assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "x-logitbench-trial" in found.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in found.headers


def test_a_named_page_needs_the_key_and_reads_why_it_is_refused(client: TestClient) -> None:
    refused = client.get("/v1/models", headers={"origin": PAGE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize(
    "origin", ["http://localhost:3001", "https://localhost:3000", "http://localhost:3000.evil.example", "null", "*", ""]
)
@pytest.mark.parametrize("named", [(), (PAGE,)])
def test_other_pages_are_refused(named: tuple[str, ...], origin: str) -> None:
    with client_of(*named) as client:
        refused = client.get("/v1/models", headers={"origin": origin, **BEARER})
        asked = client.options("/v1/models", headers={"origin": origin, "access-control-request-method": "POST"})
    assert refused.status_code == 403 and asked.status_code in (400, 401, 403)
    assert "access-control-allow-origin" not in {**refused.headers, **asked.headers}


def test_two_origins_are_none(client: TestClient) -> None:
    twice = [("origin", PAGE), ("origin", "https://chat.example"), *BEARER.items()]
    assert client.get("/v1/models", headers=twice).status_code == 403
