"""Trials as one HTML file, opened from the disk in a real browser that has no network."""

import re
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from engine.specs import Request, Sampling
from engine.steps import StepTable
from engine.vocabulary import Vocabulary
from engine.workbench import Workbench
from engine.workbench.trials import Draft, LiveTrial, StoredTrial
from pages.parts.strip_file import strip_html
from tests.engine.history.trial_maker import VOCABULARY, make_steps, make_trial, with_stages
from tests.pages.offline import Open

DRAFT = Draft("Once upon a time", sampling=Sampling(seed=11), request=Request(max_tokens=16, top_k=20, stages=True))
HOSTILE = (
    '</script><script>window.hacked=1</script><!--<img src=x onerror="window.hacked=2">\u2028\u202eevil\u2066 &amp; {n}'
)


@pytest.fixture(scope="module")
def trial(bench: Workbench) -> LiveTrial:
    return ended(bench.trials.submit(DRAFT))


def ended(trial: LiveTrial) -> LiveTrial:
    trial.job.result(60)
    return trial


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 22, 26)")])
def test_strip_inspector_and_x_ray_work_from_the_disk(
    open_file: Open, trial: LiveTrial, scheme: str, ground: str
) -> None:
    opened = open_file(strip_html([trial]), scheme)
    page = opened.page
    expect(page.locator(".t.answer")).to_have_count(16)
    assert "".join(page.locator(".t.answer").all_text_contents()).strip() == trial.steps.text.strip()
    expect(page.locator(".ending")).to_have_text("Stopped at the 16-token limit.")
    expect(page.locator("h1")).to_have_text("Once upon a time")
    expect(page.locator(".root")).to_have_attribute("data-theme", scheme)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground

    page.locator(".t.answer").nth(3).click()
    inspector = page.locator(".inspector")
    expect(inspector.locator("h3").first).to_have_text("Token 4 of 16")
    step = trial.steps[3]
    expect(inspector.locator(".facts")).to_contain_text(f"rank{step.rank}")
    stages = inspector.locator(".xray .stages tbody tr")
    expect(stages).to_have_count(len(step.stages))
    for row, stage in zip(stages.all(), step.stages, strict=True):
        expect(row.locator(".number").nth(1)).to_have_text(f"{stage.kept:,}")
    expect(inspector.locator(".candidates tbody tr.chosen")).to_have_count(1)
    expect(inspector.locator(".candidates .actions")).to_have_count(0)
    for name in ("What if", "Continue", "Samples"):  # these need the workbench
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(inspector.locator("h3").first).to_have_text("Token 5 of 16")
    page.get_by_role("button", name="bits", exact=True).click()
    expect(page.locator(".legend")).to_contain_text("surprise, bits")
    page.get_by_text("Parameters").click()
    expect(page.locator(".about:visible dl")).to_contain_text(f"seed{trial.seed}")

    other = {"light": "dark", "dark": "light"}[scheme]
    page.emulate_media(color_scheme=other)  # type: ignore[arg-type]
    expect(page.locator(".root")).to_have_attribute("data-theme", other)
    assert opened.problems == []


def test_the_branches_are_a_tree_to_choose_from(open_file: Open, bench: Workbench, trial: LiveTrial) -> None:
    other = next(one.id for one in trial.steps[5].top if one.id != trial.steps.ids[5])
    branch = ended(bench.trials.branch(trial, 5, [other]))
    family = bench.branching.family(trial)
    assert {one.id for one in family} >= {trial.id, branch.id}
    others = [bench.trials.trial(one.id) for one in family if one.id != trial.id]
    opened = open_file(strip_html([trial, *others], family))
    page = opened.page
    answer = page.locator(".t.answer")
    expect(answer).to_have_count(16)
    rows = page.get_by_role("treeitem")
    expect(page.locator(".tree:visible h3")).to_have_text(f"Branches · {len(family)} trials")
    expect(page.locator(".row.shown")).to_have_count(1)
    forced = page.locator(".row:has(.forced)")
    forced.click()
    expect(answer.nth(5)).to_have_class(re.compile("forced"))
    assert page.url.endswith(f"#{branch.id}")
    expect(page.locator(".about:visible").first).to_have_attribute("data-trial", branch.id)
    expect(forced).to_have_attribute("aria-selected", "true")
    assert "".join(answer.all_text_contents()).strip() == branch.steps.text.strip()
    page.reload()
    expect(answer.nth(5)).to_have_class(re.compile("forced"))
    forced.focus()
    is_last = rows.last.locator(".forced").count() > 0
    page.keyboard.press("ArrowUp" if is_last else "ArrowDown")
    page.keyboard.press("Enter")
    expect(answer.nth(5)).not_to_have_class(re.compile("forced"))
    assert page.url.endswith(f"#{trial.id}")
    page.go_back()
    expect(answer.nth(5)).to_have_class(re.compile("forced"))
    assert opened.problems == []


