"""The layout grid: what it offers, and in a real browser what a click sends and where the line of the cores runs."""

import pytest
from playwright.sync_api import Page, expect

from pages.parts.benchmark import layout_grid
from pages.parts.benchmark.layout_grid import STYLE, data_of, names, reserved, sizes

PAGE = """<div id="host"></div><script type="module">{script}
  const host = document.getElementById("host");
  window.sent = [];
  const data = {{ sizes: [1, 2, 3, 4], cores: 3, chosen: ["1x2"], isSmall: false }};
  window.draw = (chosen) => grid({{ data: {{ ...data, chosen }}, parentElement: host,
    setTriggerValue: (name, value) => window.sent.push([name, value]) }});
  window.draw(data.chosen);
  window.mount = grid;
</script>"""
MOUNT = """([style, outer, data]) => {
  const host = document.getElementById("host");
  host.replaceChildren();
  host.className = "st-key-grid";
  const sheet = (content) => Object.assign(document.createElement("style"), { textContent: content });
  document.head.append(sheet(outer));
  const reserved = host.offsetHeight;
  const parentElement = document.createElement("div");
  const inner = host.appendChild(document.createElement("div"));
  inner.attachShadow({ mode: "open" }).append(sheet(style), parentElement);
  mount({ data, parentElement, setTriggerValue: () => {} });
  return [reserved, host.offsetHeight];
}"""
"""Draws the grid with its style as Streamlit does; gives the heights before and after."""


@pytest.fixture
def page(page: Page) -> Page:
    """The page with the grid on it."""
    script = layout_grid.SCRIPT.replace("export default function", "function grid")
    page.set_content(PAGE.format(script=script))
    return page


def test_a_click_sends_all_that_is_chosen(page: Page) -> None:
    page.get_by_role("button", name="3×1").click()
    page.get_by_role("button", name="1×2").click()
    page.get_by_role("button", name="1×1").click()
    assert page.evaluate("sent") == [
        ["picked", ["1x2", "3x1"]],
        ["picked", ["3x1"]],
        ["picked", ["3x1", "1x1"]],
    ]
    expect(page.get_by_role("button", pressed=True)).to_have_text(["1×1", "3×1"])


def test_what_is_typed_elsewhere_is_taken_over(page: Page) -> None:
    page.evaluate("void draw(['2x2', '4x4'])")
    expect(page.get_by_role("button", pressed=True)).to_have_text(["2×2", "4×4"])


def test_the_line_follows_the_cores(page: Page) -> None:
    beyond = page.locator(".beyond").all_inner_texts()
    assert [text.strip() for text in beyond] == ["1×4", "2×2", "2×3", "2×4", "3×2", "3×3", "3×4"] + [
        f"4×{threads}" for threads in range(1, 5)
    ]
    assert [text.strip() for text in page.locator(".right").all_inner_texts()] == ["1×3", "2×1", "3×1"]
    expect(page.locator(".legend")).to_have_text("3 cores: beyond the line threads share cores")


def test_arrows_walk_the_grid(page: Page) -> None:
    page.get_by_role("button", name="1×2").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="2×3")).to_be_focused()


def test_a_few_cores_are_shown_whole_and_many_in_steps() -> None:
    assert sizes(1) == [1, 2, 3, 4]
    assert sizes(16) == list(range(1, 17))
    assert {"2x7", "3x5"} <= names(16)
    for num_cores in (17, 24, 96, 255):
        assert sizes(num_cores)[-1] == num_cores and len(sizes(num_cores)) <= 25
        assert sizes(num_cores) == sorted(set(sizes(num_cores)))


def test_the_line_below_says_in_words_what_is_pointed_at(page: Page) -> None:
    meaning = page.locator(".meaning")
    expect(meaning).to_have_text("1×2: 1 process with 2 threads")
    page.get_by_role("button", name="3×1").hover()
    expect(meaning).to_have_text("3×1: 3 processes with 1 thread each")
    page.get_by_role("button", name="2×2").focus()
    expect(meaning).to_have_text("2×2: 2 processes with 2 threads each, more threads than cores")


@pytest.mark.parametrize("num_cores", [2, 8, 9, 16, 96])
def test_its_height_is_reserved_before_it_is_drawn(page: Page, num_cores: int) -> None:
    heights = page.evaluate(MOUNT, [STYLE, reserved("grid", num_cores), data_of(["1x1"], num_cores)])
    assert heights[0] == heights[1] > 100
    expect(page.get_by_role("row")).to_have_count(len(sizes(num_cores)) + 1)
