"""Model folders in benchmarks: measured in the pool as GGUF files are, and refused where only llama.cpp can."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.bench.measurement.ceiling import prefill_ceiling
from engine.bench.measurement.target import open_engine_target
from engine.bench.planning.feasibility import Feasibility
from engine.errors import ConfigError
from engine.models.reading import read_model
from engine.samples import METRICS_BY_NAME
from engine.specs import PoolSpec
from tests.engine.bench.cell_maker import make_cell


def test_a_sample_of_a_folder_has_every_metric(story_folder: Path) -> None:
    target = open_engine_target(make_cell(story_folder, pool={"dtype": "bfloat16"}), sample_s=0.2)
    try:
        target.warm_up(60)
        measured = target.sample(1, 60)
    finally:
        target.close()
    assert set(measured.metrics) == set(METRICS_BY_NAME) - {"sentences_per_s", "embedded_per_s", "compute_share"}
    assert measured.metrics["decode_per_s"] > 0
    assert measured.metrics["pss_bytes"] > 100 << 20  # PyTorch


def test_the_pool_runs_a_folder_and_other_runtimes_do_not(story_folder: Path) -> None:
    cell, found = make_cell(story_folder), Feasibility()
    assert found.refusal(cell) == ""
    for other in (replace(cell, arm="loop"), replace(cell, arm="llama-bench"), replace(cell, build="/opt/llama")):
        assert "llama.cpp runs GGUF files" in found.refusal(other)


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        ({"type_k": "q8_0"}, "have its dtype"),
        ({"flash_attn": True}, "flash_attn"),
        ({"n_ctx": 4096}, "at most 512"),
    ],
)
def test_parameters_of_llama_cpp_are_refused_for_a_folder(story_folder: Path, pool: dict[str, Any], says: str) -> None:
    assert says in Feasibility().refusal(make_cell(story_folder, pool=pool))


def test_a_gguf_file_with_a_dtype_runs_in_transformers_only(story_model: Path) -> None:
    cell, found = make_cell(story_model, pool={"dtype": "float32"}), Feasibility()
    assert found.refusal(cell) == ""
    for arm in ("loop", "llama-bench", "create_completion"):
        assert "with the types of its weights: remove dtype" in found.refusal(replace(cell, arm=arm))
    slow = make_cell(story_model, pool={"dtype": "float32", "flash_attn": True})
    assert "flash_attn: is a parameter of llama.cpp" in found.refusal(slow)


def test_the_prefill_ceiling_of_llama_cpp_is_not_that_of_a_folder(story_folder: Path) -> None:
    with pytest.raises(ConfigError, match="does not run folders"):
        prefill_ceiling(read_model(story_folder))


def test_memory_is_estimated_by_the_dtype(story_folder: Path) -> None:
    full, half = (Feasibility().memory(str(story_folder), PoolSpec(dtype=dtype)) for dtype in ("float32", "bfloat16"))
    assert full is not None and half is not None
    assert full.weights == 2 * half.weights
