"""Transformers in a pool's workers: the same network as llama.cpp's, its exact figures, vocabulary and samplers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.llama.scoring import ScoredSteps, ScoringModel
from engine.models.folder_specs import folder_spec
from engine.models.reading import read_model
from engine.models.tokenizer import Tokenizer
from engine.opening import open_engine
from engine.pool.pool import Pool
from engine.protocol import Engine
from engine.specs import PoolSpec, Sampling

GREEDY = Sampling(temperature=0)
EXACT = PoolSpec(parallel=2, n_ctx=512, threads=1, type_k="f32", type_v="f32", flash_attn=False, share_weights=False)
TEXTS = {
    "a story": "Once upon a time there was a king who had three daughters, and the youngest was so beautiful that the "
    "sun itself, which has seen so much, wondered whenever it shone in her face.\n" * 4,
    "bytes": 'The 12,345 quick brown foxes! Été 🦊 naïve\n\n\t"No," she said  </s> twice.',
    "repeated": "a" * 300,
}


@pytest.fixture(scope="module")
def tokenizers(float_model: Path, story_folder: Path) -> Iterator[tuple[Tokenizer, Tokenizer]]:
    """The tokenizers of file and folder."""
    ours, theirs = Tokenizer(float_model), Tokenizer(story_folder)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture(scope="module")
def engine(story_folder: Path) -> Iterator[Engine]:
    with open_engine(str(story_folder), PoolSpec(parallel=4, n_ctx=512, threads=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def float_pool(float_model: Path) -> Iterator[Pool]:
    with Pool(float_model, **EXACT.to_dict()) as opened:
        yield opened


class Difference(NamedTuple):
    """Differences of two models at the tokens of a text, in nats."""

    kl_mean: float
    kl_max: float
    logprob: float


def difference(
    file: Path, folder: Path, spec: PoolSpec, ids: list[int], tokenizer: Tokenizer, rows: Path
) -> Difference:
    """The difference of a GGUF file and a folder."""
    found = list[ScoredSteps]()
    for path, its_spec, compares in ((file, EXACT, False), (folder, spec, True)):
        model = ScoringModel(path, its_spec, rows, compares=compares, num_candidates=10)
        try:
            model.load(60)
            found.append(model.steps(ids, 1, tokenizer.vocabulary, lambda _done: None))
        finally:
            model.close()
    ours, theirs = (one.steps.records["logprob"] for one in found)
    return Difference(float(found[1].kl.mean()), float(found[1].kl.max()), float(np.abs(ours - theirs).max()))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_same_network_gives_the_same_distributions(
    text: str,
    float_model: Path,
    story_folder: Path,
    tokenizers: tuple[Tokenizer, Tokenizer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids = tokenizers[0].tokenize(text)
    spec = folder_spec(read_model(story_folder), PoolSpec(n_ctx=512, threads=1))
    found = difference(float_model, story_folder, spec, ids, tokenizers[0], tmp_path / "rows")
    with capsys.disabled():
        print(
            f"\n{len(ids)} tokens: KL mean {found.kl_mean:.2g}, max {found.kl_max:.2g}; worst difference of a "
            f"log-probability {found.logprob:.2g} nats"
        )
    assert found.kl_mean <= 1e-6
    assert found.logprob <= 1e-3


def test_bfloat16_differs_from_float32_as_rounding_does(
    float_model: Path, story_folder: Path, tokenizers: tuple[Tokenizer, Tokenizer], tmp_path: Path
) -> None:
    ids = tokenizers[0].tokenize(TEXTS["a story"])
    spec = folder_spec(read_model(story_folder), PoolSpec(n_ctx=512, threads=1, dtype="bfloat16"))
    assert (spec.type_k, spec.type_v) == ("bf16", "bf16")
    found = difference(float_model, story_folder, spec, ids, tokenizers[0], tmp_path / "rows")
    assert 1e-6 < found.kl_mean < 0.01


def test_the_vocabulary_is_llama_cpps(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    ours, theirs = (one.vocabulary for one in tokenizers)
    assert theirs == ours
    assert theirs.hash == ours.hash


@pytest.mark.parametrize("special", [False, True])
def test_a_text_has_the_tokens_that_llama_cpp_gives_it(tokenizers: tuple[Tokenizer, Tokenizer], special: bool) -> None:
    ours, theirs = tokenizers
    for text in (*TEXTS.values(), "", " ", "  two spaces", "<s> begins", "ends</s>", "\n\n", "<unk>"):
        assert theirs.tokenize(text, special=special) == ours.tokenize(text, special=special)


def test_a_scored_prompt_has_llama_cpps_figures(engine: Engine, float_pool: Pool) -> None:
    found = [
        each.submit(TEXTS["a story"], max_tokens=0, top_k=10, prompt_logprobs=True).result(60).prompt_steps
        for each in (float_pool, engine)
    ]
    ours, theirs = (steps.records[1:] for steps in found)
    for name in ("logprob", "entropy"):
        assert np.allclose(ours[name], theirs[name], atol=1e-4)
    assert np.array_equal(ours["rank"], theirs["rank"])
    assert np.array_equal(found[0].top_ids[1:, :3], found[1].top_ids[1:, :3])


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        Sampling(seed=1),
        Sampling(seed=2, dry_multiplier=0.8, repeat_penalty=1.2, xtc_probability=0.5),
        Sampling(seed=3, mirostat=2),
        Sampling(seed=4, grammar='root ::= " " [a-z]+ (" " [a-z]+)+ "."'),
    ],
    ids=["greedy", "chain", "penalties", "mirostat", "grammar"],
)
def test_the_same_seed_draws_the_same_tokens_as_llama_cpp(engine: Engine, float_pool: Pool, sampling: Sampling) -> None:
    ours, theirs = (
        each.submit("Once upon a time", sampling, max_tokens=48, top_k=5, reuse_prefix=False).result(60)
        for each in (float_pool, engine)
    )
    assert theirs.ids == ours.ids
    assert np.allclose(ours.steps.records["p_final"], theirs.steps.records["p_final"], atol=1e-3)


def test_sequences_of_other_lengths_in_a_batch_change_no_token(engine: Engine) -> None:
    prompts = ["Once", "The king's daughter went into the forest, and there", TEXTS["a story"], "He said"]

    def ids(prompt: str) -> list[int]:
        return engine.submit(prompt, GREEDY, max_tokens=20, reuse_prefix=False).result(60).ids

    alone = [ids(prompt) for prompt in prompts]
    before = engine.measure(60)[0]["num_decodes"]
    together = [done.ids for done in engine.map(prompts, GREEDY, max_tokens=20, reuse_prefix=False)]
    assert together == alone
    assert engine.measure(60)[0]["num_decodes"] - before < 60  # of 80 tokens, and their prompts


def test_a_shared_prefix_is_reused(engine: Engine) -> None:
    first = engine.submit(TEXTS["a story"], GREEDY, max_tokens=1).result(60)
    again = engine.submit(TEXTS["a story"] + "She", GREEDY, max_tokens=12).result(60)
    afresh = engine.submit(TEXTS["a story"] + "She", GREEDY, max_tokens=12, reuse_prefix=False).result(60)
    assert again.timings.num_cached >= len(first.prompt_ids) - 2
    assert afresh.timings.num_cached == 0
    assert again.ids == afresh.ids


def test_prompts_that_share_a_prefix_copy_it(engine: Engine) -> None:
    prompts = [f"{TEXTS['a story']}{name}" for name in ("She", "He", "The fox")]
    together = list(engine.map(prompts, GREEDY, max_tokens=8))
    shared = len(engine.tokenize(TEXTS["a story"])) - 2
    assert [done.timings.num_cached >= shared for done in together[1:]] == [True, True]
    for prompt, done in zip(prompts, together, strict=True):
        assert engine.submit(prompt, GREEDY, max_tokens=8, reuse_prefix=False).result(60).ids == done.ids


def test_a_long_text_is_tokenised_outside_the_worker(engine: Engine) -> None:
    text = "The fox. " * 4000
    assert len(engine.tokenize(text)) > 8000
    assert engine.tokenize(text)[:50] == engine.tokenize(text[:1000])[:50]


def test_a_folder_refuses_what_only_llama_cpp_has(story_folder: Path, story_model: Path) -> None:
    refused: tuple[tuple[Any, str], ...] = (
        ({"n_gpu_layers": 1}, "n_gpu_layers"),
        ({"flash_attn": True}, "flash_attn"),
        ({"type_k": "q8_0"}, "type_k"),
        ({"n_ctx": 4096}, "at most 512"),
        ({"dtype": "int8"}, "dtype"),
    )
    for options, names in refused:
        with pytest.raises(ConfigError, match=names):
            Pool(story_folder, **options)
    with pytest.raises(ConfigError, match="dtype"):
        Pool(story_model, dtype="int8")  # type: ignore[arg-type]
