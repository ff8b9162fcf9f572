"""The comparison of prompts without a browser: what it opens with, what Run starts, what stands beside what."""

import json
import random
from dataclasses import replace

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from engine.comparing.alignment import Segment
from engine.comparing.arms import Arm, ComparisonPlan, ComparisonRecord, planned_answers
from engine.comparing.model_diff import kl_text
from engine.errors import HistoryError
from engine.history import History, import_archive
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.model_diffs import Other
from engine.workbench.trials import Draft
from pages.parts.compare import truth_check
from pages.parts.compare.trial_file import as_file
from pages.parts.compare.trial_text import as_html
from pages.parts.plain import plain
from tests.engine.exchange.test_wrong_types import WRONG, changed, places
from tests.engine.history.test_comparisons import box, drawn, line_of, made
from tests.engine.history.trial_maker import uuid7
from tests.pages.app import HOSTILE, address, open_page, press, primary
from tests.pages.conftest import wait_for_model

COLD, HOT = (Arm(sampling=Sampling(temperature=t, seed=7), max_tokens=6) for t in (0.0, 1.5))


@pytest.fixture(autouse=True)
def idle(bench: Workbench) -> None:
    """Begin each test when the comparison of the one before has ended."""
    bench.compare.wait(60)
    wait_for_model(bench)


def page(**query: str) -> AppTest:
    return open_page("compare.py", "Compare", **query)


def captions(at: AppTest) -> str:
    return "\n".join(caption.value for caption in at.main.caption)


def summary(at: AppTest) -> str:
    """The one line to which the prompt and how it is run fold."""
    return at.main.expander[0].label


def temperatures(at: AppTest) -> list[float | None]:
    return [field.value for field in at.main.number_input if field.label == "Temperature"]


def is_unfolded(at: AppTest) -> bool:
    return bool(at.session_state["arms_setup"])


def heads(at: AppTest) -> list[str]:
    """The line of each variant, as Markdown."""
    return [element.value for element in at.main.markdown if element.value.startswith("**")]


def key(at: AppTest, name: str, position: int = 0) -> str:
    """The key of the field with this name in the arm at this position."""
    kinds = ("number_input", "text_input", "selectbox", "button")
    keys: list[str | None] = [field.key for kind in kinds for field in getattr(at, kind)]
    return [one for one in keys if one and one.startswith("arm_") and one.endswith(f"_{name}")][position]


def after(at: AppTest, bench: Workbench) -> ComparisonRecord:
    """The comparison of the address, once it has ended and the page shows it."""
    bench.compare.wait(60)
    at.run()
    assert not at.exception, at.exception
    return bench.compare.comparison(address(at)["comparison"])


def compared(bench: Workbench, plan: ComparisonPlan) -> ComparisonRecord:
    id = bench.compare.start(plan)
    bench.compare.wait(60)
    return bench.compare.comparison(id)


def test_without_a_model_run_says_so_before_it_is_pressed(bench: Workbench) -> None:
    path = bench.model.path
    assert path is not None
    bench.model_manager.eject()
    try:
        at = page()
        assert at.button(key="arms_run").disabled
        assert plain("No model is loaded, so nothing can run. Choose one in the model bar.") in captions(at)
        for position in (0, 1):
            at.selectbox(key=key(at, "model", position)).select(str(path)).run()
        assert not at.button(key="arms_run").disabled
        assert "2 trials" in summary(at)
    finally:
        bench.model_manager.load(path)
        wait_for_model(bench)


def test_it_opens_on_two_arms_ready_to_run(bench: Workbench) -> None:
    at = page()
    assert temperatures(at) == [0.0, 1.0]
    assert len({field.value for field in at.main.number_input if field.label == "Seed"}) == 1
    assert at.text_area(key="arms_prompt").value == "Once upon a time"
    assert primary(at) == ["Run"] and not at.button(key="arms_run").disabled
    assert "Once upon a time" in summary(at) and "2 trials of up to 64 tokens" in summary(at)
    assert is_unfolded(at) and captions(at).count("Press Run for its answer.") == 2
    assert heads(at) == ["**Variant 1** :gray-badge[temperature 0]", "**Variant 2** :gray-badge[temperature 1]"]


def test_run_writes_the_address_and_puts_the_answers_side_by_side(bench: Workbench) -> None:
    at = page()
    for position in (0, 1):
        at.number_input(key=key(at, "max_tokens", position)).set_value(8)
    record = after(press(at, "arms_run"), bench)
    assert [arm.max_tokens for arm in record.plan.arms] == [8, 8]
    assert all(answer.trial_id for answer in record.answers)
    assert at.main.subheader[0].value.startswith(("The first", "They diverge", "Only the first", "All 2"))
    assert plain("tok/s") in captions(at) and "bits per token" in captions(at)
    assert captions(at).count("shared machine") == 2
    assert at.get("download_button")
    assert "Edited" not in captions(at)
    assert not is_unfolded(at)
    at.text_area(key="arms_prompt").set_value("Far away").run()
    assert plain("Edited since this comparison.") in captions(at) and "Far away" in summary(at)


