"""Replay and comparison with another model on the Prompt lab page, without a browser, by the real workbench."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from engine.comparing.replay import Difference
from engine.errors import ModelError
from engine.models.details import readable
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.model_diffs import Other
from engine.workbench.trials import Draft, LiveTrial
from pages.parts import job_tray
from pages.parts.prompt_lab import diff_address, diff_view, replay_view
from tests.pages.app import HOSTILE, address, open_page, press, said
from tests.scripted_task import ScriptedTask
from tests.waiting import until

WITHIN_S = 60.0
SHOWN = "Compare with another model"


@pytest.fixture
def trial(bench: Workbench) -> LiveTrial:
    request = Request(max_tokens=12, top_k=8, reuse_prefix=False)
    found = bench.trials.submit(Draft("Once upon a time", sampling=Sampling(seed=5), request=request))
    found.job.result(WITHIN_S)
    return found


@pytest.fixture
def quantised(quantised_model: Path, models_folder: Path) -> Path:
    """Another file of the model, in the library."""
    path = models_folder / "story-Q4_0.gguf"
    shutil.copy(quantised_model, path)
    return path


@pytest.fixture(autouse=True)
def nothing_runs(bench: Workbench) -> Iterator[None]:
    yield
    until(lambda: bench.replays.running is None and bench.diffs.running is None)


def lab(trial: LiveTrial, **query: str) -> AppTest:
    return open_page("prompt_lab.py", "Prompt lab", trial=trial.id, **query)


def has(at: AppTest, key: str) -> bool:
    return any(button.key == key for button in at.button)


# Replay


def test_a_replay_says_that_it_is_identical(bench: Workbench, trial: LiveTrial) -> None:
    at = press(lab(trial), "lab_replay")
    task = bench.replays.of(trial.id)
    assert task is not None and task.result(WITHIN_S).replay.is_identical
    at.run()
    assert "Identical" in said(at) and "12 tokens" in said(at)
    assert not at.main.error


def test_a_running_replay_shows_progress_and_stop(bench: Workbench, trial: LiveTrial) -> None:
    engine = bench.model.engine
    assert engine is not None
    with engine.held():
        at = press(lab(trial), "lab_replay")
        assert has(at, "lab_stop_replay") and at.button(key="lab_replay").disabled
        assert [(job.title, job.page, job.query) for job in job_tray.jobs(bench)] == [
            ("Replay", job_tray.LAB, {"trial": trial.id})
        ]
        press(at, "lab_stop_replay")
    task = bench.replays.of(trial.id)
    assert task is not None and task.wait(WITHIN_S)
    assert "The replay was stopped." in said(at.run())


def test_a_replay_that_differs_shows_both_distributions(bench: Workbench, trial: LiveTrial) -> None:
    steps = trial.steps
    own = steps.ids[5]
    other = next(one.id for one in steps[5].top if one.id != own)
    steps.records["id"][5] = other
    at = press(lab(trial), "lab_replay")
    task = bench.replays.of(trial.id)
    assert task is not None
    difference = task.result(WITHIN_S).replay.difference
    assert difference is not None and difference.position == 5
    at.run()
    assert "Differs first at token 6" in said(at) and "The random number was" in said(at)
    (frame,) = at.main.dataframe
    table: pd.DataFrame = frame.value
    assert table.columns.tolist() == ["candidate", "p recorded, %", "p replayed, %", "drawn"]
    drawn = dict(zip(table["drawn"], table["candidate"], strict=True))
    text = steps.vocabulary.text
    assert (drawn["recorded"], drawn["replayed"]) == tuple(
        text(token).replace(" ", "␣").replace("\n", "↵") for token in (other, own)
    )
    assert table["p recorded, %"].tolist() == pytest.approx(table["p replayed, %"].tolist(), abs=0.1)


def test_a_replay_that_cannot_be_says_why(bench: Workbench, trial: LiveTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    record = replace(trial.model, hash="0" * 64)
    monkeypatch.setattr(trial, "model", record)
    at = press(lab(trial), "lab_replay")
    task = bench.replays.of(trial.id)
    assert task is not None and task.wait(WITHIN_S) and isinstance(task.error, ModelError)
    at.run()
    assert "is not the file that this trial was run with" in at.main.error[0].value


def test_the_drawn_tokens_are_listed_even_if_they_are_improbable(bench: Workbench, trial: LiveTrial) -> None:
    steps = trial.steps
    shown = replay_view.columns(Difference(2, (steps.vocabulary, steps.vocabulary), steps[2], steps[3]))
    assert {len(values) for values in shown.values()} == {len(shown["drawn"])}
    assert len(shown["drawn"]) <= replay_view.SHOWN + 2
    assert set(shown["drawn"]) == {"", "recorded", "replayed"}


# Comparison with another model


def test_the_comparison_opens_with_another_file_of_the_model(
    bench: Workbench, trial: LiveTrial, quantised: Path
) -> None:
    at = lab(trial)
    assert f"**{SHOWN}**" not in said(at)
    press(at, "lab_diff")
    assert address(at) == {"trial": trial.id, "diff": readable(quantised)}
    assert f"**{SHOWN}**" in said(at)
    assert at.selectbox(key="lab_diff_model").value == readable(quantised)
    press(at, "lab_diff_close")
    assert address(at) == {"trial": trial.id} and f"**{SHOWN}**" not in said(at)


def test_it_gives_figures_and_what_the_strip_shows(bench: Workbench, trial: LiveTrial, quantised: Path) -> None:
    at = lab(trial, diff=readable(quantised))
    assert diff_view.change(asked(bench, trial, quantised)) is None
    press(at, "lab_diff_start")
    task = bench.diffs.of(trial.id, Other(quantised))
    assert task is not None
    diff = task.result(WITHIN_S).diff
    at.run()
    assert not at.main.error
    metrics = {metric.label: metric.value for metric in at.main.metric}
    assert list(metrics) == [
        "KL per token",
        "Largest change",
        "First greedy flip",
        "Perplexity, own → other",
    ]
    assert metrics["KL per token"].endswith(" nats") and " bits) per token" in diff.sentence
    assert at.button(key="lab_diff_start").label == "Compare again"
    change = diff_view.change(asked(bench, trial, quantised))
    assert change is not None
    assert (change["other"], change["is_prompt"], change["first_flip"]) == ("story-Q4_0.gguf", False, diff.first_flip)
    assert change["kl"] == pytest.approx(diff.kl.tolist()) and len(change["logprob"]) == 12
    assert [row["index"] for row in change["rows"]] == [one.position for one in diff.most_changed(diff_view.LISTED)]
    again = lab(trial, diff=readable(quantised))
    assert {metric.label for metric in again.main.metric} == metrics.keys()


def asked(bench: Workbench, trial: LiveTrial, path: Path) -> diff_address.Asked:
    task = bench.diffs.of(trial.id, Other(path))
    return diff_address.Asked({}, readable(path), "", "", "", task)


def test_another_kv_type_of_the_own_model(bench: Workbench, trial: LiveTrial, quantised: Path) -> None:
    at = lab(trial, diff="own")
    assert at.button(key="lab_diff_start").disabled
    assert "Choose another model, another type of keys and values, or transformers." in said(at)
    at.selectbox(key="lab_diff_kv").select("q4_0").run()
    assert address(at) == {"trial": trial.id, "diff": "own", "kv": "q4_0"}
    press(at, "lab_diff_start")
    task = bench.diffs.of(trial.id, Other(settings=(("type_k", "q4_0"), ("type_v", "q4_0"))))
    assert task is not None
    assert diff_address.query(task) == {"trial": trial.id, "diff": "own", "kv": "q4_0"}
    task.result(WITHIN_S)
    assert "q4\\_0" in said(at.run())


@pytest.mark.slow
def test_the_own_model_in_transformers(bench: Workbench, trial: LiveTrial, quantised: Path) -> None:
    at = lab(trial, diff="own", kv="q4_0")
    at.selectbox(key="lab_diff_torch").select("float32").run()
    assert at.selectbox(key="lab_diff_kv").disabled
    press(at, "lab_diff_start")
    task = bench.diffs.of(trial.id, Other(settings=(("dtype", "float32"),)))
    assert task is not None
    assert diff_address.query(task) == {"trial": trial.id, "diff": "own", "torch": "float32"}
    task.result(120)
    assert "float32 · transformers" in said(at.run())


@pytest.mark.parametrize("path", ["/etc/passwd", HOSTILE, "../../x.gguf"])
def test_a_file_outside_the_library_is_not_opened(
    bench: Workbench, trial: LiveTrial, quantised: Path, path: str
) -> None:
    at = lab(trial, diff=path, kv="no such type")
    assert "is not in the model library" in at.main.error[0].value
    assert "<script>" not in at.main.error[0].value
    assert at.selectbox(key="lab_diff_model").value == "own" and at.selectbox(key="lab_diff_kv").value == ""
    assert at.button(key="lab_diff_start").disabled


def test_a_running_comparison_shows_progress_and_stop(
    bench: Workbench, trial: LiveTrial, quantised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ScriptedTask("The comparison", 0.25, "Loading", 10.0)
    monkeypatch.setattr(bench.diffs, "of", lambda *_: task)
    task.start()
    at = lab(trial, diff=readable(quantised))
    press(at, "lab_stop_diff")
    assert task.wait(WITHIN_S)
    assert "The comparison was stopped." in said(at.run())


def test_a_comparison_that_failed_says_why(
    bench: Workbench, trial: LiveTrial, quantised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ScriptedTask("The comparison")
    monkeypatch.setattr(bench.diffs, "of", lambda *_: task)
    task.start()
    task.fail(ModelError(f"other.gguf has another vocabulary {HOSTILE}"))
    at = lab(trial, diff=readable(quantised))
    assert "has another vocabulary" in at.main.error[0].value and "<script>" not in at.main.error[0].value
