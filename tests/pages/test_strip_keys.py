"""The keys of the strip in a real browser, and the dialog that lists them."""

import math
import re

from playwright.sync_api import Locator, Page, expect

from tests.pages.harness import Server
from tests.pages.strip_page import finished, show


def title(page: Page) -> Locator:
    return page.locator(".inspector h3")


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Keys")


def test_a_question_mark_lists_the_keys_and_escape_gives_the_focus_back(page: Page, server: Server) -> None:
    tokens = show(page, server, finished())
    tokens.nth(3).click()
    page.keyboard.press("?")
    expect(dialog(page)).to_be_visible()
    for key in ("←", "Home", "Space", "Esc", "N", "X", "PgUp PgDn", "?"):
        expect(dialog(page).locator("kbd", has_text=re.compile(f"^{re.escape(key)}$")).first).to_be_visible()
    page.keyboard.press("n")
    page.keyboard.press("ArrowRight")
    expect(title(page)).to_have_text(re.compile("^Token 4 of"))
    page.keyboard.press("Escape")
    expect(dialog(page)).to_be_hidden()
    expect(page.locator(".text")).to_be_focused()
    expect(page.locator(".t.pinned")).to_have_count(1)


def test_the_focus_stays_in_the_dialog(page: Page, server: Server) -> None:
    show(page, server, finished())
    button = page.get_by_role("button", name="Keys")
    button.click()
    inside = "() => host.shadowRoot.activeElement === null || host.shadowRoot.activeElement.closest('dialog') !== null"
    for _ in range(6):
        page.keyboard.press("Tab")
        assert page.evaluate(inside)
    dialog(page).get_by_role("button", name="Close (Esc)").click()
    expect(button).to_be_focused()


def test_a_letter_typed_into_a_field_is_a_letter(page: Page, server: Server) -> None:
    tokens = show(page, server, finished())
    tokens.nth(3).click()
    page.evaluate("document.body.append(Object.assign(document.createElement('textarea'), { id: 'field' }))")
    page.locator("#field").focus()
    page.keyboard.type("why? nbx")
    expect(page.locator("#field")).to_have_value("why? nbx")
    expect(dialog(page)).to_be_hidden()
    expect(title(page)).to_have_text(re.compile("^Token 4 of"))


def test_n_and_b_walk_over_the_tokens_below_five_per_cent(page: Page, server: Server) -> None:
    trial = finished()
    show(page, server, trial)
    expect(page.locator(".ending")).not_to_be_empty()
    places = [index for index, step in enumerate(trial.steps) if math.exp(step.logprob or 0.0) < 0.05]
    assert len(places) > 2
    page.locator(".text").press("Home")
    for index in places[:3]:
        page.keyboard.press("n")
        expect(title(page)).to_have_text(f"Token {index + 1} of {len(trial.steps)}")
    page.keyboard.press("b")
    expect(title(page)).to_have_text(f"Token {places[1] + 1} of {len(trial.steps)}")
    page.keyboard.press("End")
    page.keyboard.press("b")
    last = max(index for index in places if index < len(trial.steps) - 1)
    expect(title(page)).to_have_text(f"Token {last + 1} of {len(trial.steps)}")


def test_m_and_u_change_colour_and_unit_from_anywhere_in_the_strip(page: Page, server: Server) -> None:
    show(page, server, finished())
    root = page.locator(".root")
    page.get_by_role("button", name="Surprise").focus()
    for mode in ("uncertainty", "time", "surprise"):
        page.keyboard.press("m")
        expect(root).to_have_attribute("data-mode", mode)
    page.keyboard.press("u")
    expect(page.locator(".legend")).to_contain_text("surprise, bits")


def test_keys_with_a_modifier_belong_to_the_browser(page: Page, server: Server) -> None:
    show(page, server, finished())
    page.locator(".text").press("Control+m")
    expect(page.locator(".root")).to_have_attribute("data-mode", "surprise")


def test_single_letters_can_be_switched_off_and_on_again(page: Page, server: Server) -> None:
    show(page, server, finished())
    page.get_by_role("button", name="Keys").click()
    dialog(page).get_by_role("checkbox").uncheck()
    page.keyboard.press("Escape")
    page.locator(".text").press("m")
    page.keyboard.press("?")
    expect(dialog(page)).to_be_hidden()
    expect(page.locator(".root")).to_have_attribute("data-mode", "surprise")
    page.keyboard.press("End")
    expect(page.locator(".t.pinned")).to_have_count(1)
    page.reload()
    page.get_by_role("button", name="Keys").click()
    dialog(page).get_by_role("checkbox").check()
    page.keyboard.press("Escape")
    page.locator(".text").press("m")
    expect(page.locator(".root")).to_have_attribute("data-mode", "uncertainty")


def test_buttons_of_the_page_with_a_shortcut_are_listed(page: Page, server: Server) -> None:
    show(page, server, finished())
    page.evaluate(
        """() => {
          const button = document.createElement("button");
          button.dataset.hasShortcut = "true";
          button.innerHTML =
            "<span data-testid='stIconMaterial'>play_arrow</span><span>Run</span>" +
            "<span aria-label='Shortcut Ctrl + Enter'>Ctrl + Enter</span>";
          document.body.append(button);
        }"""
    )
    page.get_by_role("button", name="Keys").click()
    expect(dialog(page).locator("div", has_text=re.compile("^Ctrl \\+ EnterRun$"))).to_have_count(1)


def test_the_focus_goes_back_to_the_text_where_its_own_place_is_gone(page: Page, server: Server) -> None:
    show(page, server, finished())
    expect(page.locator(".inspector .sentence")).to_be_visible()
    gone = page.evaluate_handle(
        "() => { const one = document.createElement('button');"
        " host.shadowRoot.querySelector('.inspector .content').append(one); one.focus(); return one; }"
    )
    page.keyboard.press("n")
    expect(page.locator(".text")).to_be_focused()
    assert gone.evaluate("one => one.isConnected") is False
