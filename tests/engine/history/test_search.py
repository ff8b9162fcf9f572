"""Search: filters find what they say, figures are those of the benchmark, and no text breaks a query."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from engine.bench.analysis.summary import summarise
from engine.errors import ConfigError, HistoryError
from engine.history import History
from engine.history.filters import Filter
from engine.history.search import Found
from engine.samples import MAIN_METRICS, METRICS_BY_NAME, is_counted
from tests.engine.history.run_maker import keep_run, make_cell, make_run, make_samples
from tests.engine.history.trial_maker import NASTY, make_trial, uuid7


def ids(found: Found) -> list[str]:
    """Return the ids of the rows, in order."""
    return [row["id"] for row in found.rows]


# Runs


def test_a_row_of_a_run_says_what_it_is(history: History) -> None:
    run = make_run(24, 2, machine={"hash": "ab12", "cpu": "Reference", "allowed_cores": [0, 1], "threads": 4})
    history.runs.keep(run)
    (row,) = history.find.runs().rows
    assert row["created_at"] == run.created_at
    expected = {
        "id": run.id,
        "name": "two layouts",
        "question": "speed",
        "status": "done",
        "origin": "measured",
        "model_name": "story",
        "quantisation": "",
        "machine_hash": "ab12",
        "machine": "Reference, 2 of 4 cores",
        "num_cells": 2,
        "num_samples": int((~run.samples["is_replaced"]).sum()),
        "num_replaced": int(run.samples["is_replaced"].sum()),
        "sentence": "2x1 is 1.32 times as fast.",
        "tags": [],
        "note": "",
        "is_starred": False,
        "is_archived": False,
    }
    assert {name: row[name] for name in expected} == expected


def test_the_numbers_of_samples_are_those_of_the_benchmark(history: History) -> None:
    for seed, num in enumerate((0, 1, 7, 44, 200)):
        samples = make_samples(num, seed=seed)
        samples["is_replaced"] |= np.random.default_rng(seed).random(num) < seed / 4
        run = make_run(samples=samples)
        history.runs.keep(run)
        found = summarise(run).disturbance
        row = next(row for row in history.find.runs().rows if row["id"] == run.id)
        assert (row["num_disturbed"], row["num_samples"], row["num_replaced"]) == (
            found.num,
            found.total,
            found.num_replaced,
        )
        assert found.total + found.num_replaced == num


def test_the_best_is_the_highest_median_by_the_main_metric(history: History) -> None:
    for seed in range(4):
        run = make_run(samples=make_samples(60, 3, seed=seed), cells=tuple(map(make_cell, range(3))))
        history.runs.keep(run)
        found = summarise(run)
        best = max(cell.metrics[found.main_metric].value for cell in found.cells)
        (row,) = [row for row in history.find.runs().rows if row["id"] == run.id]
        assert (row["best_metric"], row["best"]) == (found.main_metric, pytest.approx(best))


def test_the_main_metric_is_the_first_that_was_measured(history: History) -> None:
    for name in MAIN_METRICS:
        samples = make_samples(12)
        for other in MAIN_METRICS[: MAIN_METRICS.index(name)]:
            samples[other] = np.nan
        keep_run(history, name=name, samples=samples)
    assert {row["name"]: row["best_metric"] for row in history.find.runs().rows} == {
        name: name for name in MAIN_METRICS
    }
    keep_run(history, name="engines", question="engines")
    (row,) = [row for row in history.find.runs().rows if row["name"] == "engines"]
    assert row["best_metric"] == "end_to_end_per_s"
    keep_run(history, num_samples=0, name="nothing")
    (row,) = history.find.runs(Filter(text="nothing")).rows
    assert (row["best"], row["best_metric"], row["num_samples"]) == (None, None, 0)


def test_figures_of_different_metrics_are_not_put_in_one_order(history: History) -> None:
    for seed, missing in enumerate((0, 4, 0, 2)):
        samples = make_samples(12, seed=seed)
        for name in MAIN_METRICS[:missing]:
            samples[name] = np.nan
        keep_run(history, samples=samples)
    for is_descending in (True, False):
        rows = history.find.runs(order="best", is_descending=is_descending).rows
        assert [MAIN_METRICS.index(row["best_metric"]) for row in rows] == [0, 0, 2, 4]
        first, second = (row["best"] for row in rows[:2])
        assert first > second if is_descending else first < second


def test_runs_come_newest_first_a_page_at_a_time(history: History) -> None:
    day = datetime(2026, 11, 1, tzinfo=UTC)
    kept = [keep_run(history, created_at=day + timedelta(hours=number)) for number in range(7)]
    assert ids(history.find.runs()) == kept[::-1]
    pages = [history.find.runs(limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    assert [id for page in pages for id in ids(page)] == kept[::-1]
    assert {page.total for page in pages} == {7}
    assert ids(history.find.runs(is_descending=False)) == kept


def test_runs_in_the_order_of_their_best(history: History) -> None:
    for seed in range(5):
        keep_run(history, samples=make_samples(20, 2, seed=seed))
    keep_run(history, num_samples=0, name="empty")
    wanted = Filter(text="layouts two", origins=("measured",), ranges={"threads": (1, 2)})
    assert len(history.find.runs(wanted, order="best").rows) == 5
    for is_descending in (True, False):
        bests = [row["best"] for row in history.find.runs(order="best", is_descending=is_descending).rows]
        assert bests[-1] is None
        assert bests[:-1] == sorted(bests[:-1], reverse=is_descending)


@pytest.mark.parametrize("given", [{"order": "id; DROP TABLE runs"}, {"limit": 0}, {"limit": 10_001}, {"offset": -1}])
def test_a_page_that_cannot_be_is_refused(history: History, given: dict[str, Any]) -> None:
    for find in (history.find.runs, history.find.cells, history.find.trials):
        with pytest.raises(ConfigError, match=next(iter(given))):
            find(**given)


def test_every_order_that_is_offered_works(history: History) -> None:
    keep_run(history)
    history.record(make_trial()).result(60)
    for find in (history.find.runs, history.find.cells, history.find.trials):
        with pytest.raises(ConfigError) as refused:
            find(order="?")
        for order in str(refused.value).partition("one of ")[2].split(", "):
            assert find(order=order).total in (1, 2)


# Filters of runs


@pytest.mark.parametrize(
    ("wanted", "letters"),
    [
        (Filter(), "abc"),
        (Filter(text="run A"), "a"),
        (Filter(text="ärger RUN"), "abc"),
        (Filter(text="%"), "abc"),
        (Filter(text="100%"), ""),
        (Filter(text="b_1"), "b"),
        (Filter(text="_"), "abc"),
        (Filter(text="bx1"), ""),
        (Filter(text="'; DROP TABLE runs; --"), ""),
        (Filter(text=NASTY), ""),
        (Filter(models=("a-Q8_0", "c-F16")), "ac"),
        (Filter(models=("q8",)), ""),
        (Filter(quantisations=("Q4_K_M", "Q8_0")), "ab"),
        (Filter(quantisations=("Q2_K",)), ""),
        (Filter(machines=("b0",)), "b"),
        (Filter(questions=("speed", "python")), "ac"),
        (Filter(origins=("llama-bench",)), "b"),
        (Filter(statuses=("stopped",)), "b"),
        (Filter(since=date(2026, 11, 11)), "bc"),
        (Filter(until=date(2026, 11, 11)), "ab"),
        (Filter(since=date(2026, 11, 11), until=date(2026, 11, 11)), "b"),
        (Filter(ranges={"n_ctx": (600, None)}), "bc"),
        (Filter(ranges={"n_ctx": (512, 1024)}), "ab"),
        (Filter(ranges={"n_ctx": (None, 511.5)}), ""),
        (Filter(ranges={"threads": (2, 2), "n_ctx": (1024, None)}), "bc"),
        (Filter(ranges={"no such setting": (0, None)}), ""),
        (Filter(ranges={"layout": (0, None)}), ""),
        (Filter(ranges={"'\"~/$.*": (0, None)}), ""),
        (Filter(origins=("measured",), quantisations=("F16",)), "c"),
    ],
    ids=lambda value: str(value.to_query()) if isinstance(value, Filter) else value,
)
def test_a_filter_finds_what_it_says(history: History, three: dict[str, str], wanted: Filter, letters: str) -> None:
    expected = [three[letter] for letter in letters[::-1]]
    found = history.find.runs(wanted)
    assert (ids(found), found.total) == (expected, len(expected))
    cells = history.find.cells(wanted)
    assert ([row["run_id"] for row in cells.rows], cells.total) == (expected, len(expected))


def test_marks_are_found_and_the_archive_only_when_asked(history: History, three: dict[str, str]) -> None:
    a, b, c = three.values()
    history.marks.star("run", [a], True)
    history.marks.archive("run", [b], True)
    history.marks.tag("run", [a, b], add=["night"])
    history.marks.tag("run", [b, c], add=["paris"])
    history.marks.note("run", c, "the *slow* one")
    assert ids(history.find.runs()) == [c, a]
    assert ids(history.find.runs(Filter(has_archived=True))) == [c, b, a]
    assert ids(history.find.runs(Filter(only_archived=True))) == [b]
    assert ids(history.find.runs(Filter(is_starred=True))) == [a]
    assert ids(history.find.runs(Filter(tags=("night",)))) == [a]
    assert ids(history.find.runs(Filter(tags=("night", "paris"), has_archived=True))) == [b]
    assert ids(history.find.runs(Filter(text="*SLOW*"))) == [c]
    assert ids(history.find.runs(Filter(text="paris slow"))) == [c]


def test_the_last_days_end_today(history: History, three: dict[str, str]) -> None:
    midday = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)
    today, week_ago = (make_run(created_at=midday - timedelta(days=days)) for days in (0, 7))
    for run in (today, week_ago):
        history.runs.keep(run)
    assert ids(history.find.runs(Filter(days=1))) == [today.id]
    assert ids(history.find.runs(Filter(days=7))) == [today.id]
    assert ids(history.find.runs(Filter(days=8))) == [today.id, week_ago.id]
    assert ids(history.find.runs(Filter(days=8, until=(midday - timedelta(days=1)).date()))) == [week_ago.id]
    assert history.find.runs(Filter()).total == 5


def test_what_is_deleted_is_not_found(history: History, three: dict[str, str]) -> None:
    history.marks.tag("run", [three["b"]], add=["hidden"])
    history.runs.delete(three["b"])
    assert history.find.choices("run").tags == []
    assert ids(history.find.runs()) == [three["c"], three["a"]]
    assert {row["run_id"] for row in history.find.cells().rows} == {three["c"], three["a"]}
    assert history.find.choices("run").models == ["a-Q8_0", "c-F16"]
    with pytest.raises(HistoryError, match="deleted"):
        history.find.trend(three["b"], 0, "tokens_per_s")


def test_all_conditions_on_settings_hold_for_one_cell(history: History) -> None:
    cells = (make_cell(0, settings={"n_ctx": 512, "users": 8}), make_cell(1, settings={"n_ctx": 4096, "users": 1}))
    keep_run(history, cells=cells)
    assert history.find.runs(Filter(ranges={"n_ctx": (4096, None), "users": (1, 1)})).total == 1
    assert history.find.runs(Filter(ranges={"n_ctx": (4096, None), "users": (8, None)})).total == 0
    assert [row["cell"] for row in history.find.cells(Filter(ranges={"users": (8, 8)})).rows] == [0]


# Cells


def test_the_figures_of_cells_are_those_of_the_benchmark(history: History) -> None:
    run = make_run(200, 4, cells=tuple(map(make_cell, range(5))))
    history.runs.keep(run)
    rows = {row["cell"]: row for row in history.find.cells().rows}
    for cell in summarise(run).cells:
        row = rows[cell.number]
        for name in METRICS_BY_NAME:
            expected = cell.metrics[name].value if name in cell.metrics else None
            assert row[name] == (None if expected is None else pytest.approx(expected, rel=1e-12))
        assert (row["num_counted"] or 0) == cell.num_counted
    assert rows[4]["tokens_per_s"] is None


@pytest.mark.parametrize("share", [0, 0.05, 0.2, 0.5, 1])
def test_the_samples_that_count_are_those_of_the_benchmark(history: History, share: float) -> None:
    generator = np.random.default_rng(1)
    runs = {}
    for seed in range(6):
        samples = make_samples(240, 4, seed=seed)
        samples["round"] = np.arange(240) // 4 % (5 + 3 * seed)
        samples["flag"] = np.where(generator.random(240) < share, generator.integers(1, 4, 240), 0)
        run = make_run(240, 4, samples=samples, cells=tuple(map(make_cell, range(4))))
        history.runs.keep(run)
        runs[run.id] = samples
    for row in history.find.cells().rows:
        samples = runs[row["run_id"]]
        assert row["num_counted"] == int((is_counted(samples) & (samples["cell"] == row["cell"])).sum())


def test_a_row_of_a_cell_has_its_settings_and_says_what_differs(history: History) -> None:
    odd = {"row": {"n": 1}, "values": [1, 2], "name": "not the run's", "model": "/m/x-Q5_K_M.gguf", "parallel": 4}
    keep_run(history, num_samples=4, cells=(make_cell(0), make_cell(1, settings={**odd, "threads": 2})))
    found = history.find.cells(order="label", is_descending=False)
    first, second = found.rows
    assert list(first) == list(second)
    assert (first["layout"], first["parallel"], second["layout"], second["parallel"]) == ("1x2", None, None, 4)
    assert (second["name"], second["model_name"], second["quantisation"]) == ("two layouts", "x-Q5_K_M", "Q5_K_M")
    assert not {"row", "values"} & set(second)
    assert {"layout", "parallel", "cell", "model_name"} <= set(found.differing)
    assert found.same["threads"] == 2
    assert not set(found.same) & set(found.differing)
    assert {*found.same, *found.differing} == set(first)


def test_cells_in_the_order_of_a_metric(history: History) -> None:
    for seed in range(3):
        keep_run(history, samples=make_samples(40, 3, seed=seed), cells=tuple(map(make_cell, range(4))))
    for is_descending in (True, False):
        values = [
            row["decode_per_s"] for row in history.find.cells(order="decode_per_s", is_descending=is_descending).rows
        ]
        known = [value for value in values if value is not None]
        assert values == [*sorted(known, reverse=is_descending), *[None] * (12 - len(known))]
        assert 6 < len(known) < 10


def test_an_empty_history_has_nothing(history: History) -> None:
    for find in (history.find.runs, history.find.cells, history.find.trials):
        assert find(Filter(text="a", ranges={"n_ctx": (1, None)}, quantisations=("F16",))) == Found([], 0, ())
        assert find().same == {}
    assert history.find.slow_tokens() == history.find.unsure_tokens() == []
    for kind in ("run", "trial"):
        assert not any(history.find.choices(kind))


def test_odd_text_and_settings_are_found_again(history: History) -> None:
    cells = (make_cell(0, label=NASTY, settings={NASTY: 5, "a/b~c": 1e300, "model": NASTY}),)
    machine = {"hash": NASTY, "cpu": NASTY}
    keep_run(history, name=NASTY, cells=cells, machine=machine, question=NASTY, num_samples=1, num_cells=1)
    word = NASTY.split()[2]
    wanted = Filter(ranges={NASTY: (5, 5), "a/b~c": (1e299, None)}, machines=(NASTY,), questions=(NASTY,), text=word)
    assert history.find.runs(wanted).total == history.find.cells(wanted).total == 1
    (row,) = history.find.cells(wanted).rows
    assert (row["label"], row["machine"], row[NASTY], row["a/b~c"]) == (NASTY, NASTY, 5, 1e300)
    assert history.find.choices("run").ranges == {NASTY: (5, 5), "a/b~c": (1e300, 1e300)}


def test_an_unknown_id_has_no_trend(history: History) -> None:
    id = keep_run(history)
    for run_id, cell in ((uuid7(), 0), ("junk", 0), (id, 7)):
        with pytest.raises(HistoryError, match="no configuration"):
            history.find.trend(run_id, cell, "tokens_per_s")
    with pytest.raises(ConfigError, match="metric"):
        history.find.trend(id, 0, "mood")
