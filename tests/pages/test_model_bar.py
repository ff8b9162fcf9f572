"""The model bar's picker as it opens; tests/e2e goes on from there, since a dialog lives in a browser only."""

import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.models import llama_programs, read_model
from engine.specs import PoolSpec
from engine.units import quantity
from engine.workbench import Workbench
from pages.parts.model_bar import ELSEWHERE, phase_text, threads_text
from pages.parts.plain import plain
from tests.pages.app import frame
from tests.waiting import until

IN_USE = {
    "as given": (2, 1, [2], "1 × 2 threads"),
    "adaptive, all of them": (None, 1, [2], "1 × 2 threads"),
    "adaptive, fewer": (None, 1, [1], "1 × 2 threads, 1 in use"),
    "adaptive, instances apart": (None, 2, [1, 2], "2 × 2 threads, 1 to 2 in use"),
    "no worker just now": (None, 1, [], "1 × 2 threads"),
}


@pytest.mark.parametrize("case", IN_USE)
def test_fewer_threads_than_it_might_have_are_shown(case: str) -> None:
    given, instances, in_use, expected = IN_USE[case]
    workers = [SimpleNamespace(threads=number) for number in in_use]
    spec = SimpleNamespace(threads=given, instances=instances)
    pool: Any = SimpleNamespace(spec=spec, threads=2, workers=lambda: workers)
    assert threads_text(pool) == expected


@pytest.mark.parametrize(
    ("phase", "phase_s", "expected"),
    [("idle", 400.0, "idle"), ("decoding", 0.4, "decoding"), ("decoding", 12.3, "decoding for 12.3 s")],
)
def test_a_long_step_says_since_when(phase: str, phase_s: float, expected: str) -> None:
    worker: Any = SimpleNamespace(phase=phase, phase_s=phase_s)
    assert phase_text(worker) == expected


@pytest.mark.slow
def test_the_machine_is_shown_while_a_worker_stands_still(bench: Workbench) -> None:
    pool, _ = bench.model.loaded()
    (worker,) = pool.workers()
    at = frame().run()
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        at.button(key="model_machine").click().run()
        assert not at.exception, at.exception
        assert any("in a long step" in one.value for one in at.error)
        assert at.dataframe[-1].value["process"].tolist() == [worker.pid]
    finally:
        os.kill(worker.pid, signal.SIGCONT)


@pytest.fixture
def folder(models_folder: Path, story_model: Path) -> Path:
    """The folder of models of the settings, with one model and one file that is none."""
    shutil.copy(story_model, models_folder / "other <b>.gguf")
    (models_folder / "broken.gguf").write_bytes(b"no model")
    return models_folder


def test_it_opens_on_the_loaded_model_among_all_that_are_here(bench: Workbench, folder: Path) -> None:
    at = frame().run()
    at.button(key="model_change").click().run()
    assert not at.exception, at.exception
    box, path = at.selectbox(key="pick_file"), bench.model.path
    assert path is not None and box.value == path
    assert len(box.options) == 2
    assert "1 file cannot be used; the Models page shows why." in [caption.value for caption in at.caption]
    assert not at.button(key="pick_load").disabled
    text = " ".join(one.value for one in [*at.markdown, *at.caption])
    assert plain(quantity(read_model(path).size, "B")) in text and "MiB" not in text


def test_transformers_can_run_a_file_and_has_its_own_parameters(bench: Workbench, folder: Path) -> None:
    at = frame().run()
    at.button(key="model_change").click().run()
    own = at.selectbox(key=f"pick_run_by_{bench.model.path}")
    assert own.options == ["llama.cpp", "transformers, float32", "transformers, bfloat16"]
    assert "GPU layers" in [one.label for one in at.number_input]
    (threads,) = [one for one in at.number_input if one.label == "Threads"]
    assert "adaptive" in threads.help
    own.select("float32").run()
    assert not at.exception, at.exception
    (threads,) = [one for one in at.number_input if one.label == "Threads"]
    assert threads.help == "Per instance; empty: all cores"
    assert "GPU layers" not in [one.label for one in at.number_input]
    assert any("float32" in one.value for one in at.caption)


