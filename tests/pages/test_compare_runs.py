"""The Compare page for runs without a browser: what the address opens, what it keeps, and what is said."""

import json
from dataclasses import replace

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.analysis.comparison import Comparison, compare_runs
from engine.bench.analysis.entries import key_of
from engine.bench.planning.plan import Plan
from engine.errors import HistoryError
from engine.reference import reference_runs
from engine.runs import RunRecord
from engine.workbench import Workbench
from pages.parts.compare import run_entries
from pages.parts.labels import distinct
from pages.parts.plain import plain
from tests.pages.app import HOSTILE, address, open_page, said
from tests.pages.bench_harness import ScriptedManager, make_run


@pytest.fixture(scope="module")
def runs(plan: Plan) -> tuple[RunRecord, RunRecord]:
    """The same plan measured twice, the second time on a faster machine."""
    first, second = make_run(plan), make_run(replace(plan, name="Faster"), seed=1)
    samples = second.samples.copy()
    samples["tokens_per_s"] *= 1.5
    return first, replace(second, samples=samples, machine={"cpu": "Three cores", "cores": 3})


@pytest.fixture
def manager(bench: Workbench, monkeypatch: pytest.MonkeyPatch, runs: tuple[RunRecord, RunRecord]) -> ScriptedManager:
    scripted = ScriptedManager(*runs)
    monkeypatch.setattr(bench, "bench", scripted, raising=False)
    return scripted


def page(**query: str) -> AppTest:
    return open_page("compare.py", "Compare", **query)


def opened(*runs: RunRecord, **query: str) -> AppTest:
    return page(runs=",".join(run.id for run in runs), **query)


def table(at: AppTest) -> list[str]:
    return list(at.main.dataframe[0].value["configuration"])


def test_two_runs_open_with_a_sentence_and_what_to_know(
    manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]
) -> None:
    at = opened(*runs)
    expected = compare_runs(runs)
    assert at.main.subheader[0].value == plain(expected.sentence)
    assert expected.warnings and all(plain(warning) in said(at) for warning in expected.warnings)
    assert table(at) == [entry.label for entry in expected.entries]
    assert not [button for button in at.main.button if button.proto.type == "primary"]


def test_the_same_configuration_in_both_runs_is_named_and_stands_in_the_table(
    manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]
) -> None:
    at = opened(*runs)
    expected = compare_runs(runs)
    assert expected.between_runs and plain(expected.between_runs) in said(at)
    marks = at.main.dataframe[0].value[run_entries.SAME]
    assert [len(one) > 0 for one in marks] == [entry.key in expected.run_to_run for entry in expected.entries]
    alone = opened(runs[0])
    assert run_entries.SAME not in alone.main.dataframe[0].value
    assert "same configuration" not in said(alone)


def test_chips_add_and_remove_runs_and_the_address_follows(
    manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]
) -> None:
    first, second = runs
    at = opened(first, baseline=key_of(second.id, 0))
    chips = at.multiselect(key="compare_runs")
    assert chips.value == [first.id]
    assert set(chips.options) > {run.name + f" · {run.origin}" for run in reference_runs()}
    chips.set_value([first.id, second.id]).run()
    assert address(at)["runs"] == f"{first.id},{second.id}"
    at.multiselect(key="compare_runs").set_value([second.id]).run()
    assert address(at) == {"runs": second.id, "baseline": key_of(second.id, 0)}
    at.multiselect(key="compare_runs").set_value([]).run()
    assert address(at) == {"runs": ""} and len(at.multiselect(key="compare_runs").value) == 2


def test_cells_metric_and_baseline_are_chosen_and_kept_in_the_address(
    manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]
) -> None:
    first, second = runs
    keys = [key_of(first.id, 0), key_of(first.id, 5), key_of(second.id, 2)]
    at = opened(*runs)
    at.multiselect(key="compare_cells").set_value(keys).run()
    at.selectbox(key="compare_y").set_value("ttft_s").run()
    at.selectbox(key="compare_baseline").set_value(keys[2]).run()
    kept = address(at)
    assert kept["cells"] == ",".join(keys) and kept["y"] == "ttft_s" and kept["baseline"] == keys[2]
    again = page(**kept)
    expected = compare_runs(
        runs,
        chosen=keys,
        baseline=keys[2],
        metrics=["ttft_s", *(n for n in compare_runs(runs).metrics if n != "ttft_s")],
    )
    assert again.main.subheader[0].value == plain(expected.sentence)
    assert again.main.dataframe[0].value["verdict"][2].tolist() == ["baseline"]


