"""One call as it is opened on the Traffic page: what is said where its answer or its request is not there."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.errors import ApiError
from engine.api.openai.server import ApiServer
from engine.api.openai.traffic import LONGEST_BODY, Figures, Traffic
from engine.workbench import Workbench
from pages.parts.plain import plain
from pages.parts.traffic import call_code, call_view
from tests.pages.app import address, said
from tests.pages.test_traffic import ask, page, said_as_captions
from tests.waiting import until

STATES = ("waiting", "running", "done", "stopped", "failed")


@given(st.sampled_from(STATES), st.sampled_from(STATES), st.integers(0, 2), st.integers(0, 2))
def test_the_page_is_drawn_anew_where_state_or_answers_change(
    before: str, now: str, num_before: int, num_now: int
) -> None:
    row = Traffic().add("curl", "/v1/completions", "m", b"{}").row()
    then = row._replace(state=before, trials=("1",) * num_before)
    later = row._replace(state=now, trials=("1",) * num_now, elapsed_s=9.0, figures=Figures(num_generated=7))
    assert call_view.has_changed(then, later) == (before != now or num_before != num_now)
    assert call_view.has_changed(then, None)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("store", [True, False, None])
@pytest.mark.parametrize("is_cut", [True, False])
def test_why_an_answer_is_not_there_has_a_reason_of_its_own(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, state: str, keeps: bool, store: bool | None, is_cut: bool
) -> None:
    monkeypatch.setattr(bench.kept, "_settings", replace(bench.settings, api_history_mb=int(keeps)))
    body = json.dumps({"prompt": "a" * is_cut * LONGEST_BODY, "store": store})
    row = Traffic().add("curl", "/v1/completions", "m", body.encode()).row()._replace(state=state, trials=("1",))
    gone = call_view.why_gone(bench, row)
    assert (gone == "") == (state == "failed")
    if gone:
        assert re.fullmatch(r"[A-Z].*[^\s,;:.]\.", gone)
        assert ("API_HISTORY_MB" in gone) == (not keeps)
        assert ("store set to false" in gone) == (keeps and (is_cut or store is False))
        assert ("deleted" in gone) == (keeps and (is_cut or store is not False))


def test_an_answer_that_was_not_to_be_kept_says_so_once_it_is_gone(api: ApiServer, bench: Workbench) -> None:
    api.start(0)
    ask(api, b'{"prompt": "Once upon", "max_tokens": 2, "store": false}')
    ask(api, b'{"prompt": "Once upon", "max_tokens": 2}')
    forget(api, bench)
    assert "the request had store set to false." in said_as_captions(page(call="1"))
    assert "it was deleted" in said_as_captions(page(call="2"))


def test_a_failed_call_says_its_error_only_however_late_it_is_opened(
    api: ApiServer, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.start(0)
    ask(api, b'{"prompt": "Once upon", "max_tokens": 2, "store": false}')
    (row,) = api.traffic.rows()
    forget(api, bench)
    failed = row._replace(state="failed", error="the worker process ended")
    monkeypatch.setattr(api.traffic, "row", lambda number: failed)
    at = page(call="1")
    assert [plain("The worker process ended")] == [one.value for one in at.main.error]
    assert "not kept" not in said(at) and "not there" not in said(at)


@pytest.mark.parametrize("body", [None, b"", b"{", b'{"prompt": 5}'])
def test_a_request_without_a_body_has_no_code_and_no_empty_box(api: ApiServer, body: bytes | None) -> None:
    error = ApiError(429, "This client has 9 requests open.")
    if body is None:
        api.traffic.refuse("curl/8", "/v1/completions", error)
    else:
        api.traffic.add("curl/8", "/v1/completions", "m", body).fail(error)
    at = page(call="1")
    assert [plain("This client has 9 requests open.")] == [one.value for one in at.main.error]
    captions = said_as_captions(at)
    assert captions.count("This request was refused before its body was read.") == (body is None)
    assert ("failed after" in captions) == (body is not None)
    assert captions.count("This request has no body.") == (body == b"")
    assert (call_code.NO_CODE in captions) == (body == b"{")
    assert (len(at.main.tabs) > 0) == bool(body)
    assert all(element.value.strip() for element in at.main.code)


@pytest.mark.parametrize("num", [2, 8, 10, 80])
def test_every_answer_can_be_chosen(api: ApiServer, num: int) -> None:
    api.start(0)
    ask(api, json.dumps({"prompt": ["Once", "The"], "max_tokens": 1, "n": num // 2}).encode())
    at = page(call="1", answer=str(num))
    choices: list[Any] = [*at.main.selectbox, *at.main.button_group]
    (choice,) = [one for one in choices if one.key == "traffic_answer_number"]
    assert choice.value == num and len(choice.options) == num
    choice.set_value(2)
    at.run()
    assert not at.exception and address(at)["answer"] == "2"


def test_figures_of_an_only_answer_are_in_its_strip(api: ApiServer, bench: Workbench) -> None:
    api.start(0)
    ask(api, b'{"prompt": "Once upon", "max_tokens": 5}')
    ask(api, b'{"prompt": "Once upon", "max_tokens": 5, "n": 2}')
    for number, is_only in (("1", True), ("2", False)):
        row = api.traffic.row(int(number))
        assert row is not None and row.figures.per_s is not None
        whole, short = call_view.sentence(row), call_view.sentence(row, is_in_strip=True)
        assert "tokens generated" in whole and " tok/s" in whole
        assert "generated" not in short and " tok/s" not in short and "from the cache" not in short
        assert "prompt token" in short and "first token after" in short and "surprise" in short
        at = page(call=number)
        assert plain(short if is_only else whole) in [one.value for one in at.main.caption]
    forget(api, bench)
    row = api.traffic.row(1)
    assert row is not None
    assert plain(call_view.sentence(row)) in [one.value for one in page(call="1").main.caption]


def forget(api: ApiServer, bench: Workbench) -> None:
    """Delete the answers of all calls, once those that are kept are stored."""
    for trial in [bench.trials.trial(id) for row in api.traffic.rows() for id in row.trials]:
        if trial.draft.is_kept:
            until(lambda trial=trial: is_stored(bench, trial.id), "it is not stored")  # type: ignore[misc]
        bench.trials.delete(trial.id)


def is_stored(bench: Workbench, trial_id: str) -> bool:
    return bench.history is not None and bench.history.trial(trial_id) is not None
