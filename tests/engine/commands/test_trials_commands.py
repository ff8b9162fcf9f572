"""`trials` and `diff` on the command line, with trials of the model that ships."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine import __main__ as shell
from engine.commands import watched
from engine.history import History, TrialRecord
from engine.pool.pool import Pool
from engine.settings import Settings
from engine.tasks import Task
from tests.engine.history.trial_maker import NASTY, make_trial
from tests.engine.workbench.recorded import make_recorded

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
STEERING = ("\x1b", "\x07", "\u202e")


def output(capsys: Capture, *words: str) -> str:
    assert shell.main([*words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: Capture, *words: str) -> str:
    assert shell.main([*words]) == shell.ERROR
    captured = capsys.readouterr()
    assert captured.out == ""
    (error,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    return error


def keep(*trials: TrialRecord) -> None:
    with History.open(Settings.from_environment().history) as history:
        for trial in trials:
            history.record(trial).result()


@pytest.fixture
def trial(pool: Pool, home: Path) -> TrialRecord:
    found = make_recorded(pool, max_tokens=16, stages=True)
    keep(found)
    return found


def test_trials_are_listed_newest_first(capsys: Capture, home: Path) -> None:
    trials = [make_trial() for _ in range(3)]
    keep(*trials)
    lines = output(capsys, "trials", "list", "--limit", "2").splitlines()
    assert [line.split()[0] for line in lines[:2]] == [trials[2].id, trials[1].id]
    assert lines[2] == "2 of 3 trials"
    rows = json.loads(output(capsys, "trials", "list", "--json"))
    assert rows["total"] == 3 and {row["id"] for row in rows["rows"]} == {one.id for one in trials}


def test_a_trial_is_shown_with_prompt_answer_parameters_and_figures(capsys: Capture, trial: TrialRecord) -> None:
    shown = output(capsys, "trials", "show", trial.id)
    assert trial.prompt in shown and trial.completion.text in shown
    assert "max_tokens 16" in shown and "16 tokens, length" in shown and "seed 5" in shown
    assert "temperature" not in shown
    assert json.loads(output(capsys, "trials", "show", trial.id, "--json"))["id"] == trial.id
    xray = output(capsys, "trials", "show", trial.id, "--xray")
    assert xray.count("> drawn at ") == 16 and "top_k " in xray


def test_the_beginning_of_an_id_is_enough(capsys: Capture, trial: TrialRecord) -> None:
    for name in (trial.id[:20], trial.id.upper(), f" {trial.id} "):
        assert json.loads(output(capsys, "trials", "show", name, "--json"))["id"] == trial.id


def test_an_ambiguous_beginning_is_refused_with_the_trials(capsys: Capture, home: Path) -> None:
    trials = [make_trial() for _ in range(7)]
    keep(*trials)
    common = trials[0].id[:6]
    error = refused(capsys, "trials", "show", common)
    assert f"'{common}' is the beginning of several trials: {trials[6].id}, " in error
    assert "and more. Give more of its id." in error and trials[0].id not in error


@pytest.mark.parametrize("command", [("trials", "show"), ("trials", "replay"), ("diff", "--kv-type", "q8_0")])
def test_an_id_of_no_trial_is_one_line_of_error(capsys: Capture, trial: TrialRecord, command: tuple[str, ...]) -> None:
    for id in ("", "none", "%", "_", "'; DROP TABLE trials; --", "\x1b]0;title\x07", "-" * 36, "9" * 5_000, "../etc"):
        error = refused(capsys, *command, "--", id)
        assert error.startswith("error: There is no trial ") and len(error) < 300
        assert not any(mark in error for mark in STEERING)


def test_a_deleted_trial_is_gone(capsys: Capture, trial: TrialRecord) -> None:
    with History.open(Settings.from_environment().history) as history:
        history.delete(trial.id)
        assert history.ids_with(trial.id[:8], 5) == []


def test_hostile_texts_are_escaped_on_a_terminal(capsys: Capture, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = make_trial(prompt=NASTY, label="\x1b[31mred")
    keep(hostile)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for words in (("show", hostile.id), ("show", hostile.id, "--xray"), ("list",)):
        shown = output(capsys, "trials", *words)
        assert shown and not any(mark in shown for mark in STEERING)


def test_a_trial_is_replayed(capsys: Capture, trial: TrialRecord) -> None:
    assert output(capsys, "trials", "replay", trial.id).startswith("Identical: 16 tokens")
    found = json.loads(output(capsys, "trials", "replay", trial.id, "--json"))
    assert (found["is_identical"], found["num_same"], found["difference"]) == (True, 16, None)
    assert found["largest_change"] < 1e-3


def test_a_difference_shows_both_distributions(capsys: Capture, pool: Pool, home: Path) -> None:
    trial = make_recorded(pool, max_tokens=16)
    steps = trial.completion.steps
    own = steps.ids[9]
    steps.records["id"][9] = other = next(one.id for one in steps[9].top if one.id != own)
    keep(trial)
    lines = output(capsys, "trials", "replay", trial.id).splitlines()
    assert lines[0].startswith("Differs first at token 10: ")
    assert lines[1].split() == ["candidate", "recorded", "replayed"]
    (recorded,) = [line for line in lines[2:] if line.endswith("  recorded")]
    (replayed,) = [line for line in lines[2:] if line.endswith("  replayed")]
    text = steps.vocabulary.text
    assert recorded.startswith(repr(text(other))) and replayed.startswith(repr(text(own)))
    found = json.loads(output(capsys, "trials", "replay", trial.id, "--json"))["difference"]
    assert (found["position"], found["recorded"]["id"], found["replayed"]["id"]) == (9, other, own)
    assert found["recorded"]["top"] and found["replayed"]["top"]


def test_a_replay_that_is_refused_says_why(capsys: Capture, trial: TrialRecord, quantised_model: Path) -> None:
    error = refused(capsys, "trials", "replay", trial.id, "--model", str(quantised_model))
    assert "is not the file that this trial was run with" in error
    keep(make_trial(id=(other := make_trial().id)))
    assert "is missing" in refused(capsys, "trials", "replay", other)


@pytest.mark.parametrize("ending", ["trial", "json", "csv", "txt"])
def test_a_trial_is_written_to_a_file(
    capsys: Capture, trial: TrialRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    path = tmp_path / f"one.{ending}"
    assert str(path) in output(capsys, "trials", "export", trial.id, "--out", str(path))
    if ending in ("csv", "txt"):
        assert ("part,position,id" if ending == "csv" else trial.completion.text) in path.read_text()
        return
    monkeypatch.setenv("LOGITBENCH_HOME", str(tmp_path / "elsewhere"))
    output(capsys, "history", "import", str(path))
    assert json.loads(output(capsys, "trials", "list", "--json"))["rows"][0]["id"] == trial.id
    assert output(capsys, "trials", "replay", trial.id).startswith("Identical: 16 tokens")


def test_an_export_to_nowhere_is_refused(capsys: Capture, trial: TrialRecord, tmp_path: Path) -> None:
    assert "must end with .json, .trial, .csv, .txt" in refused(
        capsys, "trials", "export", trial.id, "--out", str(tmp_path / "a.xlsx")
    )
    gone = str(tmp_path / "none" / "a.json")
    assert "does not exist" in refused(capsys, "trials", "export", trial.id, "--out", gone)


# diff


def test_a_diff_is_printed_in_words_and_as_json(capsys: Capture, trial: TrialRecord, quantised_model: Path) -> None:
    lines = output(capsys, "diff", trial.id[:24], "--model", str(quantised_model), "--limit", "3").splitlines()
    assert lines[0].startswith("KL ") and "nats" in lines[0] and "bits" in lines[0]
    assert len(lines) == lines.index("") + 2 + 3
    found = json.loads(output(capsys, "diff", trial.id, "--model", str(quantised_model), "--json"))
    assert found["sentence"] == lines[0] and found["num_tokens"] == 16 == len(found["tokens"])
    assert found["kl_mean"] == pytest.approx(sum(token["kl"] for token in found["tokens"]) / 16)
    changes = [abs(found["tokens"][position]["change"]) for position in found["most_changed"]]
    assert changes == sorted(changes, reverse=True)
    for token in found["tokens"]:
        assert token["change"] == pytest.approx(token["other_logprob"] - token["logprob"])
    assert [token["id"] for token in found["tokens"]] == trial.completion.ids


def test_a_diff_of_a_setting(capsys: Capture, trial: TrialRecord) -> None:
    found = json.loads(output(capsys, "diff", trial.id, "--kv-type", "q8_0", "--json"))
    assert found["other"]["pool"]["type_k"] == found["other"]["pool"]["type_v"] == "q8_0"
    assert found["first"]["pool"]["type_k"] == "f16" and 0 < found["kl_mean"] < 0.1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "compare the model with itself"),
        (("--kv-type", "q9"), "type_k"),
        (("--kv-type", "q8_0", "--type-k", "f16"), "give either it or those"),
        (("--model", "no such model"), "There is no model"),
        (("--limit", "0", "--kv-type", "q8_0"), "--limit 0"),
        (("--threads", "0"), "threads = 0"),
    ],
)
def test_a_diff_that_cannot_be(capsys: Capture, trial: TrialRecord, words: tuple[str, ...], why: str) -> None:
    assert why in refused(capsys, "diff", trial.id, *words)


def test_ctrl_c_stops_a_diff(
    capsys: Capture, trial: TrialRecord, quantised_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[Task[Any]] = []

    def interrupted(task: Task[Any], *_: object) -> None:
        tasks.append(task)
        raise KeyboardInterrupt

    monkeypatch.setattr(watched, "show_progress", interrupted)
    assert shell.main(["diff", trial.id, "--model", str(quantised_model)]) == shell.INTERRUPTED
    assert tasks[0].state == "stopped" and "was stopped" in capsys.readouterr().err
