import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from engine import __main__ as shell
from engine.models import embedded_model, read_model

pytestmark = pytest.mark.usefixtures("models_folder")


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert shell.main(["models", *words]) == 0
    return capsys.readouterr().out


def plain(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output(capsys, *words, "--json"))
    return found


def test_list_has_every_file_with_what_it_needs(capsys: pytest.CaptureFixture[str], models_folder: Path) -> None:
    (models_folder / "broken.gguf").write_bytes(b"no model")
    shipped, broken = plain(capsys, "list")["models"]
    assert shipped["path"] == str(embedded_model())
    assert shipped["fits"] is True
    assert shipped["needed_bytes"] > shipped["size"]
    assert shipped["in_memory"] is None or 0 <= shipped["in_memory"] <= 1
    assert "broken.gguf" in broken["reason"]
    text = output(capsys, "list")
    assert shipped["name"] in text
    assert "cannot be used" in text


def test_list_looks_only_into_folders_that_are_named(capsys: pytest.CaptureFixture[str], models_folder: Path) -> None:
    assert plain(capsys, "list", str(models_folder)) == {"models": []}
    assert output(capsys, "list", str(models_folder)) == "No model files found.\n"


def test_show_tells_what_the_header_says(capsys: pytest.CaptureFixture[str]) -> None:
    file = read_model(embedded_model())
    shown = plain(capsys, "show", file.name)
    assert shown["n_layer"] == file.n_layer
    assert "sha256" not in shown
    assert sum(group["num_tensors"] for group in shown["tensors_by_type"]) == len(file.tensors)
    digest = hashlib.sha256(embedded_model().read_bytes()).hexdigest()
    assert plain(capsys, "show", str(embedded_model()), "--hash")["sha256"] == digest
    assert "general.architecture = 'llama'" in output(capsys, "show", str(embedded_model()))


def test_fit_tells_what_a_pool_takes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("fit", str(embedded_model()), "--contexts", "256,512", "--sequences", "1,8", "--type-k", "q8_0")
    found = plain(capsys, *words)
    assert [(row["sequences"], row["n_ctx"]) for row in found["grid"]] == [(1, 256), (1, 512), (8, 256), (8, 512)]
    assert found["pool"]["type_k"] == "q8_0"
    assert found["fits"] is True
    usual = plain(capsys, *words[:-2])
    assert found["grid"][0]["kv"] < usual["grid"][0]["kv"]
    assert "It fits" in output(capsys, *words)


def test_the_example_of_the_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert plain(capsys, "fit", "--notes")["row"]["kv"] == 2 * 2 * 118 * 48 * 128 * 512 * 2048
    assert "118 layers" in output(capsys, "fit", "--notes")


def test_a_synthetic_model_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    made = plain(capsys, "synth", "--shape", "tiny", "--quant", "Q8_0", str(path))
    assert made["bytes"] == path.stat().st_size
    words = ("--layers", "2", "--width", "256", "--kv-heads", "2", "--vocab", "512", "--seed", "5")
    assert "of random weights" in output(capsys, "synth", *words, str(path.with_name("free.gguf")))
    file = read_model(path.with_name("free.gguf"))
    assert (file.n_layer, file.n_embd, file.n_head_kv) == (2, 256, (2, 2))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("show", "nothing"), "There is no model 'nothing' here"),
        (("list", "nowhere"), "nowhere: is not a folder"),
        (("fit", "nothing"), "There is no model 'nothing' here"),
        (("fit", str(embedded_model()), "--sequences", "1,many"), "--sequences 1,many"),
        (("fit", str(embedded_model()), "--sequences", "0"), "sequences = 0"),
        (("fit", str(embedded_model()), "--type-k", "f8"), "type_k = 'f8'"),
        (("fit", str(embedded_model()), "--contexts", "1"), "n_ctx = 1"),
        (("synth", "out.gguf"), "either --shape with a name"),
        (("synth", "--shape", "tiny", "--layers", "3", "out.gguf"), "either --shape with a name"),
        (("synth", "--layers", "3", "out.gguf"), "needs at least --layers and --width"),
        (("synth", "--shape", "llama-3-900b", "out.gguf"), "shape = 'llama-3-900b'"),
        (("synth", "--layers", "3", "--width", "100", "out.gguf"), "n_embd = 100"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(["models", *words]) == shell.ERROR
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("fit",), ("fit", "a", "--notes"), ("list", "--jso"), ("sing",)])
def test_unknown_words_end_with_status_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main(["models", *words])
    assert ended.value.code == 2
    assert "usage: python -m engine models" in capsys.readouterr().err
