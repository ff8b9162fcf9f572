"""Watched words in a real browser, with the model that ships."""

import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlparse

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import RUN, Server, has_ended, is_settled

OpenPage = Callable[[str], Page]
DRAWN = re.compile("^M1 ")


def rows(page: Page) -> Locator:
    return page.locator(".word-rows .word")


def watch(page: Page, *typed: str) -> None:
    for one in typed:
        field = page.get_by_role("textbox", name="Watch a word")
        field.fill(one)
        field.press("Enter")


def watched_in(page: Page) -> list[str]:
    return parse_qs(urlparse(page.url).query).get("watch", [])


def test_words_are_watched_from_the_address_after_a_reload_and_at_the_next_trial(
    shipped: Server, open_page: OpenPage
) -> None:
    page = open_page(shipped.url)
    has_ended(page)
    watch(page, " king", "princess|queen")
    expect(rows(page).locator(".line-path")).to_have_count(2)
    for row in rows(page).all():
        expect(row.locator(".line-path")).to_have_attribute("d", DRAWN)
        expect(row.locator(".word-summary")).to_contain_text(
            re.compile("is most likely at .*token [0-9]+: .*rank [0-9]")
        )
    expect(page.locator(".odds .word-summary")).to_contain_text("the largest log-odds are")
    expect(page).to_have_url(re.compile("watch=princess"))
    assert watched_in(page) == [" king", "princess|queen"]
    sentences = rows(page).locator(".word-summary").all_inner_texts()
    page.reload()
    expect(rows(page)).to_have_count(2)
    expect(rows(page).nth(1).locator(".word-summary")).to_have_text(sentences[1])
    page.get_by_label("Max tokens", exact=True).fill("8")
    page.get_by_label("Max tokens", exact=True).press("Enter")
    is_settled(page)
    before = page.url
    page.get_by_role("button", name=RUN).click()
    expect(page).not_to_have_url(before)
    has_ended(page)
    assert watched_in(page) == [" king", "princess|queen"]
    expect(rows(page).first.locator(".line-path")).to_have_attribute("d", DRAWN)
    expect(page.locator(".t.answer")).to_have_count(8)


@pytest.mark.slow
def test_a_watched_token_has_the_probability_and_rank_of_the_inspector(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    has_ended(page)
    page.locator(".t.answer").nth(5).click()
    expect(page.locator(".inspector h3").first).to_have_text(re.compile("^Token 6 of "))
    chosen = page.locator(".candidates .chosen")
    expect(chosen).to_be_visible()
    facts = page.locator(".inspector .facts")
    token, rank = (facts.locator(f"div:has(dt:text-is('{name}')) dd").inner_text() for name in ("id", "rank"))
    watch(page, f"#{token.replace(',', '')}")
    expect(rows(page).first.locator(".value")).to_contain_text(f"rank {rank}")
    percent = float(rows(page).first.locator(".value").inner_text().split("\u202f")[0])
    shown = float(chosen.locator(".number").first.inner_text())
    assert percent / 100 == pytest.approx(shown, abs=0.006)


@pytest.mark.slow
def test_a_phrase_is_computed_when_asked_and_a_word_can_be_removed(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    has_ended(page)
    watch(page, '" the king"')
    row = rows(page).first
    expect(row.locator(".word-summary")).to_contain_text("forward passes")
    row.get_by_role("button", name="Compute").click()
    expect(row.locator(".word-summary")).to_contain_text("is most likely at", timeout=120_000)
    expect(row.locator(".line-path")).to_have_attribute("d", DRAWN)
    row.get_by_role("button", name="Stop watching").click()
    expect(rows(page)).to_have_count(0)
    expect(page).not_to_have_url(re.compile("watch="))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 900])
def test_hostile_words_in_the_address_are_text(shipped: Server, open_page: OpenPage, width: int) -> None:
    hostile = "%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%3D1%22%3E"
    page = open_page(f"{shipped.url}/?watch={hostile}&watch=%00&watch=%E2%80%AEabc&watch={'x' * 3000}")
    page.set_viewport_size({"width": width, "height": 1000})
    has_ended(page)
    expect(rows(page)).to_have_count(4)
    expect(rows(page).nth(3).get_by_role("alert")).to_contain_text("3,000 characters, at most 200 are allowed")
    assert page.evaluate("window.hacked") is None
    panel, main = page.locator(".words").bounding_box(), page.locator(".main").bounding_box()
    assert panel is not None and main is not None
    assert panel["width"] <= main["width"] + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_lines_grow_while_a_trial_runs(slow: Server, open_page: OpenPage) -> None:
    page = open_page(f"{slow.url}/?watch=%23300")
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)
    page.get_by_label("Max tokens", exact=True).fill("2000")
    page.get_by_label("Max tokens", exact=True).press("Enter")
    is_settled(page)
    page.get_by_role("button", name=RUN).click()
    line = rows(page).first.locator(".line-path")
    expect(line).to_have_attribute("d", re.compile("^M[0-9]+ .*L.*L"))  # three tokens at least
    expect(rows(page).first.locator(".word-summary")).to_contain_text("is most likely at token")
    page.get_by_role("button", name="Stop", exact=True).click()  # it still runs
    has_ended(page)
    expect(line).to_have_attribute("d", DRAWN)
