"""Charts of runs: what they draw, what their titles find, that names stay text, and that large runs draw quickly."""

import html
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest

from engine.bench.analysis import series
from engine.bench.analysis.capacity import capacity
from engine.bench.analysis.summary import Summary, summarise
from engine.bench.analysis.time_breakdown import time_breakdown
from engine.bench.measurement.token_parts import PartTotals
from engine.bench.planning.plan import Objective, Plan
from engine.history.downsampling import MOST_POINTS
from engine.models import embedded_model
from engine.runs import CellRecord, RunRecord
from engine.samples import FLAGS, make_sample, no_samples
from pages.parts import chart_colours
from pages.parts.benchmark import answer_charts, charts, run_charts
from pages.parts.benchmark.chart_pen import ACCENT, COLOURS, GREY, NUM_SHADES, RAMP, Pen, blank, ramp, strokes
from tests.pages.bench_harness import make_run

METRIC = "tokens_per_s"
CONFIG = Path(charts.__file__).parents[3] / ".streamlit/config.toml"
LAYOUTS = ("1x1", "1x2", "2x1", "2x2")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(model=str(embedded_model()), axes={"layout": LAYOUTS, "parallel": (1, 4)}, rounds=12)


@pytest.fixture(scope="module")
def run(plan: Plan) -> RunRecord:
    return make_run(plan)


@pytest.fixture(scope="module")
def summary(run: RunRecord) -> Summary:
    return summarise(run)


def title(figure: go.Figure) -> str:
    return str(figure.layout.title.text)


def named(figure: go.Figure, name: str) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.name == name]


def test_lines_have_a_point_for_each_cell_with_its_interval(run: RunRecord, summary: Summary) -> None:
    figure = charts.lines(run, summary, "parallel", "Sequences", METRIC)
    (line,) = named(figure, "2 × 1")
    cells = {cell.settings["parallel"]: cell for cell in summary.cells if cell.settings["layout"] == "2x1"}
    assert list(line.x) == [1.0, 4.0]
    assert list(line.y) == [cells[1].metrics[METRIC].value, cells[4].metrics[METRIC].value]
    lows = np.array(line.y) - np.array(line.error_y.arrayminus)
    assert list(lows) == pytest.approx([cells[each].metrics[METRIC].low for each in (1, 4)])
    assert {trace.name for trace in figure.data if "lines" in trace.mode} == {"1 × 1", "1 × 2", "2 × 1", "2 × 2"}
    best = max(summary.cells, key=lambda cell: cell.metrics[METRIC].value)
    roles = {trace.text[0]: trace.y[0] for trace in figure.data if trace.mode == "markers+text"}
    assert roles == {
        cell_role: cell.metrics[METRIC].value for cell_role, cell in (("best", best), ("control", summary.cells[0]))
    }


def test_samples_that_do_not_count_are_hollow_and_grey(run: RunRecord, summary: Summary) -> None:
    figure = charts.cells(run, summary, METRIC)
    hollow = [trace for trace in figure.data if trace.mode == "markers" and trace.marker.symbol == "circle-open"]
    assert {trace.marker.color for trace in hollow} == {GREY}
    assert sum(len(trace.x) for trace in hollow) == sum(cell.num_disturbed for cell in summary.cells) > 0
    assert [trace.name for trace in hollow if trace.showlegend] == ["disturbed from outside"]


@pytest.mark.parametrize("make", [charts.cells, charts.strip])
def test_the_kinds_of_noisy_samples_have_marks_of_their_own(run: RunRecord, make: Any) -> None:
    samples = run.samples.copy()
    samples["flag"] = 0
    for place, flag in enumerate(("contended", "throttled", "cold")):
        samples["flag"][place] = FLAGS.index(flag)
    samples["is_replaced"][3] = True
    samples[METRIC][4] *= 1.3
    noisy = replace(run, samples=samples)
    shown = {
        trace.name: trace.marker
        for trace in make(noisy, summarise(noisy), METRIC).data
        if trace.showlegend is not False
    }
    words = {"disturbed from outside", "throttled", "read from the disk", "measured again", "varied by itself"}
    assert words <= shown.keys()
    assert len({shown[name].symbol for name in words}) == len(words)
    assert {name for name in words if shown[name].color == ACCENT} == {"varied by itself"}