def test_a_chosen_entry_becomes_the_baseline_or_is_left_out(
    manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]
) -> None:
    at = opened(runs[0], cells="all", columns="Resources")
    assert any(name.startswith("memory (PSS)") for name in at.main.dataframe[0].value)
    table = run_entries.key_of_table(compare_runs(runs[:1]).entries)
    at.session_state[table] = {"selection": {"rows": [3], "columns": [], "cells": []}}
    at.run().button(key="compare_as_baseline").click().run()
    assert at.main.dataframe[0].value["verdict"][3].tolist() == ["baseline"]
    at.session_state[table] = {"selection": {"rows": [5], "columns": [], "cells": []}}
    at.run().button(key="compare_leave_out").click().run()
    assert "compare_leave_out" not in [button.key for button in at.button]
    assert address(at)["cells"] == ",".join(key_of(runs[0].id, cell) for cell in range(5))
    assert address(at)["baseline"] == key_of(runs[0].id, 3) and address(at)["columns"] == "Resources"


def test_the_axes_of_a_scatter_are_chosen_and_kept_in_the_address(
    manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]
) -> None:
    at = opened(runs[0], cells="all", chart="Scatter")
    assert [at.selectbox(key=f"compare_{name}").value for name in ("x", "colour", "panel")] == [
        "parallel",
        "layout",
        "none",
    ]
    for name, value in (("x", "ttft_s"), ("colour", "none"), ("panel", "layout"), ("scale", "logarithmic")):
        at.selectbox(key=f"compare_{name}").set_value(value).run()
    assert address(at) == {
        "runs": runs[0].id, "cells": "all", "chart": "Scatter", "x": "ttft_s", "colour": "none", "panel": "layout",
        "scale": "logarithmic",
    }  # fmt: skip
    figure = json.loads(at.get("plotly_chart")[0].proto.spec)
    assert (
        figure["layout"]["yaxis"]["type"] == "log" and figure["layout"]["xaxis"]["title"]["text"] == "first token, ms"
    )
    assert len({trace["xaxis"] for trace in figure["data"]}) == 3


def test_another_chart_is_open_after_a_reload(manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]) -> None:
    at = opened(runs[0], chart="Parallel coordinates")
    (figure,) = [json.loads(chart.proto.spec) for chart in at.get("plotly_chart")]
    assert [trace["type"] for trace in figure["data"]] == ["parcoords"]


def test_every_cell_has_a_short_address(manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]) -> None:
    at = opened(runs[0])
    cells = at.multiselect(key="compare_cells")
    cells.set_value(cells.value[:2]).run()
    assert len(table(at)) == 2
    cells = at.multiselect(key="compare_cells")
    cells.set_value([key_of(runs[0].id, cell) for cell in range(6)]).run()
    assert address(at)["cells"] == "all" and len(table(at)) == 6


def test_nothing_named_opens_the_newest_runs_and_nothing_measured_the_reference(manager: ScriptedManager) -> None:
    newest = [run.id for run in manager.recent()]
    assert page(runs="").multiselect(key="compare_runs").value == newest
    manager.runs.clear()
    at = page(runs="")
    assert at.multiselect(key="compare_runs").value == [run.id for run in reference_runs()[:2]]
    assert "From notes" in said(at)
    assert {"end to end, tok/s"} == {name for name in at.main.dataframe[0].value if name.endswith("tok/s")}


def test_the_page_comes_back_as_it_was_left(manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]) -> None:
    at = opened(runs[1], y="ttft_s")
    at.switch_page("benchmark.py").run()
    at.query_params.clear()
    at.switch_page("compare.py").run()
    assert address(at) == {"runs": runs[1].id, "y": "ttft_s"}


def test_what_is_gone_is_said_and_the_rest_is_compared(
    manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]
) -> None:
    gone = "01a1fab9-91c7-7816-819a-8fcdffdfbaff"
    at = page(runs=f"{gone},{runs[0].id},<b>x</b>")
    assert "2 runs in the URL cannot be compared" in at.main.error[0].value
    assert at.multiselect(key="compare_runs").value == [runs[0].id]
    assert at.main.subheader
    at = page(runs=gone)
    assert not at.main.subheader and "No runs to compare" in said(at)


def test_a_cell_that_is_gone_is_said_in_the_warnings(
    manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]
) -> None:
    at = opened(runs[0], cells=f"{key_of(runs[0].id, 0)},{key_of('gone', 7)}", baseline="nobody", y="goodness", x="?")
    assert len(table(at)) == 1
    assert any("left out" in caption.value for caption in at.main.caption)


def test_a_history_that_cannot_be_read_is_said_in_place(
    manager: ScriptedManager, monkeypatch: pytest.MonkeyPatch, runs: tuple[RunRecord, RunRecord]
) -> None:
    def fail(_: str) -> RunRecord:
        raise HistoryError("The history is damaged.")

    monkeypatch.setattr(manager, "run", fail)
    at = opened(*runs)
    assert "damaged" in at.main.error[0].value


