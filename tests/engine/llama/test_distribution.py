"""Figures of a row of logits, against float64 arithmetic on the same logits."""

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from engine.errors import ConfigError, ModelError
from engine.llama import distribution, kernel
from engine.llama.candidates import Candidates
from engine.llama.distribution import Distribution, Drawn, Logits, row_of
from engine.specs import MAX_RECORDED
from engine.step_parts import INSPECTED, RESAMPLED, step_dtype

SIZES = (1, 7, 64, 300, 4096, 32000, 151_936)


def rows(size: int) -> dict[str, Logits]:
    rng = np.random.default_rng(size)
    peaked = rng.normal(size=size)
    peaked[size // 2] = 60
    banned = rng.normal(size=size)
    banned[1:] = np.where(rng.random(size - 1) < 0.5, -np.inf, banned[1:])
    named = {
        "normal": rng.normal(scale=4, size=size),
        "peaked": peaked,
        "banned": banned,
        "flat": np.zeros(size),
        "rising": np.linspace(-200, 0, size),
        "coarse": rng.integers(-3, 3, size),
    }
    return {name: row.astype(np.float32) for name, row in named.items()}


def taken(logits: Logits, token: int, k: int, left: Candidates | None = None) -> np.void:
    """Return the row of a step that took a token."""
    seen, row = Distribution(len(logits)), row_of(logits)
    seen.look(row, k, is_measured=True)
    return step_of(seen.record(row, Drawn(token, 0.25, RESAMPLED), 0.5, k, left), k)


def step_of(written: bytes, k: int) -> np.void:
    step: np.void
    (step,) = np.frombuffer(written, step_dtype(k))
    return step


@pytest.mark.parametrize("size", SIZES)
def test_figures_equal_float64(size: int) -> None:
    for name, row in rows(size).items():
        exact = log_softmax(row.astype(np.float64))
        p = np.exp(exact)
        entropy = -np.sum(p[p > 0] * exact[p > 0])
        for token in (int(row.argmax()), int(row.argmin()), size // 3):
            record = taken(row, token, 1)["record"]
            assert record["logprob"] == pytest.approx(exact[token], abs=2e-6), name
            assert record["logprob"] + record["normaliser"] == pytest.approx(float(row[token]), abs=1e-12), name
            assert record["entropy"] == pytest.approx(entropy, abs=2e-5), name
            assert record["rank"] == 1 + np.count_nonzero(row > row[token]), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 10, 50, 256, 1000])
def test_top_equals_a_full_sort(size: int, k: int) -> None:
    seen = Distribution(size)
    for name, logits in rows(size).items():
        seen.look(row_of(logits), k, is_measured=False)
        top = seen.top[: min(k, size)]
        assert top["id"].tolist() == np.argsort(-logits, kind="stable")[:k].tolist(), name
        assert top["logit"].tolist() == logits[top["id"]].tolist(), name


@pytest.mark.parametrize("size", [8191, 8193, 32000, 151_936])
@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch, size: int, num_threads: int) -> None:
    """Each row gives the same bytes, whichever thread reads which part of it, and however often it is read."""
    monkeypatch.setattr(distribution, "has_one_openmp", lambda: True)
    alone, shared = Distribution(size), Distribution(size)
    shared.use_threads(num_threads)
    for k in (1, 10, 256, 1000):
        for name, logits in rows(size).items():
            row, drawn = row_of(logits), Drawn(size // 3, 0.25, 0)
            alone.look(row, k, is_measured=True)
            expected = alone.record(row, drawn, 0.5, min(k, MAX_RECORDED))
            for _ in range(5):
                shared.look(row, k, is_measured=True)
                assert shared.record(row, drawn, 0.5, min(k, MAX_RECORDED)) == expected, name


@pytest.mark.parametrize("place", [0, 8191, 8192, 31_999])
def test_threads_find_what_is_no_number(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(distribution, "has_one_openmp", lambda: True)
    shared = Distribution(32_000)
    shared.use_threads(2)
    for value in (np.nan, np.inf):
        logits = rows(32_000)["normal"]
        logits[place] = value
        with pytest.raises(ModelError, match="NaN"):
            shared.look(row_of(logits), 10, is_measured=True)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096])
def test_a_step_is_written_with_its_candidates_and_what_the_samplers_left_of_them(size: int) -> None:
    logits, k = rows(size)["normal"], 10
    order = np.argsort(-logits, kind="stable")
    kept = order[: min(3, size)]
    left, dist = Candidates(size), llama.llama_sampler_init_dist(1)
    left.fill(kept, logits[kept])
    llama.llama_sampler_apply(dist, left.pointer)
    llama.llama_sampler_free(dist)
    step = taken(logits, left.token, k, left)
    record = step["record"]
    assert [record[name] for name in ("id", "draw", "elapsed_s")] == [left.token, 0.25, 0.5]
    assert (record["flags"], record["num_kept"]) == (RESAMPLED | INSPECTED, len(kept))
    num, missing = min(k, size), max(k - size, 0)
    assert step["top_ids"].tolist() == [*order[:num], *[-1] * missing]
    logprobs = log_softmax(logits.astype(np.float64))[order[:num]]
    np.testing.assert_allclose(step["top_logprobs"], [*logprobs, *[0] * missing], atol=2e-6)
    finals = [*softmax(logits[kept]), *[0] * (k - len(kept))]
    np.testing.assert_allclose(step["top_p_final"], finals, atol=1e-6)
    assert record["p_final"] == pytest.approx(finals[kept.tolist().index(left.token)], abs=1e-6)


def test_nothing_is_known_of_a_step_that_was_not_looked_at() -> None:
    seen, row = Distribution(4), row_of(np.zeros(4, np.float32))
    seen.look(row, 1, is_measured=False)
    record = step_of(seen.record(row, Drawn(2, 0.25, 0), 0.5, 0), 0)["record"]
    assert [record[name] for name in ("id", "rank", "draw", "elapsed_s", "flags", "num_kept")] == [
        2,
        0,
        0.25,
        0.5,
        0,
        0,
    ]
    assert np.isnan([record[name] for name in ("logprob", "entropy", "normaliser", "p_final")]).all()


def test_a_scored_token_has_candidates_that_nobody_drew_from() -> None:
    step = taken(np.arange(4, dtype=np.float32), 1, 2)
    assert np.isnan(step["record"]["p_final"])
    assert step["top_ids"].tolist() == [3, 2]
    assert np.isnan(step["top_p_final"]).all()


def test_rank_counts_ties_at_the_better_place() -> None:
    row = np.array([1, 3, 3, 2], np.float32)
    for k in (1, 4):
        assert [taken(row, token, k)["record"]["rank"] for token in range(4)] == [4, 1, 1, 3]


@pytest.mark.parametrize("wrong", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_a_row_that_is_no_distribution_is_refused(wrong: list[float]) -> None:
    with pytest.raises(ModelError, match="NaN or no finite value"):
        Distribution(2).look(row_of(np.array(wrong, np.float32)), 1, is_measured=False)


@pytest.mark.parametrize("place", [0, 2500, 4095, 4099])
def test_nan_is_found_wherever_it_stands(place: int) -> None:
    row = np.zeros(4100, np.float32)
    row[place] = np.nan
    with pytest.raises(ModelError, match="NaN"):
        Distribution(4100).look(row_of(row), 10, is_measured=False)


def test_a_missing_kernel_is_said_with_what_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.kernel.cache_clear()
    monkeypatch.setattr(kernel, "LIBRARY", kernel.LIBRARY.with_name("missing.so"))
    with pytest.raises(ConfigError, match="`make app` compiles it"):
        kernel.kernel()
