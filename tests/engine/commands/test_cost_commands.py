import json
from pathlib import Path
from typing import Any

import pytest

from engine import __main__ as shell
from engine.history import History
from engine.pool.pool import Pool
from engine.settings import Settings
from tests.engine.history.run_maker import make_cell, make_run

SENTENCE = "c7i.4xlarge finishes 18 h 12 min sooner than c7i.xlarge for $2.75 more."
NOTES = ("cost", "--model", "mistral-7b-instruct")


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert shell.main(list(words)) == 0
    return capsys.readouterr().out


def models(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(output(capsys, *words, "--json"))["models"]
    return found


def test_the_notes_example_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, *NOTES, "--documents", "100", "--words", "5000")
    assert text.startswith("100 documents, 750,000 tokens\n")
    assert SENTENCE in text
    assert " 143 " in text
    (found,) = models(capsys, *NOTES)
    assert found["notes"]["sentence"] == SENTENCE
    assert found["notes"]["chosen"]["machine"] == "c7i.4xlarge"
    assert found["apart"]["chosen"] is None
    by_machine = {one["machine"]: one for one in found["notes"]["estimates"]}
    assert by_machine["c7i.xlarge"]["dollars"]["value"] == pytest.approx(5.25, abs=0.005)
    assert by_machine["home, 60 GB"]["dollars"]["value"] is None


@pytest.mark.parametrize(
    ("words", "machine"),
    [
        (("--deadline", "17h"), "c7i.2xlarge"),
        (("--deadline", "1d"), "c7i.2xlarge"),
        (("--deadline", "700min"), "c7i.4xlarge"),
        (("--budget", "$6"), "c7i.2xlarge"),
        (("--budget", "5.5", "--deadline", "30"), "c7i.xlarge"),
    ],
)
def test_goals(words: tuple[str, ...], machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = models(capsys, *NOTES, *words)
    assert found["notes"]["chosen"]["machine"] == machine


@pytest.mark.parametrize("length", [20, 61, 300])
def test_names_of_configurations_are_shown_whole_up_to_a_length(
    capsys: pytest.CaptureFixture[str], length: int
) -> None:
    machine = "m" * length
    run = make_run(40, machine={"name": machine}, cells=(make_cell(0, label=""),))
    with History.open(Settings.from_environment().history) as history:
        history.runs.keep(run)
    lines = [line for line in output(capsys, "cost").splitlines() if line.startswith("  ")]
    (shown,) = {line.split()[0] for line in lines if "mmm" in line}
    assert shown.startswith("m" * min(length, 59)) and shown.endswith("…") == (length > 60)
    assert any(line.startswith("  c7i.4xlarge · 2 processes with 8 threads ") for line in lines)


def test_what_was_measured_here_is_used_unless_the_history_is_in_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with History.open(Settings.from_environment().history) as history:
        history.runs.keep(make_run(40))
        first, *_ = models(capsys, "cost")
        assert first["model"] == "Mistral-7B-Instruct-v0.2"
    first, *_ = models(capsys, "cost")
    assert first["model"] == "story"
    (one,) = first["apart"]["estimates"]
    assert one["provenance"] == "measured here"
    assert one["hours"]["value"] > 0


def test_what_rests_on_one_contended_sample_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(1, 1, status="interrupted", cells=(make_cell(0),))
    run.samples["flag"], run.samples["is_replaced"], run.samples["tokens_per_s"] = 1, False, 1595.0
    with History.open(Settings.from_environment().history) as history:
        history.runs.keep(run)
    first, *_ = models(capsys, "cost")
    (one,) = first["apart"]["estimates"]
    basis = "one contended sample of an interrupted run"
    assert (one["provenance"], one["remark"]) == ("measured here", basis)
    assert f"measured here ({basis})" in output(capsys, "cost")


def test_a_folder_is_counted_with_the_models_tokenizer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pool: Pool
) -> None:
    (tmp_path / "a.txt").write_text("Once upon a time")
    (tmp_path / "b.bin").write_bytes(b"\0")
    assert shell.main(["cost", "--folder", str(tmp_path), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["num_prompt"] == len(pool.tokenize("Once upon a time"))
    assert "b.bin: binary" in shown.err


def test_prices_may_come_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("machine,region,usd_per_h\nc7i.xlarge,east,1\nc7i.xlarge,west,2\n")
    (found,) = models(capsys, *NOTES, "--prices", str(table))
    assert found["notes"]["sentence"].startswith("c7i.xlarge · east takes 29 h 24 min and costs $29.40")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--documents", "-1"), "documents = -1"),
        (("--deadline", "soon"), "--deadline soon"),
        (("--deadline", "0h"), "--deadline 0h"),
        (("--budget", "nan"), "--budget nan"),
        (("--model", "no-such"), "known: Mistral"),
        (("--prices", "missing.csv"), "missing.csv"),
        (("--folder", "missing"), "no such folder"),
        (("--folder", ".", "--documents", "3"), "documents cannot be given"),
    ],
)
def test_what_cannot_be_estimated_is_reported(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(["cost", *words]) == shell.ERROR
    assert reason in capsys.readouterr().err
