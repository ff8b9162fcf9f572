"""What if in the Prompt lab: sliders on a run of the real model, and a run that goes on from there."""

import re

import pytest
from playwright.sync_api import Locator, TimeoutError, expect

from tests.e2e.conftest import Server, has_ended
from tests.e2e.test_prompt_lab import OpenPage, answer, fill, is_ready, run

pytestmark = pytest.mark.slow


def comes(found: Locator, within_ms: float = 5_000) -> bool:
    """Whether an element comes within some seconds."""
    try:
        found.wait_for(timeout=within_ms)
    except TimeoutError:
        return False
    return True


def test_a_run_goes_on_from_the_first_token_that_would_differ(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "24")
    run(page)
    has_ended(page)
    before = answer(page).all_inner_texts()
    page.get_by_role("button", name="What if", exact=True).click()
    panel = page.get_by_role("region", name="What if")
    panel.get_by_label("Temperature", exact=True).fill("0")
    verdict = panel.get_by_role("status")
    expect(verdict).to_contain_text(re.compile(r"At temperature 0 the \d+(st|nd|rd|th) token would be"))
    would = verdict.locator(".quoted").first.inner_text()
    expect(page.locator(".t.answer.first-other")).to_have_count(1)
    classes = answer(page).evaluate_all("spans => spans.map(span => span.className)")
    first = next(index for index, names in enumerate(classes) if "first-other" in names)
    expect(page).to_have_url(re.compile("what_if=temperature%3A0$"))
    page.reload()
    expect(verdict).to_contain_text("At temperature 0 the")
    is_ready(page)
    url = page.url
    panel.get_by_role("button", name="Run on from here").click()
    expect(page).not_to_have_url(url)
    expect(answer(page).nth(first)).to_have_text(would)
    has_ended(page)
    assert answer(page).all_inner_texts()[: first + 1] == [*before[:first], would]
    expect(page.get_by_label("Temperature", exact=True).first).to_have_value("0.00")
    expect(page.get_by_text("Edited since this run.")).to_be_hidden()
    expect(page).not_to_have_url(re.compile("what_if"))


def test_a_limit_of_the_x_ray_opens_it_where_the_other_token_is_drawn(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "16")
    fill(page, "Seed", "3")
    run(page)
    has_ended(page)
    answer(page).first.click()
    summary = page.get_by_text("Sampler X-ray")
    expect(summary).to_be_visible()
    if page.locator(".xray[open]").count() == 0:
        summary.click()
    limits = page.locator(".flips li").get_by_role("button")
    for place in range(16):  # of some tokens no limit is known
        if place:  # the first is pinned, and another click would unpin it
            answer(page).nth(place).click()
        expect(page.locator(".inspector h3").first).to_have_text(f"Token {place + 1} of 16")
        if comes(limits.first):
            break
    else:
        pytest.fail("no token has a limit")
    other, name = limits.first.inner_text(), limits.first.get_attribute("title")
    found = re.fullmatch(r"What if: the whole run at (\S+) (\S+)", name or "")
    assert found is not None
    limits.first.click()
    panel = page.get_by_role("region", name="What if")
    expect(panel.get_by_label(found[1].capitalize(), exact=True)).to_have_value(found[2])
    expect(answer(page).nth(place)).to_have_attribute("aria-label", re.compile(f"would be {re.escape(other.strip())}$"))
