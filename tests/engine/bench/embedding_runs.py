"""Finished embedding runs with known speeds and cosines, for tests of findings and pages."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from engine.bench.planning.embedding_cells import embedding_cells
from engine.bench.planning.plan import Plan
from engine.embedding.models import EMBEDDED_NAME
from engine.runs import CellRecord, RunRecord
from engine.samples import Samples, make_sample

START = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)
SPEEDS = {"torch": 50.0, "torch-bf16": 85.0}
COSINES = {"torch": 0.9999999, "torch-bf16": 0.9962}
PLAN = Plan(
    name="MiniLM",
    question="embedding",
    model=EMBEDDED_NAME,
    axes={"layout": ("1x2", "2x1"), "backend": ("torch", "torch-bf16")},
    rounds=8,
)


def embedding_run(
    id: str,
    plan: Plan = PLAN,
    *,
    speeds: Mapping[str, float] = SPEEDS,
    cosines: Mapping[str, float] = COSINES,
    machine: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """Return a run of `plan`: two processes are 1.1 times as fast as one, and samples scatter by half a per cent."""
    cells = embedding_cells(plan)
    random = np.random.default_rng(0)
    samples: list[Samples] = []
    for number in range(plan.rounds):
        for cell in cells:
            speed = speeds.get(cell.spec.backend, 70.0) * (1.1 if cell.spec.workers > 1 else 1.0)
            speed *= float(np.exp(random.normal(0, 0.005)))
            place = len(samples)
            samples.append(
                make_sample(
                    cell=cell.number,
                    round=number,
                    position=place,
                    started_at=START.timestamp() + 2 * place,
                    duration_s=1.2,
                    sentences_per_s=speed,
                    embedded_per_s=60 * speed,
                    compute_share=0.97,
                    pss_bytes=4e8 + 6e7 * cell.spec.workers,
                    cpu_cores=1.9,
                )
            )
    records = tuple(
        CellRecord(
            number=cell.number,
            label=cell.label,
            settings=cell.settings,
            status="done",
            facts={"load_warm_s": 5.0, "one_text_s": 0.02, **_agreement(cosines.get(cell.spec.backend))},
        )
        for cell in cells
    )
    values: dict[str, Any] = {
        "id": id,
        "created_at": START,
        "name": plan.name,
        "question": plan.question,
        "status": "done",
        "plan": plan.to_dict(),
        "machine": machine or {"cpu": "Two cores", "cores": 2},
        "versions": {"torch": "2.9.0"},
        "cells": records,
        "samples": np.concatenate(samples),
    }
    return RunRecord(**{**values, **changes})


def _agreement(worst: float | None) -> dict[str, float]:
    return {} if worst is None else {"worst_cosine": worst, "mean_cosine": (1 + worst) / 2, "rank_correlation": worst}
