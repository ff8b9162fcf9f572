"""Most probable continuations of the real model: the same as listing them, and a search that can be stopped."""

import pytest

from engine.errors import ConfigError
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.probable_manager import MOST_DEPTH, MOST_NUM
from engine.workbench.trials import Draft, LiveTrial
from tests.engine.workbench.conftest import ended
from tests.waiting import until


@pytest.fixture(scope="module")
def trial(bench: Workbench) -> LiveTrial:
    draft = Draft("Once upon a time", sampling=Sampling(seed=11), request=Request(max_tokens=12, top_k=20))
    return ended(bench.trials.submit(draft))


def test_pairs_of_tokens_are_those_that_listing_them_finds(bench: Workbench, trial: LiveTrial) -> None:
    engine, _ = bench.model.loaded()
    before = [*trial.prompt_ids, *trial.steps.ids[:3]]

    def after(ids: list[int]) -> list[tuple[int, float]]:
        return engine.submit([*before, *ids], max_tokens=1, top_k=200).result(60).steps[0].top_logprobs

    firsts = after([])
    pairs = [((first, second), a + b) for first, a in firsts[:40] for second, b in after([first])]
    expected = sorted(pairs, key=lambda pair: -pair[1])[:15]
    assert firsts[40][1] < expected[-1][1], "more first tokens must be listed"
    task = bench.probable.find(trial, 3, num=15, depth=2)
    found = task.result(60)
    assert [one.ids for one in found.found] == [ids for ids, _ in expected]
    assert [one.logprob for one in found.found] == pytest.approx([logprob for _, logprob in expected], abs=1e-3)
    assert all(one.is_exact for one in found.found) and not found.is_cut_short


def test_the_first_of_one_token_each_are_the_candidates(bench: Workbench, trial: LiveTrial) -> None:
    found = bench.probable.find(trial, 5, num=20, depth=1).result(60).found
    assert [one.ids[0] for one in found] == [candidate.id for candidate in trial.steps[5].top]


def test_a_search_that_is_cut_short_tells_what_it_has_seen(bench: Workbench, trial: LiveTrial) -> None:
    found = bench.probable.find(trial, 1, num=30, depth=MOST_DEPTH).result(60)
    assert found.is_cut_short and len(found.found) == 30
    unproved = [one for one in found.found if not one.is_exact]
    assert unproved and [one.logprob for one in unproved] == sorted((one.logprob for one in unproved), reverse=True)


def test_a_search_can_be_stopped_and_dismissed_and_leaves_no_job_behind(bench: Workbench, trial: LiveTrial) -> None:
    engine, _ = bench.model.loaded()
    task = bench.probable.find(trial, 1, num=MOST_NUM, depth=MOST_DEPTH)
    with pytest.raises(ConfigError, match="still running"):
        bench.probable.find(trial, 1)
    bench.probable.stop()
    assert task.wait(60) and task.state == "stopped"
    until(lambda: engine.num_open == 0, "a job is left behind")
    bench.probable.dismiss()
    assert bench.probable.last is None


@pytest.mark.parametrize(
    ("step", "options"),
    [(-1, {}), (13, {}), (0, {"num": 0}), (0, {"num": MOST_NUM + 1}), (0, {"depth": 65}), (0, {"mass": 1.5})],
)
def test_a_search_that_cannot_be(bench: Workbench, trial: LiveTrial, step: int, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        bench.probable.find(trial, step, **options)  # type: ignore[arg-type]
