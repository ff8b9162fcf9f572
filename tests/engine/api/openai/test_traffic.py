"""Calls of the API as its traffic records them."""

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from engine.api.openai.client_totals import by_client
from engine.api.openai.errors import ApiError
from engine.api.openai.server import server_of
from engine.api.openai.traffic import KEPT_CALLS, CallRow, Figures, Traffic, figures_of
from engine.jobs import Job
from engine.specs import Request, Sampling
from engine.step_parts import RECORD
from engine.workbench.trials import LiveTrial
from tests.engine.api.openai.conftest import Api
from tests.fake_engine import VOCABULARY
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


def call_with(traffic: Traffic, client: str, num_tokens: int = 5, error: str = "") -> None:
    """Record a call that has ended."""
    call = traffic.add(client, PATH, "m", b"{}")
    if error:
        call.fail(ApiError(500, error))
    else:
        call.end(Figures(num_generated=num_tokens))


def test_totals_by_client() -> None:
    traffic = Traffic()
    for _ in range(3):
        call_with(traffic, "a")
    call_with(traffic, "b", error="no")
    one, other = by_client(traffic)
    assert (one.client, one.num_calls, one.num_failed, one.num_tokens) == ("a", 3, 0, 15)
    assert one.p50_s is not None and one.p95_s is not None and one.p50_s <= one.p95_s
    assert (other.client, other.num_failed, other.p50_s, other.p95_s) == ("b", 1, None, None)


@pytest.mark.parametrize("seed", range(4))
def test_totals_count_the_calls_that_are_no_longer_kept(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.api.openai.traffic.KEPT_CALLS", 40)
    monkeypatch.setattr("engine.api.openai.traffic.KEPT_MINOR", 7)
    draw, traffic = random.Random(seed), Traffic()
    expected: dict[str, list[int]] = {}
    for _ in range(300):
        kind, client, num_tokens = draw.randrange(4), f"client {draw.randrange(5)}", draw.randrange(100)
        if kind == 3:
            traffic.refuse(client, PATH, ApiError(429, "too many"))
        elif kind == 2:
            traffic.add(client, PATH, "m", b"{}", is_batch=True).end(Figures(num_generated=num_tokens))
        else:
            call_with(traffic, client, num_tokens, "no" if kind else "")
        totals = expected.setdefault(client, [0, 0, 0])
        for at, more in enumerate((1, kind in (1, 3), num_tokens if kind in (0, 2) else 0)):
            totals[at] += more
    assert {one.client: [one.num_calls, one.num_failed, one.num_tokens] for one in by_client(traffic)} == expected


def test_totals_of_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.api.openai.traffic.KEPT_CALLS", 3)
    monkeypatch.setattr("engine.api.openai.traffic.COUNTED_CLIENTS", 10)
    traffic = Traffic()
    for number in range(100):
        call_with(traffic, f"client {number}")
    assert {one.client for one in by_client(traffic)} == {f"client {number}" for number in range(87, 100)}


def trial_of(
    submitted: float, first_s: float, decode_s: float, num_generated: int, logprobs: Sequence[float] = (),
    num_prompt: int = 4,
) -> LiveTrial:  # fmt: skip
    """Return a trial whose job has ended with these times, and with steps of these log-probabilities."""
    job = Job("j", "p", Sampling(), Request(top_k=1), VOCABULARY, lambda _: None, lambda _: 0)
    records = np.zeros(len(logprobs), RECORD)
    records["logprob"] = logprobs
    nothing = np.zeros((len(logprobs), 1), np.float32)
    job.steps.append(records, nothing.astype(np.int32), nothing, nothing)
    job.submitted = submitted
    job.on_started([], num_cached=0, seed=1, queue_s=0.0, load_s=0.0)
    job.on_ended("stop", 0, prefill_s=first_s, decode_s=decode_s, num_prompt=num_prompt, num_cached=1,
                 num_generated=num_generated)  # fmt: skip
    return SimpleNamespace(job=job)  # type: ignore[return-value]


def test_the_rate_of_answers_is_of_the_time_that_they_took_together() -> None:
    """Whether they ran beside each other or in turn."""
    alone = figures_of([trial_of(5.0, 0.5, 1.0, 11)], began=4.0)
    assert (alone.per_s, alone.ttft_s) == (10.0, 1.5)
    beside = figures_of([trial_of(5.0, 0.5, 1.0, 11) for _ in range(4)], began=4.0)
    assert beside.per_s == 43.0
    in_turn = figures_of([trial_of(5.0, 0.5 + turn, 1.0, 11) for turn in range(4)], began=4.0)
    assert in_turn.per_s == 43 / 4
    assert figures_of([trial_of(5.0, 0.5 + turn / 1e6, 0.0, 1) for turn in range(4)], began=4.0).per_s is None
    assert figures_of([trial_of(5.0, 0.5, 0.0, 0)], began=4.0).ttft_s is None


def test_a_server_that_gives_no_ids_has_its_figures() -> None:
    """It counts the tokens of the prompt, several tokens may be one step, and the last has no log-probability."""
    found = figures_of([trial_of(5.0, 0.5, 1.0, 8, (-1.0, -2.0, math.nan), num_prompt=9)], began=5.0)
    assert (found.num_prompt, found.num_cached, found.num_generated) == (9, 1, 8)
    assert found.surprise_bits == pytest.approx(1.5 / math.log(2))
    assert found.unsure_p == pytest.approx(math.exp(-2))
    assert figures_of([trial_of(5.0, 0.5, 1.0, 8, (math.nan,))], began=5.0).surprise_bits is None
