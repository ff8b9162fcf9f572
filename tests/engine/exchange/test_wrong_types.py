"""Foreign runs with values of the wrong type: refused at import, or opened by everything that pages call."""

import copy
import functools
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.bench.analysis import series
from engine.bench.analysis.capacity import capacity
from engine.bench.analysis.comparison import compare_runs
from engine.bench.analysis.embeddings import embedding_sentence
from engine.bench.analysis.pareto import pareto
from engine.bench.analysis.quantisations import has_quantisations, quantisations
from engine.bench.analysis.summary import summarise
from engine.bench.analysis.time_breakdown import time_breakdown
from engine.bench.analysis.trends import trend
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.plan import Plan
from engine.errors import EngineError, HistoryError
from engine.exchange import llama_bench_files as exchange
from engine.history import History, run_bytes, run_from_bytes
from engine.ids import new_id
from engine.models import embedded_model
from engine.reference import reference_runs
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.workbench.costing import rates_of
from tests.engine.bench.embedding_runs import embedding_run
from tests.engine.bench.run_maker import measured_run
from tests.engine.exchange.test_llama_bench_files import row
from tests.engine.history.trial_maker import NASTY
from tests.pages.bench_harness import make_run

WRONG: list[Any] = [
    [], {}, [[]], [1], [None], {"a": 1}, {"a": {"b": []}}, 10**30, -(10**30), -1, 0, 7, 1e300, -0.5, 1e-300,
    True, None, "", "7", "none such", "x" * 5_000, NASTY, "1x", "0x0", "9999x9999", "NaN",
]  # fmt: skip
Path_ = tuple[str | int, ...]


def plan(**changes: Any) -> Plan:
    return Plan(name="Mine", model=str(embedded_model()), axes={"layout": ("1x1", "1x2")}, rounds=6, **changes)


@functools.cache
def real_runs() -> dict[str, RunRecord]:
    """Return a run of each kind that is saved: of every question, of another program, and noted by hand."""
    users = plan(question="users", workload={"arrival": "users"}, objective={"per_s": 5.0})
    users = replace(users, axes={"users": (1, 4), "parallel": (4,)})
    tuned = {
        "goal": "throughput", "metric": "tokens_per_s", "default": 0, "winner": 1, "leader": 1, "pool": {"parallel": 2},
        "flat": [0, 1], "gain": {"value": 1.2, "low": 1.1, "high": 1.3}, "word": "not enough data", "more_rounds": 3,
        "budget_s": 600.0,
        "num_tried": 2, "num_cells": 2, "sentence": "Use 1x2.",
    }  # fmt: skip
    parts = {"kl_mean": 0.1, "load_warm_s": 0.2}
    two_models = [{"model": "/m/a-Q4_K_M.gguf", "parallel": 1}, {"model": "/m/a-Q8_0.gguf", "parallel": 1}]
    compared = measured_run(new_id(), [10.0, 20.0], settings=two_models)
    return {
        "speed": make_run(plan()),
        "settings": make_run(plan(question="settings"), outcome=tuned),
        "users": make_run(users),
        "python": make_run(plan(question="python")),
        "embedding": embedding_run(new_id()),
        "quantisations": replace(compared, cells=tuple(replace(cell, facts=parts) for cell in compared.cells)),
        "llama-bench": exchange.read_run("\n".join(map(json.dumps, [row(), row(n_prompt=512, n_gen=0)])).encode()),
        "reference": reference_runs()[0],
    }


@functools.cache
def file_of(kind: str) -> tuple[dict[str, Any], bytes]:
    """Return the contents of the two members of a run's file."""
    with zipfile.ZipFile(io.BytesIO(run_bytes(real_runs()[kind]))) as members:
        return json.loads(members.read("run.json")), members.read("samples.csv")


