"""The memory estimate beside what workers really take (PSS), on models of real width, shared and repacked."""

import numpy as np

from engine import Pool, PoolSpec
from engine.models import estimate, read_model
from tests.speed.common import Row, at_most, model, sampling

ROUNDS = 1
SHAPE = "all"
MOST_OFF = 10.0
"""Percent of the measured memory."""

_SHAPES = ("llama-1.1b-32k", "qwen2.5-0.5b", "phi-2", "gemma-3-1b")
_LAYOUTS = {"shared, 2 instances": (2, True), "repacked": (1, False), "repacked, 2 instances": (2, False)}
_PROMPT = 600
_SCORED = 64
_MB = 1e6


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """The larger deviation of all rounds, for each shape and layout; `shape` is a name, or all of those here."""
    rows = []
    for name in _SHAPES if shape == SHAPE else (shape,):
        path = model(name)
        for layout, (instances, is_shared) in _LAYOUTS.items():
            spec = PoolSpec(instances=instances, threads=1, parallel=4, n_ctx=1024, share_weights=is_shared)
            estimated = estimate(read_model(path), spec).resident
            taken = [pss(path, spec) for _round in range(num_rounds)]
            worst = max(taken, key=lambda found: abs(estimated / found - 1))
            beside = f"{estimated / _MB:,.0f} MB estimated, {worst / _MB:,.0f} MB measured"
            rows.append(
                at_most(f"estimate of {name}, {layout}", 100 * abs(estimated / worst - 1), MOST_OFF, beside, "%")
            )
    return rows


def pss(path: str, spec: PoolSpec) -> float:
    """Bytes of all workers together, after each has computed a whole physical batch and scored a prompt."""
    with Pool(path, **spec.to_dict()) as pool:
        given = np.random.default_rng(0).integers(300, len(pool.vocabulary), (spec.instances, _PROMPT)).tolist()
        for has_figures in (False, True):
            asked = [ids[:_SCORED] if has_figures else ids for ids in given]
            jobs = [
                pool.submit(
                    ids, sampling(pool), max_tokens=2, top_k=10, prompt_logprobs=has_figures, reuse_prefix=False
                )
                for ids in asked
            ]
            for job in jobs:
                job.result()
        figures = pool.measure()
    if any(worker["num_tokens"] < _PROMPT for worker in figures):
        raise SystemExit("One of the instances had nothing to do: its memory says nothing.")
    return sum(worker["pss_bytes"] for worker in figures)
