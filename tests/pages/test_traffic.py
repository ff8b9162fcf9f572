"""Traffic page: the server's button, calls as rows, one call with its request."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.errors import ApiError
from engine.api.openai.requests import CompletionRequest
from engine.api.openai.server import ApiServer
from engine.api.openai.traffic import LONGEST_BODY, CallRow, Figures, Traffic
from engine.units import NOT_MEASURED
from engine.workbench import Workbench
from engine.workbench.model_manager import ModelState
from pages.parts.plain import plain, visible
from pages.parts.traffic import call_code, call_view, server_bar
from pages.parts.traffic.call_again import sampling_fields
from pages.parts.traffic.call_cells import COLUMNS, cells
from pages.parts.traffic.call_feed import SHOWN_ROWS, CallFeed
from pages.parts.traffic.call_filter import Wanted
from tests.pages.app import HOSTILE, address, open_page, press, primary, said


def page(**query: str) -> Any:
    return open_page("traffic.py", "Traffic", **query)


def ask(api: ApiServer, body: bytes, client: str = "curl/8") -> None:
    headers = {"Authorization": f"Bearer {api.key}", "User-Agent": client}
    with urlopen(Request(f"http://127.0.0.1:{api.port}/v1/completions", body, headers), timeout=60) as answer:
        answer.read()


def test_one_button_starts_the_api_and_the_lines_reach_it(api: ApiServer) -> None:
    at = page()
    assert "Start the API" in primary(at)
    api.start(0)
    at = page()
    lines = [element.value for element in at.main.code]
    assert len(lines) == 3 and all(str(api.port) in line and api.key in line for line in lines)
    at = press(at, "traffic_stop")
    assert api.port is None
    assert at.button(key="traffic_start")


def test_until_the_first_call_the_lines_stand_open_and_then_the_calls_do(api: ApiServer) -> None:
    api.start(0)
    at = page(state="failed")
    assert [one.value for one in at.main.subheader] == ["Point a program here"]
    assert not at.main.expander and not at.main.text_input  # nothing is there to be searched
    ask(api, b'{"prompt": "Once upon", "max_tokens": 2}')
    at = page()
    assert not at.main.subheader and len(at.main.code) == 3
    assert [one.label for one in at.main.expander] == ["By client"] and at.main.text_input


def test_without_a_model_it_is_said_that_completions_are_refused(
    api: ApiServer, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.start(0)
    assert plain(server_bar.NO_MODEL) not in said(page())
    monkeypatch.setattr(bench.model_manager, "_state", ModelState())
    assert plain(server_bar.NO_MODEL) in said(page())


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
    ask(api, b'{"prompt": "Once upon", "max_tokens": 5, "seed": 1, "n": 2, "best_of": 2}')
    ask(api, b'{"prompt": "The king", "max_tokens": 7}', "lm-eval/0.4")
    rows = first_rows(api, Wanted())
    assert [row["cells"][1] for row in rows] == ["lm-eval/0.4", "curl/8"]
    assert [row["state"] for row in rows] == ["done", "done"]
    shown = [dict(zip((column.heading for column in COLUMNS), row["cells"], strict=True)) for row in rows]
    assert [row["tokens"] for row in shown] == [str(row.figures.num_generated) for row in api.traffic.rows()]
    assert shown[0]["speed"].endswith(" tok/s") and shown[0]["surprise"].endswith(" bits")
    assert shown[0]["took"].endswith("s") and shown[0]["model"]
    at = page(call="1")
    assert "Call 1" in said(at) and "prompt tokens" in said(at)
    first = shown[-1]
    for heading in ("model", "speed", "first token", "took", "surprise", "least expected"):
        assert plain(first[heading]) in said(at), heading
    assert any('"seed": 1' in element.value for element in at.main.code)
    assert plain("Sent, not understood: best_of") in [element.value for element in at.main.caption]
    assert any(element.value.strip() == "Once upon" for element in at.main.code)
    assert address(at)["call"] == "1"


def test_a_call_can_be_copied_as_code_and_says_what_took_its_time(api: ApiServer) -> None:
    api.start(0)
    ask(api, b'{"prompt": "Once upon a time there was a fox", "max_tokens": 5, "min_p": 0.1}')
    ask(api, b'{"prompt": "Once upon a time there was a king", "max_tokens": 5}')
    at = page(call="1")
    codes = [element.value for element in at.main.code]
    (in_openai,) = [code for code in codes if code.startswith("from openai") and "answer = " in code]
    compile(in_openai, "copied", "exec")
    assert "extra_body={'min_p': 0.1}" in in_openai
    assert any(code.startswith("curl ") and "/v1/completions" in code for code in codes)
    assert any("python -m engine generate" in code for code in codes)
    assert "went into" in said(at)
    at = page(call="2")
    assert "call 1 of this client begins with the same" in said(at).replace("\\", "")
    assert any("both" in element.value and "call 1" in element.value for element in at.main.code)


def test_a_call_that_was_refused_says_why_and_not_that_it_was_slow(api: ApiServer) -> None:
    api.start(0)
    with pytest.raises(HTTPError):
        ask(api, json.dumps({"prompt": "word " * 20_000, "max_tokens": 4}).encode())
    (row,) = api.traffic.rows()
    assert row.state == "failed" and row.trials
    at = page(call="1")
    assert "went into" not in said(at)
    assert not at.main.error  # the strip shows it


def test_a_call_is_described_by_what_it_has() -> None:
    row = CallRow(
        1, datetime.now(UTC), "curl/8", "/v1/embeddings", "m", "done", Figures(num_prompt=1), 0.5, (), "", b"", 2
    )
    assert call_view.sentence(row) == "curl/8 to /v1/embeddings · done after 500 ms · 1 prompt token"
    row = row._replace(endpoint="/v1/completions", trials=("1",), figures=Figures(num_prompt=2_000, num_generated=3))
    said = "curl/8 to /v1/completions · m · done after 500 ms · 2,000 prompt tokens · 3 tokens generated"
    assert call_view.sentence(row) == said
    figures = row.figures._replace(surprise_bits=4.0, unsure="a fox", unsure_p=0.5)
    assert (
        call_view.sentence(row._replace(figures=figures)) == f"{said} · surprise 4.00 bits · least expected 50 %  a␣fox"
    )
    assert call_view.sentence(row._replace(state="running")) == "curl/8 to /v1/completions · running"


def test_a_client_without_times_has_a_dash_in_their_place(api: ApiServer) -> None:
    api.start(0)
    with pytest.raises(HTTPError):
        ask(api, b"{")
    ask(api, b'{"prompt": "Once upon", "max_tokens": 2}', "other/1")
    (totals,) = page().main.dataframe
    assert totals.proto.placeholder == NOT_MEASURED
    assert json.loads(totals.proto.columns)["tokens"]["type_config"]["format"] == "localized"


def test_percentiles_of_one_kind_have_one_unit(api: ApiServer) -> None:
    for ttft_s in (*[0.01] * 9, 5.0):
        api.traffic.add("one", "/v1/completions", "m", b"{}").end(Figures(ttft_s=ttft_s))
    (table,) = page().main.dataframe
    columns = [column for column in table.value.columns if column.startswith("first token")]
    assert columns == ["first token, p50, s", "first token, p95, s"]


def test_a_request_that_was_cut_says_so_and_asks_for_the_same_answer_instead(api: ApiServer, bench: Workbench) -> None:
    api.start(0)
    filler = json.dumps({"user": "x" * LONGEST_BODY})[1:-1]
    ask(api, b'{"prompt": "Once upon a time", "max_tokens": 6, "min_p": 0.1, %b}' % filler.encode())
    at = page(call="1")
    (row,) = api.traffic.rows()
    assert f"The first {LONGEST_BODY:,} of {row.num_bytes:,} bytes" in [element.value for element in at.main.caption]
    endpoint, asked, said_of_it = call_code.copied(row, bench.trials.trial(row.trials[0]))
    assert plain(said_of_it) in [element.value for element in at.main.caption]
    assert asked is not None
    assert any(call_code.as_openai(endpoint, asked, api.address, api.key) == each.value for each in at.main.code)
    ask(api, json.dumps(asked).encode())
    first, again = (bench.trials.trial(one.trials[0]) for one in reversed(api.traffic.rows()))
    assert again.prompt_ids == first.prompt_ids
    assert again.steps.ids == first.steps.ids


def test_a_request_that_was_cut_and_whose_answer_was_not_kept_says_so(api: ApiServer) -> None:
    api.traffic.add("one", "/v1/completions", "m", b'{"prompt": "%b"}' % (b"x" * LONGEST_BODY)).fail(
        ApiError(400, "no")
    )
    assert "cannot be copied" in said_as_captions(page(call="1"))
    api.traffic.add("one", "/v1/completions", "m", b"[1, 2]").fail(ApiError(400, "no"))
    assert call_code.NO_CODE in said_as_captions(page(call="2"))


def said_as_captions(at: Any) -> str:
    return " ".join(element.value for element in at.main.caption).replace("\\", "")


BIASES = st.dictionaries(st.integers(0, 20).map(str), st.floats(-100, 100), max_size=3)
ASKED: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 100),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(0, 100),
    "min_p": st.floats(0, 1),
    "typical_p": st.floats(0, 1),
    "repeat_penalty": st.floats(0.01, 100),
    "presence_penalty": st.floats(-100, 100),
    "frequency_penalty": st.floats(-100, 100),
    "logit_bias": BIASES,
    "ignore_eos": st.booleans(),
    "seed": st.integers(0, 1 << 31),
    "json_schema": st.just({"enum": ["a", "b"]}),
}


@given(st.fixed_dictionaries({}, optional=ASKED))
def test_fields_ask_for_the_sampling_that_they_came_from(fields: dict[str, Any]) -> None:
    sampling = CompletionRequest(prompt="", **fields).sampling((1, 30))
    again = msgspec.json.decode(json.dumps({"prompt": "", **sampling_fields(sampling)}), type=CompletionRequest)
    assert dict(again.sampling((1, 30)).logit_bias) == dict(sampling.logit_bias)
    assert replace(again.sampling((1, 30)), logit_bias=()) == replace(sampling, logit_bias=())


def test_the_filter_is_the_address(api: ApiServer) -> None:
    api.traffic.add("one", "/v1/completions", "m", b'{"prompt": "wolf"}').fail(ApiError(400, "no"))
    api.traffic.add("two", "/v1/chat/completions", "m", b"{}")
    assert [row["number"] for row in first_rows(api, Wanted(state="failed"))] == [1]
    assert [row["number"] for row in first_rows(api, Wanted(state="running"))] == [2]
    assert [row["number"] for row in first_rows(api, Wanted(client="two", endpoint="/v1/chat/completions"))] == [2]
    assert [row["number"] for row in first_rows(api, Wanted(text="WOLF"))] == [1]
    at = page(state="failed", client="two", text="wolf")
    assert at.text_input(key="traffic_filter_text").value == "wolf"
    assert at.selectbox(key="traffic_filter_client").value == "two"
    at = press(at, "traffic_clear")
    assert not address(at).keys() & {"state", "client", "text"}


def test_the_feed_tells_what_is_new_changed_and_gone(api: ApiServer) -> None:
    feed = CallFeed(api.traffic, Wanted(state="running"))
    assert feed.message() == {"num": 0, "searched": 0, "all": True, "rows": [], "gone": []}
    assert feed.message() is None
    call = api.traffic.add("one", "/v1/completions", "m", b"{}")
    first = feed.message()
    assert first is not None and not first["all"] and [row["state"] for row in first["rows"]] == ["waiting"]
    assert feed.message() is None
    call.run("m")
    second = feed.message()
    assert second is not None and [row["state"] for row in second["rows"]] == ["running"]
    call.fail(ApiError(400, "no"))
    assert feed.message() == {"num": 1, "searched": 1, "all": False, "rows": [], "gone": [1]}
    assert feed.message() is None


def test_only_the_latest_rows_are_sent(api: ApiServer) -> None:
    for number in range(SHOWN_ROWS + 20):
        api.traffic.add(f"client {number}", "/v1/completions", "m", b"{}").fail(ApiError(400, "no"))
    rows = first_rows(api, Wanted())
    assert [row["number"] for row in rows] == list(range(SHOWN_ROWS + 20, 20, -1))


def test_what_clients_send_stays_text(api: ApiServer) -> None:
    call = api.traffic.add(HOSTILE, "/v1/completions", HOSTILE, HOSTILE.encode())
    call.fail(ApiError(400, HOSTILE))
    at = page(call="1")
    assert "<script>" in first_rows(api, Wanted())[0]["cells"][1]
    assert not any("<script>" in element.value and element.allow_html for element in at.main.markdown)
    assert visible(HOSTILE) in [element.value for element in at.main.code]


@given(st.text(max_size=80), st.text(max_size=300))
def test_cells_are_short_lines_whatever_was_sent(name: str, body: str) -> None:
    traffic = Traffic()
    traffic.add(name * 1000, name, name * 1000, body.encode("utf-8", "replace")).fail(ApiError(400, name * 1000))
    (row,) = traffic.rows()
    made = cells(row)
    assert all(len(cell) <= 60 for cell in made["cells"]) and len(made["error"]) <= 300
    assert all(visible(cell) == cell and "\n" not in cell for cell in made["cells"])
    request = call_code.request_of(row)
    if request is not None:
        compile(call_code.as_openai(row.endpoint, {"prompt": request}, "http://x/v1", "k"), "copied", "exec")


@pytest.mark.parametrize("p, shown", [(0.5, "50 %  a␣fox"), (1e-5, "0.0010 %  a␣fox"), (1e-20, "< 0.0001 %  a␣fox")])
def test_the_least_expected_token_stands_behind_a_short_probability(p: float, shown: str) -> None:
    row = Traffic().add("curl", "/v1/completions", "m", b"{}").row()
    assert cells(row._replace(figures=Figures(unsure="a fox", unsure_p=p)))["cells"][-1] == shown


def test_a_request_that_is_nested_deeply_is_shown_and_not_written_as_code(api: ApiServer) -> None:
    for depth in (90, 110, 300, 900, 4000):
        call = api.traffic.add("curl", "/v1/completions", "m", b'{"x":' + b"[" * depth + b"]" * depth + b"}")
        call.fail(ApiError(400, "no"))
        request = call_code.request_of(call.row())
        assert (request is None) == (depth > 100)
    for call_number in "15":
        assert "Call " in said(page(call=call_number))


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


def first_rows(api: ApiServer, wanted: Wanted) -> list[dict[str, Any]]:
    """The rows that a page with this filter has at first."""
    message = CallFeed(api.traffic, wanted).message()
    assert message is not None and message["all"]
    rows: list[dict[str, Any]] = message["rows"]
    return rows
