"""First guesses of durations: what they count."""

from pathlib import Path
from typing import Any

import pytest

from engine.bench.planning.guesses import guessed_load_s, guessed_sample_s
from engine.models.reading import read_model
from tests.engine.bench.cell_maker import make_cell


@pytest.mark.parametrize(("dtype", "num_bytes"), [("float32", 4), ("bfloat16", 2)])
def test_transformers_reads_the_floats_of_a_file_and_not_its_quantised_weights(
    dtype: Any, num_bytes: int, story_model: Path
) -> None:
    file = read_model(story_model)
    ours, theirs = (make_cell(story_model, pool=pool, num_generated=4096) for pool in ({}, {"dtype": dtype}))
    more = num_bytes * file.num_parameters - file.weights_bytes
    assert more > 0
    sample_s, load_s = (guessed(theirs, file) - guessed(ours, file) for guessed in (guessed_sample_s, guessed_load_s))
    assert sample_s == pytest.approx(4096 * more / 15e9, rel=1e-6)
    assert load_s == pytest.approx(more / 1e9, rel=1e-6)
