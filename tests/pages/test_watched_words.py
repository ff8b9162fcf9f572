"""Watched words in a real browser and on the web socket, with figures that the tests know."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from engine.steps import StepTable
from engine.watched_words import MAX_WORD_CHARACTERS, MAX_WORDS
from pages.parts import live
from tests.pages.harness import ScriptedBench, ScriptedTrial, Server, figures_of, ids_of, serving
from tests.pages.strip_page import finished
from tests.waiting import until

PATIENCE_S = 60.0
DRAWN = re.compile("^M1 ")
"""A line that begins at the second position."""
HOSTILE = ('<img src=x onerror="window.hacked=1">', "\u202eabc\u200b\x07", "&amp;`$x$`")


@pytest.fixture
def server() -> Iterator[Server]:
    """A page and a socket of their own for each test."""
    with serving(ScriptedBench()) as running:
        yield running


def show(page: Page, server: Server, *words: str, trial: ScriptedTrial | None = None) -> ScriptedTrial:
    """Open a trial with these words watched."""
    shown = server.bench.trials["t"] = trial or finished()
    query = "".join(f"&watch={quote(word)}" for word in words or ("",))
    page.goto(f"http://{server.host}/?trial=t{query}")
    expect(page.locator(".t.answer").first).to_be_visible()
    return shown


def rows(page: Page) -> Locator:
    return page.locator(".word-rows .word")


def asked_of_python(page: Page) -> list[list[str]]:
    triggers: list[list[Any]] = page.evaluate("window.ended")
    return [value for name, value in triggers if name == "watched"]


def percent(logprob: float) -> str:
    """Per cent with as many digits as the strip shows in the range of the tests' figures."""
    value = 100 * math.exp(logprob)
    return f"{value:.0f}" if value >= 10 else f"{float(f'{value:.2g}'):g}"


def point_at(page: Page, row: int, place: int, num: int) -> None:
    """Move the pointer over a chart, to a position of `num`."""
    box = rows(page).nth(row).locator(".plot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1 + (box["width"] - 2) * place / (num - 1), box["y"] + box["height"] / 2)


def test_each_word_has_a_line_and_says_where_it_is_most_likely(page: Page, server: Server) -> None:
    trial = show(page, server, " cat", " king")
    expect(rows(page)).to_have_count(2)
    for row, typed in enumerate((" cat", " king")):
        figures = figures_of(trial, typed)
        best = int(np.nanargmax(figures.logprob))
        index = best - len(trial.prompt_steps)
        where = f"token {index + 1}" if index >= 0 else f"prompt token {best + 1}"
        expect(rows(page).nth(row).locator(".word-summary")).to_contain_text(f"“{typed}” is most likely at {where}: ")
        expect(rows(page).nth(row).locator(".word-summary")).to_contain_text(f"rank {figures.rank[best]}")
        path = rows(page).nth(row).locator(".line-path").get_attribute("d")
        assert path is not None and path.startswith("M1 ")  # nothing is known of the first position
        assert path.count("L") == len(figures.logprob) - 2
    expect(page.locator(".words .note")).to_contain_text("differ from these by up to 0.013 nats")


def test_a_pointed_or_pinned_token_moves_the_cursor_and_the_figures(page: Page, server: Server) -> None:
    trial = show(page, server, " cat")
    figures = figures_of(trial, " cat")
    first = len(trial.prompt_steps)
    value = rows(page).first.locator(".value")
    expect(rows(page)).to_have_count(1)
    for index in (7, 30):
        page.locator(".t.answer").nth(index).hover()
        expect(page.locator(".words .position")).to_have_text(f"at token {index + 1}")
        expected = f"{percent(figures.logprob[first + index])}\u202f% · rank {figures.rank[first + index]}"
        expect(value).to_have_text(expected)
    page.locator(".t.answer").nth(12).click()
    page.mouse.move(0, 0)
    expect(page.locator(".words .position")).to_have_text("at token 13")
    expect(page.locator(".words .spoken")).to_contain_text(f"rank {figures.rank[first + 12]}")
    page.locator(".text").press("ArrowRight")
    expect(page.locator(".words .position")).to_have_text("at token 14")


def test_the_lines_point_at_tokens_and_jump_to_them(page: Page, server: Server) -> None:
    trial = show(page, server, " cat", " king")
    num, first = len(figures_of(trial, " cat").logprob), len(trial.prompt_steps)
    expect(rows(page)).to_have_count(2)
    point_at(page, 1, first + 20, num)
    expect(page.locator(".t.pointed")).to_have_attribute("id", re.compile(f"-{first + 20}$"))
    expect(page.locator(".words .position")).to_have_text("at token 21")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator(".t.pinned")).to_have_attribute("id", re.compile(f"-{first + 20}$"))
    point_at(page, 0, num - 1, num)
    expect(page.locator(".words .position")).to_have_text("after the last token")
    expect(page.locator(".t.pointed")).to_have_count(0)
    page.mouse.move(0, 0)
    expect(page.locator(".words .position")).to_have_text("at token 21")


