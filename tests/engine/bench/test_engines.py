"""Engines as an axis: which of them can be asked what, and how much is sent to other machines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.bench.baselines.arms import missing_engines, open_target
from engine.bench.planning import engines
from engine.bench.planning.axes import parse_values
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Plan
from engine.bench.planning.plan_names import by_axes
from engine.bench.planning.presets import preset
from engine.bench.planning.preview import preview
from engine.bench.planning.remote import MOST_PROMPTS, RemoteBudget, remote_requests
from engine.bench.running.session import Session
from engine.errors import ConfigError
from engine.models import folder_specs
from tests.engine.backends.fake_server import COMPLETIONS, fake_server
from tests.engine.bench.desk import DESK, SMALL, Keeper, desk, six

pytestmark = pytest.mark.usefixtures("installed")


# Names.


def test_an_external_engine_cannot_be_taken_for_another() -> None:
    assert parse_values("arm", "pool, external:pool, llama-server") == ("pool", "external:pool", "llama-server")
    assert [engines.label_of(name) for name in ("pool", "external:pool")] == ["this pool", "pool (external)"]
    for wrong in ("external:", "http://10.0.0.1", "Pool"):
        with pytest.raises(ConfigError, match="it takes one of pool, llama-server"):
            parse_values("arm", wrong)


def test_a_plan_is_named_by_its_engines() -> None:
    assert by_axes(Plan(question="engines", axes={"arm": ("pool", DESK)})).startswith(
        "Engine this pool, desk (external)"
    )


def test_plans_of_before_still_open(story_model: Path) -> None:
    kept = {"question": "python", "model": str(story_model), "axes": {"arm": ["llama-bench", "loop", "pool"]}}
    assert [cell.settings["arm"] for cell in cells_of(Plan.from_dict(kept))] == ["llama-bench", "loop", "pool"]


# Who can be asked what.


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("llama-server", {"workload": SMALL | {"depth": 8}}, "llama-server keeps nothing of earlier requests"),
        ("llama-server", {"pool": {"instances": 2, "threads": 1}}, "llama-server is one process"),
        ("llama-server", {"workload": SMALL | {"num_generated": 0}}, "answers with at least one token"),
        (
            "llama_cpp.server",
            {"axes": {"parallel": (2,)}, "pool": {"threads": 1}},
            "llama_cpp.server answers one request at a time",
        ),
        (DESK, {}, "There is no engine 'desk'"),
        ("llama-bench", {"axes": {"users": (4,)}}, "llama-bench answers one request at a time"),
    ],
)
def test_what_an_engine_cannot_do_is_said(made: Any, name: str, changes: dict[str, Any], reason: str) -> None:
    (cell,) = made(name, **changes)
    assert reason in cell.refusal


def test_every_engine_gets_the_same_but_those_that_answer_one_at_a_time(made: Any) -> None:
    cells = made("pool", "llama-server", "llama_cpp.server", "create_completion", axes={"users": (2,)})
    assert [cell.pool.parallel for cell in cells] == [2, 2, 1, 1]
    assert [bool(cell.refusal) for cell in cells] == [False, False, False, True]
    assert "2 users share 1 sequence: the others wait" in cells[2].notes
    assert len({(cell.pool.threads, cell.pool.n_ctx, cell.workload) for cell in cells}) == 1


def test_a_missing_server_is_refused_and_left_out_of_the_preset(
    made: Any, installed: dict[str, str], story_model: Path
) -> None:
    assert {"pool", "llama-server", "llama_cpp.server"} < {*preset("engines", story_model, 2).axes["arm"]}
    installed["llama-server"] = "llama-server was not found: build it."
    assert made("llama-server")[0].refusal == installed["llama-server"]
    left = preset("engines", story_model, 2)
    assert "llama-server" not in left.axes["arm"] and left.axes["arm"][0] == "pool"
    assert left.compares_answers and cells_of(left)[left.anchor].arm == "pool"


def test_transformers_runs_the_folder_beside_the_file(
    made: Any, story_model: Path, story_folder: Path, tmp_path: Path
) -> None:
    model, folder = tmp_path / "story.gguf", tmp_path / "story"
    model.write_bytes(story_model.read_bytes())
    folder.symlink_to(story_folder)
    (tmp_path / "other").mkdir()
    (cell,) = made("transformers", model=str(model))
    assert (cell.refusal, Path(cell.model)) == ("", folder)
    assert cell.settings["model"] == str(model), "it is compared with the engines that run that file"
    assert "transformers" in preset("engines", model, 2).axes["arm"]
    (own,) = made("transformers", model=str(folder))
    assert own.refusal == "" and Path(own.model).samefile(folder)
    assert preset("engines", folder, 2).axes["arm"] == ("transformers",)


def test_transformers_runs_the_file_itself_where_no_folder_is_beside_it(
    made: Any, story_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "story.gguf"
    model.write_bytes(story_model.read_bytes())
    (cell,) = made("transformers", model=str(model))
    assert (cell.refusal, cell.model, cell.pool.dtype) == ("", str(model), "float32")
    assert "PyTorch runs the file story.gguf" in cell.notes
    assert "transformers" in preset("engines", model, 2).axes["arm"]


def test_why_transformers_does_not_run_a_file_is_one_sentence(
    made: Any, story_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "story.gguf"
    model.write_bytes(story_model.read_bytes())
    monkeypatch.setattr(folder_specs, "GGUF_ARCHITECTURES", ("qwen3",))
    whole = (
        "transformers needs a folder of safetensors of this network beside the GGUF file: the file itself has the "
        "architecture llama, which is not among those of GGUF files that PyTorch runs: qwen3"
    )
    assert made("transformers", model=str(model))[0].refusal == whole
    assert missing_engines(str(model))["transformers"].remedy == whole
    assert "transformers" not in preset("engines", model, 2).axes["arm"]


def test_without_its_packages_transformers_is_missing(
    made: Any, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = {"torch", "transformers"}
    monkeypatch.setattr(folder_specs, "find_spec", lambda name: None if name in lacks else name)
    remedy = "`pip install torch transformers`"
    assert remedy in made("transformers")[0].refusal
    assert remedy in missing_engines(str(story_model))["transformers"].remedy
    assert "transformers" not in preset("engines", story_model, 2).axes["arm"]


def test_nothing_is_claimed_of_what_an_external_engine_runs_with(home: Path, made: Any) -> None:
    with desk(home, six):
        here, there = made("pool", DESK)
    assert (here.label, there.label) == ("this pool", "desk (external)")
    assert {"layout", "model", "n_ctx", "type_k"} < here.settings.keys()
    assert there.settings.keys() == {"arm", "parallel", "users", "num_prompt", "num_generated", "depth"}


# Load on other machines.


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every external engine counts as one on another machine."""
    monkeypatch.setattr(engines, "is_remote", engines.is_external)


