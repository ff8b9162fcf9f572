"""The History page: trials and their tokens."""

import json

import pytest
from streamlit.testing.v1 import AppTest

from engine.history import History
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.trials import Draft, LiveTrial
from tests.engine.history.trial_maker import make_trial
from tests.pages.app import address, choose, open_page, press, said, table
from tests.waiting import until


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", **query)


@pytest.fixture
def trials(bench: Workbench, history: History) -> list[str]:
    """Ids of three trials of the small model, the newest last."""
    made: list[LiveTrial] = []
    for seed, prompt in enumerate(("Once upon a time", "The king said", "A little dog")):
        draft = Draft(prompt, (), Sampling(seed=seed), Request(max_tokens=6, top_k=5), True)
        made.append(bench.trials.submit(draft))
        made[-1].job.result(timeout=60)
        until(lambda: made[-1].is_stored)
    return [trial.id for trial in made]


def test_trials_are_found_by_their_text_and_opened(trials: list[str]) -> None:
    at = page(view="trials")
    shown = table(at)
    assert list(shown["prompt"]) == ["A little dog", "The king said", "Once upon a time"]
    assert shown["decode, tok/s"].min() > 0
    at.text_input(key="history_filter_text").set_value("king").run()
    assert list(table(at)["prompt"]) == ["The king said"]
    press(choose(at, 0), "history_do_open")
    assert [title.value for title in at.title] == ["Prompt lab"] and address(at) == {"trial": trials[1]}


def test_trials_are_deleted_and_restored_and_compared(trials: list[str], history: History) -> None:
    at = press(choose(page(view="trials"), 0), "history_do_delete")
    assert len(table(at)) == 2 and history.trial(trials[2]) is None
    press(at, "history_undo")
    assert len(table(at)) == 3
    press(choose(at, 0, 1), "history_do_compare")
    assert address(at)["trials"] == f"{trials[2]},{trials[1]}"


def test_the_least_confident_and_the_slowest_tokens_stand_out(trials: list[str]) -> None:
    at = page(view="trials", rows="unsure")
    unsure = table(at)
    assert unsure["p, %"].is_monotonic_increasing and len(unsure) == 18
    at.selectbox(key="history_rows").set_value("slow").run()
    assert table(at)["time, ms"].is_monotonic_decreasing
    trial = table(at)["trial"][0]
    press(choose(at, 0), "history_open_token")
    assert [title.value for title in at.title] == ["Prompt lab"]
    assert trial in {"A little dog", "The king said", "Once upon a time"}


def test_an_empty_prompt_is_named_and_leaves_the_column_its_width(history: History) -> None:
    for prompt in ("Once upon a time there was a cat", "", ""):
        history.record(make_trial(2, prompt=prompt)).result(60)
    (shown,) = page(view="trials").main.dataframe
    assert list(shown.value["prompt"]) == ["(empty)", "(empty)", "Once upon a time there was a cat"]
    assert json.loads(shown.proto.columns)["prompt"]["width"] == 220
    tokens = table(page(view="trials", rows="unsure"))
    assert "(empty)" in list(tokens["trial"])


def test_no_trial_leads_to_the_prompt_lab(history: History) -> None:
    assert "No trials yet" in said(page(view="trials"))
