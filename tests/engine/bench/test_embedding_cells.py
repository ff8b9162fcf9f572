"""Embedding plans: their axes, their cells, their estimates, and what is refused."""

from pathlib import Path

import pytest

from engine.bench.planning.axes import AXES, EMBEDDING_AXES, axes_of, axis_of, parse_values
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.embedding_cells import embedding_cells
from engine.bench.planning.feasibility import Feasibility, fit_together
from engine.bench.planning.plan import EmbeddingCell, Plan
from engine.bench.planning.plan_file import plan_from_json, plan_to_json
from engine.bench.planning.presets import preset
from engine.bench.planning.preview import preview
from engine.embedding.models import EMBEDDED_NAME
from engine.errors import ConfigError
from engine.machine.cores import num_cores


def plan(**values: object) -> Plan:
    return Plan(**{"question": "embedding", "model": EMBEDDED_NAME, **values})  # type: ignore[arg-type]


def test_cells_are_the_product_of_the_axes_in_the_order_of_the_table() -> None:
    cells = embedding_cells(plan(axes={"backend": ("torch", "torch-bf16"), "layout": ("1x2", "2x1")}))
    assert [cell.label for cell in cells] == [
        "1 × 2 · torch",
        "1 × 2 · torch-bf16",
        "2 × 1 · torch",
        "2 × 1 · torch-bf16",
    ]
    assert [cell.number for cell in cells] == [0, 1, 2, 3]
    first, *_, last = cells
    assert (first.spec.workers, first.spec.threads, first.spec.backend) == (1, 2, "torch")
    assert (last.spec.workers, last.spec.threads, last.spec.backend) == (2, 1, "torch-bf16")
    assert list(first.settings) == [axis.name for axis in EMBEDDING_AXES]
    assert not any(cell.refusal for cell in cells)


def test_what_is_left_out_is_resolved_to_numbers() -> None:
    (cell,) = embedding_cells(
        plan(axes={"layout": ("2xauto",), "tokens_per_batch": (None, 512 * max(1, num_cores() // 2))})
    )
    assert cell.spec.threads == max(1, num_cores() // 2)
    assert cell.settings["tokens_per_batch"] == 512 * cell.spec.threads
    assert cell.settings["backend"] == "torch"
    assert cell.label == f"2 × {cell.spec.threads}"


def test_cells_that_differ_only_in_their_texts_share_workers() -> None:
    cells = embedding_cells(plan(axes={"num_texts": (1, 8), "num_words": (4, 400), "backend": ("torch", "torch-bf16")}))
    assert len(cells) == 8
    assert len({cell.worker_key for cell in cells}) == 2
    assert {(cell.workload.num_texts, cell.workload.num_words) for cell in cells} == {
        (1, 4),
        (1, 400),
        (8, 4),
        (8, 400),
    }


def test_own_texts_have_no_length_to_set() -> None:
    (cell,) = embedding_cells(plan(workload={"texts": ["one", "two"]}))
    assert "num_words" not in cell.settings
    assert cell.workload.texts == ("one", "two")


def test_a_model_that_is_not_here_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    known, unknown, empty = embedding_cells(plan(axes={"model": (EMBEDDED_NAME, "no-such-model", str(tmp_path))}))
    assert not known.refusal
    assert "no-such-model is not on this machine" in unknown.refusal
    assert "is not an embedding model" in empty.refusal
    assert (known.label, unknown.label) == (EMBEDDED_NAME, "no-such-model")


def test_a_backend_that_cannot_compute_the_model_says_why() -> None:
    (cell,) = embedding_cells(plan(axes={"backend": ("llama",)}))
    assert cell.refusal.startswith("llama: ")


def test_more_threads_than_cores_are_noted() -> None:
    (cell,) = embedding_cells(plan(axes={"layout": (f"{num_cores()}x3",)}))
    assert f"{3 * num_cores()} threads" in cell.notes[0]
    assert not cell.refusal


def test_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bench.planning.feasibility.available_memory", lambda: 100_000_000)
    (cell,) = embedding_cells(plan(axes={"layout": ("2x1",)}))
    assert "needs more memory than is available" in cell.refusal
    assert not fit_together([cell], Feasibility())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"axes": {"parallel": (1,)}}, "there is no embedding axis 'parallel'"),
        ({"axes": {"bakend": ("torch",)}}, "did you mean backend"),
        ({"axes": {"backend": ("abacus",)}}, "backend = 'abacus'"),
        ({"axes": {"num_words": (0,)}}, "num_words"),
        ({"axes": {"layout": ("1x1",)}, "pool": {"workers": 2}}, "workers is fixed in the plan and varied"),
        ({"axes": {"backend": ()}}, "has no values"),
        ({"model": ""}, "folder or name of an embedding model"),
        ({"pool": {"n_ctx": 512}}, "n_ctx"),
        ({"workload": {"num_prompt": 4}}, "num_prompt"),
    ],
)
def test_what_contradicts_itself_is_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        embedding_cells(plan(**values))


def test_axes_of_generation_are_no_axes_of_embedding_and_the_other_way_round() -> None:
    assert set(axes_of("embedding")) & set(axes_of("speed")) == {"layout", "model"}
    assert list(axes_of("users")) == [axis.name for axis in AXES]
    with pytest.raises(ConfigError, match="there is no axis 'backend'"):
        axis_of("backend")
    assert parse_values("tokens_per_batch", "256-1024*2,auto", "embedding") == (256, 512, 1024, None)


def test_a_plan_goes_through_json() -> None:
    given = plan(axes={"backend": ("torch", "torch-bf16")}, workload={"num_texts": 16}, rounds=7)
    assert plan_from_json(plan_to_json(given)) == given
    text = '{"question": "embedding", "model": "m", "axes": {"tokens_per_batch": "128-512*2"}}'
    assert plan_from_json(text).axes == {"tokens_per_batch": (128, 256, 512)}
    with pytest.raises(ConfigError, match="workload.texts must be a list of strings"):
        plan_from_json('{"question": "embedding", "workload": {"texts": "one"}}')


def test_the_preset_measures_every_backend_that_works_here() -> None:
    given = preset("embedding", EMBEDDED_NAME, 2)
    assert given.axes["layout"][-1] == "2x1"
    assert {"torch", "torch-bf16"} <= set(given.axes["backend"])
    cells = planned_cells(given)
    assert all(isinstance(cell, EmbeddingCell) and not cell.refusal for cell in cells)
    estimated = preview(given)
    assert estimated.num_samples > len(cells) * given.rounds
    assert 0 < estimated.seconds < estimated.most_seconds
    assert all(estimated.memory_by_cell[cell.number] > 90e6 for cell in cells)
