"""Calls of the API as its traffic records them."""

from typing import Any

import pytest

from engine.api.openai.server import server_of
from engine.api.openai.traffic import KEPT_CALLS, CallRow, Figures, Traffic, by_client
from tests.engine.api.openai.conftest import Api
from tests.waiting import until

PATH = "/v1/completions"


def latest(api: Api) -> CallRow:
    return server_of(api.bench).traffic.rows(1)[0]


def test_a_call_has_the_figures_of_its_answers(api: Api) -> None:
    answer = api.ask(PATH, {"prompt": "Once upon", "max_tokens": 6, "n": 2}, user_agent="lm-eval/0.4 \xad\x85")
    row = latest(api)
    assert (row.client, row.endpoint, row.model, row.state) == ("lm-eval/0.4 ", PATH, "story", "done")
    usage = answer.json["usage"]
    assert row.figures.num_generated == usage["completion_tokens"]
    assert row.figures.num_prompt == 2 * usage["prompt_tokens"]
    assert row.trials == tuple(answer.headers["x-logitbench-trial"].split(","))
    steps = [step for id in row.trials for step in api.bench.trials.trial(id).steps]
    logprobs = [step.logprob for step in steps if step.logprob is not None]
    least = min(steps, key=lambda step: step.logprob or 0.0)
    assert row.figures.unsure == least.text
    assert row.figures.surprise_bits is not None and row.figures.unsure_p is not None
    assert abs(row.figures.surprise_bits + sum(logprobs) / len(logprobs) * 1.442695) < 1e-3
    assert 0 < row.figures.unsure_p < 1
    assert row.figures.ttft_s is not None and 0 < row.figures.ttft_s <= row.elapsed_s


def test_figures_that_nobody_reads_are_counted_too(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a whole answer, and of a stream."""
    counted: list[int] = []
    traffic = server_of(api.bench).traffic
    monkeypatch.setattr(traffic, "on_end", lambda figures: counted.append(figures.num_generated))
    for asked, num in (({"max_tokens": 6, "n": 2}, 12), ({"max_tokens": 7, "stream": True}, 7)):
        api.ask(PATH, {"prompt": "Once upon", "ignore_eos": True, **asked})
        until(lambda num=num: num in counted, "it is not counted")  # type: ignore[misc]


def test_a_refused_call_says_why(api: Api) -> None:
    for asked, said in (({"prompt": "a", "n": 0}, "n: "), ({"prompt": [5] * 600}, "600"), ({"prompt": ""}, "empty")):
        answer = api.ask(PATH, asked)
        row = latest(api)
        if answer.status == 200:  # this model begins an empty prompt with its own token
            continue
        assert (row.state, row.figures.num_generated) == ("failed", 0)
        assert said in row.error


def test_a_running_call_is_there_with_its_tokens_so_far(api: Api) -> None:
    connection = api.connect()
    body = '{"prompt": "Once", "max_tokens": 450, "ignore_eos": true, "stream": true}'
    connection.request("POST", PATH, body, {"authorization": "Bearer a key for tests"})
    until(lambda: latest(api).state == "running" and latest(api).figures.num_generated > 3, "it does not run")
    seen = latest(api)
    assert seen.figures.per_s is not None and seen.trials
    connection.close()
    until(lambda: latest(api).state in ("stopped", "done"), "it goes on")
    assert latest(api).figures.num_generated >= seen.figures.num_generated


def test_only_the_latest_calls_and_the_beginning_of_a_body_are_kept() -> None:
    traffic = Traffic()
    for number in range(KEPT_CALLS + 10):
        traffic.add(f"client {number % 3}", PATH, "m", b"x" * 100_000 if number > KEPT_CALLS else b"{}")
    rows = traffic.rows()
    assert (len(rows), traffic.num_calls, rows[0].number) == (KEPT_CALLS, KEPT_CALLS + 10, KEPT_CALLS + 10)
    assert traffic.num_kept == KEPT_CALLS
    assert len(rows[0].body) == 16_384
    assert [row.number for row in traffic.rows(2)] == [KEPT_CALLS + 10, KEPT_CALLS + 9]


def test_totals_by_client() -> None:
    def row(client: str, **changes: Any) -> CallRow:
        given: dict[str, Any] = {"state": "done", "figures": Figures(num_generated=5), "elapsed_s": 1.0, **changes}
        return CallRow(1, None, client, PATH, "m", trials=(), error="", body="", num_bytes=0, **given)  # type: ignore[arg-type]

    rows = [row("a", elapsed_s=second) for second in (1.0, 2.0, 3.0)]
    rows += [row("b", state="failed", figures=Figures())]
    one, other = by_client(rows)
    assert (one.client, one.num_calls, one.num_failed, one.num_tokens, one.p50_s) == ("a", 3, 0, 15, 2.0)
    assert (other.client, other.num_failed, other.p50_s, other.p95_s) == ("b", 1, None, None)
