"""The memory estimate against llama.cpp's own figures, and the refusal with its arithmetic."""

import ctypes
import re
from pathlib import Path

import llama_cpp.llama_cpp as llama
import pytest

from engine.errors import MemoryRefused
from engine.llama import context
from engine.llama.library import start_backend
from engine.llama.model import Model
from engine.models import memory
from engine.models.available import available_memory
from engine.models.gguf import read_model
from engine.models.memory import check_fits, estimate
from engine.specs import PoolSpec

MIB = 1 << 20
SPECS = [
    PoolSpec(parallel=1, n_ctx=256),
    PoolSpec(parallel=16, n_ctx=500, n_ubatch=256),
    PoolSpec(parallel=8, n_ctx=256, type_k="q8_0", type_v="q4_0"),
    PoolSpec(parallel=2, n_ctx=1024, flash_attn=False, type_k="bf16", type_v="f32"),
    PoolSpec(parallel=2, n_ctx=4096, flash_attn=True, n_ubatch=1024),
]


def printed_buffers(path: Path, spec: PoolSpec) -> dict[str, float]:
    """MiB of each buffer, as llama.cpp prints them while it makes a context."""
    lines: list[str] = []

    @llama.llama_log_callback
    def keep(_level: int, text: bytes, _data: object) -> None:
        lines.append(text.decode("utf-8", "replace"))

    model = Model(str(path), PoolSpec(share_weights=True))
    llama.llama_log_set(keep, ctypes.c_void_p(0))
    try:
        context.Context(model, spec, 1, 1).close()
    finally:
        start_backend()
    model.close()
    found = re.findall(r"(KV|compute) buffer size = +([\d.]+) MiB", "".join(lines))
    return {name: float(size) for name, size in found}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.parallel}x{spec.n_ctx}")
def test_kv_is_exact_and_compute_is_near_what_llama_cpp_allocates(synthetic: Path, spec: PoolSpec) -> None:
    printed = printed_buffers(synthetic, spec)
    needed = estimate(read_model(synthetic), spec)
    assert needed.kv / MIB == pytest.approx(printed["KV"], abs=0.006)
    assert 0.97 < needed.compute / MIB / printed["compute"] < 1.2


def test_it_counts_the_rows_of_logits_that_the_context_asks_for() -> None:
    assert memory.SCORED_ROWS == context.SCORED_ROWS


def test_shared_weights_are_counted_once(synthetic: Path) -> None:
    model = read_model(synthetic)
    private, shared = (estimate(model, PoolSpec(instances=3, share_weights=share)) for share in (False, True))
    copied = estimate(model, PoolSpec(instances=3, share_weights=True, load="none"))
    assert shared.weights == model.weights_bytes
    assert private.weights == copied.weights == 3 * model.weights_bytes
    assert private.total - shared.total == 2 * model.weights_bytes
    assert shared.total == shared.weights + 3 * (shared.kv + shared.compute + shared.output + shared.process)


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
        MemoryRefused, match=rf"{model.path.name} needs more .*weights .*KV cache 2 x .*available"
    ) as seen:
        check_fits(model, spec)
    assert f"{needed.total / MIB:,.0f} MiB" in str(seen.value)
    assert f"4 x 512 tokens, {model.n_layer} layers, f16 keys" in str(seen.value)


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
    group(base / "user/app", 2, "max", MIB, 0)
    assert available_memory(tmp_path) > 100 * MIB
    group(base / "user", 2, str(10 * MIB), 7 * MIB, 2 * MIB)
    assert available_memory(tmp_path) == 5 * MIB
    group(base / "user/app", 2, str(4 * MIB), 6 * MIB, MIB)
    assert available_memory(tmp_path) == 0
    own.write_text("5:cpu,memory:/docker/ab\n1:name=systemd:/x\n")
    group(base / "memory", 1, str(20 * MIB), 8 * MIB, MIB)
    assert available_memory(tmp_path) == 13 * MIB
