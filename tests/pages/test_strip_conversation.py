"""Strips of a conversation in a real browser: folded answers, the answer without its prompt, one inspector for all."""

import re

from playwright.sync_api import Locator, Page, expect

from tests.pages.harness import ScriptedTrial, Server
from tests.pages.strip_page import finished, show

BESIDE = """async ([second, width]) => {
  const part = async (path, data) => {
    const host = document.createElement("div");
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/strip.css" });
    const parentElement = document.createElement("div");
    host.attachShadow({ mode: "open" }).append(sheet, parentElement);
    const { default: mount } = await import(path);
    return { host, unmount: mount({ data, parentElement, setTriggerValue() {} }) };
  };
  const own = document.getElementById("host");
  own.shadowRoot.querySelector("link").onload = null;
  const [frame, column] = [document.createElement("div"), document.createElement("div")];
  frame.style = "display: flex; flex-wrap: wrap; gap: 24px; align-items: flex-start";
  column.style = "flex: 999 1 440px";
  own.before(frame);
  frame.append(column);
  column.append(own);
  window.update({ inspector: "shared", name: "first" });
  const data = { trial: second, socket: "/logitbench/live", k: 10, mode: "surprise", unit: "p" };
  window.second = await part("/strip.js", { ...data, inspector: "shared", name: "second" });
  column.append(window.second.host);
  const place = await part("/inspector.js", {});
  place.host.id = "place";
  place.host.style = `flex: 1 1 ${width}px`;
  frame.append(place.host);
}"""


def two(page: Page, server: Server, width: int = 320) -> tuple[Locator, Locator, Locator]:
    """Two strips and the inspector that they share beside them: tokens of both, and the inspector's place."""
    server.bench.trials["b"] = finished("Once upon a time there was a king who had a daughter.")
    first = show(page, server, finished(), "a")
    expect(first.first).to_be_visible()
    page.evaluate(BESIDE, ["b", width])
    roots = page.locator(".root.sharing")
    expect(roots).to_have_count(2)
    expect(roots.nth(1).locator(".t.answer").first).to_be_visible()
    return roots.nth(0).locator(".t.answer"), roots.nth(1).locator(".t.answer"), page.locator("#place .shared")


def test_a_folded_answer_is_its_text_until_its_tokens_are_asked_for(page: Page, server: Server) -> None:
    trial = finished()
    show(page, server, trial)
    expect(page.locator(".t.answer").first).to_be_visible()
    page.evaluate("""update({ folded: "As <b>text</b>." })""")
    expect(page.locator(".folded-text")).to_have_text("As <b>text</b>.")
    for hidden in (".text", ".figures", ".bar-row", ".inspector", ".scrub"):
        expect(page.locator(hidden)).to_be_hidden()
    tokens = page.get_by_role("button", name="Tokens")
    expect(tokens).to_have_attribute("aria-expanded", "false")
    tokens.press("Enter")
    expect(page.locator(".t.answer")).to_have_count(len(trial.steps))
    expect(page.locator(".folded-text")).to_be_hidden()
    page.get_by_role("button", name="Text").click()
    expect(page.locator(".folded-text")).to_be_visible()
    expect(page.locator(".t")).to_have_count(0)


def test_a_folded_answer_costs_the_server_nothing(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    trial.go_on(5)
    server.bench.trials["running"] = trial
    show(page, server, finished())
    page.evaluate("""update({ trial: "running", folded: "Text" })""")
    expect(page.locator(".folded-text")).to_have_text("Text")
    assert trial.num_listeners == 0
    page.get_by_role("button", name="Tokens").click()
    expect(page.locator(".t.answer")).to_have_count(5)
    assert trial.num_listeners == 1


def test_a_long_text_without_a_trial_is_shown_whole_on_request(page: Page, server: Server) -> None:
    show(page, server, finished())
    page.evaluate("""update({ trial: null, folded: "A line.\\n".repeat(30) })""")
    text = page.locator(".folded-text")
    expect(text).to_be_visible()
    folded = text.evaluate("one => [one.clientHeight, one.scrollHeight]")
    assert folded[0] < folded[1] / 4
    page.get_by_role("button", name="Show all").click()
    assert text.evaluate("one => one.clientHeight === one.scrollHeight")
    page.get_by_role("button", name="Show less").click()
    assert text.evaluate("one => one.clientHeight") == folded[0]


def test_another_answer_in_its_place_is_folded_again(page: Page, server: Server) -> None:
    show(page, server, finished())
    page.evaluate("""update({ folded: "One" })""")
    page.get_by_role("button", name="Tokens").click()
    expect(page.locator(".t.answer").first).to_be_visible()
    page.evaluate("""update({ folded: "One" })""")
    expect(page.locator(".t.answer").first).to_be_visible()
    page.evaluate("""update({ trial: null, folded: "Another" })""")
    expect(page.locator(".folded-text")).to_have_text("Another")
    expect(page.locator(".t")).to_have_count(0)


def test_the_answer_alone_has_no_prompt_to_walk_into(page: Page, server: Server) -> None:
    trial = finished(scored=True)
    show(page, server, trial)
    page.evaluate("unmount(); update({ answer: true })")
    tokens = page.locator(".t.answer")
    expect(tokens).to_have_count(len(trial.steps))
    expect(page.locator(".t.prompt")).to_have_count(0)
    total = len(trial.steps)
    tokens.nth(2).click()
    page.keyboard.press("Home")
    expect(page.locator(".inspector h3")).to_have_text(f"Token 1 of {total}")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".inspector h3")).to_have_text(f"Token 1 of {total}")
    expect(tokens.first).to_have_class(re.compile("pinned"))
    page.keyboard.press("End")
    expect(page.locator(".inspector h3")).to_have_text(f"Token {total} of {total}")