def hostile() -> StoredTrial:
    """Return a trial with hostile text in every place that has text."""
    pieces = tuple(
        piece if number < 256 else HOSTILE.format(n=number).encode() for number, piece in enumerate(VOCABULARY.pieces)
    )
    vocabulary = replace(VOCABULARY, pieces=pieces, names={257: HOSTILE})
    trial = with_stages(make_trial(12, prompt=HOSTILE, label=HOSTILE, versions={HOSTILE: HOSTILE}))
    steps = of_vocabulary(trial.completion.steps, vocabulary)
    completion = replace(trial.completion, steps=steps, text=steps.text)
    return StoredTrial(
        replace(
            trial,
            completion=completion,
            model=replace(trial.model, name=HOSTILE, quantisation=HOSTILE, hash=HOSTILE),
            request=replace(trial.request, stop=(HOSTILE,)),
        )
    )


def of_vocabulary(steps: StepTable, vocabulary: Vocabulary) -> StepTable:
    return StepTable.of(
        vocabulary, steps.records, steps.top_ids, steps.top_logprobs, steps.top_p_final, is_prompt=False,
        stages=steps.stages, stage_columns=steps.stage_columns,
    )  # fmt: skip


def test_nothing_hostile_runs(open_file: Open) -> None:
    trial = hostile()
    content = strip_html([trial])
    opened = open_file(content)
    page = opened.page
    expect(page.locator(".t.answer")).to_have_count(12)
    for token in page.locator(".t.answer").all():
        token.click(force=True, position={"x": 2, "y": 4})
    page.get_by_text("Parameters").click()
    expect(page.locator(".about:visible dl")).to_contain_text("onerror")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    kinds = page.evaluate("[...document.scripts].map((script) => script.type)")
    assert kinds == ["application/json"] * 3 + [""]
    shown = "".join(page.locator("h1, .about, .inspector, title").all_text_contents())
    assert "onerror" in shown and not re.search("[\u2028\u202a-\u202e\u2066-\u2069]", shown)
    assert opened.problems == []


def test_the_policy_lets_nothing_else_run_or_load(open_file: Open, trial: LiveTrial) -> None:
    content = strip_html([trial])
    (policy,) = re.findall(rb'Content-Security-Policy" content="([^"]+)"', content)
    assert re.fullmatch(
        rb"default-src 'none'; script-src 'sha256-[\w+/=]{44}'; style-src 'sha256-[\w+/=]{44}'; img-src data: blob:; "
        rb"base-uri 'none'; form-action 'none'",
        policy,
    )
    page = open_file(content).page
    expect(page.locator(".t.answer")).to_have_count(16)
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.injected = 1";
          document.body.append(script);
          const link = document.createElement("div");
          link.innerHTML = "<a onclick='window.injected = 2'>x</a>";
          document.body.append(link);
          link.firstChild.click();
          window.refused = [];
          const note = ({ effectiveDirective }) => window.refused.push(effectiveDirective);
          document.addEventListener("securitypolicyviolation", note);
          fetch("http://127.0.0.1:1/").catch(() => {});
          document.body.append(Object.assign(document.createElement("img"), { src: "http://127.0.0.1:1/x.png" }));
        }"""
    )
    page.wait_for_function("window.refused.includes('connect-src') && window.refused.includes('img-src')")
    assert page.evaluate("window.injected") is None


def test_a_long_trial_fits_into_a_file_that_can_be_sent(open_file: Open) -> None:
    trial = with_stages(make_trial(4_000, 50))
    content = strip_html([StoredTrial(trial)])
    assert len(content) < 15_000_000
    opened = open_file(content)
    expect(opened.page.locator(".t.answer")).to_have_count(4_000)
    assert opened.problems == []


def test_a_trial_without_figures_or_answer_opens(open_file: Open) -> None:
    plain = make_trial(3, 0)
    scored = make_trial(0)
    prompt = make_steps(4, 8, is_prompt=True)
    prompt.records["p_final"] = np.nan
    scored = replace(scored, completion=replace(scored.completion, prompt_steps=prompt, prompt_ids=tuple(prompt.ids)))
    for trial, count in ((plain, 3), (scored, 4)):
        opened = open_file(strip_html([StoredTrial(trial)]))
        expect(opened.page.locator(".t")).to_have_count(count)
        assert opened.problems == []
