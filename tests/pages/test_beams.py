"""Beam search on the Prompt lab: its fields, its address, what the lists show, and what is opened from them."""

import json
import math

import pytest
from streamlit.testing.v1 import AppTest

from engine.comparing.beams import BeamSpec
from engine.errors import ConfigError
from engine.specs import Request
from engine.workbench import Workbench
from engine.workbench.trials import Draft, Trial
from pages.parts import prompt_state
from pages.parts.branches import share
from pages.parts.prompt_lab import beams_view
from tests.pages.test_prompt_lab import address, page
from tests.waiting import until

SPEC = BeamSpec(num_beams=4, max_new_tokens=10, num_return_sequences=3)


@pytest.fixture(scope="module")
def trial(bench: Workbench) -> Trial:
    draft = Draft("The old king had a daughter", request=Request(max_tokens=32, top_k=5))
    trial = bench.beams.find(draft, SPEC).result(60)
    until(lambda: trial.is_stored, "the trial is not stored")
    return trial


def searched(at: AppTest, **values: int | None) -> AppTest:
    at.text_area(key="lab_prompt").set_value("The old king had")
    for name, value in values.items():
        at.number_input(key=f"lab_beams_{name}").set_value(value)
    at.button(key="do_beams").click().run()
    assert not at.exception
    return at


def test_a_search_has_its_address_before_it_has_a_result(bench: Workbench) -> None:
    engine, _ = bench.model.loaded()
    with engine.held():
        at = searched(page(), num_beams=2, max_new_tokens=6)
        assert not at.main.error
        task = bench.beams.last
        assert task is not None and address(at) == task.trial_id
        assert task.is_running and bench.trials.watch(task.trial_id) is None
    assert (task.spec.num_beams, task.spec.max_new_tokens) == (2, 6)
    found = task.result(60)
    at = page(trial=task.trial_id)
    assert not at.exception and not at.main.error
    assert [one.label for one in at.toggle if one.key == "lab_pruned"] != []
    assert found.draft.prompt == at.text_area(key="lab_prompt").value


@pytest.mark.parametrize(
    ("values", "message"),
    [({"num_beams": 99}, "Beams = 99"), ({"num_beams": 2, "num_return_sequences": 3}, "Sequences returned = 3")],
)
def test_what_cannot_be_searched_is_said_by_the_name_of_its_field(
    bench: Workbench, values: dict[str, int], message: str
) -> None:
    before = bench.beams.last
    at = searched(page(), **values)
    (error,) = at.main.error
    assert message in error.value.replace("\\", "")
    assert bench.beams.last is before


def test_a_search_that_was_stopped_says_so_at_its_address(bench: Workbench) -> None:
    task = bench.beams.find(Draft("The old king had"), BeamSpec(num_beams=8, max_new_tokens=400))
    task.stop()
    assert task.wait(60)
    at = page(trial=task.trial_id)
    assert not at.exception and not at.main.error
    assert any("was stopped" in one.value for one in at.caption)
    bench.beams.dismiss()


def test_the_sequences_and_the_tree_have_the_figures_of_the_search(bench: Workbench, trial: Trial) -> None:
    assert trial.beams is not None
    shown = beams_view.trees(bench, trial)
    assert shown is not None and json.dumps(shown)
    sequences, tree = shown
    for row, one in zip(sequences["rows"], trial.beams.sequences, strict=True):
        assert row["cells"] == (f"{one.score:.3f}", f"{one.logprob:.3f}", f"{len(one.ids)}")
        assert [token["title"].split(": p ")[1] for token in row["tokens"]] == [
            f"{share(math.exp(logprob))}, {logprob:.3f} nats" for logprob in one.logprobs
        ]
    assert [row["is_open"] for row in sequences["rows"]] == [True, False, False]
    ends = [name for row in tree["rows"] for name in row["name"].split()]
    assert sorted(ends) == ["#1", "#2", "#3"] and all(row["is_passed"] for row in tree["rows"])
    assert sum(len(row["tokens"]) for row in tree["rows"]) == len(
        {one.ids[: end + 1] for one in trial.beams.sequences for end in range(len(one.ids))}
    )


def test_a_search_that_is_opened_leaves_the_parameters_of_the_editor(bench: Workbench, trial: Trial) -> None:
    other = bench.trials.submit(Draft("Once", request=Request(max_tokens=2)))
    other.job.result(60)
    at = page(trial=other.id)
    at.number_input(key="lab_temperature").set_value(0.5)
    at.session_state["lab_stop"] = "END"
    at.run()
    at.query_params["trial"] = trial.id
    at.run()
    assert not at.exception and at.text_area(key="lab_prompt").value == trial.draft.prompt
    assert at.number_input(key="lab_temperature").value == 0.5 and at.session_state["lab_stop"] == "END"


def test_a_long_sequence_is_shown_whole_and_a_long_row_of_the_tree_says_what_it_leaves_out(bench: Workbench) -> None:
    spec = BeamSpec(num_beams=1, max_new_tokens=200)
    found = bench.beams.find(Draft("Once upon a time"), spec).result(120)
    assert found.beams is not None
    num = len(found.beams.sequences[0].ids)
    assert num > beams_view.MOST_TOKENS
    shown = beams_view.trees(bench, found)
    assert shown is not None
    (sequence,), (row,) = shown[0]["rows"], shown[1]["rows"]
    assert len(sequence["tokens"]) == num and "more token" not in sequence["text"]
    assert len(row["tokens"]) == beams_view.MOST_TOKENS + 1
    assert row["text"].endswith(f" … {num - beams_view.MOST_TOKENS} more tokens")


def test_a_sequence_is_opened_once_as_a_branch_and_the_search_stays_in_sight(
    bench: Workbench, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[Trial]()
    monkeypatch.setattr(prompt_state, "show", opened.append)
    assert trial.beams is not None
    beams_view._act(bench, trial, {"action": "open", "key": "sequence:1"})
    until(opened[0].done, "it does not end")
    assert tuple(opened[0].steps.ids) == trial.beams.sequences[1].ids and opened[0].parent == trial.id
    for asked in (trial, opened[0]):
        beams_view._act(bench, asked, {"action": "open", "key": "sequence:1"})
    assert {one.id for one in opened} == {opened[0].id}
    beams_view._act(bench, opened[0], {"action": "open", "key": "sequence:0"})
    assert opened[-1].id == trial.id
    shown = beams_view.trees(bench, opened[0])
    assert shown is not None and [row["is_open"] for row in shown[0]["rows"]] == [False, True, False]


@pytest.mark.parametrize("asked", [5, {}, {"action": "open", "key": 5}, {"action": "open", "key": "sequence:9"}])
def test_a_row_that_is_not_there_is_refused(bench: Workbench, trial: Trial, asked: object) -> None:
    with pytest.raises(ConfigError):
        beams_view._act(bench, trial, asked)


def test_another_trial_has_no_beams(bench: Workbench) -> None:
    plain = bench.trials.submit(Draft("Once", request=Request(max_tokens=2)))
    plain.job.result(60)
    assert beams_view.trees(bench, plain) is None and beams_view.trees(bench, None) is None
    with pytest.raises(ConfigError, match="not on the screen"):
        beams_view._act(bench, plain, {"action": "open", "key": "sequence:0"})
