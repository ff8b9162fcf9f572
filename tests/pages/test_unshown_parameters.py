"""Parameters that no form shows: they stay with a trial that is opened and run again, until they are left out."""

import pytest
from streamlit.testing.v1 import AppTest

from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.trials import Draft, Trial
from tests.pages.app import address, open_page, press, said
from tests.waiting import until

SAMPLING = Sampling(grammar="root ::= [a-z ,.]+", logit_bias=((300, -2.0), (301, 1.0)), seed=3)


@pytest.fixture
def trial(bench: Workbench) -> Trial:
    trial = bench.trials.submit(Draft("Once upon", sampling=SAMPLING, request=Request(max_tokens=4, top_k=3)))
    return ended(trial)


def ended(trial: Trial) -> Trial:
    until(trial.done, "the trial does not end")
    return trial


def opened(bench: Workbench, at: AppTest) -> Sampling:
    """The sampling of the trial that the page shows."""
    return ended(bench.trials.trial(address(at)["trial"])).draft.sampling


def test_the_prompt_lab_keeps_them_through_run_and_says_so(bench: Workbench, trial: Trial) -> None:
    at = open_page("prompt_lab.py", "Prompt lab", trial=trial.id)
    assert "grammar of 18 characters, logit bias of 2 tokens" in said(at)
    assert "Edited since this run." not in said(at)
    press(at, "do_run")
    assert address(at)["trial"] != trial.id and opened(bench, at) == SAMPLING
    press(at, "lab_leave_out")
    assert "Set, but not editable here" not in said(at)
    press(at, "do_run")
    assert opened(bench, at) == Sampling(seed=3)


def test_an_arm_keeps_them_through_run(bench: Workbench, trial: Trial) -> None:
    at = open_page("compare.py", "Compare", trials=trial.id)
    assert said(at).count("Set, but not editable here") == 1
    press(press(at, "arms_add"), "arms_run")
    bench.compare.wait(60)
    record = bench.compare.comparison(address(at)["comparison"])
    assert [arm.sampling for arm in record.plan.arms] == [SAMPLING, SAMPLING]
