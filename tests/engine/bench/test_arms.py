"""Other runtimes as targets: measured like the pool, stopped like it, and llama-bench run with the pool's flags."""

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.bench.analysis.time_breakdown import INSIDE
from engine.bench.baselines.arms import ProgramTarget, missing_engines, open_target
from engine.bench.baselines.llama_bench import LlamaBench, flags
from engine.bench.baselines.llama_bench_program import PROGRAM
from engine.bench.measurement.target import Target
from engine.bench.measurement.token_parts import PARTS
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import ARMS, Cell, Plan
from engine.errors import BenchTimeout, ModelError, ProgramFailed, WorkerDied
from engine.models import llama_programs
from engine.models.llama_programs import find_program
from engine.specs import PoolSpec

pytestmark = pytest.mark.slow

WITHIN_S = 60.0
PYTHON_ARMS = ("loop", "create_completion")


@pytest.fixture
def cell(story_model: Path) -> Any:
    """Factory for the cell of a runtime."""

    def make(arm: str, pool: dict[str, Any] | None = None, **workload: Any) -> Cell:
        return cells_of(
            Plan(
                question="python",
                model=str(story_model),
                axes={"arm": (arm,)},
                pool={"instances": 1, "threads": 1, **(pool or {})},
                workload={"num_prompt": 32, "num_generated": 16, **workload},
            )
        )[0]

    return make


@pytest.fixture(params=(*PYTHON_ARMS, "pool"))
def target(request: pytest.FixtureRequest, cell: Any) -> Iterator[Target]:
    opened = open_target(cell(request.param))
    yield opened
    opened.close()


def fake_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Install a shell script in place of llama-bench."""
    path = tmp_path / "llama-bench"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("LOGITBENCH_LLAMA_BENCH", str(path))


# Measurements


def test_a_sample_lasts_a_second_and_its_parts_add_up(target: Target) -> None:
    target.warm_up(WITHIN_S)
    before = time.time()
    measured = target.sample(1, WITHIN_S)
    facts, metrics = target.facts, measured.metrics
    assert measured.duration_s >= 1
    assert before <= measured.started_at <= time.time()
    parts = {name: facts[f"{name}_part_s"] for name in PARTS}
    assert min(parts.values()) >= 0
    assert min(parts[name] for name in (*INSIDE, "sample")) > 0
    assert sum(parts.values()) == pytest.approx(1 / metrics["end_to_end_per_s"], rel=0.1)
    assert sum(parts[name] for name in INSIDE) <= sum(parts.values())
    assert 0 < metrics["decode_share"] <= 1
    assert metrics["decode_per_s"] == pytest.approx(1 / metrics["tpot_s"])
    assert metrics["pss_bytes"] > 10e6
    assert facts["repetitions"] > 1


def test_every_arm_gives_the_facts_of_loading(target: Target) -> None:
    assert target.facts["interpreter_s"] > 0
    assert target.facts["load_warm_s"] > 0


@pytest.mark.parametrize("arm", PYTHON_ARMS)
def test_the_same_seed_asks_the_same_ids_as_the_pool(arm: str, cell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is then the only difference between two runtimes."""
    asked: dict[str, list[int]] = {}
    opened = open_target(cell(arm, depth=24))
    assert isinstance(opened, ProgramTarget)
    answer = opened._program.ask

    def ask(question: Any, deadline: Any) -> Any:
        asked.setdefault(arm, question["prompts"][0])
        return answer(question, deadline)

    monkeypatch.setattr(opened._program, "ask", ask)
    opened.sample(7, WITHIN_S)
    opened.close()
    pool_target: Any = open_target(cell("pool", depth=24))
    submit = pool_target.engine.submit

    def note(prompt: list[int], *arguments: Any, **named: Any) -> Any:
        if named["max_tokens"] == 16:
            asked.setdefault("pool", prompt)
        return submit(prompt, *arguments, **named)

    monkeypatch.setattr(pool_target.engine, "submit", note)
    pool_target.sample(7, WITHIN_S)
    pool_target.close()
    assert asked[arm] == asked["pool"]
    assert len(asked[arm]) == 56


def test_texts_are_asked_as_they_are(cell: Any) -> None:
    opened = open_target(cell("loop", asked="prompts", prompts=("Once upon a time",)))
    measured = opened.sample(0, WITHIN_S)
    assert measured.metrics["requests_per_s"] > 1
    assert opened.facts["tokenise_part_s"] > 0
    opened.close()


def test_a_prompt_alone_has_no_tokens_to_time(cell: Any) -> None:
    opened = open_target(cell("loop", num_generated=0))
    measured = opened.sample(0, WITHIN_S)
    assert measured.metrics["prefill_per_s"] > 0
    assert measured.metrics["decode_per_s"] != measured.metrics["decode_per_s"]
    opened.close()


# Failures


def test_a_killed_program_is_a_dead_worker(cell: Any) -> None:
    opened = open_target(cell("loop"))
    assert isinstance(opened, ProgramTarget)
    opened.warm_up(WITHIN_S)
    os.kill(opened._program.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="runs engine.llama.bare_loop was killed"):
        opened.sample(0, WITHIN_S)
    opened.close()


