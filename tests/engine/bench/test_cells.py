"""Cells of a plan: resolved, merged, labelled by their differences, and refused with the reason."""

from pathlib import Path
from typing import Any

import pytest

from engine.bench.planning import feasibility
from engine.bench.planning.cells import anchor_of, cells_of
from engine.bench.planning.plan import Plan, Workload
from engine.errors import ConfigError
from engine.machine.cores import num_cores
from engine.specs import PoolSpec


@pytest.fixture
def plan(story_model: Path) -> Any:
    """Factory for plans on the shipped model."""
    return lambda **values: Plan(**{"model": str(story_model), **values})


def labels(plan: Plan) -> list[str]:
    return [cell.label for cell in cells_of(plan)]


# Which cells are made.


def test_cells_are_the_product_of_the_axes_in_their_order(plan: Any) -> None:
    cells = cells_of(plan(axes={"parallel": (1, 8), "layout": ("1x2", "2x1")}))
    assert [cell.number for cell in cells] == [0, 1, 2, 3]
    assert [(cell.pool.instances, cell.pool.threads, cell.pool.parallel) for cell in cells] == [
        (1, 2, 1),
        (1, 2, 8),
        (2, 1, 1),
        (2, 1, 8),
    ]


def test_without_axes_there_is_one_cell(plan: Any) -> None:
    (cell,) = cells_of(plan(pool={"threads": 2}))
    assert (cell.label, cell.arm, cell.build, cell.refusal) == ("1 × 2", "pool", "", "")


def test_every_number_is_resolved(plan: Any) -> None:
    (cell,) = cells_of(plan(axes={"layout": ("1xauto",), "threads_batch": (None,), "n_ctx": (300,)}))
    assert cell.pool == PoolSpec(
        threads=num_cores(), threads_batch=num_cores(), n_ctx=512, n_batch=512, n_ubatch=512, share_weights=False
    )
    assert cell.settings["layout"] == f"1x{num_cores()}"
    assert (cell.settings["threads_batch"], cell.settings["n_ctx"], cell.settings["n_ubatch"]) == (
        num_cores(),
        512,
        512,
    )


def test_cells_that_come_to_the_same_are_one(plan: Any) -> None:
    axes = {"layout": ("1xauto", f"1x{num_cores()}"), "n_ctx": (300, 400, 512, 513)}
    cells = cells_of(plan(axes=axes))
    assert [(cell.number, cell.label) for cell in cells] == [(0, "context 512"), (1, "context 768")]


def test_settings_name_what_the_requests_use(plan: Any) -> None:
    (random,) = cells_of(plan())
    (users,) = cells_of(plan(axes={"users": (3,)}))
    (texts,) = cells_of(plan(workload={"asked": "prompts", "prompts": ["Once"]}))
    assert {"num_prompt", "num_generated", "depth"} <= random.settings.keys()
    assert not {"users", "rate_per_s"} & random.settings.keys()
    assert (users.settings["users"], users.workload.arrival) == (3, "users")
    assert not {"num_prompt", "depth"} & texts.settings.keys()


def test_cells_that_differ_only_in_their_requests_share_workers(plan: Any) -> None:
    cells = cells_of(plan(axes={"num_prompt": (16, 1000), "depth": (0, 500), "users": (1, 4)}))
    assert len(cells) == 8
    assert len({cell.worker_key for cell in cells}) == 1
    assert cells[0].pool.n_ctx == 1792


# The context.


def test_the_context_grows_to_hold_what_is_asked(plan: Any) -> None:
    workload = {"num_prompt": 2000, "num_generated": 100, "depth": 300}
    (cell,) = cells_of(plan(workload=workload))
    assert cell.pool.n_ctx == 2560
    assert cells_of(plan())[0].pool.n_ctx == PoolSpec.n_ctx
    assert cells_of(plan(workload=workload, pool={"n_ctx": 4096}))[0].pool.n_ctx == 4096


