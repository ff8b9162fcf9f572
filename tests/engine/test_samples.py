"""Counted samples: one decision for all cells of a run, so that it does not make identical cells differ."""

import numpy as np
import pytest

from engine.bench.analysis.rounds import Rounds
from engine.samples import FEWEST_CLEAN, FLAGS, SAMPLE, Samples, is_counted
from engine.stats import FIRST_LOOK

CONTENDED = FLAGS.index("contended")


def identical(num_cells: int, num_rounds: int, share_clean: float, loss: float, seed: int) -> Samples:
    """Return samples of identical cells, part of them disturbed and then slower by `loss`."""
    random = np.random.default_rng(seed)
    samples = np.zeros(num_cells * num_rounds, SAMPLE)
    samples["cell"] = np.tile(np.arange(num_cells), num_rounds)
    samples["round"] = np.repeat(np.arange(num_rounds), num_cells)
    samples["position"] = np.arange(len(samples))
    is_clean = random.random(len(samples)) < share_clean
    samples["flag"] = np.where(is_clean, 0, CONTENDED)
    samples["tokens_per_s"] = 100 * np.where(is_clean, 1, 1 - loss) * np.exp(random.normal(0, 0.01, len(samples)))
    return samples


def gap(samples: Samples) -> float:
    """Return the relative difference between the highest and the lowest median of a table."""
    medians = [figures["tokens_per_s"].value for figures in Rounds.of(samples).intervals().values()]
    return max(medians) / min(medians) - 1


@pytest.mark.parametrize(("num_cells", "num_rounds"), [(6, 8), (2, 8), (9, 12), (3, 7)])
def test_identical_cells_are_not_apart_for_what_counts(num_cells: int, num_rounds: int) -> None:
    """Counting only clean samples where a cell has any, 6 cells of 8 rounds differed by more in 47 % of the tables."""
    tables = [identical(num_cells, num_rounds, 0.1, 0.08, seed) for seed in range(400)]
    assert sum(gap(table) > 0.05 for table in tables) <= 8


@pytest.mark.parametrize("share_clean", [0.02, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_no_cell_counts_disturbed_samples_that_another_leaves_out(share_clean: float) -> None:
    for seed in range(100):
        samples = identical(1 + seed % 7, 2 + seed % 31, share_clean, 0.5, seed)
        chosen, clean = is_counted(samples), samples["flag"] == 0
        assert chosen.all() or (chosen == clean).all()
        num_clean = np.bincount(samples["cell"][clean], minlength=1 + seed % 7)
        least = min(FEWEST_CLEAN, 2 + seed % 31)
        assert (chosen == clean).all() == (num_clean.min() >= least or clean.all())


def test_a_cell_that_failed_early_decides_nothing_where_it_was_clean() -> None:
    samples = identical(3, 12, 1.0, 0.0, 0)
    samples = samples[(samples["cell"] != 2) | (samples["round"] < 2)]
    samples["flag"][samples["round"] == 5] = CONTENDED
    assert is_counted(samples).tolist() == (samples["round"] != 5).tolist()


def test_what_was_replaced_never_counts() -> None:
    samples = identical(2, 10, 0.1, 0.1, 3)
    samples["is_replaced"][::3] = True
    assert not is_counted(samples)[::3].any()
    assert is_counted(samples).sum() == 13


def test_as_many_rounds_as_the_first_verdict_needs() -> None:
    assert FEWEST_CLEAN == FIRST_LOOK


def test_nothing_of_nothing() -> None:
    assert is_counted(np.zeros(0, SAMPLE)).tolist() == []
