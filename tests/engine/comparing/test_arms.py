"""Comparison plan: validated once, stored as plain values, with variants named by what sets them apart."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.comparing.arms import Arm, ComparisonPlan, differences, labels, planned_answers
from engine.comparing.templates import lengths, render
from engine.errors import ConfigError
from engine.specs import Sampling

COLD, HOT = Arm(sampling=Sampling(temperature=0, seed=3)), Arm(sampling=Sampling(temperature=1, seed=3))


def plan(**changes: Any) -> ComparisonPlan:
    return ComparisonPlan(**{"prompt": "Once", "arms": (COLD, HOT), **changes})


def test_a_plan_survives_json_whole() -> None:
    arm = Arm(
        label="mine", model="m.gguf", max_tokens=7, stop=("\n",), variables={"who": "x"},
        sampling=Sampling(logit_bias=((5, float("-inf")),), top_n_sigma=1.5),
    )  # fmt: skip
    made = plan(
        prompt="{{who}} {{what}}", arms=(arm, HOT), rows=({"who": "a", "what": "b"},), repeats=3, is_chat=True,
        before=({"role": "system", "content": "short"},), is_apart=True,
    )  # fmt: skip
    assert ComparisonPlan.from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False))) == made


def test_arms_take_turns_so_that_none_has_the_quiet_minute_alone() -> None:
    answers = planned_answers(plan(rows=({"a": "1"}, {"a": "2"}), repeats=2))
    assert [answer[:3] for answer in answers[:4]] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    assert len(set(answers)) == plan(rows=({}, {}), repeats=2).num_trials == 8


def test_repeats_count_the_seed_up() -> None:
    assert [COLD.for_repeat(repeat).seed for repeat in range(3)] == [3, 4, 5]
    assert Arm(sampling=Sampling(seed=0xFFFFFFFE)).for_repeat(1).seed == 0
    assert Arm().for_repeat(5).seed is None


def test_an_arm_overrules_the_row() -> None:
    made = plan(prompt="{{a}}{{b}}", arms=(Arm(variables={"b": "own"}), Arm()), rows=({"a": "1", "b": "2"},))
    assert [made.text(arm, made.rows[0]) for arm in made.arms] == ["1own", "12"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arms": ()}, "0 variants"),
        ({"arms": (COLD,) * 9}, "9 variants"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": True}, "repeats"),
        ({"rows": ({"a": "x"},) * 101}, "101 rows"),
        ({"rows": ({"a": "x"},) * 10, "repeats": 50}, "1,000 trials"),
        ({"prompt": "{{who}}"}, "{{who}}"),
        ({"rows": ({"a": 1},)}, "must be text"),
        ({"before": ({"role": "user", "content": "x"},)}, "only for a chat"),
        ({"is_chat": True, "before": ({"role": "robot", "content": "x"},)}, "not a message"),
        ({"prompt": "{{a}}", "rows": ({"a": "x" * 1_000_001},)}, "1,000,001 characters"),
        ({"temperature": 1}, "no parameter 'temperature'"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        plan(**changes)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("changes", [{"max_tokens": 0}, {"label": "x" * 81}, {"variables": {"a": None}}])
def test_an_arm_is_checked_too(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Arm(**changes)


def test_arms_are_called_by_what_sets_them_apart() -> None:
    assert labels([COLD, HOT]) == ["temperature 0", "temperature 1"]
    quick = Arm(model="/models/quick-Q4_K_M.gguf", sampling=Sampling(temperature=0), label="")
    assert labels([COLD, quick]) == ["loaded model · seed 3", "quick-Q4_K_M · random seed"]
    assert labels([COLD, COLD]) == ["variant 1", "variant 2"]
    assert labels([COLD, HOT, HOT]) == ["temperature 0", "temperature 1 (1)", "temperature 1 (2)"]
    assert labels([COLD]) == ["variant 1"]
    bound = Arm(sampling=Sampling(grammar='root ::= "a"'))
    banned = Arm(sampling=Sampling(logit_bias=((5, float("-inf")),)))
    assert labels([Arm(), bound, banned]) == [
        "no logit bias · no grammar", "no logit bias · grammar", "logit bias · no grammar",
    ]  # fmt: skip


def test_what_differs_from_the_first_variant_is_named_for_each() -> None:
    warm = Arm(sampling=Sampling(temperature=0.5, top_k=5), max_tokens=COLD.max_tokens)
    assert differences([COLD]) == [[]] and differences([COLD, COLD]) == [[], []]
    assert differences([COLD, HOT]) == [["temperature 0"], ["temperature 1"]]
    assert differences([COLD, HOT, warm]) == [
        ["temperature 0", "top k 40", f"seed {COLD.sampling.seed}"],
        ["temperature 1"],
        ["temperature 0.5", "top k 5", "random seed"],
    ]
    assert differences([Arm(), Arm(variables={"who": "fox"})]) == [[], ["who fox"]]


def test_a_prompt_that_would_be_too_long_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("engine.comparing.arms.render")
    plan(prompt="{{a}}" * 1_000, rows=({"a": "x" * 1_000},))
    with pytest.raises(ConfigError, match=r"has 1,001,000 characters"):
        plan(prompt="{{ a }}" * 1_000, rows=({"a": "x" * 1_000}, {"a": "x" * 1_001}))


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "\ud800"},
        {"prompt": "{{a}}", "rows": ({"a": "\ud800"},)},
        {"rows": ({"\ud800": "a"},)},
        {"is_chat": True, "before": ({"role": "user", "content": "\ud800"},)},
        {"is_chat": True, "before": ({"role": "user", "content": 3},)},
    ],
)
def test_text_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="surrogate pair|must be text"):
        plan(**changes)
    with pytest.raises(ConfigError, match="surrogate pair"):
        Arm(label="\ud800")


@given(st.lists(st.sampled_from(["{{a}}", "{{ b }}", "{{", "}}", "x", "{{1}}"])).map("".join), st.text(), st.text())
def test_lengths_are_those_of_the_rendered_prompt(prompt: str, a: str, b: str) -> None:
    num_fixed, counts = lengths(prompt)
    values = dict.fromkeys(counts, a) | {"b": b}
    assert num_fixed + sum(num * len(values[name]) for name, num in counts.items()) == len(render(prompt, values))
