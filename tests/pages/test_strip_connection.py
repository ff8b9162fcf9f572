"""The token strip's socket in a real browser: what becomes of a strip when the connection or the page goes."""

import time

import pytest
from playwright.sync_api import Page, expect

from tests.pages.harness import STORY, ScriptedTrial, Server
from tests.pages.strip_page import copied, finished, show

FIRST_RETRIES_MS = 2000


def test_a_lost_connection_is_reported_and_loses_nothing(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    tokens = show(page, server, trial)
    trial.go_on(20)
    expect(tokens).to_have_count(20)
    server.stop()
    expect(page.get_by_text("Reconnecting…")).to_be_visible()
    trial.go_on(20)
    server.start()
    expect(tokens).to_have_count(40)
    expect(page.get_by_text("Reconnecting…")).to_be_hidden()
    trial.go_on()
    trial.finish()
    expect(page.locator(".ending")).to_be_visible()
    assert copied(page) == STORY


@pytest.mark.slow
def test_a_strip_that_is_complete_does_not_come_back(page: Page, server: Server) -> None:
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    show(page, server, finished())
    expect(page.locator(".ending")).to_be_visible()
    server.stop()
    server.start()
    page.wait_for_timeout(FIRST_RETRIES_MS)
    assert len(sockets) == 1
    trial = ScriptedTrial()
    server.bench.trials["next"] = trial
    trial.go_on(3)
    page.evaluate("update({ trial: 'next' })")
    expect(page.locator(".t.answer")).to_have_count(3)
    assert len(sockets) == 2


def test_an_unknown_trial_says_what_to_do(page: Page, server: Server) -> None:
    page.goto(f"http://{server.host}/?trial=nobody")
    expect(page.get_by_role("alert")).to_contain_text("Run it again.")


def test_unmounting_closes_the_socket(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    show(page, server, trial)
    expect(page.locator(".t.prompt")).to_have_count(len(trial.prompt_steps))
    page.evaluate("window.unmount()")
    deadline = time.monotonic() + 60
    while trial.num_listeners:
        assert time.monotonic() < deadline, "the socket stayed open"
        page.wait_for_timeout(10)
    assert page.locator(".root").count() == 0
