"""Benchmark samples: the metrics with their formulas, and samples as rows of one structured array."""

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Flag = Literal["clean", "contended", "throttled", "cold"]
FLAGS: tuple[Flag, ...] = ("clean", "contended", "throttled", "cold")
FEWEST_CLEAN = 8
"""Rounds with a clean sample that suffice for a configuration: as many as the first verdict needs, stats.FIRST_LOOK."""


class Metric(NamedTuple):
    """Metric of a sample; is_more_better None: neither direction is better. `formula` is the text of the tooltip."""

    name: str
    label: str
    unit: str
    is_more_better: bool | None
    formula: str


METRICS = (
    Metric("tokens_per_s", "total speed", "tok/s", True, "tokens generated while every stream was busy / that time"),
    Metric("end_to_end_per_s", "end to end", "tok/s", True, "tokens generated / seconds from first submit to the last"),
    Metric("prefill_per_s", "prefill", "tok/s", True, "prompt tokens computed / seconds from queue to first token"),
    Metric("decode_per_s", "decode of one stream", "tok/s", True, "1 / time per token"),
    Metric("ttft_s", "first token", "s", False, "first token decoded − submit (queue + prefill), median over requests"),
    Metric("ttft_p95_s", "first token, p95", "s", False, "95th percentile over requests; needs 20 of them"),
    Metric("tpot_s", "time per token", "s", False, "(last token − first token) / (n − 1), median over requests"),
    Metric("tpot_p95_s", "time per token, p95", "s", False, "95th percentile over requests; needs 20 of them"),
    Metric("gap_p50_s", "gap between tokens, p50", "s", False, "median of all gaps between tokens of one stream"),
    Metric("gap_p95_s", "gap between tokens, p95", "s", False, "95th percentile of all gaps; needs 20 of them"),
    Metric("gap_p99_s", "gap between tokens, p99", "s", False, "99th percentile of all gaps; needs 1,000 of them"),
    Metric("e2e_s", "whole request", "s", False, "first token + time per token × (n − 1), median over requests"),
    Metric("requests_per_s", "requests", "1/s", True, "requests answered / seconds from first submit to last token"),
    Metric("goodput_per_s", "goodput", "1/s", True, "requests answered within the objective / the same seconds"),
    Metric("decode_share", "inside llama_decode", "", None, "seconds inside llama_decode / of the workers' loop"),
    Metric("cpu_cores", "processor use", "cores", None, "processor seconds of all workers / seconds of the sample"),
    Metric("workbench_share", "workbench's own use", "", None, "processor seconds of this process / seconds × cores"),
    Metric("pss_bytes", "memory (PSS)", "B", False, "proportional set size, summed over the workers"),
    Metric("private_bytes", "private memory", "B", False, "memory no other process shares, summed over the workers"),
    Metric("switches_per_s", "context switches", "1/s", None, "voluntary and involuntary, of all workers / seconds"),
    Metric(
        "sentences_per_s", "embedding", "sent/s", True, "sentences or texts embedded / seconds from submit to the last"
    ),
    Metric(
        "embedded_per_s", "tokens embedded", "tok/s", True, "tokens of these texts, without padding / the same seconds"
    ),
    Metric("compute_share", "workers computing", "", None, "seconds from texts to vectors / seconds × workers"),
)
METRICS_BY_NAME = {metric.name: metric for metric in METRICS}

MAIN_METRICS = ("tokens_per_s", "decode_per_s", "prefill_per_s", "end_to_end_per_s", "sentences_per_s")
"""In order of preference: a run is judged by the first of these that it has."""

ENGINES_QUESTION, ENGINES_METRIC = "engines", "end_to_end_per_s"
"""Question of runs that compare engines, and the metric that judges them, as it counts the same work for each: every
prompt and every token, however slow the engine is."""


def main_metrics(question: str) -> tuple[str, ...]:
    """Return the metrics that judge a run of a question, in order of preference."""
    return (ENGINES_METRIC, *MAIN_METRICS) if question == ENGINES_QUESTION else MAIN_METRICS


SYSTEM_NOISE = (
    "steal_share",
    "pressure_share",
    "throttled_s",
    "other_cores",
    "major_faults",
    "involuntary_switches",
    "mhz",
)
"""System noise during a sample: share of processor time stolen by the hypervisor; share of time in which any task
waited for a processor (PSI); seconds of throttling by the cgroup's quota; cores used by other processes; major page
faults; involuntary context switches of the workers; clock of the cores. NaN where the system does not report it."""

SAMPLE = np.dtype(
    [
        ("cell", "<i4"),
        ("round", "<i4"),
        ("position", "<i4"),
        ("started_at", "<f8"),
        ("duration_s", "<f8"),
        ("flag", "<i1"),
        ("is_anchor", "?"),
        ("is_replaced", "?"),
        *((metric.name, "<f8") for metric in METRICS),
        *((name, "<f8") for name in SYSTEM_NOISE),
    ]
)
"""cell: number of the configuration within the run; round: from 0; position: in the order of the run, from 0;
started_at: Unix seconds; flag: index into FLAGS; is_anchor: a sample of the control; is_replaced: measured again after
the control drifted, so stored but not counted; the rest as in METRICS and SYSTEM_NOISE, NaN where not measured."""

Samples = npt.NDArray[np.void]


def make_sample(**values: Any) -> Samples:
    """Return one SAMPLE row, shape (1,); fields not given are 0, metrics and system noise NaN."""
    sample = np.zeros(1, SAMPLE)
    for name in (*METRICS_BY_NAME, *SYSTEM_NOISE):
        sample[name] = np.nan
    for name, value in values.items():
        sample[name] = value
    return sample


def no_samples() -> Samples:
    """Return an empty array of samples."""
    return np.zeros(0, SAMPLE)


def is_counted(samples: Samples) -> npt.NDArray[np.bool_]:
    """Return the mask of a run's samples that medians and verdicts use, shape (n,).

    Decided once for all configurations: only clean samples where every configuration has them in at least FEWEST_CLEAN
    rounds or in all of its rounds; else all samples, so that no configuration is judged by quiet moments and another
    by disturbed ones. Replaced samples never count.
    """
    kept: npt.NDArray[np.bool_] = ~samples["is_replaced"]
    clean: npt.NDArray[np.bool_] = kept & (samples["flag"] == FLAGS.index("clean"))
    if np.array_equal(clean, kept):
        return kept
    keys, group = np.unique(samples["cell"][kept].astype(np.int64) << 32 | samples["round"][kept], return_inverse=True)
    is_clean = np.bincount(group, clean[kept]) > 0
    _, cell = np.unique(keys >> 32, return_inverse=True)
    num, num_clean = np.bincount(cell), np.bincount(cell, is_clean)
    return clean if np.all(num_clean >= np.minimum(num, FEWEST_CLEAN)) else kept
