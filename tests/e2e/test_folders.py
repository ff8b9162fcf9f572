"""A folder of safetensors in the real browser: chosen, loaded, run, replayed and compared with llama.cpp."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import lend_exports
from tests.e2e.conftest import RUN, Server, choose_option, is_settled, run_opening, running

OpenPage = Callable[[str], Page]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, exported: Path, story_folder: Path, float_model: Path
) -> Iterator[Server]:
    """A server with the network of its model as a folder and as a GGUF file of 32-bit floats in the library."""
    home = tmp_path_factory.mktemp("folders")
    lend_exports(home, exported)
    (home / "models").mkdir()
    shutil.copytree(story_folder, home / "models" / "story-folder")
    shutil.copy(float_model, home / "models" / "story-F32.gguf")
    with running(home) as found:
        yield found


def test_a_folder_is_loaded_run_and_compared_with_llama_cpp(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)
    page.get_by_role("button", name="Change", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    choose_option(dialog.get_by_role("combobox").first, re.compile("story-folder · F32 .* folder"))
    expect(dialog.get_by_text(re.compile("tokens, 8 layers, float32"))).to_be_visible()
    is_settled(page)
    dialog.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_text(re.compile("float32 · transformers")).first).to_be_visible()
    run_opening(page, 24)
    page.locator(".t.answer").nth(5).click()
    expect(page.get_by_text("The model ranked").first).to_be_visible()
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_text(re.compile("Identical:"))).to_be_visible()
    page.get_by_role("button", name="Compare with another model").click()
    other = page.get_by_role("combobox", name="Other model")
    expect(other).to_be_visible()
    is_settled(page)
    before = page.url
    choose_option(other, re.compile("Logitbench Story · F32"))
    expect(page).not_to_have_url(before)
    is_settled(page)
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_text(re.compile("KL below 0.000001 nats .* is the same at all"))).to_be_visible()
    page.goto(f"{server.url}/models")
    expect(page.get_by_text(re.compile("3 models"))).to_be_visible()
