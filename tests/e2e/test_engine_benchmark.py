"""The question which engine is fastest here, in a real browser: engines chosen, confirmed, measured and compared."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from engine.backends.known import KnownEngine, add_known
from tests.e2e.conftest import Server, is_settled, running
from tests.engine.backends.fake_server import COMPLETIONS, Request, chunk, fake_server

OpenPage = Callable[..., Page]

pytestmark = pytest.mark.slow


def answered(request: Request) -> None:
    """Answer with as many tokens as are asked for."""
    num = request.body["max_tokens"]
    request.events(*[chunk(" a") for _ in range(num - 1)], chunk(" a", finish="length"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that knows one engine on this machine and one on another."""
    with fake_server({COMPLETIONS: answered}) as (address, _seen):
        add_known(tmp_path, KnownEngine(name="desk", url=address))
        add_known(tmp_path, KnownEngine(name="hosted", url="https://api.example.com"))
        with running(tmp_path) as made:
            yield made


def test_engines_are_chosen_confirmed_and_compared(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/benchmark?question=engines", "Benchmark")
    is_settled(page)
    chosen = page.get_by_role("toolbar", name="Engine")
    for name in ("llama-server", "llama_cpp.server", "transformers", "create_completion", "llama-bench"):
        pill = chosen.get_by_role("button", name=name, exact=True)
        if pill.get_attribute("aria-pressed") == "true":
            pill.click()
            is_settled(page)
    field(page, "Users", "1")
    field(page, "Rounds", "1")
    chosen.get_by_role("button", name="hosted (external)").click()
    is_settled(page)
    expect(page.get_by_text("This sends about 10 prompts to api.example.com.").first).to_be_visible()
    page.get_by_role("button", name=re.compile(r"^Run without a verdict · about")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(re.compile(r"prompts to api\.example\.com\. Send them\?$"))).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    expect(page).to_have_url(re.compile(r"\?question=engines$"))
    chosen.get_by_role("button", name="hosted (external)").click()
    is_settled(page)
    page.get_by_role("button", name=re.compile(r"^Run without a verdict · about")).click()
    expect(page).to_have_url(re.compile(r"\?run=[0-9a-f-]{36}$"))
    expect(page.get_by_role("button", name=re.compile(r"Run again$"))).to_be_enabled(timeout=120_000)
    expect(page.get_by_role("heading", level=3).first).to_have_text(
        re.compile(r"^With 1 user, this pool and desk \(external\) cannot be told apart yet")
    )
    expect(page.get_by_text(re.compile(r"desk \(external\)$")).first).to_be_visible()


def field(page: Page, label: str, value: str) -> None:
    """Type into a field and leave it, then wait for the page."""
    box = page.get_by_label(label, exact=True)
    box.fill(value)
    box.press("Enter")
    is_settled(page)
