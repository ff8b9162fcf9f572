"""What the speed programs share: models, prompts, one run of a pool, paired ratios, the lines of the table."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from engine import Completion, Job, Pool, PoolSpec, Sampling
from engine.bench.baselines.arms import open_program
from engine.models.synthetic import write_synthetic
from engine.runs import CellRecord
from engine.samples import Samples
from tests.speed.peers import ROOT

MODELS = ROOT / ".cache" / "speed"
NUM_PROMPT, NUM_TOKENS, N_CTX = 32, 64, 256
BARE_BATCH, BARE_LIMIT_S = 512, 600
FIRST_WORD = 300
"""Ids from here on are words in every synthetic vocabulary: neither control tokens nor bytes."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure, its goal ("" for none), and what stands beside it."""

    figure: str
    value: float
    unit: str = "x"
    goal: str = ""
    is_reached: bool | None = None
    beside: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Ratio(NamedTuple):
    """A ratio over paired rounds: geometric mean and its 95 % interval (t, on the logarithms)."""

    value: float
    low: float
    high: float
    num_rounds: int

    def __str__(self) -> str:
        interval = "" if self.num_rounds < 2 else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.value:.3f}{interval} over {self.num_rounds} rounds"


class Run(NamedTuple):
    """One run of a pool: its completions, seconds from the first submit to the last result, the workers' figures.

    worker_cpu_s: processor seconds of the thread that decides, outside llama_decode.
    """

    completions: list[Completion]
    wall_s: float
    decode_s: float
    loop_s: float
    worker_cpu_s: float
    parent_cpu_s: float
    token_times: list[np.ndarray[Any, np.dtype[np.float64]]]

    @property
    def num_generated(self) -> int:
        """Tokens of all completions."""
        return sum(completion.timings.num_generated for completion in self.completions)

    @property
    def share(self) -> float:
        """Part of the worker loops' wall time that was inside llama_decode."""
        return self.decode_s / self.loop_s

    @property
    def per_s(self) -> float:
        """Tokens per second from the first submit to the last result, prompts included in the time."""
        return self.num_generated / self.wall_s

    @property
    def decode_per_s(self) -> float:
        """Tokens per second while every stream was decoding: after the last first token, before the first end."""
        start = max(times[0] for times in self.token_times)
        end = min(times[-1] for times in self.token_times)
        if end <= start:
            raise SystemExit("The streams of this run never decoded all at once: nothing to compare.")
        num_tokens = sum(int(((times > start) & (times <= end)).sum()) for times in self.token_times)
        return float(num_tokens / (end - start))


class Reporter:
    """Says how far a run is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._num = 0

    def cell(self, record: CellRecord) -> None:
        if record.status == "failed":
            print(f"  {record.label}: {record.reason}", file=sys.stderr)

    def sample(self, sample: Samples) -> None:
        self._num += 1
        print(f"  {self._what}: sample {self._num}    ", end="\r", file=sys.stderr, flush=True)

    def replaced(self, positions: list[int]) -> None:
        pass


def at_least(figure: str, value: float, goal: float, beside: str = "", unit: str = "x") -> Row:
    """A line whose value should not be below its goal."""
    return Row(figure, value, unit, f">= {goal:g}", value >= goal, beside)


def at_most(figure: str, value: float, goal: float, beside: str = "", unit: str = "x") -> Row:
    """A line whose value should not exceed its goal."""
    return Row(figure, value, unit, f"<= {goal:g}", value <= goal, beside)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """How much larger ours are, pair by pair."""
    logs = np.log(np.asarray(ours) / np.asarray(theirs))
    mean, num = float(logs.mean()), len(logs)
    half = 0.0 if num < 2 else float(stats.t.ppf(0.975, num - 1) * stats.sem(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), num)


def paired(figures: dict[int, dict[int, float]], ours: int, theirs: int) -> Ratio:
    """Ratio over the rounds that both have."""
    common = sorted(figures[ours].keys() & figures[theirs].keys())
    return ratio([figures[ours][number] for number in common], [figures[theirs][number] for number in common])


def model(shape: str) -> str:
    """Path of a synthetic model at Q4_K_M, written on the first use."""
    path = MODELS / f"{shape}-Q4_K_M.gguf"
    if not path.is_file():
        MODELS.mkdir(parents=True, exist_ok=True)
        print(f"Writing {path.name} once …", file=sys.stderr)
        write_synthetic(shape, path)
    return str(path)


def prompts(num: int, length: int = NUM_PROMPT, *, most: int, seed: int = 0) -> list[list[int]]:
    """`num` prompts of `length` random words each; no two begin alike."""
    ids: list[list[int]] = np.random.default_rng(seed).integers(FIRST_WORD, most, (num, length)).tolist()
    return ids


def sampling(pool: Pool, seed: int = 1) -> Sampling:
    """llama.cpp's chain, end of sequence barred."""
    vocabulary = pool.vocabulary
    ends = [token for token in range(len(vocabulary)) if vocabulary.is_end(token)]
    return Sampling(seed=seed, logit_bias=tuple((token, -math.inf) for token in ends))


