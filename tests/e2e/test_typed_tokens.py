"""Tokens of a text while it is typed, in a real browser, by the model that ships: the Prompt lab and a model's page."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from engine.models import embedded_model
from engine.models.tokenizer import Tokenizer
from pages.parts.live_ask import MAX_TEXT
from tests.e2e.conftest import RUN, Server, has_ended, is_settled

OpenPage = Callable[..., Page]
HOSTILE = '<img src=x onerror="window.hacked=1"> naïve\u202e 🐈\n\n  end'
SEEN = "chips => chips.map(chip => chip.textContent).join('')"


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    made = Tokenizer(embedded_model())
    yield made
    made.close()


@pytest.fixture
def lab(shipped: Server, open_page: OpenPage) -> Page:
    page = open_page(shipped.url)
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)
    return page


def prompt(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Prompt")


def count(page: Page) -> Locator:
    return page.locator(".typed .count")


def ids(page: Page) -> list[int]:
    """The ids that the chips name."""
    titles: list[str] = page.locator(".typed .piece").evaluate_all("chips => chips.map(chip => chip.title)")
    return [int(title.removeprefix("id ")) for title in titles]


def test_the_prompt_is_counted_while_it_is_typed_and_its_tokens_unfold(lab: Page, tokenizer: Tokenizer) -> None:
    expect(count(lab)).to_have_text(re.compile(r"^\d+ of 512 tokens$"))
    prompt(lab).fill("")
    for text in ("The little", "The little tailor"):
        prompt(lab).press_sequentially(text.removeprefix(prompt(lab).input_value()))
        expect(count(lab)).to_have_text(f"{len(tokenizer.tokenize(text))} of 512 tokens")
    expect(prompt(lab)).to_be_focused()
    expect(lab.locator(".typed .piece").first).to_be_hidden()
    count(lab).click()
    expect(lab.locator(".typed .piece").first).to_be_visible()
    assert ids(lab) == tokenizer.tokenize("The little tailor")
    lab.reload()
    expect(lab.locator(".typed .piece").first).to_be_visible()


def test_a_paste_is_shown_whole_and_an_edit_leaves_the_other_chips(lab: Page, tokenizer: Tokenizer) -> None:
    text = "Once upon a time there was a poor miller who had three sons."
    prompt(lab).fill(text)
    expect(count(lab)).to_have_text(f"{len(tokenizer.tokenize(text))} of 512 tokens")
    lab.evaluate("window.kept = [...document.querySelectorAll('*')].map(one => one.shadowRoot).filter(Boolean)"
                 ".flatMap(root => [...root.querySelectorAll('.piece')])")  # fmt: skip
    edited = text.replace("poor", "very poor")
    prompt(lab).fill(edited)
    expect(count(lab)).to_have_text(f"{len(tokenizer.tokenize(edited))} of 512 tokens")
    assert ids(lab) == tokenizer.tokenize(edited)
    left = lab.evaluate("kept.filter(chip => chip.isConnected).length")
    assert left >= len(tokenizer.tokenize(text)) - 2


def test_what_is_typed_is_only_text(lab: Page, tokenizer: Tokenizer) -> None:
    prompt(lab).fill(HOSTILE)
    expect(count(lab)).to_have_text(f"{len(tokenizer.tokenize(HOSTILE))} of 512 tokens")
    assert ids(lab) == tokenizer.tokenize(HOSTILE)
    assert lab.locator(".typed img").count() == 0
    assert lab.evaluate("window.hacked") is None
    assert lab.locator(".typed .piece").evaluate_all(SEEN) == HOSTILE


def test_too_many_tokens_and_too_many_characters_are_said(lab: Page, tokenizer: Tokenizer) -> None:
    prompt(lab).fill("cat " * 700)
    expect(count(lab)).to_have_text(f"{len(tokenizer.tokenize('cat ' * 700)):,} tokens; the context holds 512")
    prompt(lab).fill("x" * (MAX_TEXT + 1))
    expect(count(lab)).to_have_text(f"Tokens are shown while typing up to {MAX_TEXT:,} characters")
    expect(lab.locator(".typed .piece")).to_have_count(0)
    prompt(lab).fill("cat")
    expect(count(lab)).to_have_text(f"{len(tokenizer.tokenize('cat'))} of 512 tokens")


@pytest.mark.slow
def test_without_a_model_its_place_is_kept(lab: Page) -> None:
    lab.get_by_role("button", name="Eject", exact=True).click()
    expect(count(lab)).to_have_text("Tokens")
    is_settled(lab)
    lab.get_by_role("button", name="Choose a model", exact=True).click()
    lab.get_by_role("dialog").get_by_role("button", name="Load", exact=True).click()
    expect(count(lab)).to_have_text(re.compile(r"^\d+ of 512 tokens$"))


def test_a_trial_that_is_opened_brings_its_own_text(lab: Page, tokenizer: Tokenizer) -> None:
    prompt(lab).fill("Another tale")
    before = lab.url
    lab.get_by_role("button", name=RUN).click()
    expect(lab).not_to_have_url(before)
    has_ended(lab)
    prompt(lab).fill("Not this one, which is longer")
    prompt(lab).blur()
    is_settled(lab)
    lab.get_by_role("button", name=re.compile("Another tale")).first.click()
    expect(prompt(lab)).to_have_value("Another tale")
    expect(count(lab)).to_have_text(f"{len(tokenizer.tokenize('Another tale'))} of 512 tokens")


@pytest.mark.slow
def test_a_model_page_shows_the_tokens_of_its_own_file(
    shipped: Server, open_page: OpenPage, tokenizer: Tokenizer
) -> None:
    page = open_page(f"{shipped.url}/models?model={embedded_model()}", "Models")
    box = page.get_by_label("Text", exact=True)
    box.fill("one two</s>")
    plain, parsed = tokenizer.tokenize("one two</s>"), tokenizer.tokenize("one two</s>", special=True)
    expect(count(page)).to_have_text(re.compile(rf"^{len(plain)} tokens for 11 characters, \d+\.\d+ characters per"))
    assert ids(page) == plain
    box.press("Control+Enter")
    is_settled(page)
    page.get_by_text("Parse control tokens").click()
    expect(count(page)).to_have_text(re.compile(rf"^{len(parsed)} tokens for"))
    assert ids(page) == parsed
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
