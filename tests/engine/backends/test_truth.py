"""Figures of llama-server, read as an external engine, beside those of our own pool on the same model file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.backends.openai_server import ServerEngine
from engine.calls import connect
from engine.comparing.beam_search import find_beams
from engine.comparing.beams import BeamSpec
from engine.pool.pool import Pool
from engine.specs import Sampling
from tests.servers import llama_server

PROMPTS = (
    "Once upon a time there was a king",
    "The wolf said to the fox",
    "In a far country",
    "She opened the door and",
    "Été: the old – woman",
)
NUM_TOKENS, NUM_CANDIDATES = 20, 100
NUM_COMPARED = len(PROMPTS) * NUM_TOKENS * NUM_CANDIDATES
LARGEST_DIFFERENCE = 1e-3
"""Nats."""


@pytest.fixture(scope="module")
def server(story_model: Path) -> Iterator[ServerEngine]:
    """llama-server as the pool below: one sequence, one thread, the file's own weights, the same batches."""
    words = ("-c", "256", "-np", "1", "-t", "1", "-ub", "256", "--no-repack", "-fa", "off")
    with llama_server(story_model, *words) as address, connect(address) as engine:
        yield engine


@pytest.fixture(scope="module")
def own(story_model: Path) -> Iterator[Pool]:
    with Pool(
        story_model, parallel=1, n_ctx=256, n_ubatch=256, threads=1, share_weights=True, flash_attn=False
    ) as opened:
        yield opened


def test_ten_thousand_candidates_have_the_same_log_probabilities(server: ServerEngine, own: Pool) -> None:
    num, largest = 0, 0.0
    for prompt in PROMPTS:
        ours, theirs = (
            engine.submit(
                prompt, Sampling(temperature=0), max_tokens=NUM_TOKENS, top_k=NUM_CANDIDATES, reuse_prefix=False
            ).result(60)
            for engine in (own, server)
        )
        assert ours.prompt_ids == theirs.prompt_ids and ours.ids == theirs.ids and ours.text == theirs.text
        for mine, other in zip(ours.steps, theirs.steps, strict=True):
            found = {one.id: one for one in mine.top}
            shared = [(found[one.id], one) for one in other.top if one.id in found]
            assert len(shared) >= NUM_CANDIDATES - 1  # equal probabilities may part the last one
            assert all(one.bytes == another.bytes for one, another in shared)
            num += len(shared)
            largest = max(largest, *(abs(one.logprob - another.logprob) for one, another in shared))
            assert (mine.rank, mine.text) == (other.rank, other.text)
    assert num >= 0.99 * NUM_COMPARED
    assert largest <= LARGEST_DIFFERENCE


def test_a_beam_search_finds_the_same_sequences(server: ServerEngine, own: Pool) -> None:
    spec = BeamSpec(num_beams=3, max_new_tokens=10)
    ids = own.tokenize(PROMPTS[0])
    ours, theirs = (find_beams(engine, ids, spec).sequences for engine in (own, server))
    assert [one.ids for one in ours] == [one.ids for one in theirs]
    assert [one.text for one in ours] == [one.text for one in theirs]
    assert [one.logprob for one in ours] == pytest.approx([one.logprob for one in theirs], abs=LARGEST_DIFFERENCE)


@pytest.mark.parametrize("text", ["É", "日本", "a–é🦊."])
def test_tokens_within_a_character_are_there_though_the_server_does_not_send_them(
    server: ServerEngine, own: Pool, text: str
) -> None:
    spelled = Sampling(temperature=0, grammar=f'root ::= "{text}"')
    ours, theirs = (engine.submit("Once", spelled, max_tokens=30, top_k=2).result(60) for engine in (own, server))
    assert theirs.text == ours.text == text
    assert theirs.ids == ours.ids
    assert [one.bytes for one in theirs.steps] == [one.bytes for one in ours.steps]
    assert any(one.logprob is None for one in theirs.steps)  # those that were not sent


def test_what_the_server_does_not_tell_is_none(server: ServerEngine) -> None:
    done = server.submit("Once upon", Sampling(seed=1, temperature=1.5), max_tokens=20, top_k=2).result(60)
    steps = list(done.steps)
    assert all((one.entropy, one.normaliser, one.p_final, one.draw, one.num_kept) == (None,) * 5 for one in steps)
    assert {one.rank for one in steps} <= {None, 1, 2} and None in {one.rank for one in steps}
    assert all(one.logprob is not None for one in steps)
    step = done.to_dict()["steps"][0]
    assert (step["entropy"], step["p_final"], step["draw"]) == (None, None, None)
    assert all(one["p_final"] is None for one in step["top"])
    frame = done.to_pandas()
    assert frame["entropy"].isna().all()