def test_a_pin_on_the_prompt_is_forgotten_where_the_prompt_is_not_shown(page: Page, server: Server) -> None:
    trial = finished(scored=True)
    show(page, server, trial, "pinned")
    page.locator(".t.prompt").nth(2).click()
    expect(page.locator(".inspector h3")).to_contain_text("Prompt token 3")
    page.evaluate("unmount(); update({ answer: true })")
    expect(page.locator(".t.answer").first).to_be_visible()
    expect(page.locator(".inspector h3")).not_to_contain_text("Prompt token")


def test_one_inspector_shows_the_token_pinned_in_either_strip(page: Page, server: Server) -> None:
    first, second, place = two(page, server)
    second.nth(3).click()
    page.mouse.move(2, 2)
    expect(place.locator("h3")).to_have_text(re.compile("^Token 4 of"))
    expect(place.locator(".of")).to_have_text("second")
    first.nth(5).click()
    page.mouse.move(2, 2)
    expect(place.locator("h3")).to_have_text(re.compile("^Token 6 of"))
    expect(place.locator(".of")).to_have_text("first")
    place.get_by_label("Next token (right arrow)").click()
    expect(first.nth(6)).to_have_class(re.compile("pinned"))
    expect(page.locator(".inspector:visible")).to_have_count(1)


def test_the_pointer_shows_a_strips_tokens_there_for_as_long_as_it_is_on_them(page: Page, server: Server) -> None:
    first, second, place = two(page, server)
    first.nth(5).click()
    page.mouse.move(2, 2)
    second.nth(2).hover()
    expect(place.locator("h3")).to_have_text(re.compile("^Preview · Token 3 of"))
    expect(place.locator(".of")).to_have_text("second")
    expect(page.locator(".tooltip:visible")).to_have_count(0)
    page.mouse.move(2, 2)
    expect(place.locator("h3")).to_have_text(re.compile("^Token 6 of"))
    expect(place.locator(".of")).to_have_text("first")


def test_a_strip_that_goes_takes_its_inspector_along(page: Page, server: Server) -> None:
    first, second, place = two(page, server)
    second.nth(3).click()
    expect(place.locator(".of")).to_have_text("second")
    page.evaluate("second.unmount()")
    expect(place.locator(".of")).to_have_text("")
    expect(place.locator(".inspector")).to_have_count(1)
    first.nth(1).click()
    expect(place.locator("h3")).to_have_text(re.compile("Token 2 of"))


def test_without_room_beside_the_strips_the_inspector_stands_below_the_text_that_is_looked_at(
    page: Page, server: Server
) -> None:
    page.set_viewport_size({"width": 620, "height": 900})
    first, second, place = two(page, server)
    expect(page.locator(".inspector:visible")).to_have_count(0)
    second.nth(3).hover()
    expect(page.locator(".tooltip:visible tr.chosen")).to_be_visible()
    second.nth(3).click()
    roots = page.locator(".root.sharing")
    expect(roots.nth(1).locator(".inspector h3")).to_have_text(re.compile("^Token 4 of"))
    first.nth(2).click()
    expect(roots.nth(0).locator(".inspector h3")).to_have_text(re.compile("^Token 3 of"))
    expect(roots.nth(1).locator(".inspector")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator(".inspector:visible")).to_have_count(0)
    first.nth(2).click()
    page.set_viewport_size({"width": 1400, "height": 900})
    expect(place.locator("h3")).to_have_text(re.compile("^Token 3 of"))


def test_the_page_follows_an_answer_until_the_reader_scrolls_away(page: Page, server: Server) -> None:
    trial = ScriptedTrial("Once upon a time" + "\nthere was a king" * 200)
    show(page, server, finished())
    server.bench.trials["long"] = trial
    page.evaluate("document.body.style.paddingTop = '2000px'")
    trial.go_on(3)
    page.evaluate("""update({ trial: "long", reveals: true })""")
    end = page.locator(".end-of-answer")
    expect(end).to_be_in_viewport()
    trial.go_on(60)
    expect(page.locator(".t.answer").nth(62)).to_be_attached()
    expect(end).to_be_in_viewport()
    page.evaluate("scrollTo(0, 0)")
    expect(end).not_to_be_in_viewport()
    trial.go_on(60)
    expect(page.locator(".t.answer").nth(122)).to_be_attached()
    assert page.evaluate("scrollY") == 0
