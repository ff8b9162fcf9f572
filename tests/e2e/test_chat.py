"""A chat in a real browser: turns, the tokens of older answers, edits, and the conversation after a reload."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.chat_model import CLOSING, write_chat_model
from tests.e2e.conftest import Server, is_settled, running, strip_has_ended
from tests.waiting import until

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
SEND = re.compile("^Send Shortcut")


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the model that ships, which has a chat template here."""
    home = tmp_path_factory.mktemp("chatting")
    with running(home, write_chat_model(home / "chat.gguf", CLOSING)) as server:
        yield server


def message(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message", exact=True)


def bubbles(page: Page) -> Locator:
    return page.locator(".bubble")


def answer(page: Page) -> Locator:
    """The tokens of the newest answer."""
    return page.locator(".root:not(.folded):not(.unfolded) .t.answer")


def new_chat(page: Page, max_tokens: int = 12) -> None:
    expect(page.get_by_role("button", name=re.compile("^(Run|Send) Shortcut"))).to_be_enabled()
    is_settled(page)
    page.get_by_text("Chat", exact=True).click()
    expect(page.get_by_role("button", name=SEND)).to_be_visible()
    is_settled(page)
    begin = page.get_by_role("button", name="New chat", exact=True)
    if begin.is_enabled():
        begin.click()
        expect(bubbles(page)).to_have_count(0)
        is_settled(page)
    field = page.get_by_label("Max tokens", exact=True)
    field.fill(str(max_tokens))
    field.press("Enter")
    is_settled(page)
    expect(field).to_have_value(str(max_tokens))


def has_ended(page: Page) -> None:
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name=SEND)).to_be_enabled()
    strip_has_ended(page)


def send(page: Page, text: str) -> None:
    count, before = bubbles(page).count(), page.url
    message(page).fill(text)
    message(page).press("Control+Enter")
    expect(page).not_to_have_url(before)
    expect(bubbles(page)).to_have_count(count + 1)
    expect(message(page)).to_have_value("")
    has_ended(page)


def edit(page: Page, old: str, new: str) -> Locator:
    """Type another text into the person's last message; returns its field."""
    page.get_by_role("button", name="edit icon").last.click()
    field = page.get_by_role("textbox", name="Edit message")
    expect(field).to_have_value(old)
    is_settled(page)
    field.fill(new)
    return field


def test_a_conversation_is_sent_reloaded_and_looked_into(chatting: Server, open_page: OpenPage) -> None:
    page = open_page(chatting.url)
    new_chat(page)
    for text in ("Who lives in the wood?", "And then?", "How does it end?"):
        send(page, text)
    expect(bubbles(page)).to_have_text(["Who lives in the wood?", "And then?", "How does it end?"])
    expect(page.locator(".fold:visible")).to_have_count(2)
    count = answer(page).count()
    assert 0 < count <= 12
    expect(page.locator(".t.prompt")).to_have_count(0)
    page.reload()
    expect(bubbles(page)).to_have_text(["Who lives in the wood?", "And then?", "How does it end?"])
    expect(answer(page)).to_have_count(count)
    has_ended(page)
    page.get_by_role("button", name="Tokens", exact=True).first.click()
    older = page.locator(".unfolded .t.answer")
    expect(older.first).to_be_visible()
    older.first.click()
    heading = page.locator(".inspector h3")
    expect(heading).to_have_count(1)
    expect(heading).to_have_text(re.compile("^Token 1 of"))
    expect(older.first).to_have_class(re.compile("pinned"))
    page.get_by_role("button", name="Template", exact=True).click()
    rendered = page.locator(".rendered")
    expect(rendered).to_contain_text("[user]Who lives in the wood?")
    expect(rendered.locator(".control").first).to_have_text("<s>")


def test_an_edit_begins_a_line_and_the_old_one_is_found_again(chatting: Server, open_page: OpenPage) -> None:
    page = open_page(chatting.url)
    new_chat(page, 6)
    send(page, "A king?")
    send(page, "A fox?")
    before = page.url
    edit(page, "A fox?", "A wolf?")
    page.get_by_role("button", name="Send from here").click()
    expect(page).not_to_have_url(before)
    expect(bubbles(page)).to_have_text(["A king?", "A wolf?"])
    has_ended(page)
    page.get_by_role("button", name="Earlier version").click()
    expect(page).to_have_url(before)
    expect(bubbles(page)).to_have_text(["A king?", "A fox?"])


def test_another_answer_joins_the_first_as_a_branch(chatting: Server, open_page: OpenPage) -> None:
    page = open_page(chatting.url)
    new_chat(page, 6)
    send(page, "A miller?")
    before = page.url
    page.get_by_role("button", name="Regenerate", exact=True).click()
    expect(page).not_to_have_url(before)
    has_ended(page)
    expect(bubbles(page)).to_have_text(["A miller?"])
    expect(page.get_by_role("tree")).to_be_visible()
    expect(page.get_by_text("Branches · 2 trials")).to_be_visible()


@pytest.mark.parametrize("width", [1400, 900])
def test_the_newest_answer_and_the_composer_are_seen_when_a_chat_opens(
    chatting: Server, open_page: OpenPage, width: int
) -> None:
    page = open_page(chatting.url)
    page.set_viewport_size({"width": width, "height": 900})
    new_chat(page, 60)
    for text in ("Who lives in the wood?", "And then?", "How does it end?", "Is that all?"):
        send(page, text)
    page.reload()
    expect(bubbles(page)).to_have_count(4)
    has_ended(page)
    composer = message(page).bounding_box()
    assert composer is not None and composer["y"] + composer["height"] <= 900
    last = answer(page).last
    expect(last).to_be_in_viewport()
    until(
        lambda: last.evaluate("token => token.getBoundingClientRect().bottom") <= composer["y"], "the answer is hidden"
    )


def test_ctrl_enter_belongs_to_the_field_that_it_is_pressed_in(chatting: Server, open_page: OpenPage) -> None:
    page = open_page(chatting.url)
    new_chat(page, 6)
    message(page).fill("Who lives here?")
    page.get_by_role("button", name="System prompt").click()
    box = page.get_by_role("textbox", name="System prompt")
    box.fill("Answer as a fox.")
    expect(page.get_by_text("Press Ctrl+Enter to apply")).to_be_visible()
    before = page.url
    box.press("Control+Enter")
    expect(page.get_by_role("button", name="System prompt · 16 characters")).to_be_visible()
    is_settled(page)
    assert page.url == before
    expect(bubbles(page)).to_have_count(0)
    box.press("Escape")
    send(page, "Who lives here?")
    before = page.url
    edit(page, "Who lives here?", "Who lives there?").press("Control+Enter")
    expect(page).not_to_have_url(before)
    expect(bubbles(page)).to_have_text(["Who lives there?"])
    has_ended(page)
