"""Traffic page: the server's button, calls as rows, one call with its request."""

from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from engine.api.openai.errors import ApiError
from engine.api.openai.server import ApiServer, server_of
from engine.api.openai.traffic import Traffic
from engine.workbench import Workbench
from pages.parts.traffic import call_view
from tests.pages.app import HOSTILE, address, choose, open_page, press, said, table


@pytest.fixture
def api(bench: Workbench) -> Iterator[ApiServer]:
    """The server of the pages' workbench, stopped and without calls."""
    server = server_of(bench)
    server.traffic = Traffic()
    yield server
    server.stop()


def page(**query: str) -> Any:
    return open_page("traffic.py", "Traffic", **query)


def ask(api: ApiServer, body: bytes, client: str = "curl/8") -> None:
    headers = {"Authorization": f"Bearer {api.key}", "User-Agent": client}
    with urlopen(Request(f"http://127.0.0.1:{api.port}/v1/completions", body, headers), timeout=60) as answer:
        answer.read()


def test_one_button_starts_the_api_and_the_lines_reach_it(api: ApiServer) -> None:
    at = page()
    assert not table_is_there(at)
    api.start(0)
    at = page()
    lines = [element.value for element in at.main.code]
    assert len(lines) == 3 and all(str(api.port) in line and api.key in line for line in lines)
    assert "No calls yet" in said(at)
    at = press(at, "traffic_stop")
    assert api.port is None
    assert at.button(key="traffic_start")


def test_a_port_that_is_taken_is_said_on_the_page(api: ApiServer, bench: Workbench) -> None:
    other = ApiServer(bench)
    other.start(0)
    try:
        at = page()
        at.number_input(key="traffic_port").set_value(other.port).run()
        at = press(at, "traffic_start")
    finally:
        other.stop()
    assert api.port is None
    assert f"Port {other_port(at)} cannot be used" in said(at) + " ".join(one.value for one in at.main.error)


def test_calls_are_rows_and_one_opens_with_its_request(api: ApiServer) -> None:
    api.start(0)
    ask(api, b'{"prompt": "Once upon", "max_tokens": 5, "seed": 1}')
    ask(api, b'{"prompt": "The king", "max_tokens": 7}', "lm-eval/0.4")
    at = page()
    rows = table(at)
    assert list(rows["client"]) == ["lm-eval/0.4", "curl/8"]
    assert list(rows["state"]) == ["done", "done"]
    assert list(rows["tokens"]) == [row.figures.num_generated for row in api.traffic.rows()]
    at = choose(at, 1)
    at = page(call="1")
    assert "Call 1" in said(at) and "prompt tokens" in said(at)
    assert any('"seed": 1' in element.value for element in at.main.code)
    assert any(element.value.strip() == "Once upon" for element in at.main.code)
    assert address(at)["call"] == "1"


def test_what_clients_send_stays_text(api: ApiServer) -> None:
    call = api.traffic.add(HOSTILE, "/v1/completions", HOSTILE, HOSTILE.encode())
    call.fail(ApiError(400, HOSTILE))
    at = page(call="1")
    assert "<script>" in table(at)["client"].iloc[0]
    assert not any("<script>" in element.value and element.allow_html for element in at.main.markdown)
    assert HOSTILE in [element.value for element in at.main.code]


def test_an_unknown_call_is_passed_over(api: ApiServer) -> None:
    api.traffic.add("curl", "/v1/completions", "m", b"{}")
    for call in ("99", "-1", "x", "9" * 400):
        assert "Call " not in said(page(call=call))


def test_a_request_is_shown_as_it_came_where_it_is_no_json() -> None:
    assert call_view.pretty('{"a":1}') == '{\n  "a": 1\n}'
    for text in ("{", "", "[" * 5000, '{"a": ' + "9" * 5000 + "}"):
        assert call_view.pretty(text) == text


def other_port(at: Any) -> int:
    port: int = at.number_input(key="traffic_port").value
    return port


def table_is_there(at: Any) -> bool:
    return any(frame.key for frame in at.main.dataframe)
