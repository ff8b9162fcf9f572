"""The charts of the Cost page, from the figures of the notes."""

from pathlib import Path

import numpy as np
import pytest

from engine.cost import CostJob, Estimate, answer, best_by_machine, count_texts, estimate, prices_for, read_prices
from engine.workbench import costing
from pages.parts.cost import charts, name_places


def figures_of_the_notes(job: CostJob) -> list[Estimate]:
    rates = best_by_machine(rate for rate in costing.reference_rates() if rate.machine.startswith(("c7i", "g4dn")))
    prices = read_prices((Path(__file__).parents[2] / "data" / "prices" / "prices.csv").read_text())
    return [estimate(job, rate, prices_for(rate.machine, prices)[0], counted_as="notes") for rate in rates]


def test_the_bars_name_the_best_and_show_both_figures_where_the_notes_differ() -> None:
    figure = charts.per_dollar(figures_of_the_notes(CostJob()))
    assert figure.layout.title.text == "c7i.xlarge gives the most tokens per dollar"
    texts = [text for bars in figure.data for text in bars.text]
    assert "27.4 (noted 28.2)" in texts and "143" in texts
    assert {bars.name: bars.marker.pattern.shape for bars in figure.data} == {"noted": "", "assumed": "/"}


def test_time_and_money_has_wanted_limits_dashed_and_the_chosen_larger() -> None:
    found = figures_of_the_notes(CostJob())
    chosen = answer(found, deadline_h=20.0).chosen
    figure = charts.time_and_money({"notes": found, "apart": []}, chosen, deadline_h=20.0, budget_usd=6.0)
    assert figure.layout.title.text == "c7i.2xlarge: 16 h 12 min for $5.78"
    assert [shape.line.dash for shape in figure.layout.shapes] == ["dash", "dash"]
    (points,) = [trace for trace in figure.data if trace.mode and "markers" in trace.mode]
    sizes = dict(zip(points.text, points.marker.size, strict=True))
    assert max(sizes, key=sizes.__getitem__) == "c7i.2xlarge"


def test_names_of_points_lie_on_no_dot_and_on_no_other_name() -> None:
    near = [("home, 60 GB", 16.0, 5.9), ("c7i.2xlarge", 17.0, 5.9), ("c7i.4xlarge", 17.5, 5.5), ("far", 52.0, 27.0)]
    names, x, y = zip(*near, strict=True)
    chosen = name_places.places(names, x, y, [(0.0, 0.0, at, cost) for _, at, cost in near])
    scale = np.array([name_places.WIDTH / 52 / 1.05, name_places.HEIGHT / 27 / 1.05])
    dots = np.column_stack([x, y]) * scale
    boxes = [
        name_places.box(name, dot, *name_places.PLACES[place])
        for name, dot, place in zip(names, dots, chosen, strict=True)
    ]
    for number, (low, high) in enumerate(boxes):
        assert not ((dots > low) & (dots < high)).all(-1).any()
        assert not any((low < other[1]).all() and (other[0] < high).all() for other in boxes[number + 1 :])
        assert high[0] <= name_places.WIDTH + name_places.MARGIN


def test_the_names_of_what_is_wanted_stand_inside_the_chart() -> None:
    figure = charts.time_and_money({"notes": figures_of_the_notes(CostJob())}, None, deadline_h=20.0, budget_usd=6.0)
    _, budget = figure.layout.shapes
    assert (budget.label.text, budget.label.textposition, budget.label.xanchor) == ("budget", "end", "right")
    (points,) = [trace for trace in figure.data if trace.text is not None]
    assert set(points.textposition) <= set(name_places.PLACES) and len(points.textposition) == len(points.text)


def test_a_short_job_is_drawn_in_minutes() -> None:
    found = figures_of_the_notes(CostJob(documents=1))
    figure = charts.time_and_money({"notes": found, "apart": []}, None, deadline_h=0.5)
    fastest = min(one.hours.value for one in found)
    assert figure.layout.title.text == "c7i.4xlarge: 6 min 43 s for $0.0800" and 60 * fastest == pytest.approx(6.72)
    assert figure.layout.xaxis.title.text == "time, min" and figure.layout.shapes[0].x0 == 30
    assert min(figure.data[-1].x) == pytest.approx(60 * fastest)


def test_times_alone_are_bars_with_the_fastest_on_top() -> None:
    found = figures_of_the_notes(CostJob())
    unpriced = [estimate(CostJob(), one.rate, counted_as="notes") for one in found]
    figure = charts.times(unpriced)
    drawn, labels = figure.data
    assert list(drawn.x) == sorted(drawn.x, reverse=True)
    assert figure.layout.title.text == "c7i.4xlarge is the fastest: 11 h 12 min"
    assert labels.text[-1].strip() == "11 h 12 min"
    assert charts.times(found).data[1].text[-1].strip() == "11 h 12 min · $8.00"


def test_lengths_of_documents_are_a_histogram_with_their_mean() -> None:
    found = count_texts([("a", b"one two"), ("b", b"one two three four")], lambda text: len(text.split()))
    figure = charts.lengths(found)
    assert figure.layout.title.text == "2 documents, 3.00 tokens each on average"
    assert list(figure.data[0].x) == [2, 4]
    assert [shape.x0 for shape in figure.layout.shapes] == [3]
