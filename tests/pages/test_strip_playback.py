"""Playback of a generation in a real browser: the sparkline as a scrub bar, play and pause, what is hidden."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.pages.harness import END, STORY, ScriptedTrial, Server
from tests.pages.strip_page import finished, show


def slider(page: Page) -> Locator:
    return page.get_by_role("slider", name="Position in the generation")


def slow(ms: float) -> ScriptedTrial:
    """A trial of 30 tokens that take `ms` each."""
    trial = ScriptedTrial()
    trial.go_on(30)
    trial.steps.records["elapsed_s"] = ms / 1000
    trial.finish()
    return trial


def seen(page: Page) -> int:
    """How many generated tokens can be seen."""
    count: int = page.locator(".t.answer").evaluate_all(
        "spans => spans.filter(span => getComputedStyle(span).visibility === 'visible').length"
    )
    return count


def show_at_rest(page: Page, server: Server, trial: ScriptedTrial) -> Locator:
    """The trial's tokens, all drawn, on a page whose clock the test moves."""
    page.clock.install(time=0)
    tokens = show(page, server, trial)
    expect(page.locator(".ending")).not_to_be_empty()
    page.clock.pause_at(86_400)
    return tokens


def press(page: Page, *keys: str) -> None:
    for key in keys:
        slider(page).press(key)


def test_the_bar_names_the_token_and_its_moment(page: Page, server: Server) -> None:
    trial = finished()
    show(page, server, trial)
    total = len(trial.steps)
    seconds = trial.steps.records["elapsed_s"].cumsum()
    bar = slider(page)
    expect(bar).to_have_attribute("aria-valuetext", f"token {total} of {total}, {seconds[-1]:.2f} s")
    press(page, "Home", "ArrowRight", "ArrowRight", "ArrowUp")
    expect(bar).to_have_attribute("aria-valuetext", f"token 3 of {total}, {seconds[2]:.2f} s")
    assert bar.get_attribute("aria-valuenow") == "3"
    assert (bar.get_attribute("aria-valuemin"), bar.get_attribute("aria-valuemax")) == ("0", str(total))
    press(page, "PageUp", "ArrowLeft")
    expect(bar).to_have_attribute("aria-valuenow", "12")
    press(page, "PageDown", "ArrowDown")
    expect(bar).to_have_attribute("aria-valuenow", "1")
    press(page, "End")
    expect(bar).to_have_attribute("aria-valuenow", str(total))


def test_tokens_after_the_position_are_hidden_and_nothing_moves(page: Page, server: Server) -> None:
    trial = finished(" ".join([STORY] * 8))
    tokens = show(page, server, trial)
    total = len(trial.steps)
    expect(page.locator(".ending")).not_to_be_empty()
    assert page.locator(".block").count() > 1
    places = "spans => spans.slice(0, 40).map(span => [span.offsetLeft, span.offsetTop])"
    before, height = tokens.evaluate_all(places), page.locator(".text").evaluate("text => text.scrollHeight")
    press(page, "Home")
    assert seen(page) == 0
    for _ in range(7):
        press(page, "PageUp")
    assert seen(page) == 70
    assert tokens.evaluate_all(places) == before
    assert page.locator(".text").evaluate("text => text.scrollHeight") == height
    assert page.locator(".t.prompt").first.is_visible()
    press(page, "Escape")
    assert seen(page) == total
    expect(slider(page)).to_have_attribute("aria-valuenow", str(total))
    assert page.locator(".later").count() == 0


def test_dragging_seeks_and_shows_the_token_in_the_inspector(page: Page, server: Server) -> None:
    trial = finished()
    show(page, server, trial)
    expect(page.locator(".ending")).not_to_be_empty()
    box = slider(page).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 10)
    expect(page.locator(".inspector h3")).to_have_text(re.compile("^Preview"))
    assert seen(page) == len(trial.steps)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 10)
    half = round(len(trial.steps) / 2)
    assert abs(seen(page) - half) <= 1
    expect(page.locator(".inspector h3")).to_have_text(f"Preview · Token {seen(page)} of {len(trial.steps)}")
    page.mouse.up()
    page.mouse.move(5, 5)
    expect(page.locator(".inspector h3")).not_to_have_text(re.compile("^Preview"))
    assert abs(seen(page) - half) <= 1


def test_it_plays_at_the_measured_pace_and_ends_with_the_whole_text(page: Page, server: Server) -> None:
    show_at_rest(page, server, slow(100))
    page.get_by_role("button", name=re.compile("^Play")).click()
    page.clock.run_for(1050)
    assert seen(page) == 10
    page.get_by_role("button", name=re.compile("^Pause")).click()
    stopped = seen(page)
    page.clock.run_for(1000)
    assert seen(page) == stopped
    page.get_by_role("button", name="16×").click()
    page.get_by_role("button", name=re.compile("^Play")).click()
    page.clock.run_for(2000)
    assert seen(page) == 30
    expect(page.get_by_role("button", name=re.compile("^Play"))).to_be_visible()
    assert page.locator(".playing-back").count() == 0