def test_two_words_give_their_log_odds(page: Page, server: Server) -> None:
    trial = show(page, server, " cat", " king")
    odds = figures_of(trial, " cat").logprob - figures_of(trial, " king").logprob
    index = 9
    page.locator(".t.answer").nth(index).hover()
    expected = odds[len(trial.prompt_steps) + index]
    expect(page.locator(".odds .value")).to_have_text(f"{'+' if expected >= 0 else '−'}{abs(expected):.2f}")
    leads = max((odds[1:] > 0).sum(), (odds[1:] < 0).sum())
    expect(page.locator(".odds .word-summary")).to_contain_text(
        f"is the likelier at {leads} of {len(odds) - 1} positions"
    )
    page.get_by_role("button", name="Stop watching  king").click()
    expect(rows(page)).to_have_count(1)
    expect(page.locator(".odds")).to_be_hidden()
    assert asked_of_python(page) == [[" cat"]]


def test_words_are_typed_removed_and_reported_to_the_page(page: Page, server: Server) -> None:
    show(page, server)
    field = page.get_by_role("textbox", name="Watch a word")
    for typed in ("cat", " king", "cat"):
        field.fill(typed)
        field.press("Enter")
    expect(page.locator(".words-notice")).to_have_text("This word is already watched.")
    assert asked_of_python(page) == [["cat"], ["cat", " king"]]
    expect(rows(page).nth(1).locator(".line-path")).to_have_attribute("d", DRAWN)
    # a rerun that is older than what was typed changes nothing, one that is newer does
    page.evaluate("window.update({ words: ['cat'] })")
    expect(rows(page)).to_have_count(2)
    page.evaluate("window.update({ words: ['cat', ' king'] })")
    page.evaluate("window.update({ words: [' mill'] })")
    expect(rows(page)).to_have_count(1)
    expect(rows(page).first.locator(".word-summary")).to_contain_text("“ mill” is most likely")


def test_variants_are_shown_and_can_be_left_out_or_added(page: Page, server: Server) -> None:
    show(page, server, "cat|king")
    row = rows(page).first
    expect(row.locator(".variant")).to_have_count(3)
    row.get_by_role("button", name='Add "many tokens"').click()
    assert asked_of_python(page) == [['"cat"|"king"|"many tokens"']]
    page.evaluate("window.update({ words: ['cat|king'] })")
    page.reload()
    row.get_by_role("button", name='Leave out "king"').click()
    assert asked_of_python(page) == [['"cat"']]


def test_a_phrase_says_what_it_costs_and_is_computed_when_asked(page: Page, server: Server) -> None:
    trial = show(page, server, " old king", " cat")
    row = rows(page).first
    passes = len(trial.prompt_steps) + len(trial.steps)
    expect(row.locator(".word-summary")).to_contain_text(f"{passes} forward passes, up to about ")
    expect(rows(page).nth(1).locator(".line-path")).to_have_attribute("d", DRAWN)
    row.get_by_role("button", name="Compute  old king").click()
    expect(page.locator(".words-progress")).to_contain_text("the first of 4 positions, 90\u202fs left")
    expect(row.locator(".word-summary")).to_have_text("Computing…")
    assert server.bench.words.asked[-1] == ([" old king", " cat"], [" old king"])
    server.bench.words.go_on.set()
    expect(row.locator(".word-summary")).to_contain_text("“ old king” is most likely")
    expect(page.locator(".words-progress")).to_be_hidden()


def test_a_stop_ends_the_computation_and_offers_it_again(page: Page, server: Server) -> None:
    show(page, server, " old king")
    page.get_by_role("button", name="Compute  old king").click()
    until(lambda: server.bench.words.tasks)
    page.get_by_role("button", name="Stop", exact=True).click()
    (task,) = server.bench.words.tasks
    assert task.wait(PATIENCE_S) and task.state == "stopped"
    expect(page.get_by_role("button", name="Compute  old king")).to_be_visible()
    expect(page.locator(".words-progress")).to_be_hidden()
    server.bench.words.go_on.set()
    page.get_by_role("button", name="Compute  old king").click()
    expect(rows(page).first.locator(".word-summary")).to_contain_text("is most likely")


