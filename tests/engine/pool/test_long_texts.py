"""Long texts that may take a tokenizer minutes: they block no worker."""

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import LimitExceeded, PromptTooLong
from engine.models.tokenizer import Tokenizer
from engine.pool import long_texts, texts
from engine.pool.long_texts import LONGEST_FOR_WORKER
from engine.pool.pool import Pool
from engine.specs import Sampling

UNKNOWN = "漢"
"""Character for which the story model has no token: llama.cpp's tokenizer takes quadratic time for many in a row."""


@pytest.fixture(scope="module")
def roomy(story_model: Path) -> Iterator[Pool]:
    with Pool(story_model, parallel=2, n_ctx=16_384) as pool:
        yield pool


def drawn(seed: int) -> str:
    """Return a text one character longer than a worker accepts, of words or of letters without a space."""
    draw = random.Random(seed)
    letters = draw.choice(["the king said ", "abcdefghijklmnopqrstuvwxyz", "naïve Ωmega 你好", "\n \t"])
    return "".join(draw.choice(letters) for _ in range(LONGEST_FOR_WORKER + 1))


@pytest.mark.parametrize("seed", range(6))
def test_they_have_the_ids_that_the_model_gives(roomy: Pool, story_model: Path, seed: int) -> None:
    text = drawn(seed)
    tokenizer = Tokenizer(story_model)
    try:
        assert roomy.tokenize(text) == tokenizer.tokenize(text)
    finally:
        tokenizer.close()


def test_a_long_prompt_is_computed_from_the_ids_of_its_text(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "LONGEST_FOR_WORKER", 20)
    text = "Once upon a time there was a mill"
    job = pool.submit(text, Sampling(temperature=0), max_tokens=4)
    assert isinstance(job.sent, list)
    assert job.result(timeout=60).prompt_ids == tuple(job.sent)
    monkeypatch.undo()
    assert pool.tokenize(text) == job.sent
    assert job.prompt == text


def test_a_text_with_too_many_bytes_is_refused_unread(pool: Pool) -> None:
    job = pool.submit(UNKNOWN * 600_000)
    with pytest.raises(PromptTooLong, match="at least"):
        job.result(timeout=60)


@pytest.mark.parametrize("ask", [Pool.tokenize, Pool.submit], ids=["tokenize", "submit"])
def test_what_takes_too_long_ends_alone(roomy: Pool, monkeypatch: pytest.MonkeyPatch, ask: object) -> None:
    monkeypatch.setattr(long_texts, "DEADLINE_S", 0.02)
    assert callable(ask)
    before = [worker.pid for worker in roomy.workers()]
    running = roomy.submit("Once upon a time", Sampling(logit_bias=((2, -math.inf),)), max_tokens=500)
    with pytest.raises(LimitExceeded, match="50,000 characters: the process that tokenises long texts took longer"):
        ask(roomy, UNKNOWN * 50_000)
    assert running.result(timeout=120).finish_reason == "length"
    assert [worker.pid for worker in roomy.workers()] == before
    monkeypatch.undo()
    assert roomy.tokenize("a" * (LONGEST_FOR_WORKER + 1))


def test_one_of_many_that_takes_too_long_leaves_the_others(roomy: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "DEADLINE_S", 0.02)
    prompts = ["Once", UNKNOWN * 50_000, "upon"]
    first, second, third = roomy.map(prompts, max_tokens=2, return_exceptions=True)
    assert isinstance(second, LimitExceeded)
    assert str(second).startswith("prompts[1]: ")
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
