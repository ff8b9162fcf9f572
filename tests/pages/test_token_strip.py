"""The token strip in a real browser, fed by the real socket."""

import math
import re
import time

import pytest
from playwright.sync_api import Page, expect

from engine import palette
from engine.step_parts import FORCED
from tests.pages.harness import BOS, END, STORY, ScriptedTrial, Server
from tests.pages.strip_page import copied, finished, show

HOSTILE = (
    'Once <img src=x onerror="window.hacked=1"> <script>window.hacked=1</script> &amp; $x$ `y` **z** 👩‍👧 né\tway  '
    "two \u202eabc\u202c\u200b\u00ad end 日本語\n\n\x07 \u2066x\u2069 ﷽\n"
)


def test_tokens_are_appended_and_none_is_drawn_again(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    tokens = show(page, server, trial)
    expect(page.locator(".t.prompt")).to_have_count(len(trial.prompt_steps))
    trial.go_on(5)
    expect(tokens).to_have_count(5)
    tokens.nth(2).evaluate("span => { window.kept = span; }")
    trial.go_on()
    expect(tokens).to_have_count(len(trial.steps))
    assert tokens.nth(2).evaluate("span => span === window.kept")


def test_python_hears_once_of_a_trial_that_ended_here(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    show(page, server, trial)
    trial.go_on(3)
    expect(page.locator(".t.answer")).to_have_count(3)
    assert page.evaluate("window.ended") == []
    trial.finish("Stopped: at 3 tokens, as asked.")
    expect(page.locator(".ending")).to_have_text("Stopped: at 3 tokens, as asked.")
    assert page.evaluate("window.ended") == [["ended", "t"]]
    page.reload()
    expect(page.locator(".ending")).to_have_text("Stopped: at 3 tokens, as asked.")
    assert page.evaluate("window.ended") == []


def test_thousands_are_separated_as_on_every_page(page: Page, server: Server) -> None:
    trial = finished()
    trial.tell(num_context=131072, num_cached=1159)
    show(page, server, trial)
    expect(page.locator(".figures")).to_contain_text("context 131,072 of 512")
    expect(page.locator(".figures")).to_contain_text("1,159 cached")


@pytest.mark.parametrize(("threads", "expected"), [(1, "1 thread"), (2, "2 threads"), (None, "")])
def test_the_threads_that_computed_it_are_shown_where_they_are_known(
    page: Page, server: Server, threads: int | None, expected: str
) -> None:
    trial = ScriptedTrial("", STORY)
    trial.finish("Stopped.", timings={"ttft_s": 0.1, "num_generated": 3, "threads": threads})
    show(page, server, trial)
    expect(page.locator(".ending")).to_have_text("Stopped.")
    figures = page.locator(".figures").inner_text()
    assert "thread" not in figures if threads is None else expected in figures


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_bands_are_those_of_the_palette(page: Page, server: Server, theme: str) -> None:
    trial = finished()
    tokens = show(page, server, trial, theme=theme)
    expect(tokens).to_have_count(len(trial.steps))
    assert page.locator(".root").get_attribute("data-theme") == theme
    classes = tokens.evaluate_all("spans => spans.map(span => span.className)")
    bands = [int(found[1]) if (found := re.search(r"\bb(\d)\b", name)) else 0 for name in classes]
    chances = [math.exp(step.logprob or 0.0) for step in trial.steps]
    assert bands == [palette.surprise_band(p) for p in chances]
    colour = tokens.nth(bands.index(3)).evaluate("span => getComputedStyle(span).backgroundColor")
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour))
    assert f"#{red:02X}{green:02X}{blue:02X}" == palette.SURPRISE[theme].backgrounds[2]


def test_modes_change_colours_and_legend(page: Page, server: Server) -> None:
    trial = finished()
    tokens = show(page, server, trial)
    legend = page.locator(".legend")
    expect(legend).to_contain_text("p of the token")
    page.get_by_role("button", name="Uncertainty").click()
    expect(legend).to_contain_text("entropy, bits")
    bands = tokens.evaluate_all("spans => spans.map(span => span.band)")
    in_bits = [(step.entropy or 0.0) / math.log(2) for step in trial.steps]
    assert bands == [sum(bits > limit for limit in palette.ENTROPY_BITS) for bits in in_bits]
    page.get_by_role("button", name="Time").click()
    expect(legend).to_contain_text("median")
    page.get_by_role("button", name="nats", exact=True).click()
    page.get_by_role("button", name="Surprise").click()
    expect(legend).to_contain_text("surprise, nats")
    page.reload()
    expect(legend).to_contain_text("surprise, nats")