def test_hostile_words_are_text_and_wrong_ones_say_why(page: Page, server: Server) -> None:
    long = "x" * 10_000
    show(page, server, *HOSTILE, "why?", long)
    expect(rows(page)).to_have_count(len(HOSTILE) + 2)
    expect(rows(page).nth(3).get_by_role("alert")).to_have_text("Nothing is known of questions.")
    expect(rows(page).nth(4).get_by_role("alert")).to_have_text(
        f"This word has 10,000 characters, at most {MAX_WORD_CHARACTERS} are allowed: remove this one."
    )
    assert not set("\u202e\u200b\x07") & set(rows(page).nth(1).inner_text())
    assert page.evaluate("window.hacked") is None and page.locator(".words img").count() == 0
    assert [len(words) for words, _ in server.bench.words.asked] == [len(HOSTILE) + 1]
    field = page.get_by_role("textbox", name="Watch a word")
    field.fill(f"{long}y")
    field.press("Enter")
    expect(page.locator(".words-notice")).to_contain_text("10,001 characters")
    expect(field).to_have_value(f"{long}y")
    assert asked_of_python(page) == []


def test_more_words_than_may_be_watched_are_refused_in_place(page: Page, server: Server) -> None:
    show(page, server, *(f"w{number}" for number in range(MAX_WORDS + 1)))
    expect(rows(page)).to_have_count(MAX_WORDS + 1)
    expect(rows(page).last.get_by_role("alert")).to_contain_text(f"More than {MAX_WORDS} words are watched")
    assert len(server.bench.words.asked[0][0]) == MAX_WORDS


