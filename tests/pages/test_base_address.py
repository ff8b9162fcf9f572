"""What is put into Streamlit's page, and that nothing else is touched."""

import re

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from pages.parts import base_address, component, first_paint, front_end

PAGE = "<html><head><title>Streamlit</title></head><body>" + 2000 * "x" + "</body></html>"
BROWSER = {"accept": "text/html,application/xhtml+xml", "accept-encoding": "gzip"}


def page(_: Request) -> Response:
    return HTMLResponse(PAGE)


def other(_: Request) -> Response:
    return HTMLResponse("<title>A comparison</title>")


def encoding(request: Request) -> Response:
    return PlainTextResponse(request.headers.get("accept-encoding", ""))


def client() -> TestClient:
    routes = [Route("/", page), Route("/other", other), Route("/encoding", encoding)]
    return TestClient(Starlette(routes=routes, middleware=[*base_address.middleware(), Middleware(GZipMiddleware)]))


def test_the_page_learns_its_server() -> None:
    answer = client().get("/", headers=BROWSER)
    head = base_address.head().decode()
    assert head.startswith(base_address.HEAD.decode()) and head.endswith(first_paint.HEAD.decode())
    assert answer.text == PAGE.replace(base_address.TITLE.decode(), head)
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_modules_of_widgets_and_components_run_before_streamlit_starts() -> None:
    (script,) = re.findall('<script type="module">(.*?)</script>', base_address.head().decode())
    components = component.modules(base_address.FIRST)
    assert len(components) == len(base_address.FIRST)
    imported = re.findall('import "([^"]+)";', script)
    assert imported == [*front_end.first_modules(), *components]
    linked = re.findall('<link rel="modulepreload" crossorigin href="([^"]+)">', base_address.head().decode())
    assert len(linked) == len(set(linked)) and set(linked) == {*front_end.imported_first(), *components}


def test_other_pages_and_what_scripts_ask_for_stay_as_they_are() -> None:
    asked = client()
    assert asked.get("/other", headers=BROWSER).text == "<title>A comparison</title>"
    assert asked.get("/encoding", headers={"accept": "*/*", "accept-encoding": "gzip"}).text == "gzip"
    assert asked.get("/", headers={"accept": "*/*", "accept-encoding": "gzip"}).headers["content-encoding"] == "gzip"
