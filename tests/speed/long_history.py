"""A history as it may be after years: 10,000 runs, 1,000,000 samples, 10,000 trials, 1,000,000 token steps, of random
numbers; written once."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from engine.bench.planning.axes import AXES
from engine.bench.planning.plan import Plan
from engine.history import History, run_columns
from engine.history.columns import tokenizer_row
from engine.history.database_writer import insert_row, insert_rows
from engine.jsonable import spec_to_dict
from engine.runs import CellRecord
from engine.samples import FLAGS, METRICS, SAMPLE, SYSTEM_NOISE, Samples
from engine.specs import PoolSpec, Request, Sampling
from engine.step_parts import INSPECTED
from engine.vocabulary import Vocabulary
from tests.speed.common import MODELS

Filled = TypeVar("Filled")

PATH = MODELS / "long-history-1.duckdb"
NUM_RUNS, CELLS_A_RUN, SAMPLES_A_CELL = 10_000, 4, 25
NUM_TRIALS, STEPS_A_TRIAL, NUM_CANDIDATES = 10_000, 100, 10
CHUNK = 1_000  # runs or trials of one insert
FIRST_DAY, NUM_DAYS = datetime(2026, 1, 1, tzinfo=UTC), 320

MODEL_NAMES = [
    f"{family}-{size}-{quantisation}"
    for family, size in (("mistral", "7b"), ("llama", "1.1b"), ("qwen2.5", "0.5b"), ("story", "7m"))
    for quantisation in ("Q4_K_M", "Q5_K_M", "Q8_0")
]
MACHINES = [f"Processor {name} @ 2.00GHz" for name in ("A", "B", "C", "D", "E")]
QUESTIONS = ("speed", "settings", "python", "users")
SYLLABLES = ("ca", "stle", "mou", "ntain", "ri", "ver", "lan", "tern", "fo", "rest", "gar", "den", "win", "ter")
WORDS = [f"{first}{second}{third}" for first in SYLLABLES for second in SYLLABLES for third in SYLLABLES]
VOCABULARY = Vocabulary(
    pieces=tuple(f" {word}".encode() for word in WORDS),
    kinds=bytes(len(WORDS)),
    names={},
    bos=None,
    add_bos=False,
    add_space_prefix=False,
)


def long_history() -> Path:
    """Path of the file, written on the first use, which takes a minute."""

    def fill(history: History) -> None:
        for table, rows in (*_all_runs(), *_all_trials()):
            history.file.write(partial(insert_rows, table=table, rows=rows)).result()

    write_once(PATH, fill)
    return PATH


def write_once(path: Path, fill: Callable[[History], Filled]) -> Filled | None:
    """Have a history with the tokenizer written, and what `fill` gives; None where the file was there before."""
    if path.is_file():
        return None
    MODELS.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    for left in (unfinished, Path(f"{unfinished}.wal")):
        left.unlink(missing_ok=True)
    print(f"Writing {path.name} once …", file=sys.stderr)
    with History.open(unfinished) as history:
        history.file.write(lambda cursor: insert_row(cursor, "tokenizers", tokenizer_row(VOCABULARY))).result()
        found = fill(history)
    os.replace(unfinished, path)
    return found


# Runs


def _all_runs() -> Iterator[tuple[str, pa.Table]]:
    random = np.random.default_rng(0)
    for first in range(0, NUM_RUNS, CHUNK):
        numbers = np.arange(first, first + CHUNK)
        ids = [id_at(FIRST_DAY + timedelta(days=NUM_DAYS * number / NUM_RUNS), random) for number in numbers.tolist()]
        models = [MODEL_NAMES[number] for number in random.integers(len(MODEL_NAMES), size=CHUNK)]
        runs = [_run(*each, random) for each in zip(numbers.tolist(), ids, models, strict=True)]
        yield "runs", pa.Table.from_pylist(runs)
        yield "cells", pa.concat_tables(_cells(id, model, random) for id, model in zip(ids, models, strict=True))
        yield "samples", _samples(ids, random)


def _run(number: int, id: str, model: str, random: np.random.Generator) -> dict[str, Any]:
    machine = int(random.integers(len(MACHINES)))
    fingerprint = {"hash": f"{machine:016x}", "cpu": MACHINES[machine], "allowed_cores": [0, 1], "threads": 8}
    origin = "measured" if random.random() < 0.9 else "llama-bench"
    created_at = FIRST_DAY + timedelta(days=NUM_DAYS * number / NUM_RUNS)
    plan = Plan(name=f"run {number}", model=f"/models/{model}.gguf", axes={"layout": ("1x2", "2x1")}, rounds=25)
    return {
        "id": id,
        "created_at": created_at.replace(tzinfo=None),
        "name": f"{_words(random, 3)} {number}",
        "question": QUESTIONS[number % len(QUESTIONS)],
        "status": "done",
        "origin": origin,
        "model_name": model,
        "machine_hash": fingerprint["hash"],
        "plan": run_columns.to_json(plan.to_dict()),
        "machine": run_columns.to_json(fingerprint),
        "versions": run_columns.to_json({"llama-cpp-python": f"0.3.{30 + number // 2_000}", "logitbench": "0.1.0"}),
        **run_columns.outcome_columns({"sentence": f"Keep {_words(random, 8)}."}),
    }


def _cells(run_id: str, model: str, random: np.random.Generator) -> pa.Table:
    pool = spec_to_dict(PoolSpec())
    cells = []
    for number in range(CELLS_A_RUN):
        layout = f"{1 + number % 2}x{2 - number % 2}"
        chosen = {
            "layout": layout,
            "parallel": 1 << int(random.integers(7)),
            "n_ctx": 256 << int(random.integers(6)),
            "num_prompt": 32 << int(random.integers(4)),
            "num_generated": 64,
            "model": f"/models/{model}.gguf",
        }
        given = {axis.name: chosen.get(axis.name, pool.get(axis.name)) for axis in AXES}
        settings = {name: value for name, value in given.items() if value is not None}
        cells.append(CellRecord(number=number, label=layout, settings=settings, status="done"))
    return run_columns.cell_rows(run_id, cells)


def _samples(ids: list[str], random: np.random.Generator) -> pa.Table:
    """Every cell once a round; one of eight samples is not clean, a few are replaced."""
    a_run = CELLS_A_RUN * SAMPLES_A_CELL
    position = np.tile(np.arange(a_run), len(ids))
    samples: Samples = np.zeros(len(position), SAMPLE)
    samples["position"], samples["cell"], samples["round"] = position, position % CELLS_A_RUN, position // CELLS_A_RUN
    samples["started_at"], samples["duration_s"] = 1_790_000_000.0 + position, 1.0
    samples["flag"] = np.where(random.random(len(samples)) < 0.125, FLAGS.index("contended"), FLAGS.index("clean"))
    samples["is_replaced"] = random.random(len(samples)) < 0.02
    for name in (*(metric.name for metric in METRICS), *SYSTEM_NOISE):
        samples[name] = np.repeat(random.lognormal(3, 1, len(ids) * CELLS_A_RUN), SAMPLES_A_CELL) * random.normal(
            1, 0.05, len(samples)
        )
    samples["goodput_per_s"] = np.nan
    rows = run_columns.sample_table(samples)
    return rows.append_column("run_id", pa.array(ids).take(pa.array(np.repeat(np.arange(len(ids)), a_run))))


# Trials


def _all_trials() -> Iterator[tuple[str, pa.Table]]:
    random = np.random.default_rng(1)
    for first in range(0, NUM_TRIALS, CHUNK):
        moments = [FIRST_DAY + timedelta(days=NUM_DAYS * number / NUM_TRIALS) for number in range(first, first + CHUNK)]
        ids = [id_at(moment, random) for moment in moments]
        yield "trials", pa.Table.from_pylist([trial_row(*each, random) for each in zip(ids, moments, strict=True)])
        yield "steps", _steps(ids, random)


def trial_row(id: str, moment: datetime, random: np.random.Generator) -> dict[str, Any]:
    """A row of `trials` whose steps are another matter."""
    model = MODEL_NAMES[int(random.integers(len(MODEL_NAMES)))]
    prompt = _words(random, 40)
    sampling = Sampling(temperature=round(float(random.uniform(0, 1.5)), 1), top_k=int(random.integers(1, 100)))
    seconds = {"queue_s": 0.001, "load_s": 0.1, "prefill_s": 0.1, "ttft_s": float(random.uniform(0.05, 0.5))}
    return {
        "id": id,
        "created_at": moment.replace(tzinfo=None),
        "label": "",
        "title": prompt,
        "prompt": prompt,
        "messages": "[]",
        "sampling": run_columns.to_json(spec_to_dict(sampling)),
        "request": run_columns.to_json(spec_to_dict(Request())),
        "pool": run_columns.to_json(spec_to_dict(PoolSpec())),
        "model_name": model,
        "model_path": f"/models/{model}.gguf",
        "model_hash": f"{MODEL_NAMES.index(model):064x}",
        "model_quantisation": model.rpartition("-")[2],
        "model_num_parameters": 7_000_000,
        "versions": "{}",
        "tokenizer": VOCABULARY.hash,
        "prompt_ids": [1, 2, 3],
        "text": _words(random, STEPS_A_TRIAL),
        "finish_reason": "length",
        "seed": int(random.integers(1 << 31)),
        **seconds,
        "decode_s": float(random.uniform(0.5, 5)),
        "num_prompt": 3,
        "num_cached": 0,
        "num_generated": STEPS_A_TRIAL,
        "mean_surprise_bits": float(random.uniform(0.5, 6)),
    }


def _steps(ids: list[str], random: np.random.Generator) -> pa.Table:
    num = len(ids) * STEPS_A_TRIAL
    offsets = pa.array(np.arange(num + 1, dtype=np.int32) * NUM_CANDIDATES)
    logprobs = -np.sort(random.exponential(3, (num, NUM_CANDIDATES)).astype(np.float32), axis=1)
    tokens = random.integers(len(WORDS), size=(num, NUM_CANDIDATES), dtype=np.int32)
    return pa.table(
        {
            "trial_id": pa.array(ids).take(pa.array(np.repeat(np.arange(len(ids)), STEPS_A_TRIAL))),
            "is_prompt": np.zeros(num, bool),
            "position": np.tile(np.arange(STEPS_A_TRIAL, dtype=np.int32), len(ids)),
            "id": tokens[:, 0].copy(),
            "flags": np.full(num, INSPECTED, np.int32),
            "logprob": logprobs[:, 0].astype(np.float64),
            "rank": np.ones(num, np.int32),
            "entropy": random.exponential(2, num),
            "normaliser": random.normal(20, 1, num),
            "p_final": random.random(num),
            "draw": random.random(num),
            "elapsed_s": random.lognormal(-4, 0.3, num),
            "num_kept": np.full(num, NUM_CANDIDATES, np.int32),
            "top_ids": pa.ListArray.from_arrays(offsets, pa.array(tokens.ravel())),
            "top_logprobs": pa.ListArray.from_arrays(offsets, pa.array(logprobs.ravel())),
            "top_p_final": pa.ListArray.from_arrays(offsets, pa.array(np.exp(logprobs).ravel())),
        }
    )


def id_at(moment: datetime, random: np.random.Generator) -> str:
    """A UUIDv7 of that moment."""
    value = int(moment.timestamp() * 1000) << 80 | int.from_bytes(random.bytes(10), "big")
    return str(uuid.UUID(int=value & ~(0xF << 76) & ~(0x3 << 62) | 7 << 76 | 2 << 62))


def _words(random: np.random.Generator, num: int) -> str:
    return " ".join(WORDS[number] for number in random.integers(len(WORDS), size=num))