def test_cells_stand_in_their_order_and_the_baseline_is_dashed(run: RunRecord, summary: Summary) -> None:
    figure = charts.cells(run, summary, METRIC)
    best = max(summary.cells, key=lambda cell: cell.metrics[METRIC].value)
    assert figure.layout.yaxis.ticktext[-1] == best.label and title(figure).startswith(best.label)
    (line,) = figure.layout.shapes
    assert line.line.dash == "dash"
    assert line.x0 == summary.cells[0].metrics[METRIC].value


def test_a_time_is_better_when_it_is_shorter(run: RunRecord) -> None:
    summary = summarise(run, main_metric="ttft_s")
    shortest = min(summary.cells, key=lambda cell: cell.metrics["ttft_s"].value)
    assert title(charts.cells(run, summary, "ttft_s")).startswith(shortest.label)
    assert series.best_of(summary.cells, "ttft_s") is shortest


def test_thread_scaling_has_its_ideal_line_and_the_cores(run: RunRecord, summary: Summary) -> None:
    found = series.scaling(summary, METRIC)
    assert found is not None
    figure = charts.scaling(run, found, METRIC, num_cores=1)
    ideal = named(figure, "ideal")[0]
    assert ideal.line.dash == "dash"
    assert ideal.y[1] == pytest.approx(2 * ideal.y[0])
    assert figure.layout.shapes[0].x0 == 1 and figure.layout.shapes[0].label.text == "1 core"
    assert "ideal is 2" in title(figure)


def test_scaling_and_layouts_need_what_they_compare(plan: Plan) -> None:
    lonely = summarise(make_run(replace(plan, axes={"layout": ("2x1",), "parallel": (1, 2)})))
    assert series.scaling(lonely, METRIC) is None
    assert series.layouts(lonely, METRIC) is None


def test_the_layout_map_has_the_best_cell_of_each(summary: Summary) -> None:
    grid = series.layouts(summary, METRIC)
    assert grid is not None and (grid.instances, grid.threads) == ((1, 2), (1, 2))
    best = {cell.settings["layout"]: cell for cell in summary.cells if cell.settings["parallel"] == 4}
    assert grid.cells == ((best["1x1"], best["1x2"]), (best["2x1"], best["2x2"]))
    (fields,) = charts.layouts(grid, METRIC).data
    assert fields.z[1][0] == best["2x1"].metrics[METRIC].value


def test_trade_off_keeps_the_order_of_its_axis(run: RunRecord, summary: Summary) -> None:
    figure = charts.trade_off(run, summary, "parallel", "tpot_s", METRIC)
    (line,) = named(figure, "1 × 2")
    assert list(line.text) == ["1", "4"]
    assert list(line.x) == sorted(line.x)
    assert figure.layout.xaxis.title.text == "time per token, ms"


def test_memory_names_the_lightest_of_the_nearly_best(run: RunRecord, summary: Summary) -> None:
    least = series.least_memory(summary.cells, METRIC)
    best = series.best_of(summary.cells, METRIC)
    near = [cell for cell in summary.cells if cell.metrics[METRIC].value >= 0.95 * best.metrics[METRIC].value]
    assert least.metrics["pss_bytes"].value == min(cell.metrics["pss_bytes"].value for cell in near)
    assert least.label in title(charts.memory(run, summary, METRIC))


def test_the_strip_stands_on_the_median_of_each_cell(run: RunRecord) -> None:
    found = series.strip(run.samples, METRIC)
    assert len(found.ratio) == len(run.samples)
    assert (np.diff(found.elapsed_min) >= 0).all()
    for cell in np.unique(found.cell):
        used = (found.cell == cell) & found.is_counted
        assert np.median(found.ratio[used]) == pytest.approx(1, abs=1e-6)
    assert found.finding.startswith(f"{int((~found.is_counted).sum())} of {len(run.samples)} samples")