def test_a_longest_request_that_does_not_fit_costs_the_others_nothing(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.models.memory.available_memory", lambda: 400 << 20)
    short, long = cells_of(plan(axes={"depth": (0, 500_000)}))
    assert (short.pool.n_ctx, short.refusal) == (512, "")
    assert long.refusal.startswith("needs more memory than is available: weights")


def test_texts_get_room_by_their_length(plan: Any) -> None:
    (cell,) = cells_of(plan(workload={"asked": "prompts", "prompts": ["Once", "é" * 1000], "num_generated": 10}))
    assert feasibility.num_needed(cell.workload) == 1011
    assert cell.pool.n_ctx == 1024


# Labels.


def test_labels_have_only_what_differs(plan: Any) -> None:
    assert labels(plan(axes={"layout": ("1x2", "2x1"), "n_ubatch": (128,)})) == ["1 × 2", "2 × 1"]
    assert labels(plan(axes={"layout": ("1x2", "2x1"), "share_weights": (False, True)})) == [
        "1 × 2 · repacked weights",
        "1 × 2 · shared weights",
        "2 × 1 · repacked weights",
        "2 × 1 · shared weights",
    ]


def test_files_are_called_by_the_shortest_names_that_tell_them_apart(story_model: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.gguf").symlink_to(story_model)
    copies = [tmp_path / "one" / "copy.gguf", tmp_path / "two" / "copy.gguf"]
    for copy in copies:
        copy.write_bytes(story_model.read_bytes())
    assert labels(Plan(axes={"model": (str(story_model), *map(str, copies))})) == ["story", "one/copy", "two/copy"]


# Unusual but allowed.


def test_more_threads_than_cores_are_noted(plan: Any) -> None:
    few, many = cells_of(plan(axes={"layout": ("1x1", f"2x{num_cores()}")}))
    assert (few.notes, many.refusal) == ((), "")
    assert many.notes == (f"{2 * num_cores()} threads, but this process may use {num_cores()} cores",)


def test_users_who_wait_and_contexts_beyond_training_are_noted(plan: Any) -> None:
    (cell,) = cells_of(plan(axes={"users": (4,)}, pool={"parallel": 2}, workload={"depth": 100_000}))
    assert any("4 users share 2 sequences" in note for note in cell.notes)
    assert any("longer than the model's training context of" in note for note in cell.notes)


# What is refused.


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"axes": {"n_ubatch": (1024,), "n_batch": (512,)}}, "n_ubatch = 1,024: must not exceed n_batch = 512"),
        ({"pool": {"n_ctx": 256}, "workload": {"num_prompt": 300}}, "a request takes 364 tokens of context"),
        ({"axes": {"type_v": ("q8_0",), "flash_attn": (False,)}}, "values of type q8_0 need flash attention"),
        ({"axes": {"num_prompt": (0,), "num_generated": (0,)}}, "nothing would be measured"),
        ({"axes": {"build": ("/nowhere",)}}, "/nowhere: does not contain libllama.so"),
        ({"model": "/nowhere.gguf"}, "/nowhere.gguf: there is no such file"),
        ({"pool": {"parallel": 256, "n_ctx": 1 << 24}}, "needs more memory than is available: weights"),
        ({"axes": {"arm": ("loop",), "parallel": (2,)}}, "loop answers one request at a time"),
        ({"axes": {"arm": ("create_completion",), "users": (2,)}}, "create_completion answers one request at a time"),
        (
            {"axes": {"arm": ("llama-bench",)}, "workload": {"asked": "prompts", "prompts": ["x"]}},
            "llama-bench uses random tokens",
        ),
        (
            {"axes": {"arm": ("llama-bench",), "layout": ("1x1",), "threads_batch": (2,)}},
            "llama-bench has one thread count",
        ),
    ],
)
def test_a_cell_that_cannot_run_says_why(plan: Any, values: dict[str, Any], reason: str) -> None:
    (cell,) = cells_of(plan(**values))
    assert reason in cell.refusal


def test_a_refused_cell_keeps_what_was_asked_for(plan: Any) -> None:
    cells = cells_of(plan(axes={"n_batch": (512,), "n_ubatch": (256, 1024, 2048)}))
    assert [cell.settings["n_ubatch"] for cell in cells] == [256, 1024, 2048]
    assert [cell.label for cell in cells] == ["n_ubatch 256", "n_ubatch 1,024", "n_ubatch 2,048"]
    assert [bool(cell.refusal) for cell in cells] == [False, True, True]