def test_the_words_of_a_running_trial_come_when_it_has_ended(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    trial.go_on(3)
    show(page, server, " cat", trial=trial)
    expect(rows(page).first.locator(".word-summary")).to_be_empty()
    trial.go_on()
    trial.finish()
    expect(rows(page).first.locator(".word-summary")).to_contain_text("“ cat” is most likely")
    assert len(server.bench.words.asked) == 1


def test_words_that_come_with_the_tokens_are_drawn_while_a_trial_runs(page: Page, server: Server) -> None:
    trial = ScriptedTrial()
    ids = ids_of(trial.vocabulary, " cat")
    trial.steps = StepTable(trial.vocabulary, 50, watched=(tuple(ids),))
    trial.go_on(12)
    columns = trial.steps.watched_columns
    assert columns is not None
    columns.logprob[:, 0], columns.rank[:, 0] = np.log(np.linspace(0.1, 0.9, 12)), 3
    show(page, server, " cat", "old king", trial=trial)
    row = rows(page).first
    expect(row.locator(".word-summary")).to_have_text("“ cat” is most likely at token 12: 90\u202f%, rank 3")
    path = row.locator(".line-path")
    expect(path).to_have_attribute("d", re.compile(f"^M{len(trial.prompt_steps)} "))
    expect(rows(page).nth(1).locator(".word-summary")).to_be_empty()
    trial.go_on(1)
    trial.finish()
    expect(path).to_have_attribute("d", DRAWN)
    expect(row.locator(".word-summary")).not_to_have_text("“ cat” is most likely at token 12: 90\u202f%, rank 3")


def test_a_candidate_can_be_watched(page: Page, server: Server) -> None:
    trial = finished()
    server.bench.trials["t"] = trial
    page.goto(f"http://{server.host}/?trial=t&watch=&asks")
    page.locator(".t.answer").nth(4).click()
    token = int(trial.steps.top_ids[4][1])
    page.locator(".candidates tbody tr").nth(1).hover()
    page.locator(".candidates tbody tr").nth(1).get_by_role(
        "button", name=re.compile("^Watch .* at every position")
    ).click()
    assert asked_of_python(page) == [[f"#{token}"]]


def test_the_table_has_every_figure(page: Page, server: Server) -> None:
    trial = show(page, server, " cat", " king")
    figures = figures_of(trial, " king")
    page.get_by_text("Figures as a table").click()
    table = page.locator(".words-table table")
    heads = table.locator("thead th").all_inner_texts()
    assert heads == ["position", "token", "cat, p", "rank", "king, p", "rank", "log-odds, nats"]
    num = len(figures.logprob)
    expect(table.locator("tbody tr")).to_have_count(min(num, 200))
    place = len(trial.prompt_steps) + 4
    cells = table.locator("tbody tr").nth(place).locator("td").all_inner_texts()
    assert cells[3:5] == [f"{percent(figures.logprob[place])}\u202f%", str(figures.rank[place])]
    expect(table.locator("tbody tr").first.locator("th")).to_have_text("prompt token 1")


def test_the_scale_is_chosen_and_stays(page: Page, server: Server) -> None:
    show(page, server, " cat")
    path = rows(page).first.locator(".line-path")
    expect(rows(page).first.locator(".line-top")).to_have_text("100\u202f%")
    before = path.get_attribute("d")
    page.get_by_role("button", name="Linear").click()
    expect(path).not_to_have_attribute("d", before or "")
    expect(rows(page).first.locator(".line-bottom")).to_have_text("0")
    page.reload()
    expect(rows(page).first.locator(".line-bottom")).to_have_text("0")


def test_what_is_refused_altogether_is_said_in_the_panel(page: Page, server: Server) -> None:
    show(page, server, " cat")
    expect(rows(page).first.locator(".word-summary")).to_contain_text("is most likely")
    page.get_by_role("textbox", name="Watch a word").fill("refuse this")
    page.get_by_role("textbox", name="Watch a word").press("Enter")
    expect(page.locator(".words-notice")).to_have_text("This trial was run with another model.")
    expect(page.locator(".words-progress")).to_be_hidden()
    expect(rows(page).first.locator(".word-summary")).to_contain_text("is most likely")


# the socket


def opened(server: Server) -> ClientConnection:
    address = f"ws://{server.host}{live.SOCKET_PATH}"
    made: ClientConnection = connect(address, origin=Origin(f"http://{server.host}"))
    return made


def ask(socket: ClientConnection, words: list[str], phrases: list[str] | None = None, job: str = "t") -> None:
    watch = {"number": 7, "job": job, "words": words, "phrases": phrases or []}
    socket.send(json.dumps({"jobs": {}, "watch": watch}))


def receive(socket: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(socket.recv(PATIENCE_S))
    found: dict[str, Any] = message["watch"]
    return found


def test_figures_are_sent_once_with_the_texts_of_their_tokens(server: Server) -> None:
    trial = server.bench.trials["t"] = finished()
    with opened(server) as socket:
        ask(socket, [" cat", " old king"], [" old king"])
        first = receive(socket)
        assert [line["typed"] for line in first["lines"]] == [" cat", " old king"]
        ids = [token for line in first["lines"] for variant in line["watched"] for token in variant["ids"]]
        assert {entry[0] for entry in first["words"]} == set(ids)
        assert [one["index"] for one in first["figures"]] == [0] and not first["over"]
        (figures,) = first["figures"]
        expected = figures_of(trial, " cat")
        assert figures["logprob"][0] is None
        np.testing.assert_allclose(figures["logprob"][1:], expected.logprob[1:], atol=1e-6)
        assert figures["rank"] == expected.rank.tolist()
        second = receive(socket)
        assert second["progress"]["share"] == 0.25 and "lines" not in second and second["figures"] == []
        server.bench.words.go_on.set()
        while not (last := receive(socket))["over"]:
            pass
        assert [one["index"] for one in last["figures"]] == [1]


def test_other_words_and_a_page_that_leaves_stop_what_is_computed(server: Server) -> None:
    server.bench.trials["t"] = finished()
    tasks = server.bench.words.tasks
    with opened(server) as socket:
        ask(socket, [" old king"], [" old king"])
        receive(socket)
        ask(socket, [" old king", " old cat"], [" old cat"])
        until(lambda: len(tasks) == 2)
        assert tasks[0].wait(PATIENCE_S) and tasks[0].state == "stopped"
        assert tasks[1].is_running
    assert tasks[1].wait(PATIENCE_S) and tasks[1].state == "stopped"


def test_what_cannot_be_watched_is_refused_and_the_socket_goes_on(server: Server) -> None:
    server.bench.trials["t"] = finished()
    with opened(server) as socket:
        ask(socket, ["refuse this"])
        assert receive(socket) == {"number": 7, "over": True, "error": "This trial was run with another model."}
        ask(socket, [" cat"])
        assert receive(socket)["lines"][0]["typed"] == " cat"


@pytest.mark.parametrize(
    "watch",
    [
        {"number": 1, "job": "t", "words": ["x" * (MAX_WORD_CHARACTERS + 1)], "phrases": []},
        {"number": 1, "job": "t", "words": ["x"] * (MAX_WORDS + 1), "phrases": []},
        {"number": 1, "job": "t" * 65, "words": [], "phrases": []},
        {"number": 1, "job": "t", "words": [[17]], "phrases": []},
        {"number": 1, "job": "t", "words": [], "phrases": [], "ids": [1 << 40]},
        {"number": 1, "job": "t", "words": "abc", "phrases": []},
        [],
    ],
)
def test_messages_that_break_the_protocol_close_the_socket(server: Server, watch: object) -> None:
    with opened(server) as socket:
        socket.send(json.dumps({"jobs": {}, "watch": watch}))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE_S)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == live.POLICY_VIOLATION
