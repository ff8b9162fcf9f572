"""Charts of compared runs and the file to take away: what they draw, and that names stay text."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from playwright.sync_api import Browser

from engine.bench.analysis.comparison import Comparison, compare_runs
from engine.bench.analysis.pareto import pareto
from engine.bench.planning.plan import Plan
from engine.history.downsampling import MOST_POINTS
from engine.models import embedded_model
from engine.reference import reference_runs
from engine.runs import RunRecord
from pages.parts.benchmark.chart_pen import GREY
from pages.parts.compare import run_figures
from pages.parts.compare.offline import comparison_html
from pages.parts.compare.run_scatter import Axes, scatter
from tests.pages.bench_harness import make_run

LAYOUTS = ("1x1", "1x2", "2x1")
HOSTILE = '</script><img src=x onerror="alert(1)"><b>\u202ebold'


@pytest.fixture(scope="module")
def run() -> RunRecord:
    plan = Plan(name="Mine", model=str(embedded_model()), axes={"layout": LAYOUTS, "parallel": (1, 2, 4, 8)}, rounds=12)
    return make_run(plan)


@pytest.fixture(scope="module")
def comparison(run: RunRecord) -> Comparison:
    return every_cell(run)


def every_cell(*runs: RunRecord) -> Comparison:
    return compare_runs(runs, chosen=list(compare_runs(runs).offered))


def title(figure: go.Figure) -> str:
    return str(figure.layout.title.text)


def drawn(figure: go.Figure) -> int:
    return sum(len(trace.x) for trace in figure.data)


def test_a_scatter_has_every_entry_once_by_colour_and_panel(comparison: Comparison) -> None:
    figure = scatter(comparison, Axes("parallel", "layout"))
    assert drawn(figure) == len(comparison.entries) == 12
    assert [trace.name for trace in figure.data] == ["1 × 1", "1 × 2", "2 × 1"]
    assert len({trace.marker.color for trace in figure.data}) == 3
    assert list(figure.layout.xaxis.tickvals) == [1, 2, 4, 8]
    panelled = scatter(comparison, Axes("parallel", "", "layout"))
    assert drawn(panelled) == 12 and len({trace.xaxis for trace in panelled.data}) == 3
    assert [note.text for note in panelled.layout.annotations] == [
        f"Layout: {name}" for name in ("1 × 1", "1 × 2", "2 × 1")
    ]


def test_a_scatter_shows_medians_with_intervals_and_what_they_are_compared_with(comparison: Comparison) -> None:
    figure = scatter(comparison, Axes("layout", ""))
    (points,) = figure.data
    metric = comparison.main_metric
    assert list(points.y) == [entry.cell.metrics[metric].value for entry in comparison.entries]
    assert list(np.array(points.y) + points.error_y.array) == pytest.approx(
        [entry.cell.metrics[metric].high for entry in comparison.entries]
    )
    assert list(figure.layout.xaxis.categoryarray) == ["1 × 1", "1 × 2", "2 × 1"]
    (base,) = [entry for entry in comparison.entries if entry.key == comparison.baseline]
    (line,) = figure.layout.shapes
    assert line.line.dash == "dash" and line.y0 == base.cell.metrics[metric].value
    best = max(comparison.entries, key=lambda entry: entry.cell.metrics[metric].value)
    assert title(figure).startswith("Highest ") and title(figure).endswith(f": {best.label}")


def test_a_metric_against_another_is_in_its_unit(comparison: Comparison) -> None:
    (points,) = scatter(comparison, Axes("pss_bytes")).data
    assert list(points.x) == [entry.cell.metrics["pss_bytes"].value / 1e6 for entry in comparison.entries]


def test_the_least_common_values_share_a_grey_colour(run: RunRecord) -> None:
    comparison = every_cell(run)
    entries = tuple(
        replace(entry, settings={**entry.settings, "model": f"model-{number}"})
        for number, entry in enumerate(comparison.entries)
    )
    figure = scatter(replace(comparison, entries=entries), Axes("parallel", "model"))
    assert figure.data[-1].name == "others" and figure.data[-1].marker.color == GREY
    assert len(figure.data) == 6 and len(figure.data[-1].x) == 7


def test_a_box_stands_on_the_samples_that_count(comparison: Comparison) -> None:
    figure = run_figures.samples(comparison)
    assert drawn(figure) == sum(len(entry.samples) for entry in comparison.entries)
    boxes = [trace for trace in figure.data if trace.type == "box"]
    assert [len(box.x) for box in boxes] == [entry.cell.num_counted for entry in reversed(comparison.entries)]
    num_out = sum(entry.cell.num_disturbed for entry in comparison.entries)
    assert title(figure) == f"{num_out} of {12 * 12} samples excluded"


@pytest.mark.slow
def test_many_samples_send_few_points_and_keep_their_quartiles(run: RunRecord) -> None:
    samples = np.tile(run.samples, 400)
    samples["position"] = np.arange(len(samples))
    samples["round"] = np.repeat(np.arange(2400), len(run.samples) // 6)
    samples["tokens_per_s"] *= np.random.default_rng(0).lognormal(0, 0.1, len(samples))
    comparison = every_cell(replace(run, samples=samples))
    figure = run_figures.samples(comparison)
    assert drawn(figure) < len(samples) and drawn(figure) <= MOST_POINTS
    box = next(trace for trace in figure.data if trace.type == "box")
    entry = comparison.entries[-1]
    counted = entry.samples["tokens_per_s"][entry.samples["flag"] == 0]
    wanted = np.quantile(counted, [0, 0.25, 0.5, 0.75, 1])
    assert np.quantile(np.array(box.x), [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(wanted, rel=5e-3)


def test_the_front_names_who_is_beaten_by_none(comparison: Comparison) -> None:
    metrics = run_figures.front_metrics(comparison)
    assert metrics == ("tokens_per_s", "ttft_s", "pss_bytes")
    best = pareto(comparison.entries, metrics)
    beaten, unbeaten = run_figures.front(comparison, metrics).data
    assert 0 < len(unbeaten.x) == len(best) and len(beaten.x) == 12 - len(best)
    assert beaten.marker.symbol == "circle-open" and unbeaten.marker.symbol == "circle"
    fastest = max(comparison.entries, key=lambda entry: entry.cell.metrics["tokens_per_s"].value)
    assert fastest.label in unbeaten.text and len(set(unbeaten.text) - {""}) <= 3 and set(beaten.text) <= {""}


def test_notes_are_on_no_front_and_marked_in_a_scatter(run: RunRecord) -> None:
    notes = compare_runs([reference_runs()[0]])
    assert run_figures.front_metrics(notes) == ()
    figure = scatter(notes, Axes("model"))
    assert {symbol for trace in figure.data for symbol in trace.marker.symbol} == {"diamond-open"}
    mixed = compare_runs([run, reference_runs()[0]])
    assert drawn(scatter(mixed, Axes("pss_bytes"))) == sum(not entry.is_noted for entry in mixed.entries)


def test_parallel_coordinates_have_what_differs_and_what_all_have(comparison: Comparison) -> None:
    (lines,) = run_figures.parallel(comparison).data
    labels = [axis.label for axis in lines.dimensions]
    assert labels[:2] == ["layout", "sequences"] and "total speed, tok/s" in labels
    assert all(len(axis["values"]) == 12 for axis in lines.dimensions)


def hostile(run: RunRecord) -> Comparison:
    cells = tuple(replace(cell, label=HOSTILE + str(cell.number)) for cell in run.cells)
    return every_cell(replace(run, name=HOSTILE, cells=cells, machine={"cpu": HOSTILE}))


def figures(comparison: Comparison) -> Iterator[go.Figure]:
    yield scatter(comparison, Axes("parallel", "layout", "layout"))
    yield run_figures.samples(comparison)
    yield run_figures.front(comparison, run_figures.front_metrics(comparison))


def test_names_stay_text_in_charts(run: RunRecord) -> None:
    comparison = hostile(run)
    for figure in (*figures(comparison), run_figures.parallel(comparison)):
        shown = json.dumps(json.loads(figure.to_json()))
        assert "<img" not in shown and "\\u202e" not in shown


@pytest.mark.slow
def test_the_file_opens_offline_in_light_and_dark(run: RunRecord, browser: Browser, tmp_path: Path) -> None:
    comparison = hostile(run)
    path = tmp_path / "comparison.html"
    path.write_bytes(comparison_html(comparison, list(figures(comparison))))
    backgrounds, colours = [], []
    problems: list[str] = []
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme, offline=True)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda asked: problems.append(asked.url) if asked.url.startswith("http") else None)
        page.goto(path.as_uri())
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 3")
        assert problems == []
        assert page.inner_text("h1") == " ".join(comparison.sentence.replace("\u202e", "\ufffd").split())
        assert page.locator("tbody").first.locator("tr").count() == len(comparison.entries)
        assert page.locator("img").count() == 0
        backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        colours.append(page.evaluate("document.querySelector('.js-plotly-plot').data[0].marker.color"))
        context.close()
    assert backgrounds == ["rgb(255, 255, 255)", "rgb(20, 22, 26)"]
    assert len(set(colours)) == 2 and all(re.fullmatch("#[0-9A-F]{6}", colour) for colour in colours)
    assert not any(colour.startswith("#0000") for colour in colours)
