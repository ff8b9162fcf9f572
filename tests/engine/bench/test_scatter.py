"""Scatter of samples: what varied by itself, told apart from what something outside disturbed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.analysis.scatter import KINDS, kinds_of, ratios_of, scatter_of
from engine.samples import FLAGS, Samples, is_counted, no_samples
from tests.engine.bench.test_summary import measured

METRIC = "tokens_per_s"


def kinds(samples: Samples) -> list[str]:
    return [KINDS[number] for number in kinds_of(samples, ratios_of(samples, METRIC)).tolist()]


def test_a_sample_is_described_by_what_made_it_differ() -> None:
    samples = measured([30, 41], num_rounds=16, noise_sd=0.0)
    samples[METRIC][2] *= 1.2
    samples[METRIC][4:8] *= 0.5
    for place, flag in enumerate(("contended", "throttled", "cold"), start=4):
        samples["flag"][place] = FLAGS.index(flag)
    samples["is_replaced"][7] = True
    assert kinds(samples)[:9] == [
        "steady", "steady", "stray", "steady", "disturbed", "throttled", "cold", "replaced", "steady",
    ]  # fmt: skip
    found = scatter_of(samples, METRIC)
    assert (found.num_stray, found.num) == (1, 28)
    assert found.spread == pytest.approx(0.0)


@given(st.floats(0.005, 0.03), st.integers(0, 99))
def test_the_spread_is_that_of_the_noise_whatever_is_disturbed(noise_sd: float, seed: int) -> None:
    samples = measured([30, 41, 900], num_rounds=60, noise_sd=noise_sd, seed=seed)
    samples[METRIC][:30] *= 0.3
    samples["flag"][:30] = FLAGS.index("contended")
    assert scatter_of(samples, METRIC).spread == pytest.approx(noise_sd, rel=0.5)


def test_each_sample_stands_beside_the_median_of_what_counts() -> None:
    samples = measured([30, 41], num_rounds=16)
    samples["flag"][:4] = FLAGS.index("contended")
    samples[METRIC][5] = np.nan
    ratios, used = ratios_of(samples, METRIC), is_counted(samples)
    for cell in (0, 1):
        own = (samples["cell"] == cell) & np.isfinite(samples[METRIC])
        assert np.median(ratios[own & used]) == pytest.approx(1)
        assert np.ptp(samples[METRIC][own] / ratios[own]) == pytest.approx(0, abs=1e-9)
    assert math.isnan(ratios[5])


def test_the_sentence_names_the_spread_and_those_far_off() -> None:
    samples = measured([30, 41], num_rounds=16)
    spread = scatter_of(samples, METRIC).spread
    said = f"Samples vary by ±{100 * spread:.1f} % with nothing else running"
    assert scatter_of(samples, METRIC).sentence == f"{said}."
    samples[METRIC][3] *= 2
    assert scatter_of(samples, METRIC).sentence.endswith(", and 1 of 32 undisturbed samples is more than 10 % off.")


@pytest.mark.parametrize("samples", [no_samples(), measured([30, 41], num_rounds=1)])
def test_where_nothing_is_repeated_nothing_is_said(samples: Samples) -> None:
    assert scatter_of(samples, METRIC).sentence == ""