def packed(plain: dict[str, Any], samples: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as members:
        members.writestr("run.json", json.dumps(plain))
        members.writestr("samples.csv", samples)
    return content.getvalue()


def places(value: Any, before: Path_ = ()) -> Iterator[Path_]:
    """Yield the paths at which a JSON value can be replaced: every leaf and every container."""
    if before:
        yield before
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        yield from places(each, (*before, name))


def changed(plain: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    """Return a copy with another value at one path."""
    found = copy.deepcopy(plain)
    inner: Any = found
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return found


def open_run(history: History, run: RunRecord) -> None:
    """Call what the pages call when a user opens, lists, compares and exports a run."""
    summary = summarise(run)
    summary.to_markdown()
    advice = series.advice(run, summary)
    summary.cell(advice.cell)
    metric = summary.main_metric
    measured = series.measured(summary, metric)
    series.varied(measured)
    for axis in series.numeric_axes(measured):
        series.by_axis(summary, axis, metric)
    series.scaling(summary, metric)
    series.layouts(summary, metric)
    series.strip(run.samples, metric)
    time_breakdown(run)
    refusing: list[Callable[[], object]] = [
        lambda: capacity(run),
        lambda: quantisations(run) if has_quantisations(run) else None,
        lambda: exchange.write_run(run, "jsonl"),
        lambda: Plan.from_dict(run.plan),
        lambda: planned_cells(Plan.from_dict(run.plan)),
    ]
    for each in refusing:
        with suppress(EngineError):
            each()
    embedding_sentence(run)
    exchange.sidecar(run)
    comparison = compare_runs([run, real_runs()["speed"]])
    comparison.to_markdown()
    pareto(comparison.entries, [name for name in METRICS_BY_NAME if name in comparison.measured][:2])
    rates_of([run])
    history.find.runs()
    history.find.cells()
    for cell in run.cells[:2]:
        with suppress(EngineError):
            trend(history.find.trend(run.id, cell.number, metric), metric)
    history.find.choices("run")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with History.open(tmp_path_factory.mktemp("history") / "history.duckdb") as opened:
        yield opened


@pytest.mark.parametrize("kind", real_runs())
def test_real_runs_are_taken_in_and_opened(history: History, kind: str) -> None:
    run = run_from_bytes(packed(*file_of(kind)))
    assert history.runs.keep(run)
    kept = history.runs.run(run.id)
    assert kept is not None
    open_run(history, kept)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_wrong_type_is_refused_or_survived(history: History, data: st.DataObject) -> None:
    plain, samples = file_of(data.draw(st.sampled_from(sorted(real_runs()))))
    path = data.draw(st.sampled_from(list(places(plain))))
    value = data.draw(st.sampled_from(WRONG))
    try:
        run = run_from_bytes(packed({**changed(plain, path, value), "id": new_id()}, samples))
    except HistoryError as error:
        assert len(str(error)) <= 2_000
        return
    assert history.runs.keep(run)
    kept = history.runs.run(run.id)
    assert kept is not None
    open_run(history, kept)
    history.runs.delete(run.id)
    history.gc()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cells", 0, "settings", "threads_batch"), []),
        (("cells", 0, "settings", "model"), {}),
        (("plan", "model"), {}),
        (("cells", 0, "settings", "parallel"), 10**30),
        (("cells", 0, "settings", "parallel"), True),
        (("machine", "allowed_cores"), [[]]),
        (("outcome",), {"metric": "none such"}),
    ],
)
def test_the_reported_types_are_refused(path: Path_, value: Any) -> None:
    plain, samples = file_of("speed")
    with pytest.raises(HistoryError, match=f"'{path[-1]}'|metric"):
        run_from_bytes(packed(changed(plain, path, value), samples))


@pytest.mark.parametrize("kind", list(real_runs()))
def test_runs_without_settings_are_opened(history: History, kind: str) -> None:
    plain, samples = file_of(kind)
    for number in range(len(plain["cells"])):
        open_run(history, run_from_bytes(packed(changed(plain, ("cells", number, "settings"), {}), samples)))


@pytest.mark.parametrize(
    "field", ["n_prompt", "n_gen", "avg_ts", "n_threads", "model_filename", "flash_attn", "samples_ns"]
)
@pytest.mark.parametrize("value", [None, "x", True, -1])
def test_rows_of_llama_bench_with_a_wrong_type_are_opened(history: History, field: str, value: Any) -> None:
    plain, samples = file_of("llama-bench")
    open_run(
        history, run_from_bytes(packed(changed(plain, ("cells", 0, "settings", "llama_bench", field), value), samples))
    )


def test_rows_that_an_earlier_version_kept_are_opened(tmp_path: Path) -> None:
    wrong = {"threads_batch": [], "model": {}, "parallel": 10**30, "users": "many", "layout": 7}
    with History.open(tmp_path / "history.duckdb") as history:
        run = make_run(plan())
        assert history.runs.keep(run)
        history.file.write(
            lambda cursor: cursor.execute(
                "UPDATE cells SET settings = json_merge_patch(settings, ?)", [json.dumps(wrong)]
            )
        ).result()
        history.file.write(
            lambda cursor: cursor.execute(
                "UPDATE runs SET plan = ?, outcome = ?", ['{"model": {}, "rounds": "x"}', '{"winner": []}']
            )
        ).result()
        kept = history.runs.run(run.id)
        assert kept is not None
        assert not wrong.keys() & kept.cells[0].settings.keys() and kept.plan == kept.outcome == {}
        open_run(history, kept)
