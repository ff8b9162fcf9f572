"""`models order`: two models loaded in turn, printed as a table and as JSON."""

import json
import shutil
from pathlib import Path

import pytest

from engine import __main__ as shell


@pytest.fixture
def models(story_model: Path, tmp_path: Path) -> list[str]:
    return [str(shutil.copy(story_model, tmp_path / name)) for name in ("a.gguf", "b.gguf")]


@pytest.mark.slow
def test_it_is_measured_and_printed(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["models", "order", *models, "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["a"], found["b"]) == tuple(models)
    assert [step["name"] for step in found["steps"]] == ["A", "B", "A"]
    assert all(step["load_s"] > 0 for step in found["steps"])
    assert "loading: 100 %" in printed.err
    assert shell.main(["models", "order", *models]) == 0
    text = capsys.readouterr().out
    assert text.count("\nA ") == 2 and text.count("\nB ") == 2
    assert "of A was still in memory after B" in text


def test_the_same_model_twice_is_refused(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["models", "order", models[0], models[0]]) == 2
    assert "is both A and B" in capsys.readouterr().err
