"""Memory estimate against llama.cpp's own figures and the workers' memory, and the refusal with its arithmetic."""

import ctypes
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest

from engine.errors import MemoryRefused
from engine.llama import context
from engine.llama.library import start_backend
from engine.llama.model import Model
from engine.machine.memory import available_memory, memory_limit
from engine.models import memory
from engine.models.memory import check_fits, estimate
from engine.models.reading import read_model
from engine.models.shapes import Shape
from engine.models.synthetic import write_synthetic
from engine.pool.pool import Pool
from engine.specs import PoolSpec
from engine.units import quantity

MIB = 1 << 20
SPECS = [
    PoolSpec(parallel=1, n_ctx=256),
    PoolSpec(parallel=16, n_ctx=500, n_ubatch=256),
    PoolSpec(parallel=8, n_ctx=256, type_k="q8_0", type_v="q4_0"),
    PoolSpec(parallel=2, n_ctx=1024, flash_attn=False, type_k="bf16", type_v="f32"),
    PoolSpec(parallel=2, n_ctx=4096, flash_attn=True, n_ubatch=1024),
    PoolSpec(parallel=4, n_ctx=2048, type_k="f32", type_v="f32"),
]
_OF_ALL: dict[str, Any] = {"n_ctx_train": 2048, "n_embd": 512, "n_layer": 8, "n_head": 8, "n_head_kv": 4, "n_ff": 1536}
SMALL = {
    "llama": Shape(architecture="llama", n_vocab=8192, **_OF_ALL),
    "qwen2": Shape(architecture="qwen2", n_vocab=16_384, is_tied=True, **_OF_ALL),
    "phi2": Shape(architecture="phi2", n_vocab=8192, n_rot=32, **_OF_ALL),
    "gemma3": Shape(
        architecture="gemma3", n_vocab=16_384, is_tied=True, n_head_width=128, sliding_window=256, **_OF_ALL
    ),
}


@pytest.fixture(scope="module", params=SMALL)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("small") / f"{request.param}.gguf"
    write_synthetic(SMALL[request.param], path, "Q4_0")
    yield path
    path.unlink()