def test_a_pause_of_days_does_not_squeeze_the_strip(run: RunRecord) -> None:
    samples = run.samples.copy()
    samples["started_at"][len(samples) // 2 :] += 7 * 86_400
    assert series.strip(samples, METRIC).elapsed_min.max() < series.strip(run.samples, METRIC).elapsed_min.max() + 3


def test_a_strip_of_nothing_is_empty() -> None:
    found = series.strip(no_samples(), METRIC)
    assert len(found.ratio) == 0 and found.finding == "All samples included"


def test_a_strip_of_very_many_samples_sends_few_and_loses_no_outlier(run: RunRecord) -> None:
    samples = np.tile(run.samples, 1 + 2 * MOST_POINTS // len(run.samples))
    samples["position"] = np.arange(len(samples))
    samples["started_at"] = 1.0 * np.arange(len(samples))
    samples[METRIC][MOST_POINTS + 1] *= 50
    figure = charts.strip(replace(run, samples=samples), summarise(run), METRIC)
    assert 0 < sum(len(trace.x) for trace in figure.data) <= MOST_POINTS
    assert max(trace.y.max() for trace in figure.data) > 20
    assert f"of {len(samples):,} samples excluded" in title(figure)


def test_only_charts_that_say_something_are_offered(plan: Plan, run: RunRecord, summary: Summary) -> None:
    assert list(run_charts.available(run, summary, METRIC)) == [
        "By sequences", "Threads", "Layouts", "Against latency", "Against first token", "Memory", "All configurations",
        "Samples by time",
    ]  # fmt: skip
    search = replace(run, question="settings")
    assert next(iter(run_charts.available(search, summary, METRIC))) == "All configurations"
    one = make_run(replace(plan, axes={"layout": ("1x2",)}))
    assert list(run_charts.available(one, summarise(one), METRIC)) == ["All configurations", "Samples by time"]
    empty = replace(run, samples=no_samples())
    assert run_charts.available(empty, summarise(empty), METRIC) == {}


def test_axes_are_titled_in_lower_case(run: RunRecord, summary: Summary) -> None:
    figure = run_charts.available(run, summary, METRIC)["By sequences"]()
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("sequences", "total speed, tok/s")


def test_settings_that_follow_from_others_are_no_axes(summary: Summary) -> None:
    assert list(series.varied(summary.cells)) == ["layout", "parallel"]
    assert series.numeric_axes(summary.cells) == ["parallel"]


def test_users_are_drawn_with_what_is_wanted(plan: Plan) -> None:
    axes = {"users": (1, 2, 4, 8)}
    asked = replace(plan, question="users", axes=axes, pool={"instances": 1, "threads": 2, "parallel": 8})
    run = make_run(asked, objective_met_up_to=4)
    wanted = Objective.from_dict(asked.objective)
    found = capacity(run, wanted)
    figure = answer_charts.users(found, wanted)
    assert [list(trace.x) for trace in figure.data] == [[1, 2, 4, 8]] * 2
    assert {shape.line.dash for shape in figure.layout.shapes} == {"dash", "dot"}
    assert title(figure) == f"{found.users} users served within the objective"
    assert 4 <= found.users < 8


def test_a_waterfall_has_one_bar_for_each_way_of_calling(run: RunRecord) -> None:
    def cell(number: int, arm: str, tokenise_s: float) -> CellRecord:
        parts = PartTotals()
        parts.add({"tokenise": tokenise_s, "decode": 0.8}, 1.0, 10)
        return CellRecord(number=number, label=arm, settings={"arm": arm}, facts=parts.facts())

    found = time_breakdown(
        replace(run, question="python", cells=(cell(0, "pool", 0.05), cell(1, "create_completion", 0.15)))
    )
    figure = answer_charts.time_breakdown(found)
    assert [trace.name for trace in figure.data] == ["tokenise", "decode", "rest"]
    assert list(figure.data[0].x) == pytest.approx([5.0, 15.0])
    assert list(figure.data[0].y) == ["pool", "create_completion"]


def test_names_stay_text(plan: Plan) -> None:
    hostile = '<a href="javascript:alert(1)">x</a><b>\u202ebold\n'
    run = make_run(plan)
    cells = tuple(replace(cell, label=hostile + str(cell.number)) for cell in run.cells)
    summary = summarise(replace(run, cells=cells))
    for make in run_charts.available(run, summary, METRIC).values():
        text = plotly.io.to_json(make())
        assert "<a href" not in text.replace("\\u003c", "<") and "\u202e" not in text
        json.loads(text)
    assert Pen.text("a" * 200).endswith("…") and len(Pen.text("a" * 200)) == 60


def test_a_long_title_takes_two_lines_and_the_room_for_them() -> None:
    short = blank("4,534 tok/s at most: 1 × 2", "")
    figure = blank("4,534 tok/s total speed at most: Two minutes 2026-11-22 07:21 · 4 sequences <b>", "")
    lines = title(figure).split("<br>")
    assert [len(line) <= 68 for line in map(html.unescape, lines)] == [True, True]
    assert html.unescape(" ".join(lines)).endswith("· 4 sequences <b>")
    assert figure.layout.height - figure.layout.margin.t == short.layout.height - short.layout.margin.t
    assert figure.layout.margin.t > short.layout.margin.t
    assert len(title(blank("word " * 100, "")).split("<br>")) == 2


def test_colours_are_those_that_the_browser_fills_in() -> None:
    assert ramp(1) == [ACCENT]
    assert len(set(ramp(5))) == 5
    assert ACCENT in plotly.io.templates["streamlit"].layout.colorway


def test_a_colour_has_one_meaning_and_one_theme() -> None:
    colours = [colour.upper() for theme in chart_colours.THEMES for colour in chart_colours.of_theme(theme)]
    assert len(set(colours)) == len(colours) == 2 * len([*COLOURS, *RAMP])


def test_more_lines_than_shades_have_other_marks() -> None:
    assert {mark for _, mark in strokes(5)} == {"circle"}
    for count in range(2, 4 * (NUM_SHADES - 1) + 1):
        assert len(set(strokes(count))) == count


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_line_stands_out_from_the_background(theme: str) -> None:
    colours = tomllib.loads(CONFIG.read_text())["theme"][theme]
    shown = dict(zip(RAMP, colours["chartSequentialColors"], strict=True))
    shown |= dict(zip(COLOURS, colours["chartCategoricalColors"], strict=True))
    given = {shade for count in range(1, 41) for shade in ramp(count)} | set(COLOURS)
    faint = {shown[shade]: contrast(shown[shade], colours["backgroundColor"]) for shade in given}
    assert min(faint.values()) >= 3, faint


def contrast(colour: str, other: str) -> float:
    """The ratio of WCAG 2.2 between two colours such as "#2B59C3"."""
    low, high = sorted(map(luminance, (colour, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.slow
def test_the_points_that_are_drawn_do_not_grow_with_the_samples(plan: Plan) -> None:
    axes = {"layout": LAYOUTS, "parallel": tuple(range(1, 51))}
    small = make_run(replace(plan, axes=axes, rounds=1))

    def many(num_rounds: int) -> RunRecord:
        samples = np.tile(small.samples, num_rounds)
        samples["round"] = np.repeat(np.arange(num_rounds), len(small.samples))
        samples["position"] = np.arange(len(samples))
        samples["started_at"] = 1.5 * np.arange(len(samples))
        samples[METRIC] *= np.random.default_rng(0).lognormal(0, 0.03, len(samples))
        return replace(small, samples=samples)

    def num_drawn(run: RunRecord) -> int:
        summary = summarise(run)
        offered = run_charts.available(run, summary, METRIC)
        strip = offered.pop("Samples by time")()
        made = [make() for make in offered.values()]
        assert 0 < sum(len(trace.x) for trace in strip.data) <= MOST_POINTS
        assert all(sum(len(trace.x) for trace in figure.data) < 1_000 for figure in made)
        return sum(len(plotly.io.to_json(figure)) for figure in (*made, strip))

    assert num_drawn(many(500)) < 1.2 * num_drawn(many(50))


def test_a_run_of_one_sample_can_be_drawn(plan: Plan, run: RunRecord) -> None:
    one = replace(run, samples=make_sample(tokens_per_s=10.0, position=0, started_at=1.0))
    summary = summarise(one)
    assert title(charts.cells(one, summary, METRIC)).startswith(summary.cells[0].label)
    assert list(charts.strip(one, summary, METRIC).data[0].y) == [1.0]
