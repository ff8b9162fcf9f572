"""Workloads on a real pool: when requests are sent, what is computed, and what ends them."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import ConfigError, Pool, PromptTooLong
from engine.bench.measurement.clients import Clients, Deadline, answers
from engine.bench.measurement.load_generator import LoadGenerator
from engine.bench.measurement.metrics import Repetition, RequestTimes
from engine.bench.planning.plan import Workload
from engine.errors import BenchTimeout
from engine.jobs import Job

SMALL: dict[str, Any] = {"num_prompt": 16, "num_generated": 6}


@pytest.fixture(scope="module")
def two(story_model: Path) -> Iterator[Pool]:
    """Pool of two workers with two sequences each."""
    with Pool(story_model, instances=2, threads=1, parallel=2, n_ctx=256) as opened:
        yield opened


@pytest.fixture
def asked(two: Pool, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Prompts submitted to the pool `two` from now on, in order."""
    found: list[Any] = []
    submit = two.submit

    def noting(prompt: Any, *given: Any, **options: Any) -> Job:
        found.append(prompt)
        return submit(prompt, *given, **options)

    monkeypatch.setattr(two, "submit", noting)
    return found


def run(pool: Pool, *, seed: int = 0, num: int = 1, timeout_s: float = 60, **workload: Any) -> list[Repetition]:
    return LoadGenerator(pool, Workload(**SMALL | workload)).run(seed, num, 0.0, Deadline(timeout_s))


def requests(repetitions: list[Repetition]) -> list[RequestTimes]:
    return [request for repetition in repetitions for stream in repetition for request in stream]


def test_together_asks_every_sequence_once_in_each_repetition(two: Pool) -> None:
    found = run(two, num=3)
    assert [[len(stream) for stream in repetition] for repetition in found] == [[1] * 4] * 3
    for request in requests(found):
        assert (len(request.tokens), request.num_computed) == (6, 16)
        assert request.asked <= request.started < request.first == pytest.approx(request.tokens[0], abs=1e-9)


def test_repetitions_go_on_until_the_time_is_over(two: Pool) -> None:
    found = LoadGenerator(two, Workload(**SMALL)).run(0, 1, 0.3, Deadline(60))
    measured = [max(s[-1].end for s in streams) - streams[0][0].asked for streams in found]
    assert sum(measured) >= 0.3 > sum(measured[:-1])


def test_the_same_seed_asks_the_same_and_nothing_twice(two: Pool, asked: list[Any]) -> None:
    for seed in (5, 5, 6):
        run(two, seed=seed, num=2)
    first, second, other = (asked[start : start + 8] for start in (0, 8, 16))
    assert first == second
    assert len({tuple(prompt) for prompt in first + other}) == 16
    assert {prompt[0] for prompt in asked} == {two.vocabulary.bos}


def test_depth_is_in_the_cache_before_the_time_begins(two: Pool) -> None:
    found = run(two, num=3, depth=64)
    assert {request.num_computed for request in requests(found)} == {16}


def test_prompts_alone(two: Pool) -> None:
    found = requests(run(two, num_generated=0))
    assert all(len(request.tokens) == 0 and request.first > request.started for request in found)


def test_tokens_alone_are_no_prefill(two: Pool) -> None:
    found = requests(run(two, num_prompt=0))
    assert all(len(request.tokens) == 6 and request.num_computed == 0 for request in found)


@pytest.mark.slow
def test_users_ask_again_once_they_are_answered(two: Pool) -> None:
    (streams,) = run(two, arrival="users", users=3, duration_s=2.0)
    assert len(streams) == 3
    for stream in streams:
        assert len(stream) > 1
        assert all(later.asked >= earlier.end for earlier, later in itertools.pairwise(stream))
    assert max(stream[-1].asked for stream in streams) - streams[0][0].asked <= 2.0


def test_more_users_than_sequences_wait_their_turn(two: Pool) -> None:
    (streams,) = run(two, arrival="users", users=9, duration_s=0.2)
    assert len(streams) == 9


def test_poisson_asks_at_its_own_moments(two: Pool) -> None:
    first, second = (requests(run(two, arrival="poisson", rate_per_s=40, duration_s=0.5)) for _ in range(2))
    moments = [[request.asked - found[0].asked for request in found] for found in (first, second)]
    assert moments[0] == pytest.approx(moments[1], abs=1e-6)
    assert moments[0] == sorted(moments[0]) and moments[0][-1] <= 0.5
    assert all(request.started >= request.asked for request in first)


def test_texts_follow_one_another(two: Pool, asked: list[Any]) -> None:
    texts = ("Once upon a time", "The king", "A wolf and a lamb")
    found = LoadGenerator(two, Workload(**SMALL | {"asked": "prompts", "prompts": texts})).run(3, 1, 1.0, Deadline(60))
    start = texts.index(asked[0])
    assert asked == [texts[(start + index) % 3] for index in range(len(asked))]
    assert len(found) == 1 and len(asked) > len(texts)
    assert all(1 <= len(request.tokens) <= 6 for request in requests(found))


def test_a_full_queue_only_delays(story_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITBENCH_MAX_QUEUE", "1")
    with Pool(story_model, threads=1, parallel=1, n_ctx=256) as narrow:
        (streams,) = run(narrow, arrival="users", users=8, duration_s=0.1)
    assert len(streams) == 8
    assert len({stream[0].asked for stream in streams}) == 1, "all were asked when they were released"


def test_what_does_not_fit_a_sequence_is_refused_before(two: Pool) -> None:
    with pytest.raises(ConfigError, match="n_ctx"):
        LoadGenerator(two, Workload(num_prompt=200, num_generated=58))
    assert LoadGenerator(two, Workload(num_prompt=200, num_generated=57)).run(0, 1, 0.0, Deadline(60))


def test_the_error_of_a_request_is_raised_and_the_others_are_cancelled(two: Pool) -> None:
    with pytest.raises(PromptTooLong):
        run(two, asked="prompts", prompts=("Once", "word " * 400), num_generated=200)
    assert idle(two)


def test_a_load_that_takes_too_long_is_cancelled(two: Pool) -> None:
    with pytest.raises(BenchTimeout, match=r"0 of 4 requests were answered within 0\.05 s"):
        run(two, num_generated=200, timeout_s=0.05)
    assert idle(two)


def test_first_token_and_wake(two: Pool) -> None:
    load = LoadGenerator(two, Workload(**SMALL))
    load.wake(Deadline(60))
    assert load.first_token_s(Deadline(60)) > 0
    assert load.once(Deadline(60)) > 0


def test_clients_keep_who_was_answered_apart(two: Pool) -> None:
    with Clients(lambda prompt: two.submit(prompt, max_tokens=1), Deadline(60)) as clients:
        for stream in (7, 9):
            clients.ask(stream, [1, 2, 3])
        assert {clients.answered(), clients.answered()} == {7, 9}
        assert clients.answered() is None
    assert len(answers(lambda prompt: two.submit(prompt, max_tokens=1), [[1, 2]] * 3, Deadline(60))) == 3


def idle(pool: Pool) -> bool:
    """Return True once nothing runs; a reply from each worker shows that it has processed the cancellations."""
    pool.measure(30)
    return not any(worker.num_running or worker.num_waiting for worker in pool.workers())
