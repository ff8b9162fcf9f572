"""The model bar's picker as it opens; tests/e2e goes on from there, since a dialog lives in a browser only."""

import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from engine.workbench import Workbench

ROUTER = Path(__file__).parents[2] / "pages" / "router.py"


@pytest.fixture
def folder(models_folder: Path, story_model: Path) -> Path:
    """The folder of models of the settings, with one model and one file that is none."""
    shutil.copy(story_model, models_folder / "other <b>.gguf")
    (models_folder / "broken.gguf").write_bytes(b"no model")
    return models_folder


def test_it_opens_on_the_loaded_model_among_all_that_are_here(bench: Workbench, folder: Path) -> None:
    at = AppTest.from_file(str(ROUTER), default_timeout=60).run()
    at.button(key="model_change").click().run()
    assert not at.exception, at.exception
    box = at.selectbox(key="pick_file")
    assert box.value == bench.model.path
    assert len(box.options) == 2
    assert "1 file cannot be used: the Models page says why." in [caption.value for caption in at.caption]
    assert not at.button(key="pick_load").disabled
