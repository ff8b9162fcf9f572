"""Plan files: written as JSON and read back, and the errors for malformed ones."""

import json
from pathlib import Path

import pytest

from engine.bench.planning.plan import Plan
from engine.bench.planning.plan_file import plan_from_json, plan_to_json, read_plan
from engine.errors import ConfigError

PLAN = Plan(
    name="Küche",
    question="users",
    model="/models/a b.gguf",
    axes={"layout": ("1x2", "2xauto"), "flash_attn": (None, True), "rate_per_s": (0.5,)},
    pool={"share_weights": True},
    workload={"asked": "prompts", "prompts": ["Once\nupon"]},
    objective={"ttft_s": 2},
    rounds=12,
)


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    assert plan_from_json(plan_to_json(PLAN)) == PLAN
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(PLAN), encoding="utf-8")
    assert read_plan(path) == PLAN


def test_axes_may_be_written_as_on_the_command_line() -> None:
    plan = plan_from_json('{"axes": {"parallel": "1-8*2,16", "layout": "2xauto", "depth": 512, "pin": true}}')
    assert plan.axes == {"parallel": (1, 2, 4, 8, 16), "layout": ("2xauto",), "depth": (512,), "pin": (True,)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{\n"rounds": 8,\n}', "p.json: not JSON (.*line 3"),
        ("[]", "p.json: must be an object"),
        ("[" * 100_000, "p.json: not JSON"),
        ('{"round": 8}', "Plan has no parameter 'round'; did you mean rounds?"),
        ('{"rounds": "8"}', "rounds = '8': must be a whole number"),
        ('{"question": "speeed"}', "question = 'speeed': must be one of"),
        ('{"model": 5}', "model = 5: must be a string"),
        ('{"axes": [1]}', r"axes = \[1\]: must be an object"),
        ('{"axes": {"parallel": "1-x"}}', "parallel: '1-x' cannot be read"),
        ('{"axes": {"paralel": "1"}}', "did you mean parallel?"),
        ('{"pool": {"n_ctxx": 5}}', "PoolSpec has no parameter 'n_ctxx'"),
        ('{"pool": 5}', "pool = 5: must be an object"),
        ('{"workload": {"asked": "prompts", "prompts": "abc"}}', "workload.prompts must be a list of strings"),
        ('{"workload": {"asked": "prompts", "prompts": [5]}}', "workload.prompts must be a list of strings"),
    ],
)
def test_a_malformed_plan_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason.replace("(.", r"\(.").replace("?", r"\?")) as refused:
        plan_from_json(text, "p.json")
    assert str(refused.value).startswith("p.json: ")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.json: cannot be read"):
        read_plan(tmp_path / "nowhere.json")


def test_what_is_written_is_short(tmp_path: Path) -> None:
    assert json.loads(plan_to_json(Plan(model="m.gguf", rounds=9))).keys() <= {
        "model",
        "rounds",
        "axes",
        "pool",
        "workload",
        "objective",
    }


@pytest.mark.parametrize("text", ["[" * 200_000, "[" + "[]," * 100_000 + "[]]", '{"name": "' + "x" * (4 << 20) + '"}'])
def test_what_is_larger_than_any_plan_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too large for a plan"):
        plan_from_json(text)
    path = tmp_path / "large.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="too large for a plan"):
        read_plan(path)


@pytest.mark.parametrize("text", ["\\ud800", "half \\udfff"])
@pytest.mark.parametrize(
    "plan",
    [
        '{"name": "%s"}',
        '{"model": "%s"}',
        '{"axes": {"model": ["a.gguf", "%s"]}}',
        '{"workload": {"asked": "prompts", "prompts": ["Once", "%s"]}}',
        '{"question": "embedding", "workload": {"texts": ["%s"]}}',
    ],
)
def test_text_that_is_none_is_refused(plan: str, text: str) -> None:
    with pytest.raises(ConfigError, match="surrogate pair"):
        plan_from_json(plan % text)


@pytest.mark.parametrize("values", [{"name": "x" * 1_000_000}, {"model": "x" * 5_000}, {"name": 3}, {"name": None}])
def test_names_have_a_length(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="at most|must be a string"):
        plan_from_json(json.dumps(values))
