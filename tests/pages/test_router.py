"""The frame: navigation and model bar, on the router as the server runs it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from engine.errors import HistoryError, ModelError
from engine.history.database_writer import DatabaseWriter
from engine.workbench import Workbench
from tests.pages.app import frame, open_page
from tests.pages.conftest import wait_for_model

ROOT = Path(__file__).parents[2]
FIRST = ("router", "prompt_lab", "overview")
"""Modules in `pages` that the first address of a visit runs."""

READS_HISTORY = {
    "overview": "Overview",
    "prompt_lab": "Prompt lab",
    "compare": "Compare",
    "benchmark": "Benchmark",
    "history": "History",
    "cost": "Cost",
    "models": "Models",
}


def page() -> AppTest:
    return frame().run()


def test_the_page_opens_with_its_title_and_the_model(bench: Workbench) -> None:
    at = page()
    assert not at.exception
    assert [title.value for title in at.title] == ["Prompt lab"]
    bar = " ".join(element.value for element in [*at.sidebar.markdown, *at.sidebar.caption])
    assert "Logitbench Story" in bar
    assert "demonstration model" in bar
    assert f"context {bench.model.loaded()[0].capabilities.n_ctx}" in bar


def test_eject_frees_the_model_and_the_bar_says_so(bench: Workbench) -> None:
    bench.model_manager.eject()
    at = page()
    assert "No model is loaded." in [caption.value for caption in at.sidebar.caption]
    assert at.button(key="model_change").label == "Choose a model"
    assert at.button(key="do_run").disabled
    assert any(caption.value.startswith("No model is loaded") for caption in at.main.caption)
    bench.load_default()
    wait_for_model(bench)
    at = page()
    assert at.button(key="model_change").label == "Change"
    assert not at.button(key="do_run").disabled
    assert not any(caption.value.startswith("No model is loaded") for caption in at.main.caption)


def test_a_file_that_is_no_model_is_explained_in_the_bar(bench: Workbench, tmp_path: Path) -> None:
    broken = tmp_path / "broken_[x](y)_.gguf"
    broken.write_bytes(b"not a model")
    bench.model_manager.load(broken)
    wait_for_model(bench)
    assert isinstance(bench.model.error, ModelError)
    at = page()
    assert not at.exception
    assert "broken" in at.sidebar.error[0].value
    bench.load_default()
    wait_for_model(bench)


@pytest.mark.parametrize(("name", "title"), READS_HISTORY.items())
def test_a_history_that_fails_anywhere_is_an_error_on_the_page(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, name: str, title: str
) -> None:
    """Never a traceback, whatever the page asked the history for; and every page works again afterwards."""

    def fail(*_arguments: object, **_named: object) -> object:
        raise HistoryError("the disk is gone")

    assert bench.history is not None
    bench.history.file.write(lambda _cursor: None).result()  # what was read before is read again
    with monkeypatch.context() as broken:
        broken.setattr(DatabaseWriter, "reading", fail)
        at = frame().switch_page(f"{name}.py").run()
        assert not at.exception, at.exception
        assert "The disk is gone" in " ".join(error.value for error in at.error)
    assert not [error for error in open_page(f"{name}.py", title).error if "disk is gone" in error.value]


def test_a_first_visit_does_not_wait_for_pandas() -> None:
    """Tables load it, once a page draws one."""
    parsed = [ast.parse((ROOT / "pages" / f"{name}.py").read_text("utf-8")) for name in FIRST]
    found = [node for one in parsed for node in one.body if isinstance(node, ast.Import | ast.ImportFrom)]
    loaded = "import sys; print('pandas' in sys.modules)"
    program = "\n".join([*map(ast.unparse, found), loaded])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["False"]
