"""Axis values: what a user may enter, and what is refused."""

import math
import os
from typing import Any

import pytest

from engine.bench.planning.axes import AXES, AXES_BY_NAME, axis_of, parse_values
from engine.bench.planning.axis import MAX_VALUES
from engine.bench.planning.layout import Layout, parse_layout
from engine.bench.planning.plan import Workload
from engine.errors import ConfigError
from engine.machine.cores import num_cores
from engine.specs import PoolSpec


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("parallel", "4", (4,)),
        ("parallel", "1-8*2,16", (1, 2, 4, 8, 16)),
        ("parallel", "1-9*2", (1, 2, 4, 8)),
        ("parallel", "1-7+2", (1, 3, 5, 7)),
        ("parallel", "1-4", (1, 2, 3, 4)),
        ("parallel", " 3 , 1 - 3 ", (3, 1, 2)),
        ("num_prompt", "1-1000*10", (1, 10, 100, 1000)),
        ("n_gpu_layers", "-1,0", (-1, 0)),
        ("n_gpu_layers", "-1-1", (-1, 0, 1)),
        ("rate_per_s", "0.5-4*2", (0.5, 1.0, 2.0, 4.0)),
        ("rate_per_s", "0.1-0.3+0.1", (0.1, 0.2, 0.3)),
        ("flash_attn", "on,off,auto", (True, False, None)),
        ("threads_batch", "auto,2", (None, 2)),
        ("type_k", "f16,q8_0", ("f16", "q8_0")),
        ("layout", "2x7, 3 x 5, 1×2, 2xauto", ("2x7", "3x5", "1x2", "2xauto")),
        ("build", "default,/opt/llama/lib", (None, "/opt/llama/lib")),
        ("arm", "pool,loop", ("pool", "loop")),
    ],
)
def test_values_are_read(name: str, text: str, values: tuple[Any, ...]) -> None:
    assert parse_values(name, text) == values


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("parallel", "four", "parallel: 'four' cannot be read; it takes whole numbers"),
        ("parallel", "", "parallel: '' cannot be read"),
        ("parallel", "1,,2", "parallel: '' cannot be read"),
        ("parallel", "1.5", "'1.5' cannot be read"),
        ("parallel", "1-2.5", "'1-2.5' cannot be read"),
        ("parallel", "0", "parallel = 0: must be a whole number from 1 to 256"),
        ("parallel", "1-1000", "parallel = 257: must be a whole number from 1 to 256"),
        ("parallel", "8-1", "'8-1' counts down"),
        ("parallel", "1-8*1", "'1-8*1' has no end"),
        ("parallel", "1-8+0", "'1-8+0' has no end"),
        ("depth", "0-8*2", "'0-8*2' has no end"),
        ("num_prompt", "1-1000000", "'1-1000000' has 1,000,000 values; up to 2,000 are allowed"),
        ("rate_per_s", "1-100000000+0.001", "has 99,999,999,001 values"),
        ("rate_per_s", "1-2*1.0000001", "values; up to 2,000 are allowed"),
        ("num_prompt", "1-1900,20001-21900", "has more than 2,000 values"),
        ("num_prompt", "1," * 100_000 + "1", "has more than 2,000 values"),
        ("num_prompt", "1-1000," * 3 + "1", "has more than 2,000 values"),
        ("rate_per_s", f"0-1+0.{'0' * 320}1", "has infinitely many values"),
        ("rate_per_s", f"0.{'0' * 320}1-5*2", "has infinitely many values"),
        ("rate_per_s", "nan", "rate_per_s = nan"),
        ("rate_per_s", "1-1e400", "cannot be read"),
        ("pin", "perhaps", "'perhaps' cannot be read; it takes on or off"),
        ("type_k", "q3", "type_k = 'q3': must be one of f32"),
        ("arm", "server", "arm = 'server': it takes one of pool"),
        ("layout", "2", "layout = '2': it takes instances x threads"),
        ("layout", "0x2", "instances = 0"),
        ("layout", "2x9999", "threads = 9999"),
        ("layout", "1-2x2", "layout = '1-2x2'"),
        ("n_batch", "none", "it takes whole numbers, such as 1,2,4 or 1-8*2 or 1-7+2, or auto"),
        ("paralel", "1", "there is no axis 'paralel'; did you mean parallel?"),
        ("colour", "1", "there is no axis 'colour'; known: layout"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match="^") as refused:
        parse_values(name, text)
    assert reason in str(refused.value)


def test_a_range_may_be_as_long_as_allowed() -> None:
    values = parse_values("num_prompt", f"1-{MAX_VALUES}")
    assert values == tuple(range(1, MAX_VALUES + 1))


@pytest.mark.parametrize("axis", [axis for axis in AXES if axis.where != "cell"], ids=lambda axis: axis.name)
def test_every_axis_is_a_field_of_its_spec(axis: Any) -> None:
    default = getattr(PoolSpec if axis.where == "pool" else Workload, axis.name)
    assert axis.checked(default) == default
    assert axis.show(default)


def test_words_of_a_label() -> None:
    shown = {
        "layout": ("2x7", "2 × 7"),
        "parallel": (1, "1 sequence"),
        "num_prompt": (4096, "prompt 4,096"),
        "share_weights": (False, "repacked weights"),
        "flash_attn": (None, "flash attention auto"),
        "rate_per_s": (0.5, "0.5 requests/s"),
        "build": (None, "build default"),
        "load": ("mlock", "load mlock"),
    }
    assert {name: AXES_BY_NAME[name].show(value) for name, (value, _words) in shown.items()} == {
        name: words for name, (_value, words) in shown.items()
    }
    assert axis_of("parallel").show(8) == "8 sequences"


def test_only_some_axes_change_what_the_model_answers() -> None:
    assert {axis.name for axis in AXES if axis.changes_answers} == {"flash_attn", "type_k", "type_v", "dtype", "model"}


def test_layouts_are_resolved_for_this_machine() -> None:
    assert parse_layout("3x5").resolved() == (3, 5)
    assert parse_layout("1xauto").resolved() == (1, num_cores())
    assert parse_layout(f"{num_cores() + 1}xauto").resolved() == (num_cores() + 1, 1)
    assert parse_layout("2xllama-cpp-default").resolved() == (2, max(1, (os.cpu_count() or 1) // 2))
    assert Layout(2, "auto").text == "2xauto"
    assert Layout(2, "auto").in_words == "2 processes with auto threads each"
    assert Layout(1, 1).in_words == "1 process with 1 thread"


def test_values_of_other_types_are_refused() -> None:
    for name, value in (("layout", 4), ("model", 5), ("arm", None), ("parallel", "4"), ("rate_per_s", math.inf)):
        with pytest.raises(ConfigError, match=name):
            axis_of(name).checked(value)