def test_a_program_that_hangs_is_ended_in_time(cell: Any) -> None:
    opened = open_target(cell("loop"))
    assert isinstance(opened, ProgramTarget)
    pid = opened._program.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(BenchTimeout, match=r"took longer than 0\.[12]"):
        opened.sample(0, 0.2)
    assert not psutil.pid_exists(pid)


def test_closing_from_another_thread_ends_a_sample(target: Target) -> None:
    closer = threading.Timer(0.3, target.close)
    closer.start()
    began = time.monotonic()
    with pytest.raises(Exception, match="closed|was stopped before it answered"):
        while time.monotonic() < began + WITHIN_S:
            target.sample(0, WITHIN_S)
    closer.join()


@pytest.mark.parametrize("arm", PYTHON_ARMS)
def test_a_broken_model_is_an_error_at_once(arm: str, cell: Any, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    given = cell(arm)
    broken = Cell(**{name: getattr(given, name) for name in given.__dataclass_fields__} | {"model": str(path)})
    with pytest.raises(ModelError, match="broken.gguf"):
        open_target(broken)


def test_what_create_completion_cannot_do_is_refused(cell: Any) -> None:
    assert "repacks" in cell("create_completion", {"share_weights": True}).refusal
    assert not cell("loop", {"share_weights": True}).refusal


# llama-bench


def test_a_missing_llama_bench_is_reported_with_the_way_to_get_it(cell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_programs, "build_folder", lambda: Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert missing_engines("", ARMS).keys() == {"llama-bench"}
    assert "min)" in missing_engines("", ARMS)["llama-bench"].remedy
    with pytest.raises(ProgramFailed, match="build it"):
        LlamaBench(cell("llama-bench"))


def test_llama_bench_gets_the_flags_of_the_pool() -> None:
    arguments = flags(PoolSpec(threads=3, n_ctx=1024, n_ubatch=128, type_k="q8_0", share_weights=True, load="mlock"))
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert pairs == {
        "-t": "3",
        "-b": "1024",
        "-ub": "128",
        "-ctk": "q8_0",
        "-ctv": "f16",
        "-ngl": "0",
        "-fa": "auto",
        "-lm": "mmap+mlock",
        "--repack": "0",
    }


def test_prompt_and_generation_are_asked_at_their_depth(
    cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """echo "$@" >> "$0.said"
case " $* " in *" -p 0 "*) ns=500000000;; *) ns=250000000;; esac
echo "[{\\"samples_ns\\": [$ns, $ns]}]" """
    fake_bench(tmp_path, monkeypatch, script)
    opened = open_target(cell("llama-bench", depth=8))
    measured = opened.sample(0, WITHIN_S)
    said = (tmp_path / "llama-bench.said").read_text().splitlines()
    assert ["-p 32 -n 0 -d 8" in said[0], "-p 0 -n 16 -d 40" in said[1]] == [True, True]
    assert measured.metrics["prefill_per_s"] == pytest.approx(32 / 0.25)
    assert measured.metrics["decode_per_s"] == pytest.approx(16 / 0.5)
    assert opened.facts["decode_part_s"] == pytest.approx(2 * opened.facts["prefill_part_s"])


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("echo no such model >&2; exit 3", ProgramFailed, "status 3:\nno such model"),
        ("echo '[{'", ProgramFailed, "status 0"),
        ("kill -9 $$", WorkerDied, "signal 9"),
        ("exec sleep 60", BenchTimeout, "within 0.3 s"),
    ],
)
def test_a_failing_llama_bench_is_reported(
    script: str, error: type[Exception], words: str, cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bench(tmp_path, monkeypatch, script)
    with pytest.raises(error, match=words):
        LlamaBench(cell("llama-bench")).warm_up(0.3)


def test_a_closed_llama_bench_measures_no_more(cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bench(tmp_path, monkeypatch, "exec sleep 60")
    opened = LlamaBench(cell("llama-bench"))
    threading.Timer(0.3, opened.close).start()
    with pytest.raises(WorkerDied, match="signal 9"):
        opened.warm_up(WITHIN_S)
    with pytest.raises(WorkerDied, match="closed"):
        opened.sample(0, WITHIN_S)


@pytest.mark.skipif(find_program(PROGRAM) is None, reason="llama-bench is not built")
def test_the_real_llama_bench_measures(cell: Any) -> None:
    opened = open_target(cell("llama-bench"))
    opened.warm_up(WITHIN_S)
    measured = opened.sample(0, WITHIN_S)
    metrics = measured.metrics
    assert metrics["prefill_per_s"] > 0 and metrics["decode_per_s"] > 0
    assert opened.facts["prefill_part_s"] * metrics["prefill_per_s"] == pytest.approx(32 / 16)
    assert opened.facts["decode_part_s"] * metrics["decode_per_s"] == pytest.approx(1)
    of_a_token_s = opened.facts["prefill_part_s"] + opened.facts["decode_part_s"]
    assert metrics["end_to_end_per_s"] * of_a_token_s == pytest.approx(1)
    assert metrics["tpot_s"] == pytest.approx(1 / metrics["tokens_per_s"])
    assert opened.facts["rest_part_s"] == pytest.approx(0, abs=1e-12)
