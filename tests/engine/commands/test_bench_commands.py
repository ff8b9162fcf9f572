import json
from pathlib import Path

import pytest

from engine import __main__ as shell
from engine.history import History, read_run
from engine.settings import Settings

pytestmark = pytest.mark.usefixtures("short_samples")

SHORT = ("--layout", "1x1", "--num-prompt", "16", "--num-generated", "8", "--rounds", "1")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert shell.main(list(words)) == 0
    return capsys.readouterr().out


def test_a_dry_run_tells_cells_time_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(told(capsys, "bench", "--layout", "1x1,1x2", "--parallel", "1-8*2", "--dry-run", "--json"))
    assert [cell["settings"]["parallel"] for cell in plan["cells"]] == [1, 2, 4, 8] * 2
    assert all(cell["memory_bytes"] > 0 and cell["seconds"] > 0 for cell in plan["cells"])
    assert "8 configurations" in plan["sentence"]


def test_a_run_is_printed_kept_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run.zip"
    found = json.loads(told(capsys, "bench", *SHORT, "--name", "short", "--json", "--out", str(out)))
    (cell,) = found["cells"]
    assert found["status"] == "done"
    assert cell["metrics"]["tokens_per_s"]["value"] > 0
    assert read_run(out).id == found["id"]
    with History.open(Settings.from_environment().history) as history:
        assert [(run.id, run.name) for run in history.runs.recent()] == [(found["id"], "short")]
    again = json.loads(told(capsys, "bench", "resume", found["id"], "--json"))
    assert again["id"] == found["id"]


def test_while_the_history_is_in_use_a_run_goes_to_its_inbox(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with History.open(Settings.from_environment().history):
        found = json.loads(told(capsys, "bench", *SHORT, "--json"))
    assert (home / "inbox" / f"{found['id']}.run.zip").is_file()


def test_limits_are_measured_once_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    limits = json.loads(told(capsys, "limits", "--json"))
    assert limits["bandwidth"][0][1] > 1e8
    assert json.loads(told(capsys, "limits", "--json")) == limits


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("bench", "--parallel", "1-100000"), "100,000"),
        (("bench", "--n-batch", "32", "--n-ubatch", "64"), "n_ubatch"),
        (("bench", "--model", "missing.gguf"), "missing.gguf"),
        (("bench", "resume", "no-run"), "there is no run"),
    ],
)
def test_what_cannot_be_measured_is_told(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(list(words)) == shell.ERROR
    assert reason in capsys.readouterr().err