@pytest.mark.usefixtures("elsewhere")
def test_nothing_is_sent_to_another_machine_before_it_is_confirmed(home: Path, story_model: Path) -> None:
    axes = {"arm": (DESK,), "users": (2,)}
    plan = Plan(question="engines", model=str(story_model), axes=axes, workload=SMALL, rounds=2, compares_answers=True)
    with desk(home, six) as seen:
        (cell,) = cells_of(plan)
        requests = remote_requests(plan, [cell])
        # one warms up, two of each of two rounds and of the control before and after them, eight are compared
        assert list(requests.values()) == [1 + 2 * 4 + 8]
        assert "This sends about 17 prompts to 127.0.0.1." in preview(plan).sentence
        with pytest.raises(ConfigError, match="Nothing is sent there before you confirm it"):
            Session(plan, Keeper())
        with pytest.raises(ConfigError, match="Nothing is sent there before you confirm it"):
            open_target(cell)
        assert seen == []
        done = Session(plan, Keeper(), confirmed=tuple(requests)).run()
        assert done.status == "done" and len(done.samples) == 4
        sent = [one for one in seen if one.path == COMPLETIONS and one.body["max_tokens"] > 1]
        assert len(sent) == 8, "two users, once in each of four samples; no answers to compare with"


@pytest.mark.usefixtures("elsewhere")
def test_a_load_on_another_machine_has_limits(home: Path, made: Any, story_model: Path) -> None:
    with desk(home, six):
        (crowded,) = made(DESK, axes={"users": (17,)})
        assert "at most 16 users send, not 17" in crowded.refusal
        arriving = {"arrival": "poisson", "rate_per_s": 2.0, **SMALL}
        (random,) = cells_of(Plan(model=str(story_model), axes={"arm": (DESK,)}, workload=arriving))
        assert "no requests are sent at random times" in random.refusal
        plan = Plan(question="engines", model=str(story_model), axes={"arm": (DESK,), "users": (16,)}, workload=SMALL)
        # one warms up; 16 users in 20 rounds and in five samples of the control
        with pytest.raises(ConfigError, match=r"sends about 401 prompts to 127\.0\.0\.1; at most 200 are sent"):
            preview(replace(plan, rounds=20))


def test_the_limit_holds_whatever_was_estimated() -> None:
    budget = RemoteBudget(["https://api.example.com"])
    for _request in range(MOST_PROMPTS):
        budget.take("https://api.example.com")
    with pytest.raises(ConfigError, match="200 prompts may be sent to other machines"):
        budget.take("https://api.example.com")
    with pytest.raises(ConfigError, match="before you confirm it"):
        budget.take("https://elsewhere.example.com")


def test_an_address_in_a_plan_is_not_asked(story_model: Path) -> None:
    with fake_server({}) as (address, seen):
        for plan in (Plan(model=address), Plan(model=address, axes={"arm": ("pool", "llama-server")})):
            assert all(cell.refusal for cell in cells_of(plan))
        with pytest.raises(ConfigError, match="it takes one of pool"):
            cells_of(Plan(model=str(story_model), axes={"arm": (address,)}))
        assert seen == []