def test_hover_shows_candidates_and_stays_in_the_browser(page: Page, server: Server) -> None:
    page.set_viewport_size({"width": 700, "height": 900})
    trial = finished()
    tokens = show(page, server, trial)
    index = next(i for i, step in enumerate(trial.steps) if step.num_kept and step.num_kept < 8 and step.rank == 1)
    tokens.nth(index).hover()
    tooltip = page.locator(".tooltip")
    expect(tooltip).to_be_visible()
    step = trial.steps[index]
    expect(tooltip.locator("tr.chosen")).to_contain_text(step.top[0].text.strip())
    expect(tooltip.locator("tr.cut").first).to_contain_text("cut")
    expect(tooltip.locator("tr.remaining")).to_contain_text("others")
    expect(tooltip).to_contain_text(str(step.id))
    expect(tooltip).to_contain_text(" ".join(f"{byte:02x}" for byte in step.bytes))
    page.mouse.move(5, 5)
    expect(tooltip).to_be_hidden()
    assert page.evaluate("window.ended") == []


def test_a_pinned_token_is_described_in_a_sentence_and_k_is_chosen(page: Page, server: Server) -> None:
    trial = finished()
    tokens = show(page, server, trial)
    inspector = page.locator(".inspector")
    step = min(trial.steps, key=lambda step: step.logprob or 0.0)
    expect(inspector.locator(".sentence")).to_contain_text(re.compile(rf" {step.rank:,}(st|nd|rd|th), at "))
    tokens.nth(4).click()
    expect(inspector.locator("h3")).to_have_text(f"Token 5 of {len(trial.steps)}")
    pattern = re.compile(r"The model ranked .+ \d+(st|nd|rd|th), at \d.*%\. Sampling kept \d+ candidate")
    expect(inspector.locator(".sentence")).to_have_text(pattern)
    inspector.get_by_role("slider").fill("50")
    outside = 0 if (trial.steps[4].rank or 0) <= 50 else 1
    expect(inspector.locator("tbody tr")).to_have_count(50 + outside + 1)
    inspector.get_by_role("slider").fill("1")
    expect(inspector.locator("tbody tr.chosen")).to_have_count(1)
    page.reload()
    expect(inspector.locator("h3")).to_have_text(f"Token 5 of {len(trial.steps)}")


def test_a_draw_is_shown_only_where_there_was_something_to_draw(page: Page, server: Server) -> None:
    trial = finished()
    trial.steps.records["num_kept"][4:6] = 3, 1
    tokens, inspector = show(page, server, trial), page.locator(".inspector")
    tokens.nth(4).click()
    expect(inspector.locator(".facts")).to_contain_text("draw")
    tokens.nth(5).click()
    expect(inspector.locator(".sentence")).to_contain_text("nothing to draw")
    expect(inspector.locator(".facts")).not_to_contain_text("draw")


def test_the_table_adds_up_to_one(page: Page, server: Server) -> None:
    trial = finished()
    show(page, server, trial)
    numbers = page.locator(".inspector tbody tr td:nth-child(3)")
    expect(numbers.first).to_be_visible()
    total = sum(float(text) if "⁻" not in text else 0.0 for text in numbers.all_text_contents())
    assert total == pytest.approx(1, abs=0.01)


def test_keys_walk_by_token_and_by_row(page: Page, server: Server) -> None:
    trial = finished()
    tokens = show(page, server, trial)
    title = page.locator(".inspector h3")
    tokens.nth(20).click()
    page.keyboard.press("ArrowRight")
    expect(title).to_have_text(f"Token 22 of {len(trial.steps)}")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(title).to_have_text(f"Token 20 of {len(trial.steps)}")
    before = page.locator(".t.pinned").bounding_box()
    page.keyboard.press("ArrowDown")
    after = page.locator(".t.pinned").bounding_box()
    assert before is not None
    assert after is not None
    assert after["y"] > before["y"]
    assert abs(after["x"] - before["x"]) < 120
    page.keyboard.press("End")
    expect(title).to_have_text(f"Token {len(trial.steps)} of {len(trial.steps)}")
    page.keyboard.press("Home")
    expect(title).to_contain_text("Prompt token 1")
    page.keyboard.press("Escape")
    expect(page.locator(".t.pinned")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(title).to_have_text(f"Token 1 of {len(trial.steps)}")
    assert page.locator(".text").get_attribute("aria-activedescendant") == page.locator(".t.pinned").get_attribute("id")


def test_chips_lead_to_the_most_uncertain_tokens(page: Page, server: Server) -> None:
    trial = finished()
    show(page, server, trial)
    most = sorted(range(len(trial.steps)), key=lambda index: -(trial.steps[index].entropy or 0.0))[:5]
    expect(page.locator(".chips .chip")).to_have_count(5)
    page.locator(".chips .chip").first.click()
    expect(page.locator(".inspector h3")).to_have_text(f"Token {min(most) + 1} of {len(trial.steps)}")


def test_copying_gives_the_plain_text(page: Page, server: Server) -> None:
    for name, text in (("story", STORY), ("hostile", HOSTILE)):
        tokens = show(page, server, finished(text, "Once"), name)
        expect(tokens).to_have_count(len(server.bench.trials[name].steps))
        # A browser's selection does not reach over a last, empty line.
        assert copied(page).rstrip("\n") == text.rstrip("\n")


def test_hostile_text_is_only_text(page: Page, server: Server) -> None:
    trial = finished(HOSTILE, "Once")
    tokens = show(page, server, trial)
    expect(tokens).to_have_count(len(trial.steps))
    for index in range(0, len(trial.steps), 9):
        tokens.nth(index).click()
    assert page.evaluate("window.hacked") is None
    assert page.locator(".text img, .text script, .inspector img").count() == 0
    marks = page.locator(".text .mark").evaluate_all("marks => marks.map(mark => mark.dataset.mark)")
    assert {"↵", "⇥", "U+202E", "U+202C", "U+200B", "U+200D", "U+0007", "</s>", "<s>"} <= set(marks)
    isolation = tokens.evaluate_all("spans => spans.map(span => getComputedStyle(span).unicodeBidi)")
    assert set(isolation) == {"isolate"}
    shown = "".join(page.locator(".inspector").all_text_contents())
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u0007]", shown)


