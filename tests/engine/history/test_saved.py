"""Saved plans, profiles and machine limits."""

from pathlib import Path

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.history import History
from tests.engine.history.trial_maker import NASTY

PLAN = {"model": "a.gguf", "axes": {"layout": ["1x2", "2x1"]}, "rounds": 8}


def test_plans_are_kept_replaced_and_forgotten(path: Path) -> None:
    with History.open(path) as history:
        assert history.runs.plans() == {}
        for name in ("first", NASTY.strip(), "last"):
            history.runs.save_plan(name, PLAN)
        history.runs.save_plan("first", {**PLAN, "rounds": np.int64(9)})
    with History.open(path) as history:
        assert history.runs.plans() == {"first": {**PLAN, "rounds": 9}, "last": PLAN, NASTY.strip(): PLAN}
        assert list(history.runs.plans()) == ["first", "last", NASTY.strip()]
        assert history.runs.delete_plan("last")
        assert not history.runs.delete_plan("last")
        assert list(history.runs.plans()) == ["first", NASTY.strip()]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "1 to 200 characters"), (" \n", "1 to 200 characters"), ("x" * 201, "up to 200 characters"),
        ("a\udcff", "UTF-8"),
    ],
)  # fmt: skip
def test_a_name_must_be_one(history: History, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        history.runs.save_plan(name, PLAN)
    with pytest.raises(ConfigError, match=reason):
        history.runs.save_profile(name, "ab", {})
    assert history.runs.plans() == {}
    assert history.runs.profiles() == []


def test_profiles_belong_to_a_model(history: History) -> None:
    history.runs.save_profile("fast", "aa", {"instances": 2}, "run-1")
    history.runs.save_profile("fast", "bb", {"instances": 3})
    history.runs.save_profile("small", "aa", {"parallel": 1})
    history.runs.save_profile("fast", "aa", {"instances": 4, "threads": None}, "run-2")
    newest, second = history.runs.profiles("aa")
    assert (newest.name, newest.model_hash, newest.pool) == ("fast", "aa", {"instances": 4, "threads": None})
    assert (newest.source_run, second.name, second.source_run) == ("run-2", "small", "")
    assert newest.saved_at > second.saved_at
    assert [(profile.name, profile.model_hash) for profile in history.runs.profiles()] == [
        ("fast", "aa"),
        ("small", "aa"),
        ("fast", "bb"),
    ]
    assert history.runs.profiles("cc") == []


def test_limits_are_kept_by_machine(path: Path) -> None:
    with History.open(path) as history:
        assert history.runs.limits("ab") is None
        history.runs.save_limits("ab", {"bandwidth_bytes_per_s": 1e10})
        history.runs.save_limits("cd", {"bandwidth_bytes_per_s": 2e10})
        history.runs.save_limits("ab", {"bandwidth_bytes_per_s": np.float64(3e10), "prefill": {"Q4_K_M": 1.5}})
    with History.open(path) as history:
        assert history.runs.limits("ab") == {"bandwidth_bytes_per_s": 3e10, "prefill": {"Q4_K_M": 1.5}}
        assert history.runs.limits("cd") == {"bandwidth_bytes_per_s": 2e10}
