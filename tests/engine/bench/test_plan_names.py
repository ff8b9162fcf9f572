"""Plan names: the name of the original plan while both measure the same, otherwise what the plan measures."""

from dataclasses import replace
from typing import Any

import pytest

from engine.bench.planning.plan import Plan
from engine.bench.planning.plan_names import LONGEST, by_axes, name_of
from engine.bench.planning.presets import PRESETS, preset
from engine.models import embedded_model

GIVEN = Plan(
    name="Two minutes",
    model="story.gguf",
    axes={"layout": ("1x2", "2x1"), "parallel": (1, 4)},
    workload={"num_prompt": 64, "num_generated": 32},
)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"seed": 3},
        {"timeout_s": 600.0},
        {"axes": {"parallel": (1, 4), "layout": ("1x2", "2x1")}},
        {"workload": {"num_prompt": 64, "num_generated": 32, "duration_s": 10.0, "asked": "tokens"}},
    ],
)
def test_the_same_work_has_the_same_name(changes: dict[str, Any]) -> None:
    assert name_of(replace(GIVEN, **changes), GIVEN) == "Two minutes"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"axes": {"layout": ("1x2",), "parallel": (1, 2)}}, "Sequences 1, 2; layout 1 × 2; 64 + 32 tokens"),
        ({"workload": {}}, "Layout 1 × 2, 2 × 1; sequences 1, 4; 128 + 64 tokens"),
        ({"rounds": 3}, "Layout 1 × 2, 2 × 1; sequences 1, 4; 64 + 32 tokens"),
        ({"model": "other.gguf"}, "Layout 1 × 2, 2 × 1; sequences 1, 4; 64 + 32 tokens"),
        ({"axes": {"parallel": (1, 2, 4, 8, 16)}}, "Sequences 1, 2 … 16; 64 + 32 tokens"),
        ({"axes": {"flash_attn": (None, True)}}, "Flash attention auto, on; 64 + 32 tokens"),
        ({"axes": {"model": ("/a/x.gguf", "/a/y.gguf")}}, "Model x, y; 64 + 32 tokens"),
        ({"axes": {"num_prompt": (8, 16)}, "workload": {}}, "Prompt 8, 16; 64 generated"),
        (
            {"axes": {"parallel": (2,)}, "workload": {"asked": "prompts", "prompts": ("a",)}},
            "Sequences 2; custom texts",
        ),
        ({"axes": {}}, "64 + 32 tokens"),
    ],
)
def test_other_work_is_named_by_its_axes_and_what_is_asked(changes: dict[str, Any], name: str) -> None:
    assert name_of(replace(GIVEN, **changes), GIVEN) == name


def test_a_plan_that_embeds_is_named_by_its_texts() -> None:
    plan = Plan(question="embedding", axes={"backend": ("torch",)}, workload={"num_texts": 64, "num_words": 1})
    assert by_axes(plan) == "Computed by torch; 64 texts at once; 1 word"


def test_a_long_name_is_cut() -> None:
    plan = replace(GIVEN, axes={"model": tuple(f"/models/{'long' * 10}{number}.gguf" for number in range(4))})
    assert len(by_axes(plan)) == LONGEST
    assert by_axes(plan).endswith("…")


def test_plans_made_ready_have_names_of_their_own() -> None:
    assert len({preset(name, embedded_model(), 2).name for name in PRESETS}) == len(PRESETS)
