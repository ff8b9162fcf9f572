"""Finished runs with known speeds, for the tests of findings."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from engine.runs import CellRecord, RunRecord
from engine.samples import Samples, make_sample, no_samples

FIRST_DAY = datetime(2026, 1, 1, 12, tzinfo=UTC)
MACHINE = {
    "cpu": "Reference CPU",
    "threads": 2,
    "allowed_cores": [0, 1],
    "memory_bytes": 25_000_000_000,
    "system": "Linux 6.1",
    "llama": {"commit": "abcdef", "features": "AVX512"},
    "hash": "ab12",
}
VERSIONS = {"llama-cpp-python": "0.3.36", "logitbench": "0.1.0", "python": "3.11.9"}
SETTINGS = {"layout": "1x2", "parallel": 1, "model": "/models/story-Q8_0.gguf", "num_prompt": 128}


def measured_run(
    id: str,
    speeds: list[float],
    *,
    num_rounds: int = 8,
    noise_sd: float = 0.005,
    seed: int = 0,
    day: int = 0,
    settings: list[dict[str, Any]] | None = None,
    also: dict[str, float] | None = None,
    **changes: Any,
) -> RunRecord:
    """Return a run with one cell per speed; by default the cells differ in their number of sequences.

    end_to_end_per_s is 0.9 of the speed, ttft_s its inverse; also: other metrics, the same in every sample.
    """
    own = settings or [{"parallel": 2**number} for number in range(len(speeds))]
    cells = tuple(
        CellRecord(
            number=number,
            label=", ".join(f"{name} {value}" for name, value in own[number].items()),
            settings={**SETTINGS, **own[number]},
            status="done",
        )
        for number in range(len(speeds))
    )
    values: dict[str, Any] = {
        "id": id,
        "created_at": FIRST_DAY + timedelta(days=day),
        "name": id,
        "question": "speed",
        "status": "done",
        "plan": {"model": SETTINGS["model"], "workload": {}},
        "machine": MACHINE,
        "versions": VERSIONS,
        "cells": cells,
        "samples": _samples(speeds, num_rounds, noise_sd, seed, also or {}),
    }
    return RunRecord(**{**values, **changes})


def _samples(speeds: list[float], num_rounds: int, noise_sd: float, seed: int, also: dict[str, float]) -> Samples:
    random = np.random.default_rng(seed)
    made = [no_samples()]
    for number in range(num_rounds):
        for cell, speed in enumerate(speeds):
            seen = speed * math.exp(random.normal(0, noise_sd))
            figures = {"tokens_per_s": seen, "end_to_end_per_s": 0.9 * seen, "ttft_s": 1 / seen, **also}
            place = number * len(speeds) + cell
            made.append(make_sample(cell=cell, round=number, position=place, started_at=1e9 + 10 * place, **figures))
    return np.concatenate(made)