def test_a_split_character_stands_at_the_token_that_completes_it(page: Page, server: Server) -> None:
    trial = ScriptedTrial("Once 日", "Once")
    trial.go_on(ids=[3 + byte for byte in "👧".encode()])
    trial.go_on(ids=[3 + 0xE6, 3 + 0x97])
    trial.finish()
    tokens = show(page, server, trial)
    expect(tokens).to_have_count(6)
    assert tokens.all_text_contents() == ["", "", "", "👧", "", "\ufffd"]
    marks = tokens.locator(".mark").evaluate_all("marks => marks.map(mark => mark.dataset.mark)")
    assert marks == ["<F0>", "<9F>", "<91>", "<A7>", "<E6>", "<97>"]
    assert trial.steps.text == "👧\ufffd"


def test_the_stop_string_is_grey_and_not_copied(page: Page, server: Server) -> None:
    trial = ScriptedTrial("Once there was END of it", "Once")
    trial.go_on()
    trial.finish("Stopped: at the stop string.", text_bytes=len(" there was E"))
    show(page, server, trial)
    expect(page.locator(".stopped").first).to_have_text("ND")
    assert copied(page) == "Once there was E"


def test_forced_tokens_and_scored_prompts_say_so(page: Page, server: Server) -> None:
    trial = finished(scored=True)
    trial.steps.records["flags"][2] |= FORCED
    tokens = show(page, server, trial)
    tokens.nth(2).click()
    expect(page.locator(".sentence").first).to_contain_text("forced, not drawn")
    assert tokens.nth(2).evaluate("span => getComputedStyle(span).textDecorationStyle") == "dotted"
    page.locator(".t.prompt").nth(2).click()
    expect(page.locator(".inspector .sentence")).to_contain_text("is part of the prompt")
    page.locator(".t.prompt").nth(0).click()
    expect(page.locator(".inspector .sentence")).to_contain_text("No probabilities were recorded")
    assert trial.prompt_steps.ids[0] == BOS


def test_a_text_that_was_only_scored_opens_on_its_own_tokens(page: Page, server: Server) -> None:
    trial = ScriptedTrial("", STORY, scored=True)
    trial.finish("Only the prompt was scored.", timings={"ttft_s": 0.175, "num_generated": 0, "num_cached": 0})
    show(page, server, trial)
    expect(page.locator(".inspector .sentence")).to_contain_text("is part of the prompt")
    expect(page.locator(".figures")).to_contain_text(f"{len(trial.prompt_steps)} prompt tokens")
    expect(page.locator(".figures")).not_to_contain_text("first token")
    expect(page.locator(".chips .chip")).to_have_count(5)


@pytest.mark.parametrize("is_seen_live", [True, False])
def test_the_token_that_came_last_is_pinned_whether_it_came_before_or_after_the_strip(
    page: Page, server: Server, *, is_seen_live: bool
) -> None:
    trial = ScriptedTrial()
    trial.go_on(5)
    if is_seen_live:
        show(page, server, trial, last=1)
        expect(page.locator(".inspector h3")).to_have_text("Token 5 of 5")
    trial.go_on(1)
    trial.finish("Stopped at the 6-token limit.")
    tokens = page.locator(".t.answer") if is_seen_live else show(page, server, trial, last=1)
    expect(page.locator(".ending")).not_to_be_empty()
    expect(page.locator(".inspector h3")).to_have_text("Token 6 of 6")
    tokens.nth(2).click()
    expect(page.locator(".inspector h3")).to_have_text("Token 3 of 6")
    page.reload()
    expect(page.locator(".inspector h3")).to_have_text("Token 3 of 6")


