"""The Benchmark page without a browser: the plan, what is said of it and what it starts."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.baselines.arms import Missing
from engine.bench.planning.plan import QUESTIONS, Plan
from engine.bench.planning.plan_file import plan_to_json
from engine.errors import ProgramFailed
from engine.machine.cores import num_cores
from engine.machine.quietness import Quietness
from engine.models import embedded_model
from engine.runs import RunRecord
from pages.parts.benchmark import plan_editor, plan_preview, run_state, sketch
from pages.parts.job_tray import SWEEPS
from pages.parts.plain import plain
from tests.pages.app import address, open_page, press, primary, said
from tests.pages.bench_harness import ScriptedManager, make_run
from tests.scripted_task import ScriptedTask

HELPED = (
    "button", "button_group", "metric", "number_input", "selectbox", "text_area", "text_input", "toggle",
)  # fmt: skip
"""Widgets that may have a help text."""


def page(**query: str) -> AppTest:
    return open_page("benchmark.py", "Benchmark", **query)


def opened(manager: ScriptedManager, run: RunRecord) -> AppTest:
    manager.runs[run.id] = run
    return page(run=run.id)


def test_the_page_opens_on_a_plan_with_its_cost_and_one_primary_button(manager: ScriptedManager) -> None:
    at = page()
    assert [metric.label for metric in at.main.metric] == ["Time", "Samples", "Memory", "Smallest difference"]
    (label,) = primary(at)
    assert label.startswith("Run · about")
    assert at.session_state["axes_shown"] == ["layout", "parallel"]
    assert address(at) == {"question": "speed"}


def test_a_plan_without_a_verdict_says_so_and_its_one_button_raises_the_rounds(manager: ScriptedManager) -> None:
    at = page()
    at.number_input(key="plan_rounds").set_value(3).run()
    assert at.main.metric[3].value == "no verdict"
    assert plain("No verdict is possible with 3 rounds: 8 is the minimum") in said(at)
    (label,) = primary(at)
    assert label.startswith("Raise to 8 rounds · about ")
    assert at.button(key="plan_run").label.startswith("Run without a verdict · about ")
    press(at, "plan_raise")
    assert at.number_input(key="plan_rounds").value == 8
    assert "No verdict" not in said(at) and at.main.metric[3].value.endswith(" %")
    (label,) = primary(at)
    assert label.startswith("Run · about ")


def test_a_search_too_short_for_a_verdict_says_so_and_its_one_button_raises_the_time(manager: ScriptedManager) -> None:
    at = page(question="settings")
    at.number_input(key="plan_budget_min").set_value(0.5).run()
    assert at.main.metric[3].value == "no verdict"
    assert plain("30 s is too short for a verdict: 60 s should suffice") in said(at)
    assert primary(at) == ["Raise the time to 60 s"]
    press(at, "plan_raise")
    assert at.number_input(key="plan_budget_min").value == 1.0
    assert "too short" not in said(at) and at.main.metric[3].value.endswith(" %")


def test_a_question_without_a_run_shows_what_its_answer_will_look_like(manager: ScriptedManager, plan: Plan) -> None:
    for question, words in sketch.CAPTIONS.items():
        at = page(question=question)
        (drawn,) = [element.proto.body for element in at.main.get("html") if "run-sketch" in element.proto.body]
        assert words in drawn and 'alt="Sketch of a chart"' in drawn
        assert ElementTree.fromstring(sketch.picture(question)).tag.endswith("svg")
        assert len(primary(at)) == 1
    run = make_run(plan)
    manager.runs[run.id] = run
    assert not [one for one in page(question="speed").main.get("html") if "run-sketch" in one.proto.body]


@pytest.mark.parametrize("question", QUESTIONS)
def test_help_is_one_sentence(manager: ScriptedManager, question: str) -> None:
    at = page(question=question)
    for _ in list(at.selectbox(key="axes_add").options):
        at.selectbox(key="axes_add").set_value(at.selectbox(key="axes_add").options[0]).run()
        assert not at.exception, at.exception
    helps = {element.proto.help for kind in HELPED for element in at.main.get(kind) if element.proto.help}
    assert len(helps) > 5
    assert {text for text in helps if ". " in text or text.endswith(".")} == set()


def test_before_run_it_says_whether_the_machine_is_quiet(manager: ScriptedManager) -> None:
    assert "Checking whether the machine is quiet" in said(page())
    manager.quiet = Quietness(0.06, 2, 0.0, {})
    assert f":material/check_circle: {plain('Quiet: other programs use 3 %')}" in said(page())
    manager.quiet = Quietness(0.8, 2, 0.0, {"chromium": 0.8})
    assert f":material/warning: {plain('Not quiet: chromium uses 0.8 cores')}" in said(page())


def test_run_starts_what_is_typed_and_watches_it(manager: ScriptedManager) -> None:
    at = page()
    at.text_input(key="axis_layout").set_value("1xauto, 2x1").run()
    at.text_input(key="axis_parallel").set_value("1-8*2").run()
    at.number_input(key="plan_rounds").set_value(7)
    press(at, "plan_run")
    ((_, started),) = manager.calls
    assert started.axes == {"layout": ("1xauto", "2x1"), "parallel": (1, 2, 4, 8)}
    assert started.rounds == 7 and started.question == "speed"
    assert manager.running is not None and address(at) == {"run": manager.running.run_id}
    assert primary(at) == ["Stop"]


def test_an_edited_plan_is_named_after_what_it_measures(manager: ScriptedManager) -> None:
    at = page()
    assert at.text_input(key="plan_name").placeholder == "Two minutes"
    at.text_input(key="axis_layout").set_value("1x2").run()
    at.text_input(key="axis_parallel").set_value("1, 2").run()
    assert at.text_input(key="plan_name").placeholder == "Sequences 1, 2; layout 1 × 2; 64 + 32 tokens"
    at.segmented_control(key="sweep_question").set_value("users").run()
    assert at.text_input(key="plan_name").placeholder == "How many users?"
    at.segmented_control(key="sweep_question").set_value("speed").run()
    press(at, "plan_run")
    assert manager.calls[0][1].name == "Sequences 1, 2; layout 1 × 2; 64 + 32 tokens"


def test_a_plan_keeps_its_name_while_it_is_the_same_and_one_that_is_typed(manager: ScriptedManager) -> None:
    at = page()
    at.number_input(key="plan_seed").set_value(7).run()
    press(at, "plan_run")
    manager.end()
    other = page(question="speed")
    other.number_input(key="plan_rounds").set_value(3).run()
    other.text_input(key="plan_name").set_value("Short").run()
    press(other, "plan_run")
    assert [plan.name for _, plan in manager.calls] == ["Two minutes", "Short"]


def test_a_range_is_shown_as_what_it_becomes(manager: ScriptedManager) -> None:
    at = page()
    at.text_input(key="axis_parallel").set_value("1-8*2").run()
    assert plain("Values: 1, 2, 4, 8") in said(at)
    at.text_input(key="axis_parallel").set_value("1-200").run()
    assert plain("Values: 1, 2, 3, 4, 5, 6, 7, 8, … (200)") in said(at)
    at.text_input(key="axis_layout").set_value("1xauto").run()
    assert plain(f"Values on this machine: 1x{num_cores()}") in said(at)


@pytest.mark.parametrize(
    ("key", "text", "error"),
    [
        ("axis_parallel", "1,x", "Sequences: 'x' cannot be read"),
        ("axis_parallel", "-3", "Sequences = -3: must be a whole number from 1 to 256"),
        ("axis_layout", "2y7", "Layout = '2y7'"),
        ("axis_parallel", "1-300", "from 1 to 256"),
    ],
)
def test_what_cannot_be_read_is_said_in_place_and_not_run(
    manager: ScriptedManager, key: str, text: str, error: str
) -> None:
    at = page()
    at.text_input(key=key).set_value(text).run()
    assert not at.exception
    assert said(at).count(plain(error)) == 1
    assert plain(plan_preview.MARKED) in said(at)
    assert at.button(key="plan_run").disabled


def test_millions_of_cells_are_refused_with_their_number(manager: ScriptedManager) -> None:
    at = page()
    for name in ("n_ubatch", "num_prompt"):
        at.selectbox(key="axes_add").set_value(name).run()
        at.text_input(key=f"axis_{name}").set_value("1-2000").run()
    assert "24,000,000 configurations" in said(at).replace("\\", "")
    assert at.button(key="plan_run").disabled


def test_a_cell_that_cannot_run_says_why_and_the_rest_can(manager: ScriptedManager) -> None:
    at = page()
    for name, text in (("n_batch", "32"), ("n_ubatch", "16, 64")):
        at.selectbox(key="axes_add").set_value(name).run()
        at.text_input(key=f"axis_{name}").set_value(text).run()
    cells = at.main.dataframe[0].value
    (time,) = [name for name in cells if name.startswith("time, ")]
    refused = cells[cells[time].isna()]
    assert 0 < len(refused) < len(cells)
    assert refused["remark"].str.contains("n_ubatch").all()
    assert not at.button(key="plan_run").disabled


def test_an_axis_is_added_with_its_usual_value_and_removed(manager: ScriptedManager) -> None:
    at = page()
    at.selectbox(key="axes_add").set_value("n_ctx").run()
    assert at.text_input(key="axis_n_ctx").value == "512"
    at.selectbox(key="axes_add").set_value("flash_attn").run()
    assert at.session_state["axis_flash_attn"] == ["auto"]
    at.selectbox(key="axes_add").set_value("type_k").run()
    assert at.session_state["axis_type_k"] == ["f16"]
    at.selectbox(key="axes_add").set_value("share_weights").run()
    assert at.session_state["axis_share_weights"] == ["repacked weights"]
    press(at, "axes_remove_n_ctx")
    press(at, "plan_run")
    assert dict(manager.calls[0][1].axes)["flash_attn"] == (None,) and "n_ctx" not in manager.calls[0][1].axes


def test_each_question_has_its_plan_and_keeps_what_was_typed(manager: ScriptedManager) -> None:
    at = page()
    at.text_input(key="axis_parallel").set_value("3").run()
    at.segmented_control(key="sweep_question").set_value("users").run()
    assert address(at) == {"question": "users"}
    assert at.session_state["axes_shown"] == ["users"]
    assert "32 sequences" in said(at)
    at.segmented_control(key="sweep_question").set_value("python").run()
    assert at.session_state["axes_shown"] == ["arm"]
    at.segmented_control(key="sweep_question").set_value("speed").run()
    assert at.text_input(key="axis_parallel").value == "3"


def test_every_question_has_its_words_everywhere() -> None:
    for words in (run_state.ASKED, plan_editor.PRESETS, plan_editor.PURPOSE, sketch.CAPTIONS, SWEEPS):
        assert list(words) == list(QUESTIONS)


def test_a_way_of_calling_that_is_missing_can_be_built(
    manager: ScriptedManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        plan_editor, "missing_engines", lambda *_: {"llama-bench": Missing("Build it", can_be_built=True)}
    )
    at = page(question="python")
    assert "llama-bench is not installed and is left out." in said(at)
    at = press(at, "plan_build_llama-bench")
    assert manager.calls == [("build_llama_bench",)]
    assert at.button(key="plan_build_llama-bench").disabled
    press(at, "bench_background_stop")
    assert manager.background.wait(60)
    at = page(question="python")
    assert "was stopped" in said(at) and not at.main.error
    failing = ScriptedTask("Building llama-bench")
    manager.background.start(failing)
    failing.fail(ProgramFailed("CMake was not found"))
    assert "CMake was not found" in page(question="python").main.error[0].value


def test_a_way_of_calling_that_building_does_not_bring_has_no_button(
    manager: ScriptedManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITBENCH_LLAMA_BENCH", "/nowhere/[llama]-bench")
    at = page(question="python")
    assert "there is no such program" in said(at)
    assert not [button for button in at.button if button.key == "plan_build_llama-bench"]


def test_the_layout_of_a_plan_that_fixes_it_can_be_varied(manager: ScriptedManager) -> None:
    at = page(question="users")
    at.selectbox(key="axes_add").set_value("layout").run()
    at.text_input(key="axis_layout").set_value("1x1, 2x1").run()
    press(at, "plan_run")
    started = manager.calls[0][1]
    assert started.axes["layout"] == ("1x1", "2x1") and "instances" not in started.pool


def test_the_goal_chooses_the_axes(manager: ScriptedManager) -> None:
    at = page(question="settings")
    at.segmented_control(key="plan_goal").set_value("first-token").run()
    assert "n_ubatch" in at.session_state["axes_shown"]
    at.number_input(key="plan_budget_min").set_value(2.0).run()
    press(at, "plan_run")
    assert manager.calls[0][1].goal == "first-token" and manager.calls[0][1].budget_s == 120


def test_texts_of_several_lines_survive_the_editor(manager: ScriptedManager) -> None:
    prompts = ("one\ntwo", '{"odd"')
    asked = Plan(model=str(embedded_model()), workload={"asked": "prompts", "prompts": prompts})
    run = replace(make_run(replace(asked, workload={})), plan=asked.to_dict())
    at = press(press(opened(manager, run), "run_edit"), "plan_run")
    assert not at.exception
    assert manager.calls[0][1].workload["prompts"] == prompts


def test_a_plan_is_kept_opened_and_deleted(manager: ScriptedManager) -> None:
    at = page()
    at.text_input(key="plan_name").set_value("Nightly **x**").run()
    at.text_input(key="axis_parallel").set_value("5").run()
    press(at, "shelf_keep")
    assert manager.kept["Nightly **x**"]["axes"]["parallel"] == [5]
    other = press(page(), "shelf_open_Nightly **x**")
    assert other.text_input(key="axis_parallel").value == "5"
    press(other, "shelf_delete_Nightly **x**")
    assert manager.kept == {}


def test_a_plan_is_read_from_a_file(manager: ScriptedManager, plan: Plan) -> None:
    at = page()
    at.file_uploader(key="shelf_file").set_value(("mine.json", plan_to_json(plan).encode(), "application/json")).run()
    press(at, "shelf_read")
    assert at.text_input(key="axis_layout").value == "1x1, 1x2, 2x1"
    at.file_uploader(key="shelf_file").set_value(("bad.json", b"{nothing", "application/json")).run()
    press(at, "shelf_read")
    assert "bad" in at.main.error[0].value and "JSON" in at.main.error[0].value
