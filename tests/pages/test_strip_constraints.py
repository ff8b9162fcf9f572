"""Candidates that constraints bar, as the inspector marks them: a real run in a real browser."""

import math
import re

import pytest
from playwright.sync_api import Page, expect

from engine.specs import Request, Sampling
from engine.steps import TokenStep
from engine.workbench import Workbench
from engine.workbench.trials import Draft, Trial
from tests.pages.harness import Server
from tests.waiting import until

NUMBER = r"[\d.]+(·10⁻[⁰¹²³⁴⁵⁶⁷⁸⁹]+)?"
LABELS = {"grammar": "Grammar", "top_k": "Top-k", "min_p": "Min-p"}
NUM_SHOWN = 10


@pytest.fixture
def trial(bench: Workbench) -> Trial:
    """A run in which the grammar bars candidates, with two banned tokens and a biased one that are often probable."""
    plain = Draft("Once upon a time", sampling=Sampling(temperature=0), request=Request(max_tokens=1, top_k=3))
    first = ended(bench.trials.submit(plain)).steps[0].top
    biases = ((first[0].id, -math.inf), (first[1].id, -math.inf), (first[2].id, 1.25))
    sampling = Sampling(grammar="root ::= [a-z ]+", logit_bias=biases, top_k=8, top_p=1, seed=2)
    return ended(bench.trials.submit(Draft(plain.prompt, (), sampling, Request(max_tokens=16, top_k=20, stages=True))))


def ended(trial: Trial) -> Trial:
    until(trial.done, "the trial does not end")
    assert trial.error is None
    return trial


def words(trial: Trial, step: TokenStep) -> list[str]:
    """A pattern for what the inspector says of each candidate it shows of this step."""
    cut_by = {token: stage.name for stage in step.stages for token in stage.cut}
    banned = {token for token, bias in trial.draft.sampling.logit_bias if bias == -math.inf}
    found = []
    for candidate in step.top[:NUM_SHOWN]:
        stage = cut_by.get(candidate.id)
        if candidate.id in banned:
            found.append("banned")
        elif candidate.id in step.forbidden and stage != "grammar":
            found.append("forbidden by Grammar")
        else:
            found.append(f"cut by {LABELS[stage]}" if stage else NUMBER)
    return found


def test_what_is_banned_biased_or_forbidden_is_described_in_words_and_dimmed(
    page: Page, server: Server, trial: Trial
) -> None:
    server.bench.trials["t"] = trial  # type: ignore[assignment]
    page.goto(f"http://{server.host}/?trial=t")
    tokens, rows = page.locator(".t.answer"), page.locator(".inspector .candidates tbody tr:not(.remaining, .outside)")
    expect(tokens).to_have_count(len(trial.steps))
    seen = set()
    for index, step in enumerate(trial.steps):
        tokens.nth(index).hover()
        expect(page.locator(".inspector h3")).to_contain_text(f"Token {index + 1} of {len(trial.steps)}")
        expected = words(trial, step)
        expect(rows).to_have_count(NUM_SHOWN)
        said = rows.evaluate_all("rows => rows.map(row => row.cells[3].textContent)")
        for text, pattern in zip(said, expected, strict=True):
            assert re.fullmatch(pattern, text), (index, said, expected)
        dimmed = rows.evaluate_all("rows => rows.map(row => getComputedStyle(row.cells[3]).opacity !== '1')")
        assert dimmed == [pattern != NUMBER for pattern in expected]
        seen |= set(expected)
    assert seen >= {"banned", "forbidden by Grammar", "cut by Grammar", NUMBER}


def test_a_bias_is_shown_at_its_candidate_and_among_the_facts_of_its_token(
    page: Page, server: Server, trial: Trial
) -> None:
    server.bench.trials["t"] = trial  # type: ignore[assignment]
    page.goto(f"http://{server.host}/?trial=t")
    biased = trial.draft.sampling.logit_bias[2][0]
    index = next(i for i, step in enumerate(trial.steps) if biased in [one.id for one in step.top[:NUM_SHOWN]])
    page.locator(".t.answer").nth(index).click()
    expect(page.locator(".candidates .bias")).to_have_text(re.compile(r"^\s*\+1\.25\snats$"))
    facts = page.locator(".inspector .facts")
    expect(facts).to_contain_text("rank")
    expect(facts.get_by_text("bias")).to_have_count(int(trial.steps.ids[index] == biased))


def test_without_constraints_nothing_is_shown_of_them(page: Page, server: Server, bench: Workbench) -> None:
    draft = Draft("Once", (), Sampling(seed=1), Request(max_tokens=3, top_k=10, stages=True))
    server.bench.trials["t"] = ended(bench.trials.submit(draft))  # type: ignore[assignment]
    page.goto(f"http://{server.host}/?trial=t")
    page.locator(".t.answer").first.click()
    expect(page.locator(".inspector .candidates tbody tr")).not_to_have_count(0)
    expect(page.get_by_text(re.compile("banned|forbidden|bias"))).to_have_count(0)
