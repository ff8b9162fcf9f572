"""The contract of engine.protocol.Engine: many prompts at once, with their progress."""

import re
from collections.abc import Iterator

import pytest

from engine.errors import ConfigError, EngineError, PromptTooLong
from engine.map_progress import MapProgress
from engine.protocol import Engine
from tests.engine.contract.conftest import GREEDY, never_ending


def test_many_prompts_come_back_in_their_order(engine: Engine) -> None:
    prompts = [f"{number} was a number" for number in range(12)]
    found = list(engine.map(prompts, GREEDY, max_tokens=3))
    if not engine.capabilities.tokenizes:
        alone = [engine.submit(prompt, GREEDY, max_tokens=3).result(60) for prompt in prompts]
        assert [done.text for done in found] == [done.text for done in alone]
        return
    assert [list(done.prompt_ids) for done in found] == [engine.tokenize(prompt) for prompt in prompts]


def test_a_failing_prompt_is_named_or_stands_in_the_place_of_its_completion(engine: Engine) -> None:
    prompts = ["Once", "long " * 600, "upon"]
    with pytest.raises(PromptTooLong, match=r"prompts\[1\]"):
        list(engine.map(prompts, max_tokens=1))
    found = list(engine.map(prompts, max_tokens=1, return_exceptions=True))
    assert [isinstance(one, PromptTooLong) for one in found] == [False, True, False]
    with pytest.raises(ConfigError):
        engine.map("Once")


def test_a_map_tells_its_progress(engine: Engine) -> None:
    reports = list[MapProgress]()
    prompts = [*["Once"] * 11, "long " * 600]
    found = list(engine.map(prompts, GREEDY, max_tokens=40, return_exceptions=True, progress=reports.append))
    num_tokens = sum(len(done.ids) for done in found if not isinstance(done, EngineError))
    assert reports[-1] == MapProgress(12, 1, num_tokens, 12)
    assert reports == sorted(reports)
    list(engine.map(iter(prompts[:3]), GREEDY, max_tokens=2, progress=reports.append))
    assert reports[-1].total is None


def test_a_map_shows_its_progress_on_standard_error(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    list(engine.map(["Once"] * 4, max_tokens=2, progress=True))
    list(engine.map((prompt for prompt in ["Once"]), max_tokens=2, progress=True))
    list(engine.map(["Once"] * 4, max_tokens=2))
    lines = capsys.readouterr().err.splitlines()
    ends = [line for line in lines if re.search(r" tok/s, in \d+ s$", line)]
    assert [line.partition(",")[0] for line in ends] == ["4 of 4 prompts", "1 prompt"]
    assert lines[-1] == ends[-1]


def test_an_interrupt_while_a_map_waits_cancels_its_jobs(engine: Engine) -> None:
    def interrupt(_now: MapProgress) -> None:
        raise KeyboardInterrupt

    before = _num_tokens(engine)
    with engine.held():
        with pytest.raises(KeyboardInterrupt):
            list(engine.map(["Once"] * 4, never_ending(engine), max_tokens=200, progress=interrupt))
        later = engine.submit("Once", max_tokens=1)
    assert later.result(60).steps
    assert _num_tokens(engine) - before < 200


def _num_tokens(engine: Engine) -> float:
    """Return the tokens that its workers have computed; a server has none."""
    return sum(one["num_tokens"] for one in engine.measure(60))


def test_a_map_takes_a_bounded_number_of_prompts_ahead_of_a_slow_one(engine: Engine) -> None:
    if not engine.capabilities.has_ids:
        pytest.skip("an answer is made slow by a bias of token ids")
    num_taken = 0

    def prompts() -> Iterator[list[int]]:
        nonlocal num_taken
        for length in (1, *[engine.capabilities.n_ctx - 2] * 60):
            num_taken += 1
            yield [97] * length

    found = engine.map(prompts(), never_ending(engine), max_tokens=200)
    assert len(next(found).ids) == 200
    assert num_taken <= 8 * engine.capabilities.num_sequences + 1
    assert len(list(found)) == 60