def test_while_it_runs_there_is_stop_and_progress(bench: Workbench) -> None:
    at = page()
    for position in (0, 1):
        at.number_input(key=key(at, "max_tokens", position)).set_value(400)
    at.number_input(key="arms_repeats").set_value(20)
    press(at, "arms_run")
    assert primary(at) == ["Stop"]
    assert "of 40 trials" in at.get("progress")[0].proto.text
    record = after(press(at, "arms_stop"), bench)
    assert primary(at) == ["Run"]
    assert not all(answer.trial_id for answer in record.answers)


def test_the_address_opens_a_comparison_with_its_plan_view_and_row(bench: Workbench) -> None:
    plan = ComparisonPlan(
        prompt="The {{who}} said", arms=(COLD, HOT), rows=({"who": "king"}, {"who": "fox"}), repeats=3, is_apart=True
    )
    record = compared(bench, plan)
    at = page(comparison=record.id, view="Texts", row="2")
    assert temperatures(at) == [0.0, 1.5]
    assert at.text_area(key="arms_prompt").value == plan.prompt
    assert at.number_input(key="arms_repeats").value == 3 and at.toggle(key="arms_apart").value
    assert "Edited" not in captions(at) and not is_unfolded(at)
    assert at.selectbox(key="arms_row").value == "2"
    assert address(at) == {"comparison": record.id, "view": "Texts", "row": "2"}
    outcomes = bench.compare.outcomes(record)
    shown = "".join(element.proto.body for element in at.main.get("html"))
    assert outcomes[record.of(0, 1)[0].trial_id].text.strip()[:20].split()[0] in shown
    assert "different answers in 3 repeats" in captions(at) and "the same 3 times" in captions(at)
    table = at.main.dataframe[-1].value
    assert len(table) == 12 and set(table["{{who}}"]) == {"king", "fox"}


def test_the_arms_of_all_answers_have_room_for_their_names(bench: Workbench) -> None:
    plan = ComparisonPlan(prompt="Once", arms=(HOT, replace(HOT, max_tokens=5)))
    at = page(comparison=compared(bench, plan).id)
    table = at.main.dataframe[-1]
    config = json.loads(table.proto.columns)["variant"]
    assert config["width"] >= 8 * max(map(len, table.value["variant"]))


@pytest.mark.slow
def test_an_answer_is_checked_by_llama_cpp_and_pytorch_from_one_file(bench: Workbench) -> None:
    record = compared(bench, ComparisonPlan(prompt="Once upon a time", arms=(COLD, HOT)))
    at = page(comparison=record.id)
    at.selectbox(key="arms_truth_answer").select_index(1).run()
    assert "transformers in float32" in at.button(key="arms_truth_start").help
    at = press(at, "arms_truth_start")
    task = bench.diffs.of(record.of(1, 0)[0].trial_id, Other(settings=(("dtype", "float32"),)))
    assert task is not None
    found = task.result(120)
    assert (found.spec.dtype, found.other_spec.dtype) == (None, "float32") and found.file == found.other_file
    at.run()
    assert not at.exception, at.exception
    assert [metric.label for metric in at.main.metric][:2] == ["KL per token", "Largest change"]
    assert at.main.metric[0].value == f"{kl_text(found.diff.kl_mean)} nats"
    assert "float32 · transformers" in captions(at)
    drawn_kl = truth_check.figure(found.diff).data[0]
    assert list(drawn_kl.y) == found.diff.kl.tolist() and len(drawn_kl.x) == 6


def test_equal_repeats_are_folded_and_one_can_be_chosen(bench: Workbench) -> None:
    plan = ComparisonPlan(prompt="Once", arms=(COLD, HOT), repeats=4, is_apart=True)
    record = compared(bench, plan)
    at = page(comparison=record.id)
    cold, hot = at.selectbox(key="arms_answer_0"), at.selectbox(key="arms_answer_1")
    assert [option.startswith("4 times · ") for option in cold.options] == [True]
    assert len(hot.options) > 1
    assert {option.split(" · ")[0] for option in hot.options} <= {"once", "twice", "3 times"}
    hot.select_index(1).run()
    assert not at.exception
    assert at.selectbox(key="arms_answer_1").index == 1


def test_differences_are_against_the_first_arm(bench: Workbench) -> None:
    record = compared(bench, ComparisonPlan(prompt="Once upon a time", arms=(COLD, HOT)))
    at = page(comparison=record.id, view="Differences")
    first, second = (element.proto.body for element in at.main.get("html"))
    assert "<ins>" not in first and "<ins>" in second and "<del>" in second