@pytest.mark.slow
def test_a_file_in_transformers_is_not_shown_as_its_quantisation(bench: Workbench) -> None:
    path, file = bench.model.path, bench.model.file
    assert path is not None and file is not None
    bench.load(path, PoolSpec(dtype="float32", n_ctx=256, threads=1))
    try:
        until(lambda: bench.model.engine, within_s=120)
        at = frame().run()
        assert "float32 · transformers" in at.sidebar.caption[1].value
        assert file.quantisation not in at.sidebar.caption[1].value
        at.button(key="model_machine").click().run()
        assert not at.exception, at.exception
        assert any(f"{file.quantisation} · float32 · transformers" in one.value for one in at.caption)
        assert not any("weights repacked" in one.value for one in at.caption)
    finally:
        bench.load(path)
        until(lambda: bench.model.engine)


@pytest.mark.parametrize(
    ("label", "value", "message"),
    [
        ("Threads", 999, "Threads = 999: must be a whole number from 1 to 512"),
        ("Sequences", 100_000, "Sequences = 100000: must be a whole number from 1 to 256"),
        ("Context", 3, "Context = 3: must be a whole number from 16 to"),
        ("GPU layers", -2, "GPU layers = -2"),
    ],
)
def test_a_field_out_of_range_is_named_as_it_stands_there_and_nothing_can_be_loaded(
    bench: Workbench, label: str, value: int, message: str
) -> None:
    at = frame().run()
    at.button(key="model_change").click().run()
    (field,) = [one for one in at.number_input if one.label == label]
    assert field.min is field.max is None, "a browser keeps back what lies beyond the bounds"
    field.set_value(value)
    at.button(key="model_change").click().run()
    assert not at.exception, at.exception
    assert any(plain(message) in one.value for one in at.error)
    assert not [button for button in at.button if button.key == "pick_load"]


def test_a_dialog_stays_open_while_the_page_runs_again(bench: Workbench, folder: Path) -> None:
    at = frame().run()
    assert not [box for box in at.selectbox if box.key == "pick_file"]
    at.button(key="model_change").click().run()
    at.run()
    box = at.selectbox(key="pick_file")
    box.select_index(1 - (box.index or 0)).run()
    assert at.selectbox(key="pick_file").value != bench.model.path
    at.button(key="model_machine").click().run()
    assert not [box for box in at.selectbox if box.key == "pick_file"]
    assert "process" in at.dataframe[-1].value


def test_a_server_that_can_be_started_here_has_its_parameters_and_a_missing_one_the_way_to_get_it(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_programs, "build_folder", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    at = frame().run()
    at.button(key="model_change").click().run()
    at.segmented_control(key="pick_source").set_value(ELSEWHERE).run()
    assert not at.exception, at.exception
    assert any("run `make peers`" in one.value for one in at.caption)
    assert not [button for button in at.button if button.key == "start_server"]
    at.segmented_control(key="start_kind").set_value("llama_cpp.server").run()
    assert not at.exception, at.exception
    fields = [one.key for one in at.number_input if (one.key or "").startswith("start_")]
    assert fields == ["start_n_ctx", "start_threads"], "it answers one request at a time"
    assert not at.button(key="start_server").disabled
    at.number_input(key="start_n_ctx").set_value(3).run()
    assert any(plain("Context = 3: must be a whole number from 16 to") in one.value for one in at.error)
    assert not [button for button in at.button if button.key == "start_server"]


def test_a_model_that_ended_by_itself_is_said_and_loaded_again(bench: Workbench) -> None:
    engine, _ = bench.model.loaded()
    engine.close("its worker could not be replaced")
    at = frame().run()
    assert not at.exception, at.exception
    assert any(plain("is no longer loaded: its worker could not be replaced") in one.value for one in at.error)
    at.button(key="model_again").click().run()
    assert not at.exception, at.exception
    until(lambda: bench.model.engine, "the model is not loaded again", 60)
    at.run()
    assert not at.error
