"""`embed` command: embeds the texts of a file, called through the command line's entry point."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.__main__ import main
from engine.backends.address import Address
from engine.backends.embedding_server import PATH
from engine.backends.known import KnownEngine, add_known
from engine.commands import embed_backends
from engine.embedding.agreement import SAME, Agreement
from engine.embedding.choice import BackendSpeed, Measurement, keep_measurement
from engine.embedding.measuring import Progress
from engine.embedding.models import find_model
from tests.engine.backends.embedding_answers import answer, vector_of
from tests.engine.backends.fake_server import fake_server
from tests.processes import free_port


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "texts.csv"
    path.write_text("id,text\n1,The rent goes up.\n2,It rains all day.\n3,We pay more for the flat.\n")
    return path


@pytest.mark.usefixtures("quick_embedding")
def test_json_and_array_have_the_same_vectors(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table.with_name("vectors.npy")
    assert main(["embed", str(table), "--json", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model"] == "all-MiniLM-L6-v2" and printed["dim"] == 384 and printed["num_cut"] == 0
    assert [one["text"] for one in printed["texts"]] == [
        "The rent goes up.",
        "It rains all day.",
        "We pay more for the flat.",
    ]
    vectors = np.load(out)
    assert vectors.dtype == np.float32 and np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert np.asarray([one["vector"] for one in printed["texts"]]) == pytest.approx(vectors, abs=1e-7)


@pytest.mark.usefixtures("quick_embedding")
def test_without_json_it_tells_what_is_near_what(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", str(table)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 texts, 384 dimensions, by all-MiniLM-L6-v2 (onnx), ")
    place = next(number for number, line in enumerate(lines) if line.endswith("The rent goes up."))
    assert lines[place + 1].endswith("We pay more for the flat.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.txt"], "cannot be read"),
        (["{table}", "--column", "body"], "no column 'body'"),
        (["{table}", "--workers", "0"], "workers"),
        (["{table}", "--model", "no/such"], "not on this machine"),
        (["{table}", "--out", "vectors.txt"], ".npy"),
    ],
)
def test_what_cannot_be_is_said(
    table: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["embed", *(word.format(table=table) for word in words)]) == 2
    assert message in capsys.readouterr().err


FIGURES = Measurement(
    "all-MiniLM-L6-v2",
    "2026-11-21T12:00:00+00:00",
    83,
    5,
    (
        BackendSpeed("torch", 50.0, 5_000.0, 1.0, 4e8, SAME),
        BackendSpeed("torch-bf16", 85.0, 8_500.0, 1.7, 4e8, Agreement(0.997, 0.999, 0.99)),
    ),
)


def test_backends_are_measured_once_and_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(model: str, on_progress: Callable[[Progress], object]) -> Measurement:
        on_progress(Progress(0.5, "torch-bf16"))
        keep_measurement(find_model(model), FIGURES)
        return FIGURES

    monkeypatch.setattr(embed_backends, "measure_backends", measure)
    assert main(["embed", "--backends", "--json"]) == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    assert "measuring: 50 %, torch-bf16" in captured.err and printed["auto"] == "torch"
    rows = {row["name"]: row for row in printed["backends"]}
    assert rows["torch"]["worst_cosine"] == rows["torch"]["speedup"] == 1
    assert rows["torch-bf16"]["worst_cosine"] == 0.997 and rows["torch-bf16"]["texts_per_s"] == 85
    assert rows["onnx"]["reason"] == "not measured yet" and rows["onnx"]["speedup"] is None
    assert main(["embed", "--backends"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines()[0] == "Backends of all-MiniLM-L6-v2, 83 texts in 5 rounds"
    assert captured.out.splitlines()[-1].startswith("auto is torch")
    main(["embed", "--backends", "--measure"])
    assert "measuring" in capsys.readouterr().err


def test_a_file_or_the_backends_have_to_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["embed"])
    assert "FILE is missing" in capsys.readouterr().err


WRITTEN = """
import resource, sys
from pathlib import Path
import numpy as np
from engine.commands.embed import _write
from engine.embedding.job import EmbedResult

resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
_write(Path(sys.argv[1]), EmbedResult(np.zeros((100, 384), np.float32), np.zeros(100, np.bool_), 0, 0.0, 0.0, False))
"""


def test_an_array_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    out = tmp_path / "vectors.npy"
    out.write_bytes(b"of before")
    done = subprocess.run([sys.executable, "-c", WRITTEN, out], capture_output=True, text=True, check=False)
    assert "cannot be written" in done.stderr.splitlines()[-1]
    assert "File too large" in done.stderr
    assert out.read_bytes() == b"of before"
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.npy"]


def test_an_external_engine_embeds_and_another_machine_only_where_that_is_allowed(
    table: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["embed", str(table), "--backend", "external:desk", "--json"]
    with fake_server({PATH: answer}) as (address, seen):
        add_known(home, KnownEngine(name="desk", url=address))
        assert main(words) == 0
        printed = json.loads(capsys.readouterr().out)
        given = [printed[name] for name in ("model", "backend", "max_tokens", "num_cut")]
        assert given == ["m", "external:desk", None, 0]
        wanted = np.array(vector_of("It rains all day."))
        assert printed["texts"][1]["vector"] == pytest.approx(wanted / np.linalg.norm(wanted), abs=1e-6)
        monkeypatch.setattr(Address, "is_loopback", property(lambda _address: False))
        seen.clear()
        assert main(words) != 0
        assert "sends about 3 texts to 127.0.0.1. Nothing is sent there before you allow it" in capsys.readouterr().err
        assert seen == []
        assert main([*words, "--send-to-others"]) == 0


@pytest.mark.parametrize(
    "more, message",
    [
        ((), "--out"),
        (("--out", "vectors.npy"), "--out"),
        (("--out", "vectors", "--workers", "2"), "--workers"),
        (("--out", "corpus/vectors"), "lies in the folder of the corpus"),
        (("--out", "vectors", "--backend", "external:x"), "external:x"),
        (("--out", "vectors"), "0 Parquet files"),
    ],
    ids=str,
)
def test_what_a_corpus_needs_is_said(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    more: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    assert main(["embed", "corpus", "--cluster", "auto", *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("nowhere", "must be HOST:PORT"), ("127.0.0.1:{port}", "no Ray cluster answers at 127.0.0.1:{port}")],
)
def test_a_corpus_for_no_cluster_begins_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, address: str, sentence: str
) -> None:
    pytest.importorskip("ray")
    port, out = free_port(), tmp_path / "out"
    (tmp_path / "corpus").mkdir()
    words = ["embed", str(tmp_path / "corpus"), "--out", str(out), "--cluster", address.format(port=port)]
    assert main(words) == 2
    assert sentence.format(port=port) in capsys.readouterr().err
    assert not out.exists()
