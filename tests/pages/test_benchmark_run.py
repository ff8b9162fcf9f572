"""The Benchmark page of a run: its sentence, figures, table and charts, and what can be done with it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.analysis.explanation import explanation
from engine.bench.analysis.scatter import scatter_of
from engine.bench.analysis.summary import summarise
from engine.bench.planning.plan import Plan
from engine.machine.limits import Limits
from engine.reference import reference_runs
from engine.runs import RunRecord
from engine.samples import FLAGS
from engine.units import counted, quantity
from pages.parts.benchmark import run_table
from pages.parts.benchmark.run_actions import MOST_TIMES
from pages.parts.benchmark.run_facts import facts
from pages.parts.plain import plain
from tests.pages.app import HOSTILE, address, open_page, press, primary, said
from tests.pages.bench_harness import ScriptedManager, make_run


def page(**query: str) -> AppTest:
    return open_page("benchmark.py", "Benchmark", **query)


def opened(manager: ScriptedManager, run: RunRecord) -> AppTest:
    manager.runs[run.id] = run
    return page(run=run.id)


def test_a_run_opens_with_its_sentence_and_at_most_four_figures(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    at = opened(manager, run)
    assert at.main.subheader[0].value == plain(summarise(run).sentence)
    assert 0 < len(at.main.metric) <= 4
    assert primary(at) == ["Use these settings"]
    press(at, "run_use_True")
    assert manager.calls == [("use", run.id, summarise(run).best)]


def test_the_newest_run_opens_and_each_question_its_own(manager: ScriptedManager, plan: Plan) -> None:
    older, newer = make_run(plan), make_run(replace(plan, question="users", axes={"users": (1, 2)}))
    manager.runs = {older.id: older, newer.id: newer}
    at = page()
    assert address(at) == {"run": newer.id}
    at.segmented_control(key="sweep_question").set_value("speed").run()
    assert address(at) == {"run": older.id}
    press(at, "run_new")
    assert address(at) == {"question": "speed"}
    press(at, f"run_open_{newer.id}")
    assert address(at) == {"run": newer.id}


def test_another_metric_has_a_sentence_of_its_own(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan, outcome={"sentence": "As it was."})
    at = opened(manager, run)
    assert at.main.subheader[0].value == plain("As it was.")
    at.selectbox(key=f"run_metric_{run.id}").set_value("ttft_s").run()
    assert at.main.subheader[0].value == plain(summarise(replace(run, outcome={}), main_metric="ttft_s").sentence)


def test_an_interrupted_run_is_offered(manager: ScriptedManager, plan: Plan) -> None:
    old, newer = make_run(plan, status="interrupted"), make_run(plan)
    manager.runs = {old.id: old, newer.id: newer}
    at = page()
    assert f"Mine was interrupted after {len(old.samples)} samples" in said(at)
    press(at, f"run_interrupted_{old.id}")
    assert primary(at) == ["Continue"] and "can be continued" not in said(at)


def test_an_unknown_address_says_so(manager: ScriptedManager) -> None:
    at = page(run="01a1fab9-91c7-7816-819a-8fcdffdfbaff")
    assert "does not exist" in at.main.error[0].value


def test_the_best_and_the_control_stand_beside_each_other_with_their_names(
    manager: ScriptedManager, plan: Plan
) -> None:
    run = make_run(plan)
    summary = summarise(run)
    at = opened(manager, run)
    best, control = summary.cell(summary.best), summary.cell(summary.baseline)
    assert best is not None and control is not None and best is not control
    assert [metric.label for metric in at.main.metric] == [
        plain(f"{role} · {cell.label}") for role, cell in (("Best", best), ("Control", control))
    ]
    figures = [quantity(cell.metrics["tokens_per_s"].value, "tok/s") for cell in (best, control)]
    assert [metric.value for metric in at.main.metric] == figures
    assert best.verdict is not None
    assert f":green[↑ faster {best.verdict.ratio.value:.2f} ×]" in said(at).replace("\\", "")
    assert plain("2 processes with 1 thread each, 4 texts at once in each") in said(at)


def test_where_the_control_is_best_the_next_best_stands_beside_it(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    best = max(summarise(run).cells, key=lambda cell: cell.metrics["tokens_per_s"].value)
    manager.runs[run.id] = run
    at = page(run=run.id, baseline=str(best.number))
    first, second = (metric.label for metric in at.main.metric)
    assert first == plain(f"Best · baseline · {best.label}") and second.startswith("Next best ")


def test_without_a_verdict_the_card_is_that_of_the_sentence_and_not_the_slowest(
    manager: ScriptedManager, plan: Plan
) -> None:
    run = make_run(replace(plan, rounds=3))
    summary = summarise(run)
    fastest = max(summary.cells, key=lambda cell: cell.metrics["tokens_per_s"].value)
    at = opened(manager, run)
    assert at.main.metric[0].label == plain(f"Looks best · {fastest.label}")
    assert at.main.metric[0].value == quantity(fastest.metrics["tokens_per_s"].value, "tok/s")
    assert at.main.subheader[0].value.startswith(plain(f"{fastest.label} looks "))


def test_the_two_kinds_of_noise_are_told_apart(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    summary, noise = summarise(run), scatter_of(run.samples, "tokens_per_s")
    texts = said(opened(manager, run))
    assert f"**Disturbed from outside** · {plain(summary.disturbance.sentence)}" in texts
    assert f"**Varying by itself** · {plain(noise.sentence)}" in texts


def test_the_words_of_the_page_are_explained_for_this_run(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    summary = summarise(run)
    terms = explanation(run, summary, scatter_of(run.samples, summary.main_metric))
    texts = said(opened(manager, run))
    assert {term.name for term in terms} == {"Layout", "Sequences", "Rounds", "Control", "Noise", "Verdict"}
    assert all(f"**{term.name}** · {plain(term.text)}" in texts for term in terms)


def test_a_run_mostly_disturbed_says_by_what_and_is_run_again_when_quiet(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(replace(plan, rounds=6, axes={"layout": ("1x2", "2x1")}), noise=0.1)
    run.samples["flag"], run.samples["other_cores"] = FLAGS.index("contended"), 0.8
    run = replace(run, outcome={"programs": {"chromium": 0.7}})
    at = opened(manager, run)
    words = "12 of 12 samples were disturbed: by other programs (0.8 cores, mostly chromium 0.7 cores)"
    assert plain(words) in said(at)
    assert primary(at) == ["Run again when the machine is quiet"]
    press(at, "run_when_quiet")
    assert manager.calls == [("start_when_quiet", Plan.from_dict(run.plan))]
    assert at.button(key="bench_background_stop").label == "Stop"


def test_replaced_samples_are_counted_as_in_the_shell(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(replace(plan, rounds=11, axes={"layout": ("1x1", "1x2", "2x1", "2x2")}))
    run.samples["flag"] = FLAGS.index("contended")
    run.samples["is_replaced"][:24] = True
    at = opened(manager, run)
    words = "20 of 20 samples were disturbed (24 more were replaced)"
    assert said(at).count(plain(words)) == 2
    assert summarise(run).disturbance.sentence.startswith(f"{words}: ")


@pytest.mark.parametrize("is_disturbed", [False, True])
def test_a_search_without_a_verdict_is_run_again_for_longer(
    manager: ScriptedManager, plan: Plan, is_disturbed: bool
) -> None:
    outcome = {
        "winner": 0, "default": 0, "metric": "tokens_per_s", "flat": [0], "word": "not enough data", "more_rounds": 5,
        "budget_s": 120.0, "sentence": "The time was too short for a verdict.",
    }  # fmt: skip
    run = make_run(replace(plan, question="settings", budget_s=10.0), outcome=outcome)
    run.samples["flag"] = FLAGS.index("contended" if is_disturbed else "clean")
    at = opened(manager, run)
    assert primary(at) == ["Run again when the machine is quiet" if is_disturbed else "Search again for 2 min"]
    press(at, "run_when_quiet" if is_disturbed else "run_longer")
    ((called, longer),) = manager.calls
    assert (called, longer) == (
        "start_when_quiet" if is_disturbed else "start",
        replace(Plan.from_dict(run.plan), budget_s=120.0),
    )


def test_too_little_data_asks_for_as_many_rounds_as_it_says(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(replace(plan, rounds=6, axes={"layout": ("1x2", "2x1")}), noise=0.1)
    summary = summarise(run)
    (verdict,) = [cell.verdict for cell in summary.cells if cell.verdict]
    assert verdict.word == "not enough data"
    at = opened(manager, run)
    (label,) = primary(at)
    assert label.startswith(f"Run {counted(verdict.more_rounds, 'more round')} · about")
    press(at, "run_more")
    assert manager.calls == [("add_rounds", run.id, verdict.more_rounds)]


def test_a_difference_that_would_take_very_many_rounds_is_not_what_comes_first(
    manager: ScriptedManager, plan: Plan
) -> None:
    run = make_run(replace(plan, rounds=8, axes={"layout": ("1x2", "2x1")}), noise=0.02)
    for cell in (0, 1):
        own = run.samples["cell"] == cell
        run.samples["flag"][own] = FLAGS.index("clean")
        run.samples["tokens_per_s"][own] = (1000 + cell) * np.exp(0.05 * np.array([1, -1] * 4) * (1 - 2 * cell))
    summary = summarise(run)
    (verdict,) = [cell.verdict for cell in summary.cells if cell.verdict]
    assert verdict.word == "not enough data" and verdict.more_rounds > MOST_TIMES * 8
    at = opened(manager, run)
    assert primary(at) == ["Use the control"]
    press(at, "run_more")
    assert manager.calls == [("add_rounds", run.id, verdict.more_rounds)]


def test_a_search_says_what_is_as_good_and_uses_its_winner(manager: ScriptedManager, plan: Plan) -> None:
    outcome = {
        "winner": 3, "default": 0, "metric": "tokens_per_s", "flat": [1, 3], "word": "faster", "more_rounds": 0,
        "sentence": "Use two.",
    }  # fmt: skip
    run = make_run(replace(plan, question="settings"), outcome=outcome)
    at = opened(manager, run)
    assert at.main.subheader[0].value == plain("Use two.")
    flat = ", ".join(run.cells[number].label for number in (1, 3))
    assert plain(f"least memory first: {flat}.") in said(at)
    press(at, "run_use_True")
    assert manager.calls == [("use", run.id, 3)]


def test_users_can_be_judged_by_another_objective(manager: ScriptedManager, plan: Plan) -> None:
    asked = replace(
        plan, question="users", axes={"users": (1, 2, 4, 8)}, pool={"instances": 1, "threads": 2, "parallel": 8}
    )
    at = opened(manager, run := make_run(asked, objective_met_up_to=4))
    assert at.main.metric[0].label == "Users served"
    before = at.main.subheader[0].value
    at.number_input(key=f"run_per_s_{run.id}").set_value(100_000.0).run()
    assert at.main.subheader[0].value != before
    assert "not even one user" in at.main.subheader[0].value


def test_the_plan_of_a_run_is_changed_or_run_again(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    at = press(opened(manager, run), "run_edit")
    assert at.text_input(key="axis_layout").value == "1x1, 1x2, 2x1"
    assert at.text_input(key="plan_name").placeholder == "Mine"
    press(opened(manager, run), "run_again")
    assert manager.calls == [("start", plan)]


def test_cells_are_judged_by_another_metric_against_another_cell(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    at = opened(manager, run)
    at.selectbox(key=f"run_metric_{run.id}").set_value("ttft_s").run()
    at.selectbox(key=f"run_baseline_{run.id}").set_value(5).run()
    assert not at.exception
    table = at.main.dataframe[0].value
    assert table["verdict"][5].tolist() == ["baseline"]
    assert any(column.startswith("first token") for column in table.columns)


def test_the_badges_of_verdicts_have_colours_that_follow_the_theme(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    (shown,) = [one for one in opened(manager, run).main.dataframe if "verdict" in one.value]
    assert not shown.proto.arrow_data.HasField("styler")
    config = json.loads(shown.proto.columns)["verdict"]["type_config"]
    kinds = {option["value"]: option["color"] for option in config["options"]}
    assert config["type"] == "multiselect" and kinds
    for text in (text for texts in shown.value["verdict"] for text in texts):
        assert kinds.get(text) == {"↑": "green", "↓": "orange"}.get(text[0])


def test_the_table_has_verdicts_in_words_intervals_and_reasons(plan: Plan) -> None:
    run = make_run(plan)
    failed = replace(run.cells[2], status="failed", reason="The worker died.")
    samples = run.samples[run.samples["cell"] != 2]
    summary = summarise(replace(run, cells=(*run.cells[:2], failed, *run.cells[3:]), samples=samples))
    table = run_table.frame(summary, "Speed")
    verdict = summary.cells[1].verdict
    assert verdict is not None and table["verdict"][1] == f"↑ faster {verdict.ratio.value:.2f} ×"
    assert table["verdict"][0] == "baseline" and table["verdict"][2] == "failed"
    assert table["remark"][2] == "The worker died."
    assert table["total speed, tok/s"][0] == summary.cells[0].metrics["tokens_per_s"].value
    assert " – " in table["total speed, 95 %"][0] and table["total speed, 95 %"][2] == ""
    loading = run_table.frame(summary, "Loading")
    assert loading["cold load, ms"][0] == pytest.approx(900)


def test_a_run_is_copied_and_taken_away(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    at = opened(manager, run)
    assert at.main.code[0].value == summarise(run).to_markdown().rstrip()
    assert len(at.download_button) == 4


def test_a_run_is_renamed(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    at = opened(manager, run)
    at.text_input(key=f"run_name_{run.id}").set_value("Quiet evening").run()
    press(at, "run_rename")
    assert manager.runs[run.id].name == "Quiet evening"
    assert "Quiet evening · " in said(at)


def test_a_deleted_run_gives_way_to_the_newest_and_comes_back(manager: ScriptedManager, plan: Plan) -> None:
    older, newer = make_run(plan), make_run(plan)
    manager.runs = {older.id: older, newer.id: newer}
    at = press(page(run=newer.id), "run_delete")
    assert set(manager.deleted) == {newer.id}
    assert address(at) == {"run": older.id} and "The run was deleted." in said(at)
    press(at, "run_undo")
    assert address(at) == {"run": newer.id} and "The run was deleted." not in said(at)


def test_the_last_run_deleted_leaves_the_plan_of_its_question(manager: ScriptedManager, plan: Plan) -> None:
    at = press(opened(manager, make_run(plan)), "run_delete")
    assert address(at) == {"question": "speed"} and not at.main.error
    assert primary(at)[0].startswith("Run · about")


def test_the_address_holds_chart_metric_and_baseline(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    manager.runs[run.id] = run
    at = page(run=run.id, metric="ttft_s", baseline="5", chart="Memory")
    assert at.selectbox(key=f"run_metric_{run.id}").value == "ttft_s"
    assert at.selectbox(key=f"run_baseline_{run.id}").value == 5
    assert at.session_state["run_chart"] == "Memory"
    at.selectbox(key=f"run_baseline_{run.id}").set_value(1).run()
    assert address(at) == {"run": run.id, "metric": "ttft_s", "baseline": "1", "chart": "Memory"}
    press(at, "run_new")
    assert address(at) == {"question": "speed"}


@pytest.mark.parametrize(
    ("name", "value"), [("metric", "goodness"), ("baseline", "99"), ("baseline", "x"), ("chart", "?")]
)
def test_an_address_that_asks_for_what_is_not_there_shows_the_run(
    manager: ScriptedManager, plan: Plan, name: str, value: str
) -> None:
    run = make_run(plan)
    manager.runs[run.id] = run
    at = page(run=run.id, **{name: value})
    assert at.main.subheader[0].value == plain(summarise(run).sentence)
    assert at.session_state["run_chart"] == "By sequences"


def test_what_a_search_never_tried_is_shown_on_request(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    untried = replace(run, samples=run.samples[run.samples["cell"] < 4])
    at = opened(manager, untried)
    assert len(at.main.dataframe[0].value) == 4
    (switch,) = at.main.toggle
    assert switch.label == "Show 2 unmeasured configurations"
    switch.set_value(True).run()
    assert len(at.main.dataframe[0].value) == 6
    assert not opened(manager, run).main.toggle


def test_the_settings_of_a_chosen_cell_are_used_or_taken_away(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    at = opened(manager, run)
    at.session_state[f"run_table_{run.id}"] = {"selection": {"rows": [2], "columns": [], "cells": []}}
    press(at.run(), "run_use_False")
    assert manager.calls == [("use", run.id, 2)]
    assert "Profile, JSON" in [button.label for button in at.download_button]


def test_another_run_has_a_table_of_its_own(manager: ScriptedManager, plan: Plan) -> None:
    first, second = make_run(plan), make_run(plan, seed=1)
    manager.runs[second.id] = second
    at = opened(manager, first)
    at.session_state[f"run_table_{first.id}"] = {"selection": {"rows": [2], "columns": [], "cells": []}}
    at.run()
    before = at.main.dataframe[0].proto.id
    assert "Profile, JSON" in [button.label for button in at.download_button]
    press(at, f"run_open_{second.id}")
    assert at.main.dataframe[0].proto.id != before
    assert "Profile, JSON" not in [button.label for button in at.download_button]


def test_a_reference_machine_has_no_name_to_change(manager: ScriptedManager) -> None:
    at = page(run=reference_runs()[0].id)
    keys = [button.key for button in at.main.button]
    assert at.main.subheader and "run_delete" not in keys and "run_rename" not in keys


def test_the_machine_is_described_in_words(manager: ScriptedManager, plan: Plan) -> None:
    machine = {
        "cpu": "Two cores",
        "memory_bytes": 16e9,
        "allowed_cores": [0, 1],
        "llama": {"commit": "abc"},
        "quota": None,
    }
    given = facts(make_run(plan, machine=machine))
    assert given == {
        "cpu": "Two cores", "memory": "16.0 GB", "allowed_cores": "0, 1", "llama commit": "abc",
        "llama-cpp-python": "0.3.36",
    }  # fmt: skip


def test_limits_are_measured_and_a_cached_model_is_called_that(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    press(opened(manager, run), "limits_measure")
    assert manager.calls == [("measure_limits", "", 512)]
    bandwidth = ((1, 9e9), (2, 17e9))
    manager.machine = Limits(machine_hash="m", num_cores=2, cache_bytes=1 << 30, bandwidth=bandwidth, flops=1e11)
    at = opened(manager, run)
    assert "fit in the last\\-level cache" in said(at)
    assert "17.0 GB/s with 2 threads" in said(at).replace("\\", "")
    press(at, "limits_shape")
    assert manager.calls[-1] == ("start_shape", "llama-1.1b-32k", run.id)
    manager.machine = Limits(machine_hash="m", num_cores=2, cache_bytes=1 << 10, bandwidth=bandwidth, flops=1e11)
    at = opened(manager, run)
    assert "Decode reads" in said(at)
    assert "limits_shape" not in [button.key for button in at.button]


def test_an_imported_run_without_a_plan_is_shown(manager: ScriptedManager, plan: Plan) -> None:
    run = replace(make_run(plan), origin="llama-bench", plan={}, question="")
    at = opened(manager, run)
    assert "from llama\\-bench" in said(at)
    assert primary(at) == []
    assert "run_again" not in [button.key for button in at.button]


def test_a_file_is_taken_in(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(plan)
    at = opened(manager, run)
    at.file_uploader(key="run_file").set_value(("rows.jsonl", b"{}", "application/json")).run()
    press(at, "run_take_in")
    assert manager.calls == [("import_file", "rows.jsonl", b"{}")]


def test_hostile_names_stay_text(manager: ScriptedManager, plan: Plan) -> None:
    run = make_run(replace(plan, name=HOSTILE), status="stopped")
    labelled = tuple(replace(cell, label=HOSTILE + str(cell.number)) for cell in run.cells)
    at = opened(manager, replace(run, cells=labelled, outcome={"sentence": HOSTILE}))
    shown = said(at) + "".join(button.label for button in at.main.button)
    assert "<script>" not in shown and "\u202e" not in shown and "**bold" not in shown
    manager.begin(replace(run, cells=labelled), replace(plan, name=HOSTILE))
    assert "<script>" not in said(page(run=run.id))