def run(
    pool: Pool, given: list[list[int]], *, top_k: int, max_tokens: int = NUM_TOKENS, is_reused: bool = False
) -> Run:
    """Submit all prompts at once and wait for all; unless it is_reused nothing of them is, so that all is computed."""
    chosen = sampling(pool)
    before, cpu = pool.measure(), process_time()
    jobs = [pool.submit(ids, chosen, max_tokens=max_tokens, top_k=top_k, reuse_prefix=is_reused) for ids in given]
    completions = [job.result() for job in jobs]
    parent_cpu_s = process_time() - cpu
    times = [token_times(job) for job in jobs]
    after = pool.measure()
    return Run(
        completions,
        wall_s=max(float(moments[-1]) for moments in times) - min(job.submitted for job in jobs),
        decode_s=_gained(before, after, "decode_s"),
        loop_s=_gained(before, after, "loop_s"),
        worker_cpu_s=_gained(before, after, "thread_s") - _gained(before, after, "decode_cpu_s"),
        parent_cpu_s=parent_cpu_s,
        token_times=times,
    )


def token_times(job: Job) -> np.ndarray[Any, np.dtype[np.float64]]:
    """When each token was decoded, seconds on the monotonic clock."""
    return job.submitted + np.cumsum(job.steps.records["elapsed_s"])


def _gained(before: list[dict[str, float]], after: list[dict[str, float]], name: str) -> float:
    return sum(worker[name] for worker in after) - sum(worker[name] for worker in before)


def bare(path: str, *, sequences: int, threads: int) -> dict[str, float]:
    """One run of the bare loop in a process of its own, after one prompt that is not counted.

    wall_s and decode_s (seconds, prompts included), decode_per_s of the tokens after the first. The share of wall time
    inside `llama_decode` is what our own loop is held against.
    """
    spec = PoolSpec(parallel=sequences, threads=threads, n_ctx=N_CTX, n_batch=BARE_BATCH, n_ubatch=BARE_BATCH)
    program, ready = open_program("loop", path, spec)
    given = prompts(sequences, most=ready["num_vocab"])
    with closing(program):
        program.ask({"prompts": given[:1], "num_generated": 1}, BARE_LIMIT_S)
        found = program.ask({"prompts": given, "num_generated": NUM_TOKENS}, BARE_LIMIT_S)
    first = max(times[0] for times in found["token_times"]) - found["submitted"]
    rate = sequences * (NUM_TOKENS - 1) / (found["wall_s"] - first)
    decode_s = found["parts"]["prefill_s"] + found["parts"]["decode_s"]
    return {"wall_s": found["wall_s"], "decode_s": decode_s, "decode_per_s": rate}


def output_of(words: Sequence[str | Path], environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Standard output of a program; exits with its last words when it fails. environment: variables besides its own."""
    given = os.environ | environment
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False, env=given)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def num_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def interleaved(num_rounds: int, **arms: Callable[[], float]) -> dict[str, list[float]]:
    """Every arm once a round, the order turned by one each round; gives each arm's figures."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(num_rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(arms[name]())
        print(f"  round {number + 1} of {num_rounds}", end="\r", file=sys.stderr, flush=True)
    return found


def warm(pool: Pool) -> AbstractContextManager[Pool]:
    """The pool after a first run that is not counted: pages read, threads started."""
    run(pool, prompts(1, 8, most=len(pool.vocabulary)), top_k=1, max_tokens=4)
    return pool
