"""One stream in company: adaptive threads beside one thread and all, alone, with another pool, with a busy process."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import monotonic, sleep

from engine import Job, Pool
from engine.models.shapes import Shape
from engine.models.synthetic import write_synthetic
from tests.speed.common import (
    MODELS,
    N_CTX,
    NUM_PROMPT,
    Row,
    at_least,
    at_most,
    interleaved,
    model,
    num_threads,
    prompts,
    ratio,
    sampling,
    token_times,
)

ROUNDS = 12
SHAPE = ""
"""Both models below, or another shape."""
LARGE = "llama-1.1b-32k"
SMALL = Shape(
    architecture="llama", n_vocab=32_000, n_ctx_train=2048, n_embd=1024, n_layer=8, n_head=16, n_head_kv=8, n_ff=4096
)
"""200 MB at Q8_0: the second of two threads gains nothing."""
NUM_TOKENS, NUM_RECOVERING = 192, 24
"""Of a run, and of one while the machine becomes quiet: what is found there is good to one run."""
BACK_WITHIN_S, WATCHED_S = 2.0, 10.0
BUSY = "while True: pass"
_ATTEMPTS = 5

_numbers = count()


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Lines of each model; prompts differ in every run, so that nothing is reused."""
    if shape:
        return _of_model(shape, model(shape), num_rounds)
    return _of_model("1.1 B Q4_K_M", model(LARGE), num_rounds) + _of_model("200 MB Q8_0", _small(), num_rounds)


def _small() -> str:
    path = MODELS / "company-200MB-Q8_0.gguf"
    if not path.is_file():
        MODELS.mkdir(parents=True, exist_ok=True)
        write_synthetic(SMALL, path, "Q8_0")
    return str(path)


def _of_model(name: str, path: str, num_rounds: int) -> list[Row]:
    arms = {"adaptive": None, "one": 1, "all": num_threads()}
    with ExitStack() as opened:
        pools = {
            arm: [opened.enter_context(Pool(path, threads=threads, parallel=1, n_ctx=N_CTX)) for _ in range(2)]
            for arm, threads in arms.items()
        }
        rates = {
            "alone": _rounds(num_rounds, pools, lambda both: _rates(both[:1])[0]),
            "side by side": _rounds(num_rounds, pools, lambda both: min(_rates(both))),
            "beside a busy process": _rounds(num_rounds, pools, _beside_busy),
        }
        full = median(rates["alone"]["adaptive"])
        back = [_back_s(pools["adaptive"][0], full) for _ in range(max(1, num_rounds // 2))]
    rows = []
    for situation, goal in (("alone", 0.98), ("side by side", 0.9), ("beside a busy process", 0.9)):
        found = rates[situation]
        better = "one" if situation == "side by side" else max("one", "all", key=lambda arm: median(found[arm]))
        each = " · ".join(f"{arm} {median(figures):.1f}" for arm, figures in found.items())
        beside = f"{ratio(found['adaptive'], found[better])}; tok/s: {each}"
        value = ratio(found["adaptive"], found[better]).value
        rows.append(at_least(f"{name}, {situation}, over {better}", value, goal, beside))
    beside = f"median {median(back):.1f} s of {len(back)}; full: {full:.1f} tok/s"
    return [*rows, at_most(f"{name}, full speed after company", max(back), BACK_WITHIN_S, beside, unit="s")]


def _rounds(
    num_rounds: int, pools: dict[str, list[Pool]], rate: Callable[[list[Pool]], float]
) -> dict[str, list[float]]:
    """Tokens a second of every arm, once a round, after a run of each that is not counted."""
    for both in pools.values():
        rate(both)
    return interleaved(num_rounds, **{arm: partial(rate, both) for arm, both in pools.items()})


def _job(pool: Pool, num_tokens: int = NUM_TOKENS) -> Job:
    """A run with a prompt of its own; adaptive, as a person's first run is."""
    (ids,) = prompts(1, NUM_PROMPT, most=len(pool.vocabulary), seed=next(_numbers))
    return pool.submit(ids, sampling(pool), max_tokens=num_tokens)


def _rates(pools: list[Pool]) -> list[float]:
    """Tokens a second of each pool while all of them generate."""
    for _ in range(_ATTEMPTS):
        jobs = [_job(pool) for pool in pools]
        for job in jobs:
            job.result()
        times = [token_times(job) for job in jobs]
        start, end = max(one[0] for one in times), min(one[-1] for one in times)
        if end > start:
            return [float(((one > start) & (one <= end)).sum() / (end - start)) for one in times]
    raise SystemExit("The pools never generated at once: nothing to compare.")


def _beside_busy(both: list[Pool]) -> float:
    with _busy():
        return _rates(both[:1])[0]


@contextmanager
def _busy() -> Iterator[None]:
    """A process that uses one core."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], cwd=Path(__file__).parent)
    try:
        sleep(0.3)
        yield
    finally:
        process.kill()
        process.wait()


def _back_s(pool: Pool, full: float) -> float:
    """Seconds from the end of a busy process until a run begins that is as fast as without one."""
    with _busy():
        for _ in range(3):
            _job(pool).result()
        running = _job(pool)
        sleep(0.2)
    ended = monotonic()
    running.cancel()
    running.result()
    while (began := monotonic()) < ended + WATCHED_S:
        rate = _job(pool, NUM_RECOVERING).result().timings.decode_per_s
        if rate is not None and rate >= 0.95 * full:
            return began - ended
    return WATCHED_S
