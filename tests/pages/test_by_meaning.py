"""Search by meaning on the History page, answers like one of them, and how alike the answers of a comparison are."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from engine.comparing.arms import Arm, ComparisonPlan
from engine.history import History
from engine.specs import Sampling
from engine.workbench import Workbench
from pages.parts.plain import plain
from tests.engine.history.trial_maker import make_trial
from tests.pages.app import HOSTILE, address, choose, open_page, press, said, table
from tests.pages.conftest import wait_for_model
from tests.scripted_task import ScriptedTask
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_embedding")

SAID = ("A kitten dozes where it is warm.", "The rent goes up in spring.", f"Our train is late. {HOSTILE}")


@pytest.fixture
def answers(bench: Workbench, history: History) -> Iterator[list[str]]:
    """Ids of three trials that said these sentences."""
    wait_for_model(bench)
    ids: list[str] = []
    for text in SAID:
        trial = make_trial(2, prompt=f"say {len(ids)}")
        trial = replace(trial, completion=replace(trial.completion, text=text))
        history.record(trial).result(60)
        ids.append(trial.id)
    yield ids
    bench.meaning.turn_off()


@pytest.fixture
def read(bench: Workbench, history: History, answers: list[str]) -> list[str]:
    """The same, with vectors."""
    bench.meaning.turn_on()
    until(lambda: bench.meaning.reading is None and len(history.vectors.of_outputs(answers)) == 3)
    return answers


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", view="trials", **query)


def arrived(at: AppTest, is_so: Callable[[AppTest], bool]) -> AppTest:
    """The page once vectors that it waits for are there."""

    def look() -> bool:
        at.run()
        assert not at.exception, at.exception
        return is_so(at)

    if not is_so(at):
        until(look)
    return at


def test_it_is_off_and_says_what_it_costs_until_it_is_switched_on(
    bench: Workbench, history: History, answers: list[str]
) -> None:
    at = page()
    assert "to index" not in said(at) and at.segmented_control(key="history_by").value == ""
    at.segmented_control(key="history_by").set_value("meaning").run()
    assert address(at)["by"] == "meaning"
    assert "6 texts of prompts and answers to index: about" in said(at) and len(table(at)) == 3
    assert history.vectors.model is None
    press(at, "history_read")
    until(lambda: bench.meaning.reading is None and bench.meaning.cost().num_texts == 0)
    assert "6 texts indexed with" in said(at.run())
    press(at, "history_forget")
    assert history.vectors.model is None and "6 texts of prompts" in said(at)


def test_until_texts_are_read_nothing_is_searched_by_words_instead(
    bench: Workbench, history: History, answers: list[str]
) -> None:
    def is_withheld(at: AppTest) -> bool:
        return not at.main.dataframe and "once the texts are indexed" in said(at) and "Nothing matches" not in said(at)

    at = page(by="meaning", text="rent")
    assert "6 texts of prompts and answers to index" in said(at) and is_withheld(at)
    with bench.machine.acquire("A comparison", "interactive"):
        press(at, "history_read")
        line = plain("Indexing · 0 of 6 texts · waiting for: A comparison")
        assert line in [bar.proto.text for bar in at.get("progress")]
        assert is_withheld(at)
        like = page(like=answers[0])
        assert is_withheld(like)
        press(like, "history_unlike")
        assert len(table(like)) == 3
    bench.meaning.wake()
    until(lambda: bench.meaning.reading is None and len(history.vectors.of_outputs(answers)) == 3)
    arrived(at, lambda at: "similarity" in table(at) if at.main.dataframe else False)
    assert table(at)["answer"].iloc[0] == SAID[1]


def test_what_does_not_fit_while_texts_are_read_may_yet(
    bench: Workbench, history: History, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = page(by="meaning", text="rent", since="2999-12-31")
    arrived(at, lambda at: "Nothing matches this filter." in said(at))
    monkeypatch.setattr(bench.meaning, "reading", ScriptedTask("Reading", 0.5, "1 of 2 texts", 1.0))
    assert "among the texts indexed so far" in said(at.run())


def test_trials_are_found_by_what_they_mean(read: list[str]) -> None:
    at = page(by="meaning", text="a cat asleep in the sun")
    arrived(at, lambda at: "similarity" in table(at) if at.main.dataframe else False)
    shown = table(at)
    assert shown["answer"].iloc[0] == SAID[0] and shown["matched"].iloc[0] == "answer"
    assert shown["similarity"].is_monotonic_decreasing and shown["similarity"].between(-1, 1).all()
    assert len(shown) == 3 and address(at)["text"] == "a cat asleep in the sun"
    at.segmented_control(key="history_by").set_value("").run()
    assert "Nothing matches this filter." in said(at), "by its words nothing is found"


def test_answers_like_one_of_them(read: list[str]) -> None:
    at = press(choose(page(), 2), "history_do_like")
    assert address(at)["like"] == read[0]
    assert plain(SAID[0]) in said(at)
    assert table(at)["similarity"].iloc[0] == pytest.approx(1, abs=1e-6) and table(at)["answer"].iloc[0] == SAID[0]
    assert HOSTILE not in said(page(like=read[2]))
    at.text_input(key="history_filter_text").set_value("rent").run()
    assert list(table(at)["answer"]) == [SAID[1]], "words narrow the list"
    press(at, "history_unlike")
    assert "like" not in address(at) and "similarity" not in table(at)
    assert "is not indexed yet" in said(page(like="nobody"))


def test_a_trial_of_the_prompt_lab_leads_there(read: list[str]) -> None:
    at = press(open_page("prompt_lab.py", "Prompt lab", trial=read[1]), "lab_like")
    assert [title.value for title in at.title] == ["History"]
    assert address(at) == {"view": "trials", "like": read[1]}


def test_arms_are_compared_by_what_they_mean(bench: Workbench, history: History) -> None:
    wait_for_model(bench)
    arms = tuple(Arm(sampling=Sampling(temperature=t, seed=7), max_tokens=12) for t in (0.0, 1.0, 1.5))
    id = bench.compare.start(ComparisonPlan(prompt="Once upon a time", arms=arms))
    bench.compare.wait(60)
    at = open_page("compare.py", "Compare", comparison=id)
    assert "semantic similarity" not in said(at)
    at.toggle(key="arms_meaning").set_value(True).run()
    assert address(at)["meaning"] == "1"
    arrived(at, lambda at: "semantic similarity" in said(at))
    assert said(at).count("semantic similarity") == 2
    pairs = next(frame.value for frame in at.main.dataframe if len(frame.value) == len(frame.value.columns) - 1)
    assert pairs.iloc[0, 1] == pytest.approx(1) and pairs.iloc[0, 2] == pytest.approx(pairs.iloc[1, 1])
    at.toggle(key="arms_meaning").set_value(False).run()
    assert "meaning" not in address(at)
