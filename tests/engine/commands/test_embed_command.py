"""The command that embeds the texts of a file, through its own front door."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine.__main__ import main


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "texts.csv"
    path.write_text("id,text\n1,The rent goes up.\n2,It rains all day.\n3,We pay more for the flat.\n")
    return path


def test_json_and_array_have_the_same_vectors(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table.with_name("vectors.npy")
    assert main(["embed", str(table), "--json", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == "all-MiniLM-L6-v2" and told["dim"] == 384 and told["num_cut"] == 0
    assert [one["text"] for one in told["texts"]] == [
        "The rent goes up.",
        "It rains all day.",
        "We pay more for the flat.",
    ]
    vectors = np.load(out)
    assert vectors.dtype == np.float32 and np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert np.asarray([one["vector"] for one in told["texts"]]) == pytest.approx(vectors, abs=1e-7)


def test_without_json_it_tells_what_is_near_what(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", str(table)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 texts, 384 numbers each, by all-MiniLM-L6-v2 at ")
    place = next(number for number, line in enumerate(lines) if line.endswith("The rent goes up."))
    assert lines[place + 1].endswith("We pay more for the flat.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere.txt"], "cannot be read"),
        (["{table}", "--column", "body"], "no column 'body'"),
        (["{table}", "--workers", "0"], "workers"),
        (["{table}", "--model", "no/such"], "not on this machine"),
        (["{table}", "--out", "vectors.txt"], ".npy"),
    ],
)
def test_what_cannot_be_is_said(table: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert main(["embed", *(word.format(table=table) for word in words)]) == 2
    assert told in capsys.readouterr().err