def test_trials_of_the_address_become_arms(bench: Workbench) -> None:
    drafts = [Draft(text, sampling=Sampling(seed=4), request=Request(max_tokens=3)) for text in ("A king", HOSTILE)]
    trials = [bench.trials.submit(draft) for draft in drafts]
    for trial in trials:
        trial.job.result(60)
    at = page(trials=",".join(trial.id for trial in trials))
    assert at.text_area(key="arms_prompt").value == "{{prompt}}"
    assert len(temperatures(at)) == 2
    press(at, "arms_keep")
    record = bench.compare.comparison(address(at)["comparison"])
    assert [answer.trial_id for answer in record.answers] == [trial.id for trial in trials]
    assert HOSTILE not in "".join(element.value for element in at.main.markdown)


def test_variables_of_the_prompt_ask_for_a_table(bench: Workbench) -> None:
    at = page()
    at.text_area(key="arms_prompt").set_value("The {{who}} met {{whom}}").run()
    assert not at.exception
    assert list(at.main.get("data_editor") or at.main.get("arrow_data_frame"))
    assert plain("{{who}}") in captions(at)
    for position, name in enumerate(("fox", "wolf")):
        at.text_input(key=key(at, "value_who", position)).set_value(name)
        at.text_input(key=key(at, "value_whom", position)).set_value("Anna")
    record = after(press(at.run(), "arms_run"), bench)
    assert record.plan.variables == ("who", "whom")
    assert [bench.trials.trial(record.of(arm, 0)[0].trial_id).draft.prompt for arm in (0, 1)] == [
        "The fox met Anna",
        "The wolf met Anna",
    ]


def test_arms_are_added_like_the_last_and_removed(bench: Workbench) -> None:
    at = page()
    at.number_input(key=key(at, "temperature", 1)).set_value(0.4)
    press(at, "arms_add")
    assert temperatures(at) == [0.0, 0.4, 0.4]
    press(at, key(at, "remove", 0))
    assert temperatures(at) == [0.4, 0.4]


def test_a_variant_that_is_changed_added_or_removed_keeps_the_answers_of_the_others(bench: Workbench) -> None:
    plan = ComparisonPlan(prompt="Once", arms=(COLD, HOT, replace(HOT, max_tokens=5)))
    record = compared(bench, plan)
    at = page(comparison=record.id)
    ids = [answer.trial_id for answer in record.answers]
    assert answers(at) == ids
    press(at, key(at, "remove", 0))
    assert answers(at) == ids[1:] and plain("Edited since this comparison.") in captions(at)
    at.number_input(key=key(at, "temperature", 1)).set_value(0.2).run()
    assert answers(at) == ids[1:] and captions(at).count("Edited since this answer.") == 1
    press(at, "arms_add")
    assert answers(at) == ids[1:] and captions(at).count("Press Run for its answer.") == 1
    again = after(press(at, "arms_run"), bench)
    assert answers(at) == [answer.trial_id for answer in again.answers] and len(again.plan.arms) == 3
    assert "Edited" not in captions(at)


def answers(at: AppTest) -> list[str]:
    """The trials of the strips, which share one inspector."""
    found = [json.loads(element.proto.json or "{}") for element in at.main.get("bidi_component")]
    return [one["trial"] for one in found if one.get("inspector") == "shared"]


def test_undo_restores_the_plan_and_the_answers(bench: Workbench) -> None:
    record = compared(bench, ComparisonPlan(prompt="Once", arms=(HOT, COLD)))
    at = page(comparison=record.id)
    press(at, "arms_delete")
    press(at, key(at, "remove", 0))
    assert not answers(at) and temperatures(at) == [0.0]
    press(at, "arms_undo")
    assert temperatures(at) == [1.5, 0.0]
    assert answers(at) == [answer.trial_id for answer in record.answers]


def test_a_new_comparison_is_that_with_which_the_page_opens(bench: Workbench) -> None:
    at = page(comparison=compared(bench, ComparisonPlan(prompt="Once", arms=(HOT, COLD))).id)
    press(at, "arms_new")
    assert is_unfolded(at) and not answers(at) and temperatures(at) == [0.0, 1.0] and not address(at)


def test_a_name_and_what_differs_are_shown_as_text(bench: Workbench) -> None:
    named = replace(HOT, label=HOSTILE[:60], variables={"who": HOSTILE})
    plan = ComparisonPlan(prompt="{{who}}", arms=(replace(COLD, variables={"who": "fox"}), named))
    first, second = heads(page(comparison=compared(bench, plan).id))
    assert first == "**Variant 1** :gray-badge[temperature 0] :gray-badge[who fox]"
    assert second.startswith(f"**{plain(HOSTILE[:60].strip())}** :gray-badge[temperature 1\\.5] :gray-badge[who ")
    assert "<script>" not in second.replace("\\<", "") and "\u202e" not in second


