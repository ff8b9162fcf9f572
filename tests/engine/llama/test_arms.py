"""Programs of the other runtimes: they compute what our own pool computes, and account for their time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import Pool, Sampling
from engine.llama.arm import Ask, LoadArm
from engine.process.channel import Channel
from engine.process.child import Child
from engine.process.serving import Reply
from engine.specs import PoolSpec
from engine.vocabulary import TokenKind

PROGRAMS = ("engine.llama.bare_loop", "engine.llama.high_level")
IDS = list(range(300, 332))
ENDING = "and they lived happily ever after."


class Spoken:
    """Child program driven by hand; `ready` is its description of the model."""

    def __init__(self, child: Child, load: LoadArm) -> None:
        self._channel = Channel(child.socket, Reply)
        self._channel.receive_one()
        self.ready = self.ask(load.to_dict())

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._channel.send(request)
        reply = self._channel.receive_one()
        if reply.error:
            return {"error": reply.error, "text": reply.text}
        answer: dict[str, Any] = msgspec.msgpack.decode(reply.answer)
        return answer


@contextmanager
def spoken(module: str, model: Path, **spec: Any) -> Iterator[Spoken]:
    """Yield the program with the model loaded; it must end by itself."""
    load = LoadArm(str(model), PoolSpec.from_dict({"parallel": 1, "n_ctx": 512} | spec), 1, 1, [])
    child = Child(module, environment={"PYTHONWARNINGS": "error"})
    try:
        yield Spoken(child, load)
    finally:
        child.close(patience_s=10)
    assert child.ending().startswith("exited with status 0")
    assert "Error" not in child.ending()
    assert "Warning" not in child.ending()


@pytest.mark.parametrize("module", PROGRAMS)
def test_parts_and_moments_add_up(module: str, story_model: Path) -> None:
    with spoken(module, story_model) as program:
        answer = program.ask(asdict(Ask([IDS], 16)))
    (times,) = answer["token_times"]
    inside = sum(answer["parts"].values())
    assert len(times) == 16 and times == sorted(times)
    assert answer["num_prompt"] == [32]
    assert 0 < inside <= answer["wall_s"]
    assert times[-1] - answer["submitted"] <= answer["wall_s"]
    assert min(answer["parts"][name] for name in ("prefill_s", "decode_s", "sample_s")) > 0


@pytest.mark.parametrize("module", PROGRAMS)
def test_ids_that_were_there_before_are_not_timed(module: str, story_model: Path) -> None:
    ids = [300 + index % 200 for index in range(416)]
    with spoken(module, story_model) as program:
        program.ask(asdict(Ask([IDS], 2)))
        rounds = [[program.ask(asdict(Ask([ids], 1, depth=depth))) for depth in (0, 412)] for _ in range(5)]
    assert [answer["num_prompt"] for answer in rounds[0]] == [[416], [4]]
    whole, tail = (min(answer["parts"]["prefill_s"] for answer in asked) for asked in zip(*rounds, strict=True))
    assert tail < whole / 2


@pytest.mark.parametrize("module", PROGRAMS)
def test_the_same_prompt_is_computed_anew(module: str, story_model: Path) -> None:
    ids = [300 + index % 200 for index in range(416)]
    with spoken(module, story_model) as program:
        first, second = (program.ask(asdict(Ask([ids], 2))) for _ in range(2))
    assert second["parts"]["prefill_s"] > first["parts"]["prefill_s"] / 4


@pytest.mark.parametrize("module", PROGRAMS)
def test_a_prompt_that_does_not_fit_is_an_error_and_the_next_one_runs(module: str, story_model: Path) -> None:
    with spoken(module, story_model, n_ctx=256) as program:
        failed = program.ask(asdict(Ask([[300] * 300], 2)))
        done = program.ask(asdict(Ask([IDS], 2)))
    assert failed["error"] == "ModelError"
    assert len(done["token_times"][0]) == 2


@pytest.mark.parametrize("module", PROGRAMS)
def test_a_file_that_is_no_model_is_an_error(module: str, tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    path.write_bytes(b"GGUF and then nothing")
    child = Child(module)
    answer = Spoken(child, LoadArm(str(path), PoolSpec(), 1, 1, [])).ready
    child.close()
    assert answer["error"] == "ModelError"
    assert str(path) in answer["text"]


def test_many_streams_are_decoded_together(story_model: Path) -> None:
    prompts: list[str | list[int]] = [[300 + number, *IDS] for number in range(40)]
    with spoken("engine.llama.bare_loop", story_model, parallel=40, n_batch=64, n_ubatch=64) as program:
        answer = program.ask(asdict(Ask(prompts, 8)))
    assert [len(times) for times in answer["token_times"]] == [8] * 40
    assert max(times[0] for times in answer["token_times"]) < min(times[1] for times in answer["token_times"])


def test_the_vocabulary_is_the_one_of_the_pool(story_model: Path, pool: Pool) -> None:
    vocabulary = pool.vocabulary
    controls = [token for token, kind in enumerate(vocabulary.kinds) if kind & TokenKind.CONTROL]
    for module in PROGRAMS:
        with spoken(module, story_model) as program:
            ready = program.ready
        assert (ready["num_vocab"], ready["controls"]) == (len(vocabulary), controls)
        assert ready["bos"] == (vocabulary.bos if vocabulary.add_bos else None)


def test_the_bare_loop_ends_where_the_pool_ends(story_model: Path, pool: Pool) -> None:
    """The same chain, seed and prompt draw the same tokens, so the text ends after the same number of them."""
    expected = [pool.submit(ENDING, Sampling(seed=seed), max_tokens=60, reuse_prefix=False) for seed in range(2, 5)]
    lengths = [len(job.result(60).ids) for job in expected]
    with spoken("engine.llama.bare_loop", story_model) as program:
        answers = [program.ask(asdict(Ask([ENDING], 60, seed=seed, ignores_end=False))) for seed in range(2, 5)]
        endless = program.ask(asdict(Ask([ENDING], 60, seed=2)))
    assert [len(answer["token_times"][0]) for answer in answers] == lengths
    assert min(lengths) < 60 == len(endless["token_times"][0])


def test_create_completion_ends_unless_that_is_ignored(story_model: Path) -> None:
    with spoken("engine.llama.high_level", story_model) as program:
        answers = [program.ask(asdict(Ask([ENDING], 60, seed=seed, ignores_end=False))) for seed in range(1, 9)]
        endless = [program.ask(asdict(Ask([ENDING], 60, seed=seed))) for seed in range(1, 9)]
    assert min(len(answer["token_times"][0]) for answer in answers) < 60
    assert [len(answer["token_times"][0]) for answer in endless] == [60] * 8
