"""Roofline: the bytes that a step reads, against sums done by hand, and the advice for each side of the roofline."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bench.analysis.roofline import shares
from engine.bench.measurement.ceiling import ceiling_key
from engine.bench.planning.plan import Cell, Workload
from engine.machine.limits import Limits
from engine.models.experts import weights_read
from engine.models.ggml import TYPES_BY_NAME
from engine.models.gguf import ModelFile
from engine.models.header import TensorInfo
from engine.models.reading import read_model
from engine.models.synthetic import write_synthetic
from engine.specs import PoolSpec
from engine.units import quantity

LIMITS = Limits(machine_hash="a1", num_cores=4, cache_bytes=1 << 20, bandwidth=((1, 2e9), (4, 4e9)), flops=1e11)
NAN = float("nan")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    path = tmp_path_factory.mktemp("shares") / "tiny.gguf"
    write_synthetic("tiny", path)
    return read_model(path)


def cell(pool: PoolSpec, workload: Workload | None = None) -> Cell:
    asked = workload or Workload(num_prompt=100, num_generated=40)
    return Cell(number=0, label="", model="", build="", arm="pool", pool=pool, workload=asked, settings={})


def pool(instances: int = 1, threads: int = 4, parallel: int = 1) -> PoolSpec:
    return PoolSpec(instances=instances, threads=threads, parallel=parallel)


def test_rows_that_are_only_looked_up_do_not_count(tiny: ModelFile, tmp_path: Path) -> None:
    embedding = next(tensor for tensor in tiny.tensors if tensor.name == "token_embd.weight")
    assert weights_read(tiny, 1) == tiny.weights_bytes - embedding.num_bytes
    write_synthetic("tiny-tied", tmp_path / "tied.gguf")
    tied = read_model(tmp_path / "tied.gguf")
    assert weights_read(tied, 1) == tied.weights_bytes


def test_of_experts_only_those_chosen_count(tiny: ModelFile) -> None:
    byte = TYPES_BY_NAME["I8"]
    tensors = (
        TensorInfo("output.weight", (1000,), byte, 0),
        TensorInfo("blk.0.ffn_up_exps.weight", (100, 10, 8), byte, 1000),
    )
    metadata = {**tiny.metadata, "llama.expert_count": 8, "llama.expert_used_count": 2}
    model = replace(tiny, tensors=tensors, metadata=metadata)
    assert weights_read(model, 1) == pytest.approx(1000 + 2000)
    assert weights_read(model, 2) == pytest.approx(1000 + 8000 * (1 - 0.75**2))
    assert weights_read(model, 64) == pytest.approx(9000, rel=1e-6)


def test_bandwidth_is_weights_for_each_step_and_keys_for_each_sequence(tiny: ModelFile) -> None:
    weights, key_row = weights_read(tiny, 1), 8 * 2 * (2 * 64) * 2
    context = 100 + 40 / 2
    one = shares(cell(pool()), tiny, LIMITS, tokens_per_s=200, prefill_per_s=NAN)
    assert one.mbu == pytest.approx(200 * (weights + context * key_row) / 4e9)
    many = shares(cell(pool(2, 2, 5)), tiny, LIMITS, tokens_per_s=1000, prefill_per_s=NAN)
    assert many.mbu == pytest.approx(200 * (weights + 5 * context * key_row) / 4e9)
    few = Workload(num_prompt=100, num_generated=40, arrival="users", users=1)
    user = shares(cell(pool(2, 2, 5), few), tiny, LIMITS, tokens_per_s=200, prefill_per_s=NAN)
    assert user.mbu == pytest.approx(one.mbu)
    assert math.isnan(one.prefill)
    assert not one.fits_in_cache


@pytest.mark.parametrize(
    ("threads", "share", "says"),
    [
        (4, 0.9, r"reads 3\.60 of 4\.00 GB/s of memory bandwidth \(90 %\): memory is the limit, so more threads"),
        (2, 0.9, "memory is the limit, so more threads cannot help"),
        (2, 0.4, r"with 2 of 4 cores: more threads can help, by up to 2\.00 times"),
        (2, 0.75, r"more threads can help, by up to 1\.33 times"),
        (4, 0.3, r"with all cores busy: compute is the limit, so more threads cannot help"),
        (8, 0.3, "compute is the limit"),
        (4, 1.3, r"\(130 %\): some of it comes from the caches"),
    ],
)
def test_the_advice_follows_from_bandwidth_and_cores(tiny: ModelFile, threads: int, share: float, says: str) -> None:
    measured = cell(pool(threads=threads))
    of_one = shares(measured, tiny, LIMITS, tokens_per_s=1, prefill_per_s=NAN).mbu
    found = shares(measured, tiny, LIMITS, tokens_per_s=share / of_one, prefill_per_s=NAN)
    assert found.mbu == pytest.approx(share)
    assert re.search(says, found.says)


def test_prefill_is_a_part_of_the_best_and_never_more(tiny: ModelFile) -> None:
    known = LIMITS.with_prefill(ceiling_key(tiny, 100), 500)
    found = shares(cell(pool()), tiny, known, tokens_per_s=NAN, prefill_per_s=400)
    assert found.prefill == pytest.approx(0.8)
    assert found.says == "Prefill runs at 80 % of the best for such layers on this machine (500 tok/s)."
    assert shares(cell(pool()), tiny, known, tokens_per_s=NAN, prefill_per_s=520).prefill == 1
    idle = shares(cell(pool(threads=1)), tiny, known, tokens_per_s=NAN, prefill_per_s=100)
    assert idle.says.endswith("with 1 of 4 cores.")
    longer = cell(pool(), Workload(num_prompt=300))
    assert math.isnan(shares(longer, tiny, known, tokens_per_s=NAN, prefill_per_s=400).prefill)
    texts = cell(pool(), Workload(asked="prompts", prompts=("a",), num_prompt=100))
    assert math.isnan(shares(texts, tiny, known, tokens_per_s=NAN, prefill_per_s=400).prefill)


def test_weights_in_the_cache_get_exactly_that_statement(tiny: ModelFile, story_model: Path) -> None:
    roomy = Limits.from_dict({**LIMITS.to_dict(), "cache_bytes": 3 * tiny.weights_bytes})
    found = shares(cell(pool(3, 1)), tiny, roomy, tokens_per_s=100, prefill_per_s=100)
    assert found.fits_in_cache
    assert math.isnan(found.mbu)
    assert math.isnan(found.prefill)
    both = quantity(3 * tiny.weights_bytes, "B")
    assert found.says.startswith(f"The weights ({both}) fit in the last-level cache ({both}): memory does not limit")
    assert not shares(cell(pool(4, 1)), tiny, roomy, tokens_per_s=100, prefill_per_s=100).fits_in_cache
    shared = replace(pool(4, 1), share_weights=True)
    assert shares(cell(shared), tiny, roomy, tokens_per_s=100, prefill_per_s=100).fits_in_cache
    reference = replace(LIMITS, cache_bytes=32 << 20)
    assert shares(cell(pool(2, 1)), read_model(story_model), reference, tokens_per_s=9, prefill_per_s=9).fits_in_cache


def test_what_is_not_known_is_not_said(tiny: ModelFile) -> None:
    random = cell(pool(), Workload(arrival="poisson"))
    nothing = shares(random, tiny, LIMITS, tokens_per_s=100, prefill_per_s=100)
    assert math.isnan(nothing.mbu)
    assert nothing.says == ""
    elsewhere = cell(replace(pool(), n_gpu_layers=-1))
    assert "GPU" in shares(elsewhere, tiny, LIMITS, tokens_per_s=100, prefill_per_s=100).says
