"""Arguments of the benchmark commands, parsed into plans and actions."""

import argparse
import json
from pathlib import Path

import pytest

from engine.bench.planning.axes import AXES
from engine.bench.planning.axis import Axis
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import ARMS, Plan
from engine.bench.planning.plan_file import plan_to_json
from engine.bench.planning.presets import PRESETS, preset
from engine.bench.planning.prompts import sample_prompts
from engine.commands.bench_arguments import (
    BenchArguments,
    LimitsArguments,
    ResumeArguments,
    add_commands,
    parse,
    read,
)
from engine.errors import ConfigError
from engine.models.library import embedded_model


def bench(*words: str) -> BenchArguments:
    arguments = parse(words)
    assert isinstance(arguments, BenchArguments)
    return arguments


def plan_of(*words: str) -> Plan:
    return bench(*words).plan


# bench: axes.


def test_layouts_and_sequences() -> None:
    plan = plan_of("bench", "--model", "m.gguf", "--layout", "1x2,2x1", "--parallel", "1-8*2", "--rounds", "8")
    assert plan == Plan(model="m.gguf", axes={"layout": ("1x2", "2x1"), "parallel": (1, 2, 4, 8)}, rounds=8)


def test_instances_and_threads_are_layouts() -> None:
    assert plan_of("bench", "--instances", "1-4*2", "--threads", "auto,3").axes == {
        "layout": ("1xauto", "1x3", "2xauto", "2x3", "4xauto", "4x3")
    }
    assert plan_of("bench", "--instances", "2").axes == {"layout": ("2xauto",)}
    assert plan_of("bench", "--threads", "1-3,llama-cpp-default").axes == {
        "layout": ("1x1", "1x2", "1x3", "1xllama-cpp-default")
    }
    with pytest.raises(ConfigError, match="--layout already sets instances and threads"):
        parse(["bench", "--layout", "1x2", "--threads", "2"])


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
def test_every_axis_has_a_flag(axis: Axis) -> None:
    texts = {
        "layout": "1x2",
        "load": "none",
        "type_k": "q8_0",
        "type_v": "q8_0",
        "arm": "loop",
        "n_ctx": "64",
        "dtype": "bfloat16",
    }
    text = texts.get(axis.name, "1")
    words = [f"--{axis.name.replace('_', '-')}", text] * (2 if axis.name == "model" else 1)
    value = axis.parse(text)
    assert plan_of("bench", *words).axes == {axis.name: (value, value) if axis.name == "model" else (value,)}


def test_models_and_builds_may_be_named_several_times_with_commas_in_them() -> None:
    plan = plan_of("bench", "--model", "a,b.gguf", "--model", "c.gguf", "--build", "default", "--build", "/x,y")
    assert plan.axes == {"model": ("a,b.gguf", "c.gguf"), "build": (None, "/x,y")}


def test_the_question_follows_from_the_axes() -> None:
    assert plan_of("bench", "--parallel", "1,2").question == "speed"
    assert plan_of("bench", "--users", "1-8*2").question == "users"
    assert plan_of("bench", "--rate-per-s", "0.5,1").question == "users"
    assert plan_of("bench", "--arm", "pool,loop").question == "python"


# bench: where the plan comes from.


def test_without_axes_it_is_the_quick_plan_for_the_model_that_ships() -> None:
    assert plan_of("bench") == preset("quick", embedded_model())


def test_a_model_of_the_settings_comes_before_the_one_that_ships(
    story_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.gguf"
    own.symlink_to(story_model)
    monkeypatch.setenv("LOGITBENCH_MODEL", str(own))
    assert plan_of("bench", "--depth", "5").model == str(own.resolve())
    assert plan_of("bench", "--depth", "5", "--model", "m.gguf").model == "m.gguf"


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str, story_model: Path) -> None:
    assert plan_of("bench", "--preset", name, "--model", str(story_model)) == preset(name, story_model)


def test_flags_go_before_what_a_preset_says(story_model: Path) -> None:
    plan = plan_of(
        "bench", "--preset", "users", "--layout", "2x1", "--parallel", "4", "--rounds", "6", "--name", "mine"
    )
    assert (plan.rounds, plan.name, plan.question) == (6, "mine", "users")
    assert {cell.pool.parallel for cell in cells_of(plan)} == {4}
    assert {cell.pool.instances for cell in cells_of(plan)} == {2}


def test_flags_go_before_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    written = Plan(model="m.gguf", axes={"parallel": (1, 2)}, pool={"n_ctx": 256}, workload={"depth": 9}, rounds=7)
    path.write_text(plan_to_json(written), encoding="utf-8")
    assert plan_of("bench", "--plan", str(path)) == written
    changed = plan_of("bench", "--plan", str(path), "--n-ctx", "512", "--depth", "1", "--seed", "3", "--timeout", "60")
    assert changed.axes == {"parallel": (1, 2), "n_ctx": (512,), "depth": (1,)}
    assert (changed.pool, changed.workload, changed.rounds, changed.seed, changed.timeout_s) == ({}, {}, 7, 3, 60)


def test_a_file_without_a_model_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"axes": {"parallel": "1-8*2"}}', encoding="utf-8")
    assert plan_of("bench", "--plan", str(path)).model == str(embedded_model())