def test_a_file_that_is_no_model_refuses_only_its_own_cells(story_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(story_model.read_bytes()[:5000])
    cells = cells_of(Plan(axes={"model": (str(story_model), str(broken))}))
    assert cells[0].refusal == ""
    assert f"{broken}: is truncated" in cells[1].refusal


def test_a_folder_with_the_library_is_a_build(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "libllama.so").touch()
    own, other = cells_of(plan(axes={"build": (None, str(tmp_path))}))
    assert (own.build, other.build, other.refusal) == ("", str(tmp_path), "")
    assert (own.label, other.label) == ("build default", f"build {tmp_path.name}")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"axes": {"paralel": (1,)}}, "there is no axis 'paralel'; did you mean parallel?"),
        ({"axes": {"parallel": ()}}, "the axis parallel has no values"),
        ({"axes": {"parallel": (1, "2")}}, "parallel = '2'"),
        ({"axes": {"parallel": (1,)}, "pool": {"parallel": 2}}, "parallel is fixed in the plan and varied by the axis"),
        ({"axes": {"layout": ("1x1",)}, "pool": {"threads": 2}}, "threads is fixed in the plan and varied by the axis"),
        ({"axes": {"depth": (1,)}, "workload": {"depth": 2}}, "depth is fixed in the plan"),
        ({"axes": {"users": (1,), "rate_per_s": (1.0,)}}, "users and rate_per_s both set"),
        ({"axes": {"users": (1,)}, "workload": {"arrival": "poisson"}}, "users and rate_per_s both set"),
        (
            {"axes": {"num_prompt": (8,)}, "workload": {"asked": "prompts", "prompts": ["x"]}},
            "the axis num_prompt does not apply to texts",
        ),
        ({"model": ""}, "the plan names no model"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(plan: Any, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cells_of(plan(**values))
    assert reason in str(refused.value)


def test_millions_of_cells_are_refused_with_their_number(plan: Any) -> None:
    axes = {name: tuple(range(1, 10_001)) for name in ("num_prompt", "num_generated", "depth")}
    with pytest.raises(ConfigError, match="the plan has 1,000,000,000,000 configurations; up to 10,000 are allowed"):
        cells_of(plan(axes=axes))


def test_the_anchor_is_a_cell_that_can_run(plan: Any) -> None:
    axes = {"n_batch": (256,), "n_ubatch": (512, 128, 256)}
    cells = cells_of(plan(axes=axes))
    assert anchor_of(plan(axes=axes, anchor=2), cells) == 2
    assert anchor_of(plan(axes=axes, anchor=0), cells) == 1
    assert anchor_of(plan(axes=axes, anchor=9), cells) == 1


def test_workload_of_a_cell_is_the_plans_with_its_axes(plan: Any) -> None:
    (cell,) = cells_of(plan(axes={"rate_per_s": (2.5,)}, workload={"num_generated": 5, "duration_s": 3.0}))
    assert cell.workload == Workload(arrival="poisson", rate_per_s=2.5, num_generated=5, duration_s=3.0)


@pytest.mark.parametrize("axes", [{"rate_per_s": (1.0,)}, {"users": (4,)}])
def test_requests_that_arrive_by_themselves_wait_for_a_server_with_one_at_a_time(
    axes: dict[str, Any], story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feasibility, "managed_missing", lambda _kind: "")
    plan = Plan(model=str(story_model), axes={"arm": ("pool", "llama_cpp.server"), **axes}, pool={"parallel": 4})
    assert [(cell.pool.parallel, cell.refusal) for cell in cells_of(plan)] == [(4, ""), (1, "")]


@pytest.mark.parametrize(("given", "other"), [("parallel", "share_weights"), ("share_weights", "parallel")])
def test_a_refusal_names_the_parameter_at_fault(
    given: str, other: str, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feasibility, "managed_missing", lambda _kind: "")
    pool = {"parallel": 1, "share_weights": False, given: {"parallel": 2, "share_weights": True}[given]}
    (cell,) = cells_of(Plan(model=str(story_model), axes={"arm": ("llama_cpp.server",)}, pool=pool))
    assert f"remove {given}" in cell.refusal and other not in cell.refusal