def printed_buffers(
    path: Path, spec: PoolSpec, monkeypatch: pytest.MonkeyPatch, *, has_whole_cache: bool = True
) -> dict[str, float]:
    """Return the MiB of each kind of buffer, as llama.cpp prints them when it loads a model and creates a context."""
    lines: list[str] = []

    def keep(_level: int, text: bytes, _data: object) -> None:
        lines.append(text.decode("utf-8", "replace"))

    callback = llama.llama_log_callback(keep)
    defaults = llama.llama_context_default_params()
    defaults.swa_full = has_whole_cache
    monkeypatch.setattr(llama, "llama_context_default_params", lambda: defaults)
    monkeypatch.setattr("engine.llama.model.start_backend", lambda: None)
    start_backend()
    llama.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        model = Model(str(path), spec)
        context.Context(model, spec, 1, 1).close()
        model.close()
    finally:
        start_backend()
    found: dict[str, float] = {}
    for name, size in re.findall(
        r"(KV|compute|CPU_Mapped model|CPU_REPACK model|AMX model) buffer size = +([\d.]+)", "".join(lines)
    ):
        found[name] = found.get(name, 0.0) + float(size)
    return found


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.parallel}x{spec.n_ctx}")
def test_kv_is_exact_and_compute_is_near_what_llama_cpp_allocates(
    small: Path, spec: PoolSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = printed_buffers(small, spec, monkeypatch)
    needed = estimate(read_model(small), spec)
    assert needed.kv / MIB == pytest.approx(printed["KV"], abs=0.006)
    assert 0.87 < needed.compute / MIB / printed["compute"] < 1.2


@pytest.mark.parametrize(
    "spec", [PoolSpec(parallel=1, n_ctx=2048), PoolSpec(parallel=4, n_ctx=1024, n_ubatch=128), PoolSpec(parallel=3)]
)
def test_layers_with_a_window_would_do_with_what_llama_cpp_gives_them(
    small: Path, spec: PoolSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = estimate(read_model(small), spec)
    printed = printed_buffers(small, spec, monkeypatch, has_whole_cache=False)
    assert needed.kv_windowed / MIB == pytest.approx(printed["KV"], abs=0.012)
    assert (needed.kv_windowed < needed.kv) == ("gemma3" in small.name and spec.n_ctx > 512)


@pytest.mark.slow
@pytest.mark.parametrize("quantisation", ["Q4_0", "Q4_K_M", "Q8_0", "F16"])
def test_the_copies_are_those_that_llama_cpp_makes(
    tmp_path: Path, quantisation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, shape in SMALL.items():
        path = tmp_path / f"{name}.gguf"
        write_synthetic(shape, path, quantisation)
        printed = printed_buffers(path, PoolSpec(parallel=1, n_ctx=256), monkeypatch)
        needed = estimate(read_model(path), PoolSpec(parallel=1, n_ctx=256))
        copies = printed.get("AMX model", 0.0) + printed.get("CPU_REPACK model", 0.0)
        assert needed.copied / MIB == pytest.approx(copies, abs=0.02)
        assert needed.mapped + needed.idle == read_model(path).weights_bytes
        assert needed.mapped / MIB - 0.01 <= printed["CPU_Mapped model"] <= (needed.mapped + needed.idle) / MIB + 0.1
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(("instances", "share"), [(2, True), (1, False)], ids=["shared", "repacked"])
def test_the_workers_take_what_was_estimated(small: Path, instances: int, share: bool) -> None:
    model = read_model(small)
    spec = PoolSpec(instances=instances, threads=1, parallel=8, n_ctx=2048, share_weights=share)
    with Pool(small, **spec.to_dict()) as pool:
        prompts = np.random.default_rng(0).integers(300, model.n_vocab, (instances, 600)).tolist()
        for has_figures in (False, True):
            jobs = [
                pool.submit(ids, max_tokens=2, top_k=10, prompt_logprobs=has_figures, reuse_prefix=False)
                for ids in prompts
            ]
            for job in jobs:
                job.result(60)
        found = pool.measure()
    assert all(worker["num_tokens"] > 600 for worker in found)
    assert estimate(model, spec).resident == pytest.approx(sum(worker["pss_bytes"] for worker in found), rel=0.1)


def test_it_counts_the_rows_of_logits_that_a_decode_may_have(synthetic: Path) -> None:
    model, spec = read_model(synthetic), PoolSpec(parallel=4, n_ctx=2048)
    for n_vocab, num_scored in ((1000, 512), (32_000, 512), (152_064, 110), (600_000, 32)):
        found = estimate(replace(model, n_vocab=n_vocab), spec)
        assert spec.scored_rows(n_vocab) == num_scored
        assert found.output == (4 + num_scored) * n_vocab * 4
    assert PoolSpec(parallel=4, n_ubatch=8, n_batch=8).most_rows(32_000) == 8
    assert spec.scored_rows(0) == 512, "a header may not say"


def test_shared_weights_are_counted_once_and_copies_for_each(synthetic: Path) -> None:
    model = read_model(synthetic)
    private, shared = (estimate(model, PoolSpec(instances=3, share_weights=share)) for share in (False, True))
    copied = estimate(model, PoolSpec(instances=3, share_weights=True, load="none"))
    locked = estimate(model, PoolSpec(instances=3, load="mlock"))
    assert (shared.weights, shared.copied, shared.idle) == (model.weights_bytes, 0, 0)
    assert copied.weights == 3 * model.weights_bytes
    assert private.mapped + private.idle == model.weights_bytes
    assert private.weights == private.mapped + 3 * private.copied > model.weights_bytes
    assert private.total - shared.total == 3 * private.copied - private.idle
    assert private.resident - private.total == private.idle
    assert private.copied >= private.idle > 0
    assert locked.total == locked.resident == private.resident
    assert shared.total == shared.weights + 3 * (shared.kv + shared.compute + shared.output + shared.process)
    assert f"weights {quantity(shared.weights, 'B')} shared + KV" in shared.arithmetic
    mapped, copied_each = quantity(private.mapped, "B"), quantity(private.copied, "B")
    assert f"weights {mapped} shared and 3 × {copied_each} private + KV" in private.arithmetic
    assert "weights 3 ×" in copied.arithmetic


def test_a_larger_vocabulary_and_its_merges_take_memory_in_each_process(synthetic: Path) -> None:
    model = read_model(synthetic)
    larger = replace(model, n_vocab=model.n_vocab + 100_000)
    with_merges = replace(larger, metadata=larger.metadata | {"tokenizer.ggml.model": "gpt2"})
    usual, more, most = (estimate(one, PoolSpec()).process for one in (model, larger, with_merges))
    assert more - usual == 100_000 * memory.TOKEN_BYTES
    assert most - more == larger.n_vocab * memory.MERGE_BYTES


def test_layers_on_a_gpu_are_left_out(synthetic: Path) -> None:
    model = read_model(synthetic)
    assert estimate(model, PoolSpec(n_gpu_layers=-1)).weights == 0
    half = estimate(model, PoolSpec(n_gpu_layers=(model.n_layer + 1) // 2))
    assert 0 < half.kv < estimate(model, PoolSpec()).kv


def test_what_does_not_fit_is_refused_with_the_arithmetic(synthetic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_model(synthetic)
    spec = PoolSpec(instances=2, parallel=4, n_ctx=512)
    needed = check_fits(model, spec)
    assert needed.fits
    monkeypatch.setattr(memory, "available_memory", lambda: needed.total)
    assert check_fits(model, spec).fits
    monkeypatch.setattr(memory, "available_memory", lambda: needed.total - 1)
    with pytest.raises(
        MemoryRefused, match=rf"{model.path.name} needs more .*weights .*KV cache 2 × .*available"
    ) as seen:
        check_fits(model, spec)
    assert quantity(needed.total, "B") in str(seen.value)
    assert f"4 × 512 tokens, {model.n_layer} layers, f16 keys" in str(seen.value)


def test_an_absurd_context_is_refused_for_real(synthetic: Path) -> None:
    with pytest.raises(MemoryRefused):
        check_fits(read_model(synthetic), PoolSpec(parallel=256, n_ctx=1 << 24, instances=256))


def group(folder: Path, version: int, limit: str, usage: int, inactive: int) -> None:
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(limit + "\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {inactive}\n")


def test_available_memory_heeds_control_groups(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    own = tmp_path / "proc/self/cgroup"
    base = tmp_path / "sys/fs/cgroup"
    own.write_text("0::/user/app\n")
    unlimited = available_memory(tmp_path)
    assert unlimited > 100 * MIB
    assert memory_limit(tmp_path) is None
    group(base / "user/app", 2, "max", MIB, 0)
    assert available_memory(tmp_path) > 100 * MIB
    group(base / "user", 2, str(10 * MIB), 7 * MIB, 2 * MIB)
    assert available_memory(tmp_path) == 5 * MIB
    assert memory_limit(tmp_path) == 10 * MIB
    group(base / "user/app", 2, str(4 * MIB), 6 * MIB, MIB)
    assert available_memory(tmp_path) == 0
    own.write_text("5:cpu,memory:/docker/ab\n1:name=systemd:/x\n")
    group(base / "memory", 1, str(20 * MIB), 8 * MIB, MIB)
    assert available_memory(tmp_path) == 13 * MIB
