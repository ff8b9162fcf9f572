"""Runtime "llama-bench": llama.cpp's own C++ benchmark as baseline, run with the same flags."""

import math
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.bench.baselines.llama_bench_program import PROGRAM, build_minutes
from engine.bench.measurement.target import SAMPLE_S, Measured
from engine.bench.measurement.token_parts import PartTotals
from engine.bench.planning.plan import Cell
from engine.errors import BenchTimeout, ProgramFailed, WorkerDied
from engine.files import decoded_json
from engine.machine.cores import cores_for
from engine.machine.noise import NoiseWatch
from engine.models.llama_programs import find_program, libraries_for
from engine.process.child import huge_pages
from engine.specs import PoolSpec

_LAST_WORDS = 2000
_NS = 1e-9


class LlamaBench:
    """One configuration run by llama-bench, which loads the model for every sample, outside the time that it measures.

    The prompt is measured after `depth` tokens, and generation after `depth` and the prompt, as in every other runtime.
    The facts hold the parts of the time per token over all samples so far; the only parts are those inside
    llama_decode. End to end are the tokens over the seconds of prompts and tokens together.
    """

    remark = ""

    def __init__(self, cell: Cell) -> None:
        program = find_program(PROGRAM)
        if program is None:
            raise ProgramFailed(f"llama-bench is not built: build it (about {build_minutes()} min) or leave it out")
        self._program, self._cell = program, cell
        self._num_repetitions = 1
        self._parts = PartTotals()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False

    @property
    def facts(self) -> Mapping[str, float]:
        """Repetitions in a sample, and the parts of the time per token so far."""
        return {"repetitions": self._num_repetitions, **self._parts.facts()}

    def warm_up(self, timeout_s: float) -> None:
        """Run one repetition to determine how many make up a sample; llama-bench warms itself up each time."""
        prompt, tokens = self._measure(1, timeout_s)
        self._num_repetitions = math.ceil(SAMPLE_S / (sum(prompt) + sum(tokens)))

    def sample(self, seed: int, timeout_s: float) -> Measured:
        """Run as many repetitions as make up a sample; llama-bench takes no seed."""
        started_at = time.time()
        with NoiseWatch() as watch:
            prompt, tokens = self._measure(self._num_repetitions, timeout_s)
        asked = self._cell.workload
        seconds = {"prefill": sum(prompt), "decode": sum(tokens)}
        self._parts.add(seconds, sum(seconds.values()), max(1, asked.num_generated) * self._num_repetitions)
        metrics = {"workbench_share": watch.use()["workbench_share"]}
        if prompt:
            metrics["prefill_per_s"] = asked.num_prompt * len(prompt) / sum(prompt)
        if tokens:
            per_s = asked.num_generated * len(tokens) / sum(tokens)
            is_user = asked.arrival == "users"
            end_to_end = asked.num_generated * len(tokens) / (sum(prompt) + sum(tokens))
            metrics |= {"tokens_per_s": end_to_end if is_user else per_s, "end_to_end_per_s": end_to_end}
            metrics |= {"decode_per_s": per_s, "tpot_s": 1 / per_s}
        return Measured(started_at, watch.seconds, metrics, watch.values(), watch.flag(), watch.programs())

    def close(self) -> None:
        """Kill the program if it runs; a sample being measured then fails."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()

    def _measure(self, num_repetitions: int, timeout_s: float) -> tuple[list[float], list[float]]:
        """Return the seconds of each repetition of prompt and generation; empty for one that the workload lacks."""
        asked, until = self._cell.workload, time.monotonic() + timeout_s
        prompt, tokens = list[float](), list[float]()
        if asked.num_prompt:
            tests = ["-p", asked.num_prompt, "-n", 0, "-d", asked.depth, "-r", num_repetitions]
            prompt = self._seconds(tests, until, timeout_s)
        if asked.num_generated:
            tests = ["-p", 0, "-n", asked.num_generated, "-d", asked.depth + asked.num_prompt, "-r", num_repetitions]
            tokens = self._seconds(tests, until, timeout_s)
        return prompt, tokens

    def _seconds(self, tests: Sequence[object], until: float, timeout_s: float) -> list[float]:
        words = [str(self._program), "-m", self._cell.model, *flags(self._cell.pool), *map(str, tests), "-o", "json"]
        left_s = max(0.001, until - time.monotonic())
        try:
            found, complaints, code = self._run(words, left_s)
        except subprocess.TimeoutExpired as error:
            raise BenchTimeout(
                f"llama-bench did not finish within {timeout_s:g} s: reduce the workload or allow more time"
            ) from error
        if code < 0:
            raise WorkerDied(f"llama-bench was killed by signal {-code}: run it again")
        rows = _rows(found)
        if code or len(rows) != 1:
            raise ProgramFailed(f"llama-bench exited with status {code}:\n{complaints[-_LAST_WORDS:].strip()}")
        return [_NS * nanoseconds for nanoseconds in rows[0]["samples_ns"]]

    def _run(self, words: Sequence[str], left_s: float) -> tuple[str, str, int]:
        with self._lock:
            if self._is_closed:
                raise WorkerDied("llama-bench was closed before it could measure")
            self._process = process = _start(words, self._program)
        try:
            found, complaints = process.communicate(timeout=left_s)
        finally:
            process.kill()
            process.communicate()
        return found, complaints, process.returncode


def flags(pool: PoolSpec) -> list[str]:
    """Return a pool's parameters as flags of llama-bench."""
    threads = pool.threads or 1
    flash_attn = {None: "auto", True: "on", False: "off"}[pool.flash_attn]
    given: dict[str, object] = {
        "-t": threads,
        "-b": pool.resolved_n_batch,
        "-ub": pool.resolved_n_ubatch,
        "-ctk": pool.type_k,
        "-ctv": pool.type_v,
        "-ngl": pool.n_gpu_layers if pool.n_gpu_layers >= 0 else 999,
        "-fa": flash_attn,
        "-lm": "mmap+mlock" if pool.load == "mlock" else pool.load,
        "--repack": int(not pool.share_weights),
    }
    if pool.pin:
        given["-C"] = hex(sum(1 << core for core in cores_for(0, threads)))
    return [str(word) for pair in given.items() for word in pair]


def _start(words: Sequence[str], program: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | libraries_for(program) | huge_pages(),
    )


def _rows(text: str) -> list[dict[str, Any]]:
    """Parse the output of llama-bench; empty where it is incomplete."""
    try:
        return decoded_json(text, list[dict[str, Any]])
    except ValueError:
        return []