def test_four_times_the_speed_is_a_quarter_of_the_time(page: Page, server: Server) -> None:
    show_at_rest(page, server, slow(100))
    page.get_by_role("button", name="4×").click()
    page.get_by_role("button", name=re.compile("^Play")).click()
    page.clock.run_for(540)
    assert seen(page) == 20
    slider(page).press("Space")
    page.clock.run_for(500)
    assert seen(page) == 20
    page.locator(".text").press("Escape")
    assert seen(page) == 30


def test_space_plays_and_escape_leaves_the_playback_before_the_pin(page: Page, server: Server) -> None:
    tokens = show_at_rest(page, server, slow(100))
    tokens.nth(3).click()
    page.keyboard.press("Space")
    page.clock.run_for(600)
    assert 0 < seen(page) < 30
    page.keyboard.press("Escape")
    assert seen(page) == 30
    expect(page.locator(".t.pinned")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator(".t.pinned")).to_have_count(0)


@pytest.fixture
def calm(browser: Browser) -> Iterator[Page]:
    """A page whose person asked for reduced motion."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    yield opened
    opened.close()


def test_with_reduced_motion_the_text_changes_at_most_twice_a_second(calm: Page, server: Server) -> None:
    show_at_rest(calm, server, slow(20))
    calm.get_by_role("button", name=re.compile("^Play")).click()
    found = []
    for _ in range(10):
        calm.clock.run_for(50)
        found.append(seen(calm))
    assert len(set(found)) <= 2
    calm.clock.run_for(1000)
    assert seen(calm) == 30


def test_a_running_trial_grows_in_the_room_it_may_take_and_is_played_when_it_ended(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    tokens = show(page, server, trial)
    expect(page.locator(".scrub")).to_be_hidden()
    trial.tell(max_tokens=100)
    trial.go_on(20)
    expect(tokens).to_have_count(20)
    bars = page.locator(".spark-bars")
    expect(bars).to_have_attribute("viewBox", "0 0 100 100")
    expect(page.get_by_role("button", name=re.compile("^Play"))).to_be_disabled()
    expect(slider(page)).to_have_attribute("aria-disabled", "true")
    trial.go_on(5)
    trial.finish()
    expect(bars).to_have_attribute("viewBox", "0 0 25 100")
    expect(page.get_by_role("button", name=re.compile("^Play"))).to_be_enabled()
    drawn = "paths => paths.reduce((sum, path) => sum + (path.getAttribute('d').match(/M/g) ?? []).length, 0)"
    assert page.locator(".spark-bars path").evaluate_all(drawn) == 25


def test_bars_are_as_high_as_the_surprise_and_red_only_below_one_per_cent(page: Page, server: Server) -> None:
    trial = ScriptedTrial("Once upon a time there was a poor miller", "Once upon a time")
    trial.go_on(5)
    trial.steps.records["logprob"] = [-0.1, -1.386294, -3.465736, -5.0, -8.0]  # 0.14, 2, 5, 7.2 and 11.5 bits
    trial.finish()
    show(page, server, trial)
    expect(page.locator(".ending")).not_to_be_empty()
    paths = {
        band: re.findall(r"M(\d+) 100v-(\d+)", page.locator(f".spark-b{band}").get_attribute("d") or "")
        for band in (0, 5, 6)
    }
    assert paths == {0: [("0", "5"), ("1", "20"), ("2", "50")], 5: [("3", "72")], 6: [("4", "100")]}


def test_a_prompt_that_was_only_scored_has_nothing_to_play_back(page: Page, server: Server) -> None:
    trial = ScriptedTrial("", STORY, scored=True)
    trial.finish("Only the prompt was scored.")
    show(page, server, trial)
    expect(page.locator(".ending")).not_to_be_empty()
    expect(page.locator(".scrub")).to_be_hidden()


def test_another_trial_ends_the_playback(page: Page, server: Server) -> None:
    show(page, server, finished())
    expect(page.locator(".ending")).not_to_be_empty()
    press(page, "Home")
    server.bench.trials["next"] = trial = ScriptedTrial()
    trial.go_on(3)
    trial.go_on(ids=[END])
    trial.finish()
    page.evaluate("update({ trial: 'next' })")
    expect(page.locator(".t.answer")).to_have_count(4)
    assert seen(page) == 4
    expect(slider(page)).to_have_attribute("aria-valuenow", "4")
