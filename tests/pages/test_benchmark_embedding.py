"""The fifth question of the Benchmark page: how fast embeddings are, from its plan to what its run shows."""

import re
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.analysis.embeddings import embedding_sentence
from engine.bench.analysis.summary import summarise
from engine.embedding.backends import KINDS
from engine.embedding.models import EMBEDDED_NAME
from engine.ids import new_id
from engine.runs import RunRecord
from pages.parts.benchmark import embedding_view, run_charts, run_table
from pages.parts.plain import plain
from tests.engine.bench.embedding_runs import embedding_run
from tests.pages.app import address, open_page, press, primary, said
from tests.pages.bench_harness import ScriptedManager


@pytest.fixture
def run() -> RunRecord:
    made = embedding_run(new_id())
    return replace(made, outcome={"sentence": embedding_sentence(made)})


def page(**query: str) -> AppTest:
    return open_page("benchmark.py", "Benchmark", **query)


def test_the_question_opens_on_a_plan_with_its_own_axes(manager: ScriptedManager) -> None:
    at = page(question="embedding")
    assert at.session_state["axes_shown"] == ["layout", "backend"]
    assert at.selectbox(key="plan_model").value == EMBEDDED_NAME
    offered = at.selectbox(key="axes_add").options
    assert offered == ["Batch", "Texts", "Text length", "Model"]
    (label,) = primary(at)
    assert label.startswith("Run · about")
    assert [field.key for field in at.number_input if field.key in ("plan_num_prompt", "plan_num_texts")] == [
        "plan_num_texts"
    ]


def test_run_starts_what_is_typed(manager: ScriptedManager) -> None:
    at = page(question="embedding")
    at.text_input(key="axis_layout").set_value("1x1, 2x1").run()
    at.selectbox(key="axes_add").set_value("tokens_per_batch").run()
    assert at.text_input(key="axis_tokens_per_batch").value == "auto"
    at.text_input(key="axis_tokens_per_batch").set_value("256-1024*2").run()
    at.number_input(key="plan_num_texts").set_value(64).run()
    press(at, "plan_run")
    ((_, started),) = manager.calls
    assert started.question == "embedding"
    assert started.axes["tokens_per_batch"] == (256, 512, 1024)
    assert started.axes["layout"] == ("1x1", "2x1")
    assert set(started.axes["backend"]) <= {kind.name for kind in KINDS}
    assert started.workload["num_texts"] == 64
    assert primary(at) == ["Stop"]


def test_own_texts_take_the_place_of_made_ones(manager: ScriptedManager) -> None:
    at = page(question="embedding")
    at.segmented_control(key="plan_asked").set_value("prompts").run()
    at.text_area(key="plan_prompts").set_value("One\nTwo").run()
    assert not at.exception
    press(at, "plan_run")
    ((_, started),) = manager.calls
    assert started.workload["texts"] == ("One", "Two")


def test_the_plan_of_another_question_stands_as_it_was(manager: ScriptedManager) -> None:
    at = page(question="embedding")
    at.text_input(key="axis_layout").set_value("1x1").run()
    at.segmented_control(key="sweep_question").set_value("speed").run()
    assert at.session_state["axes_shown"] == ["layout", "parallel"]
    at.segmented_control(key="sweep_question").set_value("embedding").run()
    assert at.session_state["axes_shown"] == ["layout", "backend"]
    assert at.text_input(key="axis_layout").value == "1x1"


def test_a_model_that_is_not_here_is_said_before_launch(manager: ScriptedManager) -> None:
    at = page(question="embedding")
    at.selectbox(key="axes_add").set_value("model").run()
    at.text_input(key="axis_model").set_value("no-such-model").run()
    assert "is not on this machine" in said(at)
    assert at.button(key="plan_run").disabled


def test_a_run_shows_speed_beside_agreement_and_the_notes(manager: ScriptedManager, run: RunRecord) -> None:
    manager.runs[run.id] = run
    at = page(run=run.id)
    assert at.main.subheader[0].value == plain(run.outcome["sentence"])
    best, control = (metric.label.replace("\\", "") for metric in at.main.metric)
    assert best == "Best · 2 × 1 · torch-bf16" and control.startswith("Control · ")
    texts = said(at).replace("\\", "")
    assert re.search(r"tokens embedded [\d,.]+ tok/s · memory \(PSS\) [\d.]+ [MG]B · worst cosine 0\.9962", texts)
    assert "From the notes" in [heading.value for heading in at.main.subheader]
    assert "Hardware limits" not in [heading.value for heading in at.main.subheader]
    assert address(at)["run"] == run.id
    assert not any(button.key.startswith("run_use") for button in at.button if button.key)


def test_its_charts_begin_with_speed_and_agreement(run: RunRecord) -> None:
    summary = summarise(run)
    found = run_charts.available(run, summary, "sentences_per_s")
    assert next(iter(found)) == "Speed and agreement"
    assert "Layouts" in found and "Memory" in found and "All configurations" in found
    figure = embedding_view.speed_and_agreement(run, summary, "sentences_per_s")
    assert figure.layout.title.text.startswith("93")
    assert figure.layout.title.text.endswith("sent/s at a worst cosine of 0.9962: 2 × 1 · torch-bf16")
    (points,) = [trace for trace in figure.data if trace.x is not None and len(trace.x) == 4]
    assert sorted(set(points.x)) == pytest.approx([0.9962, 0.9999999])
    assert sorted(points.text) == ["", "", "torch", "torch-bf16"]
    for make in found.values():
        assert make().data


def test_without_agreement_there_is_no_chart_of_it(run: RunRecord) -> None:
    bare = embedding_run(new_id(), cosines={})
    assert "Speed and agreement" not in run_charts.available(bare, summarise(bare), "sentences_per_s")


def test_the_table_has_the_worst_cosine_beside_the_speed_and_all_figures_of_agreement(run: RunRecord) -> None:
    summary = summarise(run)
    speed, agreement = (run_table.frame(summary, group) for group in ("Speed", "Agreement"))
    assert list(speed["embedding, sent/s"]) == [cell.metrics["sentences_per_s"].value for cell in summary.cells]
    assert list(speed["worst, cosine"]) == [0.9999999, 0.9962] * 2
    assert {"worst, cosine", "mean, cosine", "order of pairs, rank correlation"} <= set(agreement)
    assert "first token, ms" not in speed


def test_the_rates_of_the_notes_are_those_that_ship(manager: ScriptedManager, run: RunRecord) -> None:
    manager.runs[run.id] = run
    at = page(run=run.id)
    (table,) = [frame.value for frame in at.dataframe if "sentences/s" in frame.value.columns]
    assert list(table["sentences/s"]) == [4.75, 1.67, 2.05]