def test_only_what_differs_stands_in_the_table_with_verdicts_in_words(runs: tuple[RunRecord, RunRecord]) -> None:
    first = runs[0]
    comparison = compare_runs([first], chosen=[key_of(first.id, cell) for cell in (0, 1)])
    found = run_entries.frame(comparison, ["tokens_per_s", "ttft_s"])
    assert list(found["sequences"]) == [1, 4] and "layout" not in found and "model" not in found
    verdict = comparison.verdicts[key_of(first.id, 1), "tokens_per_s"]
    assert list(found["verdict"]) == ["baseline", f"↑ faster {verdict.ratio.value:.2f} ×"]
    assert found["total speed, 95 %"][0].count(" – ") == 1
    slower = comparison.verdicts[key_of(first.id, 1), "ttft_s"]
    assert found["first token, verdict"][1].startswith(f"↓ slower {slower.ratio.value:.2f}")
    assert "Layout 1 × 1" in run_entries.same(comparison)


def test_settings_of_imported_runs_do_not_take_the_columns_of_the_table(runs: tuple[RunRecord, RunRecord]) -> None:
    names = ("verdict", "configuration", "remarks", "total speed, tok/s", "", "_")
    cells = [
        replace(cell, settings={**cell.settings, **dict.fromkeys(names, f"{number}th")})
        for number, cell in enumerate(runs[0].cells)
    ]
    comparison = compare_runs([replace(runs[0], cells=tuple(cells))])
    found = run_entries.frame(comparison, ["tokens_per_s"])
    plain_table = run_entries.frame(compare_runs(runs[:1]), ["tokens_per_s"])
    for name in ("verdict", "total speed, tok/s"):
        assert list(found[name]) == list(plain_table[name])
    assert list(found["configuration"]) == [entry.label for entry in comparison.entries]
    own = [f"{name} (2)" for name in ("verdict", "configuration", "total speed, tok/s")]
    assert all(list(found[name])[:2] == ["0th", "1th"] for name in own)


def test_what_some_do_not_tell_is_not_the_same_in_all(runs: tuple[RunRecord, RunRecord]) -> None:
    comparison = compare_runs([runs[0], reference_runs()[0]])
    assert "parallel" in comparison.same or "parallel" in comparison.differing
    assert "Load mode" not in run_entries.same(comparison)
    assert "Load mode" in run_entries.same(compare_runs([runs[0]]))


def test_marks_stand_in_the_table(runs: tuple[RunRecord, RunRecord]) -> None:
    comparison = compare_runs([*runs, reference_runs()[0]])
    known = set(run_entries.frame(comparison, ["tokens_per_s"])["remarks"])
    assert {"other machine", "reference"} <= known


def test_notes_stand_beside_end_to_end_alone(runs: tuple[RunRecord, RunRecord]) -> None:
    def timed(run: RunRecord) -> RunRecord:
        samples = run.samples.copy()
        samples["end_to_end_per_s"] = 0.9 * samples["tokens_per_s"]
        return replace(run, samples=samples)

    comparison: Comparison = compare_runs([timed(runs[0]), reference_runs()[0]])
    found = run_entries.frame(comparison, list(comparison.measured))
    noted = [entry.is_noted for entry in comparison.entries]
    assert any(noted)
    for name in found.select_dtypes(float):
        is_known = np.isfinite(found[name][noted].to_numpy(float))
        assert is_known.all() if name.startswith("end to end") else not is_known.any(), name


def test_labels_of_lists_are_told_apart() -> None:
    assert distinct({1: "a", 2: "a", 3: "a\n"}) == {1: "a", 2: "a (2)", 3: "a\ufffd"}


def test_a_run_that_is_measured_again_is_compared_anew(
    manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]
) -> None:
    first = runs[0]
    before = opened(first).main.dataframe[0].value
    half = first.samples[first.samples["round"] < 6]
    manager.runs[first.id] = replace(first, samples=half)
    assert not before.equals(opened(first).main.dataframe[0].value)


def test_hostile_names_stay_text(manager: ScriptedManager, runs: tuple[RunRecord, RunRecord]) -> None:
    cells = tuple(replace(cell, label=HOSTILE + str(cell.number)) for cell in runs[0].cells)
    run = replace(runs[0], name=HOSTILE, cells=cells)
    manager.runs[run.id] = run
    at = opened(run, runs[1])
    shown = said(at) + "".join(at.multiselect(key="compare_runs").options)
    assert "\u202e" not in shown
    assert "<script>" not in said(at) and "**bold" not in said(at)
