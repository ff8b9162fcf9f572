"""Beam search on real engines: the sequences that transformers finds, by PyTorch and by llama.cpp."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.comparing.beam_search import beam_problem, find_beams
from engine.comparing.beams import BeamSpec
from engine.errors import ConfigError, PromptTooLong, ServerFailed
from engine.jobs import Job
from engine.pool.pool import Pool
from engine.protocol import Capabilities
from tests.fake_engine import FakeEngine
from tests.waiting import until

pytestmark = pytest.mark.slow

LONG = (
    "Once upon a time there was a king who had three daughters, and the youngest was so beautiful that the sun itself, "
    "which has seen so much, wondered whenever it shone in her face.\n"
)
SPECS = (
    BeamSpec(),
    BeamSpec(num_beams=2, length_penalty=0.0, max_new_tokens=32),
    BeamSpec(num_beams=5, length_penalty=-1.0, early_stopping=True),
    BeamSpec(num_beams=8, length_penalty=2.0, early_stopping="never", num_return_sequences=3),
)


@pytest.fixture(scope="module")
def network(story_folder: Path) -> Any:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(story_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=["PyTorch", "llama.cpp"])
def engine(request: pytest.FixtureRequest, story_folder: Path, float_model: Path) -> Iterator[Pool]:
    """The same network, run by either."""
    if request.param == "PyTorch":
        opened = Pool(story_folder, parallel=8, n_ctx=512, threads=1)
    else:
        opened = Pool(
            float_model, parallel=8, n_ctx=512, threads=1, type_k="f32", type_v="f32", flash_attn=False,
            share_weights=False,
        )  # fmt: skip
    with opened:
        yield opened


@pytest.mark.parametrize("prompt", ["Once upon a time", LONG], ids=["short", "long"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.num_beams}-{spec.length_penalty}")
def test_the_sequences_and_scores_of_transformers(network: Any, engine: Pool, prompt: str, spec: BeamSpec) -> None:
    ids, ends = engine.tokenize(prompt), engine.vocabulary.end_tokens
    with torch.no_grad():
        made = network.generate(
            torch.tensor([ids]), do_sample=False, num_beams=spec.num_beams, length_penalty=spec.length_penalty,
            early_stopping=spec.early_stopping, max_new_tokens=spec.max_new_tokens, output_scores=True,
            num_return_sequences=spec.num_returned, return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
    rows = made.sequences[:, len(ids) :].tolist()
    lengths = [next((at + 1 for at, token in enumerate(row) if token in ends), len(row)) for row in rows]
    found = find_beams(engine, ids, spec).sequences
    assert [list(one.ids) for one in found] == [row[:length] for row, length in zip(rows, lengths, strict=True)]
    scores = made.sequences_scores.tolist()
    assert [one.score for one in found] == pytest.approx(scores, abs=1e-4, rel=1e-5)


def test_only_the_new_token_of_each_beam_is_computed(engine: Pool) -> None:
    beams = find_beams(engine, engine.tokenize(LONG), BeamSpec(num_beams=8, max_new_tokens=40))
    assert beams.num_least == len(engine.tokenize(LONG)) + 8 * 39
    assert beams.num_computed <= 1.1 * beams.num_least


class Enough(Exception):
    pass


def test_a_search_that_is_ended_leaves_no_job_behind(engine: Pool) -> None:
    def tell(search: Any) -> None:
        if search.length == 3:
            raise Enough

    with pytest.raises(Enough):
        find_beams(engine, engine.tokenize(LONG), BeamSpec(max_new_tokens=200), on_progress=tell)
    until(lambda: engine.num_open == 0, "a job is left behind")


def test_a_prompt_that_leaves_no_room(engine: Pool) -> None:
    ids = engine.tokenize("Once")
    with pytest.raises(PromptTooLong, match="max_new_tokens"):
        find_beams(engine, ids * 256, BeamSpec())
    with pytest.raises(ConfigError, match="empty"):
        find_beams(engine, [], BeamSpec())


class Silent(FakeEngine):
    """An engine that returns no token."""

    def submit(self, prompt: Any, sampling: Any = None, **options: Any) -> Job:
        return super().submit(prompt, sampling, **{**options, "max_tokens": 0})


def test_a_server_that_returns_no_token() -> None:
    with Silent() as silent, pytest.raises(ServerFailed, match="no token to follow a beam"):
        find_beams(silent, silent.tokenize("Once"), BeamSpec())


def test_what_an_engine_must_have() -> None:
    pool = Capabilities(512, 4, has_chat_template=False)
    assert not beam_problem(pool, 20)
    assert "no token ids" in beam_problem(pool._replace(has_ids=False))
    assert "log-probabilities" in beam_problem(pool._replace(logprobs_of="after samplers"))
    assert "20 candidates of a token, and 21" in beam_problem(pool._replace(candidates_max=20), 21)
