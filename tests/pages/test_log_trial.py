"""A log of candidates that was imported, in the strip of a real browser: what the log does not tell is not made up."""

from playwright.sync_api import Page, expect

from engine.exchange.logprob_log import trial_of_log
from engine.exchange.logs import read_candidate_log
from engine.workbench.trials import StoredTrial
from tests.engine.exchange.test_logs import CANDIDATES
from tests.engine.history.trial_maker import uuid7
from tests.pages.harness import ScriptedBench, serving


def test_its_candidates_are_shown_and_what_is_not_known_is_said(page: Page) -> None:
    later = CANDIDATES.replace("1699000000", "1699000002").replace("302: ' of'", "28705: ' '")
    trial = StoredTrial(trial_of_log(read_candidate_log(CANDIDATES + later), uuid7(), "notes.log"))
    with serving(ScriptedBench()) as server:
        server.bench.trials["t"] = trial  # type: ignore[assignment]
        page.goto(f"http://{server.host}/?trial=t")
        tokens = page.locator(".t.answer")
        expect(tokens).to_have_count(2)
        page.get_by_role("button", name="Uncertainty").click()
        page.get_by_role("button", name="nats", exact=True).click()
        tokens.first.click()
        inspector = page.locator(".inspector")
        expect(inspector.locator(".sentence")).to_contain_text("1st, at 50\u202f%")
        expect(inspector.locator("tbody tr.chosen")).to_contain_text("of")
        expect(inspector).to_contain_text("not recorded")
        expect(page.locator(".chips .chip")).to_have_count(0)
