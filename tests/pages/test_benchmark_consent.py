"""Consent on the Benchmark page: nothing is sent to another machine before a person has read what, and confirmed it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.backends.known import KnownEngine, add_known
from engine.bench.planning.plan import Plan
from engine.machine.limits import Limits
from engine.models import embedded_model
from engine.runs import RunRecord
from engine.samples import FLAGS
from pages.parts.plain import plain
from tests.pages.app import address, open_page, press
from tests.pages.bench_harness import ScriptedManager, make_run

HOSTED = "https://api.example.com"
Made = Callable[[Plan], RunRecord]


@pytest.fixture
def elsewhere(home: Path) -> Plan:
    """A plan of this pool and an engine on another machine."""
    add_known(home, KnownEngine(name="hosted", url=HOSTED))
    axes = {"arm": ("pool", "external:hosted"), "users": (1,)}
    return Plan(
        question="engines", model=str(embedded_model()), axes=axes, pool={"threads": 1, "parallel": 1}, rounds=8
    )


def asks(at: AppTest) -> bool:
    """Return whether the dialog is open."""
    return any(button.key == "remote_send" for button in at.button)


def ended(plan: Plan) -> RunRecord:
    return make_run(plan)


def stopped(plan: Plan) -> RunRecord:
    return make_run(plan, status="stopped")


def undecided(plan: Plan) -> RunRecord:
    return make_run(replace(plan, rounds=3), noise=0.1)


def disturbed(plan: Plan) -> RunRecord:
    run = undecided(plan)
    run.samples["flag"], run.samples["other_cores"] = FLAGS.index("contended"), 0.8
    return run


@pytest.mark.parametrize(
    ("make", "key", "call"),
    [
        (ended, "run_again", "start"),
        (stopped, "run_resume", "resume"),
        (undecided, "run_more", "add_rounds"),
        (disturbed, "run_when_quiet", "start_when_quiet"),
        (ended, "limits_shape", "start_shape"),
    ],
)
def test_every_way_to_start_a_run_asks_first(
    manager: ScriptedManager, elsewhere: Plan, make: Made, key: str, call: str
) -> None:
    manager.machine = Limits(
        machine_hash="m", num_cores=2, cache_bytes=1 << 30, bandwidth=((1, 9e9), (2, 17e9)), flops=1e11
    )
    run = make(elsewhere)
    manager.runs[run.id] = run
    at = press(open_page("benchmark.py", "Benchmark", run=run.id), key)
    assert asks(at) and manager.calls == []
    texts = [markdown.value for markdown in at.markdown]
    assert any(text.endswith(plain("prompts to api.example.com. Send them?")) for text in texts)
    at.run()
    assert asks(at), "the page may run again meanwhile"
    press(at, "remote_cancel")
    assert not asks(at) and manager.calls == [] and address(at)["run"] == run.id
    press(press(at, key), "remote_send")
    assert not asks(at) and [called[0] for called in manager.calls] == [call]
    assert manager.confirmed == (HOSTED,)


def test_a_plan_of_this_machine_only_is_not_asked_about(manager: ScriptedManager, elsewhere: Plan) -> None:
    run = make_run(replace(elsewhere, axes={"arm": ("pool",), "users": (1, 2)}))
    manager.runs[run.id] = run
    at = press(open_page("benchmark.py", "Benchmark", run=run.id), "run_again")
    assert not asks(at) and [called[0] for called in manager.calls] == ["start"]
    assert manager.confirmed == ()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "The prompts are random words or random tokens."),
        ({"workload": {"asked": "prompts", "prompts": ("Mine",)}}, "The prompts are the texts of this plan."),
        (
            {"compares_answers": True},
            "The prompts are random words or random tokens. 8 prompts that come with Logitbench are sent too, to "
            "compare the answers.",
        ),
    ],
)
def test_it_says_what_the_prompts_are(
    manager: ScriptedManager, elsewhere: Plan, changes: dict[str, Any], sentence: str
) -> None:
    run = make_run(replace(elsewhere, **changes))
    manager.runs[run.id] = run
    at = press(open_page("benchmark.py", "Benchmark", run=run.id), "run_again")
    assert plain(sentence) in [caption.value for caption in at.caption]