def test_what_is_left_over_is_called_cut_only_where_it_was_cut(page: Page, server: Server) -> None:
    trial = finished()
    tokens = show(page, server, trial)
    left = page.locator(".inspector tr.remaining td").last
    for index in (3, 4, 5, 6, 7, 8):
        step = trial.steps[index]
        tokens.nth(index).click()
        shown = sum(candidate.p_final > 0 for candidate in step.top[:10]) + ((step.rank or 0) > 10)
        if shown >= (step.num_kept or 0):
            expect(left).to_have_text("cut")
        else:
            expect(left).not_to_have_text("cut")
        tokens.nth(index).click()


def test_waiting_is_described_in_words(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    trial.state = {"state": "queued", "queue_position": 2}
    show(page, server, trial)
    figures = page.locator(".figures")
    expect(figures).to_contain_text("Waiting, 2nd in the queue")
    trial.tell(state="running", num_prompt=1840, num_prefilled=640)
    expect(figures).to_contain_text("Reading the prompt, 640 of 1,840 tokens")
    trial.go_on(3)
    expect(figures).to_contain_text("57.3 tok/s with inspection")
    trial.finish(error="The worker ended.\nIts job is lost.\nRun it again.", sentence="")
    expect(page.get_by_role("alert")).to_contain_text("Run it again.")


@pytest.mark.slow
def test_long_outputs_follow_only_a_reader_at_the_end(page: Page, server: Server) -> None:
    trial = ScriptedTrial(" ".join([STORY] * 32))
    tokens = show(page, server, trial, height=300)
    for _ in range(40):
        trial.go_on(100)
        time.sleep(0.01)
    expect(tokens).to_have_count(len(trial.steps))
    assert len(trial.steps) >= 3900
    text = page.locator(".text")
    expect(tokens.last).to_be_in_viewport()
    text.evaluate("text => { text.scrollTop = 0; }")
    page.wait_for_timeout(50)
    trial.go_on()
    trial.go_on(ids=[END] * 20)
    expect(tokens).to_have_count(len(trial.steps))
    assert text.evaluate("text => text.scrollTop") == 0


@pytest.mark.parametrize("ending", ["", "\n"])
def test_long_outputs_stand_in_bounded_blocks_and_copy_whole(page: Page, server: Server, ending: str) -> None:
    text = " ".join([STORY.replace("\n", " ") + ending] * 20)
    tokens = show(page, server, finished(text, "Once"))
    expect(tokens).to_have_count(len(server.bench.trials["t"].steps))
    sizes = page.locator(".block").evaluate_all("blocks => blocks.map(block => block.childElementCount)")
    assert max(sizes) < 1000
    assert copied(page) == text


def test_latency_is_stamped_only_when_asked(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    tokens = show(page, server, trial, latency=1)
    trial.go_on(4)
    expect(tokens).to_have_count(4)
    page.wait_for_function("window.__logitbench?.length > 0")
    stamp = page.evaluate("window.__logitbench[0]")
    assert stamp["painted"] >= stamp["received"]
    assert stamp["first"] == 0
    tokens = show(page, server, finished())
    expect(tokens).to_have_count(len(server.bench.trials["t"].steps))
    assert page.evaluate("window.__logitbench === undefined")


@pytest.mark.parametrize(("width", "is_beside"), [(1400, True), (900, True), (640, False)])
def test_the_inspector_stands_beside_or_below(page: Page, server: Server, width: int, *, is_beside: bool) -> None:
    page.set_viewport_size({"width": width, "height": 1200})
    show(page, server, finished())
    text, inspector = page.locator(".text").bounding_box(), page.locator(".inspector").bounding_box()
    assert text is not None
    assert inspector is not None
    assert (inspector["x"] > text["x"] + 100) is is_beside
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [220, 280, 340, 469])
def test_all_buttons_of_a_candidate_are_in_sight_beside_a_long_text(page: Page, server: Server, width: int) -> None:
    show(page, server, finished(), asks=1, watch="cat").nth(4).click()
    page.locator(".inspector").evaluate("(one, width) => (one.style.width = `${width}px`)", width)
    page.locator(".candidates .token-chip").evaluate_all(
        "chips => chips.forEach((chip) => (chip.textContent = 'an-incomprehensibly-long-candidate'))"
    )
    buttons = page.locator(".candidates tr:not(.chosen) .actions .icon")
    assert buttons.count() >= 3
    ends = page.locator(".inspector .table").evaluate("one => one.getBoundingClientRect().right")
    assert max(buttons.evaluate_all("all => all.map((one) => one.getBoundingClientRect().right)")) <= ends + 0.5
    texts = page.locator(".candidates tbody .candidate").evaluate_all("all => all.map((one) => one.clientWidth)")
    assert min(texts) >= 50
