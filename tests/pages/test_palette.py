"""The command palette: what it finds for a text, and the questions that it understands."""

import html
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import streamlit
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.testclient import TestClient

from engine.errors import HistoryError
from engine.history.search import Finder
from engine.workbench import Workbench
from pages.parts import palette
from pages.parts.palette import entries, questions, route
from pages.parts.palette.entries import ACTIONS, MOST_CHARACTERS, MOST_OF_A_KIND, OPENED, PAGES, Entry
from tests.engine.history.trial_maker import make_trial
from tests.pages.app import HOSTILE, open_page

PAGES_FOLDER = Path(entries.__file__).parents[2]


def found(bench: Workbench, text: str, kind: str) -> list[Entry]:
    return [entry for entry in entries.entries(bench, text) if entry.kind == kind]


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("does mistral 7b q4 fit", "mistral 7b q4"),
        ("Does Mistral 7B Q4_K_M fit here?", "mistral 7b q4_k_m"),
        ("will a 13b q5_k_m fit into memory", "13b q5_k_m"),
        ("llama 3 70b fits?", "llama 3 70b"),
        ("fit", ""),
        ("does it fit", ""),
        ("mistral 7b", ""),
    ],
)
def test_whether_a_model_fits_is_understood(text: str, model: str) -> None:
    answers = [answer for answer in questions.asked(text) if answer[2] == "models.py"]
    assert [answer[3]["ask"] for answer in answers] == [model] * bool(model)


@pytest.mark.parametrize(
    ("text", "temperatures"),
    [
        ("compare t 0.2, 0.8, 1.2", "0.2,0.8,1.2"),
        ("Compare temperatures 0 1", "0,1"),
        ("compare t=0.5", "0.5"),
        ("compare t -1", None),
        ("compare t nan", None),
        ("compare t hot", None),
        ("compare t " + "1 " * 50, None),
        ("compare t", None),
        ("t 0.2 0.8", None),
    ],
)
def test_a_comparison_of_temperatures_is_understood(text: str, temperatures: str | None) -> None:
    answers = [answer[3]["temperatures"] for answer in questions.asked(text) if answer[2] == "compare.py"]
    assert answers == ([] if temperatures is None else [temperatures])


@given(st.text(max_size=MOST_CHARACTERS))
def test_any_text_is_a_question_or_none(text: str) -> None:
    assert all(page in OPENED for _, _, page, _ in questions.asked(text))


def test_every_entry_opens_a_page_that_is_there() -> None:
    assert {path.name for path in PAGES_FOLDER.glob("*.py")} == OPENED | {"router.py"}
    assert {entry.page for entry in ACTIONS} <= OPENED


def test_pages_and_actions_are_found_by_the_beginnings_of_words(bench: Workbench) -> None:
    assert [entry.title for entry in found(bench, "promp la", "Page")] == ["Prompt lab"]
    assert [entry.title for entry in found(bench, "QUANT", "Action")] == ["Quantise a model"]
    assert found(bench, "rompt", "Page") == []
    assert [entry for entry in entries.entries(bench, " ") if entry.kind == "Page"] == list(PAGES)


def test_models_are_found_by_name_and_quantisation(bench: Workbench) -> None:
    (model,) = found(bench, "story q8", "Model")
    assert model.title == "Logitbench Story" and model.query["model"].endswith("story.gguf")


def test_trials_are_found_by_their_text_newest_first(bench: Workbench) -> None:
    assert bench.history is not None
    for _ in range(MOST_OF_A_KIND + 2):
        bench.history.record(replace(make_trial(2, 4), prompt=f"A palimpsest {HOSTILE}\nin two lines")).result()
    trials = found(bench, "palimpsest lines", "Trial")
    assert len(trials) == MOST_OF_A_KIND
    assert trials[0].page == "prompt_lab.py" and bench.history.trial(trials[0].query["trial"]) is not None
    assert all("\n" not in entry.title and len(entry.title) <= entries.TITLE_CHARACTERS for entry in trials)
    assert found(bench, "palimpsest elsewhere", "Trial") == []


def test_the_route_answers_with_entries_or_the_reason(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    client = TestClient(Starlette(routes=route.routes(lambda: bench)))
    answer = client.get(route.PATH, params={"text": "prompt lab"})
    assert answer.json()[0] == {**PAGES[1]._asdict()}
    assert client.get(route.PATH, params={"text": "x" * 10_000}).json() == []

    def fails(*_: object, **__: object) -> None:
        raise HistoryError("the history cannot be read")

    monkeypatch.setattr(Finder, "runs", fails)
    answer = client.get(route.PATH, params={"text": "once"})
    assert answer.status_code == 409 and "cannot be read" in answer.text


@pytest.mark.parametrize("temperatures", ["0.2,0.8,1.2", "hot", "-1", ",".join("1" * 40)])
def test_compare_begins_with_the_temperatures_of_its_address(bench: Workbench, temperatures: str) -> None:
    at = open_page("compare.py", "Compare", temperatures=temperatures)
    fields = [field.value for field in at.main.number_input if field.label == "Temperature"]
    if temperatures.startswith("0.2"):
        assert fields == [0.2, 0.8, 1.2] and not at.error
    else:
        assert fields == [0.0, 1.0] and "temperatures" in html.unescape(at.error[0].value)


@pytest.mark.parametrize(
    ("chosen", "is_taken"),
    [
        ({"page": "compare.py", "query": {"temperatures": "0,1"}}, True),
        ({"page": "../app.py", "query": {}}, False),
        ({"page": "router.py", "query": {}}, False),
        ({"page": "compare.py", "query": {"temperatures": 1}}, False),
        ({"page": "compare.py", "query": {}, "more": 1}, False),
        ({"page": "compare.py", "query": {"x": "y" * 5000}}, False),
        ("compare.py", False),
        (None, False),
    ],
)
def test_what_a_browser_chooses_is_checked(monkeypatch: pytest.MonkeyPatch, chosen: object, is_taken: bool) -> None:
    state: dict[str, Any] = {palette.KEY: SimpleNamespace(chosen=chosen)}
    monkeypatch.setattr(streamlit, "session_state", state)
    palette._choose()
    assert (palette.CHOSEN in state) is is_taken