def test_texts_to_ask(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("One\nTwo\n", encoding="utf-8")
    plan = plan_of("bench", "--parallel", "1,2", "--prompts", str(path), "--num-generated", "9")
    assert plan.workload == {"asked": "prompts", "prompts": ("One", "Two")}
    assert {cell.workload.prompts for cell in cells_of(plan)} == {("One", "Two")}
    assert plan_of("bench", "--prompts", "samples", "--depth", "0").workload["prompts"] == sample_prompts()


def test_what_is_done_with_the_plan() -> None:
    plain, all_of_it = bench("bench"), bench("bench", "--dry-run", "--json", "--out", "run.zip", "--cold")
    assert (plain.is_dry_run, plain.is_json, plain.out, plain.plan.measures_cold) == (False, False, None, False)
    assert (all_of_it.is_dry_run, all_of_it.is_json, all_of_it.out) == (True, True, Path("run.zip"))
    assert all_of_it.plan.measures_cold
    assert plan_of("bench", "--compare-answers").compares_answers


# The other commands.


@pytest.mark.parametrize(
    "words",
    [
        ["--engine", "pool,external:desk"],
        ["--embed", "--backend", "torch,external:desk"],
    ],
)
def test_nodes_are_not_asked_for_the_engines_of_this_machine(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="external:desk: nodes do not know the external engines of this machine"):
        bench("bench", *words, "--cluster", "auto")


def test_nor_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"question": "embedding", "pool": {"backend": "external:desk"}}))
    assert plan_of("bench", "--plan", str(file)).pool["backend"] == "external:desk"
    with pytest.raises(ConfigError, match="external:desk: nodes do not know"):
        bench("bench", "--plan", str(file), "--cluster", "auto")


def test_resume() -> None:
    assert parse(["bench", "resume", "01ab"]) == ResumeArguments(run="01ab")
    assert parse(["bench", "resume", "01ab", "--json", "--out", "x.zip"]) == ResumeArguments(
        run="01ab", is_json=True, out=Path("x.zip")
    )


def test_tune(story_model: Path) -> None:
    plan = plan_of("tune", "--model", str(story_model), "--goal", "stream", "--budget", "60", "--dry-run")
    assert (plan.question, plan.goal, plan.budget_s, plan.model) == ("settings", "stream", 60, str(story_model))
    assert not plan.may_change_answers
    narrowed = plan_of("tune", "--layout", "1x1,1x2", "--n-ctx", "1024", "--may-change-answers")
    assert (narrowed.axes["layout"], narrowed.axes["n_ctx"]) == (("1x1", "1x2"), (1024,))
    assert "n_ctx" not in narrowed.pool
    assert narrowed.may_change_answers


def test_reconcile(story_model: Path) -> None:
    arguments = bench("reconcile", "--model", str(story_model), "--build-llama-bench")
    assert arguments.plan == preset("python", story_model)
    assert (arguments.builds_llama_bench, bench("reconcile").builds_llama_bench) == (True, False)
    assert plan_of("reconcile", "--build", "/fast").axes == {"arm": ARMS, "build": (None, "/fast")}


def test_limits() -> None:
    assert parse(["limits"]) == LimitsArguments()
    assert parse(["limits", "--again", "--json"]) == LimitsArguments(is_measured_again=True, is_json=True)


# What is refused.


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["bench", "--parallel", "1-1000000"], "parallel: '1-1000000' has 1,000,000 values"),
        (["bench", "--parallel", "many"], "parallel: 'many' cannot be read"),
        (["bench", "--instances", "0"], "instances = 0"),
        (["bench", "--threads", "half"], "threads: 'half' cannot be read"),
        (["bench", "--rounds", "0"], "rounds = 0"),
        (["bench", "--timeout", "0"], "timeout_s = 0.0"),
        (["bench", "--plan", "nowhere.json"], "nowhere.json: cannot be read"),
        (["bench", "--prompts", "nowhere.txt"], "nowhere.txt: cannot be read"),
        (["tune", "--budget", "-1"], "budget_s = -1.0"),
    ],
)
def test_values_out_of_range_are_refused(words: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(words)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["bench", "--paralel", "1"],
        ["bench", "--paral", "1"],
        ["bench", "--preset", "fast"],
        ["bench", "--preset", "quick", "--plan", "p.json"],
        ["bench", "resume"],
        ["tune", "--goal", "beauty"],
    ],
)
def test_unknown_words_end_with_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert "usage: python -m engine" in capsys.readouterr().err


def test_the_commands_go_into_a_larger_parser(capsys: pytest.CaptureFixture[str]) -> None:
    whole = argparse.ArgumentParser(prog="python -m engine")
    add_commands(whole.add_subparsers(required=True))
    assert read(whole.parse_args(["bench"])) == parse(["bench"])
    for words in (["bench"], ["tune"], ["reconcile"], ["limits"], ["bench", "resume"]):
        with pytest.raises(SystemExit) as ended:
            whole.parse_args([*words, "--help"])
        assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"--{axis.name.replace('_', '-')}" in shown for axis in AXES)
