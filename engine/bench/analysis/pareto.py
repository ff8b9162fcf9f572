"""Pareto front of speed, latency and memory: the entries that no other entry dominates."""

from collections.abc import Sequence

import numpy as np

from engine.bench.analysis.entries import Entry
from engine.errors import ConfigError
from engine.samples import METRICS_BY_NAME


def pareto(entries: Sequence[Entry], metrics: Sequence[str]) -> list[str]:
    """Return the keys of the entries that no other dominates, the best by the first metric first.

    An entry dominates another if its median is at least as good in all `metrics` and better in one; METRICS defines
    whether more or less is better. Entries that lack a metric are left out. Raises ConfigError for no metric, an
    unknown one, and one of which neither more nor less is better.
    """
    if not metrics:
        raise ConfigError("no metrics to compare: name at least one")
    signs = [_sign(name) for name in metrics]
    able = [entry for entry in entries if all(name in entry.cell.metrics for name in metrics)]
    rows = [[sign * e.cell.metrics[name].value for name, sign in zip(metrics, signs, strict=True)] for e in able]
    values = np.array(rows).reshape(-1, len(metrics))
    is_as_good = np.all(values[:, None] >= values[None], axis=2)
    is_better = np.any(values[:, None] > values[None], axis=2)
    dominated = set(np.flatnonzero(np.any(is_as_good & is_better, axis=0)).tolist())
    order = np.argsort(-values[:, 0], kind="stable").tolist()
    return [able[number].key for number in order if number not in dominated]


def _sign(name: str) -> int:
    """Return 1 where more is better, -1 where less is; raises ConfigError for any other metric."""
    metric = METRICS_BY_NAME.get(name)
    if metric is None or metric.is_more_better is None:
        known = ", ".join(name for name, known in METRICS_BY_NAME.items() if known.is_more_better is not None)
        raise ConfigError(f"no Pareto front by {name!r}: must be one of {known}")
    return 1 if metric.is_more_better else -1
