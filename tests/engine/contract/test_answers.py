"""The contract of engine.protocol.Engine: what a job yields, and what its figures are."""

from dataclasses import replace

import numpy as np
import pytest

from engine.errors import ConfigError, EngineError
from engine.protocol import Engine
from engine.specs import Sampling
from tests.engine.contract.conftest import GREEDY, SPEC


def test_it_says_what_it_can_do(engine: Engine, engine_kind: str) -> None:
    decided = replace(SPEC, share_weights=False)  # where the caller leaves it open
    if engine_kind == "transformers":
        decided = replace(decided, dtype="float32", type_k="f32", type_v="f32")
    elif engine_kind in ("serve", "llama-server"):
        decided = replace(decided, threads=None)  # a server does not tell them
    elif engine_kind == "llama_cpp.server":
        decided = replace(decided, parallel=1, threads_batch=1)
    assert engine.spec == decided
    assert engine.capabilities.num_sequences == decided.parallel
    assert engine.capabilities.n_ctx >= 256
    assert len(engine.vocabulary) > 256 or not engine.capabilities.has_ids
    assert sum(engine.startup) >= 0
    assert engine.num_open == 0


def test_a_job_yields_its_steps_to_early_and_late_readers_and_then_its_completion(engine: Engine) -> None:
    job = engine.submit("Once upon", Sampling(seed=1), max_tokens=12, top_k=4)
    seen = [step.id for step in job]
    done = job.result(60)
    assert seen == list(done.ids) == [step.id for step in job]
    assert (done.finish_reason, len(seen)) in {("length", 12), ("stop", len(seen))}
    assert list(done.prompt_ids) == (engine.tokenize("Once upon") if engine.capabilities.tokenizes else [])
    assert done.text == job.vocabulary.join(list(done.ids)).decode("utf-8", "replace")


def test_figures_are_of_one_distribution(engine: Engine) -> None:
    for step in engine.submit("Once upon", GREEDY, max_tokens=6, top_k=5).result(60).steps:
        assert step.logprob is not None and step.rank is not None
        assert (step.entropy is not None) == (step.p_final is not None) == engine.capabilities.is_exact
        assert [one.logprob for one in step.top] == sorted((one.logprob for one in step.top), reverse=True)
        assert step.logprob == pytest.approx(step.top[step.rank - 1].logprob, abs=1e-5)


def test_without_candidates_there_are_no_figures(engine: Engine) -> None:
    (step,) = engine.submit("Once", max_tokens=1).result(60).steps
    assert (step.logprob, step.rank, step.entropy, list(step.top)) == (None, None, None, [])


def test_the_same_seed_gives_the_same_tokens(engine: Engine) -> None:
    first, second = (
        engine.submit("Once", Sampling(seed=5), max_tokens=10, reuse_prefix=False).result(60).ids for _ in range(2)
    )
    assert first == second


def test_a_prompt_is_scored_without_any_token_generated(engine: Engine) -> None:
    if not engine.capabilities.scores_prompts:
        with pytest.raises(ConfigError, match="cannot score a prompt"):
            engine.submit("Once upon a time", max_tokens=0, prompt_logprobs=True)
        return
    done = engine.submit("Once upon a time", max_tokens=0, top_k=2, prompt_logprobs=True).result(60)
    assert len(done.steps) == 0
    scored = done.prompt_steps.records["logprob"][1:]
    assert len(scored) == len(done.prompt_ids) - 1
    assert np.all(scored <= 0)


def test_a_stop_string_ends_the_text_before_it(engine: Engine) -> None:
    whole = engine.submit("Once upon", GREEDY, max_tokens=24, reuse_prefix=False).result(60).text
    stop = whole[8:11]
    done = engine.submit("Once upon", GREEDY, max_tokens=24, stop=stop, reuse_prefix=False).result(60)
    assert done.finish_reason == "stop"
    assert done.text == whole[: whole.index(stop)]


def test_a_banned_token_is_not_drawn(engine: Engine) -> None:
    first = engine.submit("Once upon", GREEDY, max_tokens=1).result(60).ids[0]
    banned = Sampling(temperature=0, logit_bias=((first, float("-inf")),))
    if not engine.capabilities.has_ids:
        with pytest.raises(ConfigError, match="no token can be named"):
            engine.submit("Once upon", banned, max_tokens=1)
        return
    assert engine.submit("Once upon", banned, max_tokens=1).result(60).ids[0] != first


def test_text_becomes_ids_and_ids_the_text_again(engine: Engine) -> None:
    text = "The king's daughter – été"
    if not engine.capabilities.tokenizes:
        with pytest.raises(ConfigError, match="has no tokenizer"):
            engine.tokenize(text)
        return
    ids = engine.tokenize(text)
    assert engine.vocabulary.join(ids).decode().strip() == text
    assert engine.submit(ids, max_tokens=1).result(60).prompt_ids == tuple(ids)


@pytest.mark.parametrize("prompt", [b"bytes", 7, [1, "a"], [-1], [1 << 40], None])
def test_a_prompt_of_a_wrong_type_is_refused(engine: Engine, prompt: object) -> None:
    with pytest.raises(ConfigError):
        engine.submit(prompt)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        engine.submit("Once", "hot")  # type: ignore[arg-type]


def test_ids_beyond_the_vocabulary_end_the_job_with_an_error(engine: Engine) -> None:
    with pytest.raises(EngineError):
        engine.submit([len(engine.vocabulary) + 5], max_tokens=1).result(60)


def test_its_totals_grow(engine: Engine) -> None:
    before = engine.measure(60)
    engine.submit("Once", max_tokens=4).result(60)
    after = engine.measure(60)
    if not engine.workers():  # the processes of a server are its own
        assert before == after == []
        return
    assert len(before) == len(after) == len(engine.workers()) == SPEC.instances
    assert before[0].keys() == after[0].keys() >= {"pid", "decode_s", "loop_s", "num_decodes", "pss_bytes"}
    assert after[0]["num_tokens"] > before[0]["num_tokens"]
