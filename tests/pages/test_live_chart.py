"""The live chart: what it is given while samples arrive, and in a real browser that what is drawn stays in place."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from engine.bench.analysis.summary import summarise
from engine.bench.planning.plan import Plan
from engine.runs import RunRecord
from engine.samples import FLAGS
from engine.units import quantity
from pages.parts.benchmark import live_chart
from pages.parts.benchmark.chart_pen import MOST_DOTS
from pages.parts.benchmark.charts import MOST_CELLS
from tests.pages.app import HOSTILE
from tests.pages.bench_harness import make_run

PAGE = """<style>{style}</style><div id="host"></div><script type="module">{script}
  const host = document.getElementById("host");
  window.draw = (data) => chart({{ data, parentElement: host }});
</script>"""


@pytest.fixture(scope="module")
def run(plan: Plan) -> RunRecord:
    return replace(make_run(replace(plan, rounds=3)), status="running")


def given(run: RunRecord, num: int, now: int | None = None) -> dict[str, Any]:
    so_far = replace(run, samples=run.samples[:num])
    return live_chart.data_of(so_far, summarise(so_far), now)


def test_every_configuration_has_its_row_from_the_start_in_the_order_of_the_plan(run: RunRecord) -> None:
    for num in (0, 1, 5, len(run.samples)):
        data = given(run, num, now=2)
        assert [row["label"] for row in data["rows"]] == [cell.label for cell in run.cells]
        assert [row["isNow"] for row in data["rows"]] == [number == 2 for number in range(len(run.cells))]
        assert sum(len(row["samples"]) for row in data["rows"]) == num
        assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_row_has_its_median_and_each_sample_its_kind(run: RunRecord) -> None:
    samples = run.samples.copy()
    samples["flag"] = 0
    samples["flag"][0] = FLAGS.index("contended")
    samples["tokens_per_s"][1] *= 2
    samples["tokens_per_s"][2] = np.nan
    noisy = replace(run, samples=samples)
    data, summary = given(noisy, len(samples)), summarise(noisy)
    kinds = [sample["kind"] for row in data["rows"] for sample in row["samples"]]
    assert len(kinds) == len(samples) - 1
    assert (kinds.count("disturbed"), kinds.count("stray")) == (1, 1)
    for row, cell in zip(data["rows"], summary.cells, strict=True):
        median = cell.metrics["tokens_per_s"].value
        assert row["median"] == pytest.approx(median)
        assert row["figure"].startswith(f"{quantity(median, 'tok/s')} · ")
    assert (data["baseline"], data["role"]) == (data["rows"][0]["median"], "control")


def test_very_many_configurations_and_samples_are_bounded(plan: Plan) -> None:
    many = make_run(replace(plan, axes={"layout": ("1x1", "1x2"), "parallel": tuple(range(1, 41))}, rounds=30))
    data = live_chart.data_of(many, summarise(many), None)
    assert len(data["rows"]) == MOST_CELLS
    assert sum(len(row["samples"]) for row in data["rows"]) <= MOST_DOTS


@pytest.fixture
def chart(page: Page) -> Page:
    """A page with the chart's script on it."""
    script = live_chart.SCRIPT.replace("export default function", "function chart")
    page.set_content(PAGE.format(script=script, style=(live_chart.HERE / "chart.css").read_text("utf-8")))
    return page


def draw(page: Page, data: dict[str, Any]) -> None:
    page.evaluate("(data) => void draw(data)", data)


def test_samples_are_added_to_what_is_drawn(chart: Page, run: RunRecord) -> None:
    draw(chart, given(run, 0))
    expect(chart.locator(".row")).to_have_count(len(run.cells))
    expect(chart.locator(".unit")).to_have_text("The first sample appears once the model is loaded and warmed up.")
    heights = chart.evaluate("[...document.querySelectorAll('.row')].map((row) => row.getBoundingClientRect().y)")
    draw(chart, given(run, 5, now=1))
    chart.evaluate("document.querySelectorAll('.track .dot').forEach((dot) => { dot.dataset.old = 'yes'; })")
    draw(chart, given(run, len(run.samples), now=3))
    expect(chart.locator(".track .dot")).to_have_count(len(run.samples))
    expect(chart.locator(".track .dot[data-old]")).to_have_count(5)
    expect(chart.locator(".now .label")).to_have_text([run.cells[3].label])
    assert heights == chart.evaluate(
        "[...document.querySelectorAll('.row')].map((row) => row.getBoundingClientRect().y)"
    )
    expect(chart.locator(".unit")).to_have_text("total speed, tok/s")
    expect(chart.locator(".baseline")).to_have_text("control")
    widths = chart.evaluate("[...document.querySelectorAll('.track .dot')].map((dot) => parseFloat(dot.style.left))")
    assert min(widths) > 0 and max(widths) <= 100


def test_names_stay_text(chart: Page, run: RunRecord) -> None:
    cells = tuple(replace(cell, label=HOSTILE) for cell in run.cells)
    draw(chart, given(replace(run, cells=cells), 5))
    expect(chart.locator(".label").first).to_contain_text("<script>alert(1)</script>")
    assert chart.locator("#host script").count() == 0
    assert "\u202e" not in chart.locator("#host").inner_text()