def test_what_cannot_be_run_is_said_in_place(bench: Workbench) -> None:
    at = page()
    at.number_input(key=key(at, "top_p")).set_value(7.0)
    press(at, "arms_run")
    assert [plain("Top-p = 7.0") in error.value for error in at.main.error] == [True]
    assert plain("Fix Top-p to run.") in [caption.value for caption in at.main.caption]
    assert "comparison" not in address(at)
    at.number_input(key=key(at, "top_p")).set_value(0.9).run()
    assert not at.main.error


def test_an_unknown_address_says_so(bench: Workbench) -> None:
    for query in ({"comparison": "01a1fab9-91c7-7816-819a-8fcdffdfbaff"}, {"trials": "nonsense"}):
        at = page(**query)
        assert "does not exist" in at.main.error[0].value
        assert temperatures(at)


def test_name_delete_and_undo(bench: Workbench) -> None:
    record = compared(bench, ComparisonPlan(prompt="Once", arms=(COLD,)))
    at = page(comparison=record.id)
    at.text_input(key="arms_name").set_value(HOSTILE).run()
    assert bench.compare.comparison(record.id).name == HOSTILE.strip()
    assert any(plain(HOSTILE)[:20] in button.label for button in at.main.button)
    press(at, "arms_delete")
    assert "comparison" not in address(at)
    assert record.id not in {one.id for one in bench.compare.recent()}
    press(at, "arms_undo")
    assert address(at)["comparison"] == record.id


def test_a_deleted_trial_is_reported(bench: Workbench) -> None:
    record = compared(bench, ComparisonPlan(prompt="Once", arms=(COLD, HOT)))
    bench.trials.delete(record.answers[0].trial_id)
    at = page(comparison=record.id)
    assert "its trial was deleted" in captions(at)
    bench.trials.restore(record.answers[0].trial_id)


@pytest.mark.parametrize("seed", range(8))
def test_answers_that_are_missing_or_outside_the_plan_are_survived(history: History, seed: int) -> None:
    plan, answers, _ = drawn(seed)
    id = uuid7()
    history.comparisons.save(made(id=id, plan=plan, answers=tuple(answers)))
    at = page(comparison=id)
    assert captions(at).count("Not run, or its trial was deleted.") == len(plan.arms)
    assert len(table_of_answers(at)) == plan.num_trials
    page(comparison=id, row=str(len(plan.rows)), view="Differences")


@pytest.mark.parametrize("seed", range(12))
def test_an_archived_comparison_with_a_wrong_value_is_refused_or_shown(history: History, seed: int) -> None:
    draw = random.Random(seed)
    id = uuid7()
    plan = ComparisonPlan(prompt="The {{who}}", arms=(COLD, HOT), rows=({"who": "king"}, {"who": "fox"}), repeats=2)
    answers = [answer._replace(trial_id=uuid7()) for answer in planned_answers(plan)]
    plain_line = json.loads(line_of(plan, answers, id))
    part = draw.choice(("spec", "trials", "name"))
    among = [path for path in places(plain_line) if path[0] == part]
    line = changed(plain_line, draw.choice(among), draw.choice(WRONG))
    try:
        import_archive(history, box(history, json.dumps(line).encode()))
    except HistoryError as error:
        assert "comparisons.jsonl, line 1" in str(error) and len(str(error)) <= 2_000
        assert not history.comparisons.recent()
    else:
        page(comparison=id)


def table_of_answers(at: AppTest) -> pd.DataFrame:
    """The table of all answers, a row for each trial."""
    return next(frame.value for frame in at.main.dataframe if "repeat" in frame.value)


def test_a_comparison_is_one_file_without_script(bench: Workbench) -> None:
    trial = bench.trials.submit(Draft(HOSTILE, request=Request(max_tokens=4, top_k=5)))
    trial.job.result(60)
    page_ = as_file(HOSTILE, [(HOSTILE, "shared machine", trial)]).decode()
    assert "<script" not in page_ and "default-src 'none'" in page_
    assert (
        page_.count("<section>") == 1
        and "shared machine" in page_
        and "&lt;script&gt;" in page_
        and "\u202e" not in page_
    )


def test_text_is_never_markup() -> None:
    shown = as_html([Segment("same", "<b>&amp;\n\t"), Segment("added", HOSTILE), Segment("missing", '"\x1b[31m')])
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "&lt;b&gt;&amp;amp;\n\t" in shown
    assert "\u202e" not in shown and "\x1b" not in shown
    assert shown.count("<ins>") == shown.count("<del>") == 1
