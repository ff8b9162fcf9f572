"""Medians of samples as queries: the figures of a cell as engine.bench.findings.summary has them, without reading a
sample into Python."""

from collections.abc import Collection, Iterable

from engine.samples import FEWEST_CLEAN, MAIN_METRICS

CHOSEN = "chosen AS (SELECT unnest($ids::UUID[]) AS run_id, unnest($numbers::INTEGER[]) AS cell)"
"""A part of WITH: cells by their runs and numbers."""

IN_CHOSEN = "samples.rowid IN (SELECT samples.rowid FROM samples SEMI JOIN chosen USING (run_id, cell))"
"""Samples of these cells; by rowid, so that figures of no others are read: 80 ms instead of 140 for 200 cells."""


def by_round(metrics: Iterable[str], condition: str = "true") -> str:
    """run_id, cell, round, num_counted, and the median of each metric over the counted samples of that round.

    condition: which `samples` to read, whole cells at least.
    """
    return f"""
        SELECT run_id, cell, round, count(*) AS num_counted, {_medians(metrics)}
        FROM ({_counted(condition)}) GROUP BY run_id, cell, round"""


def by_cell(metrics: Collection[str], condition: str = "true") -> str:
    """run_id, cell, num_counted, and for each metric the median over rounds of the medians of `by_round`."""
    return f"""
        SELECT run_id, cell, sum(num_counted)::BIGINT AS num_counted, {_medians(metrics)}
        FROM ({by_round(metrics, condition)}) GROUP BY run_id, cell"""


def best_of_runs(condition: str = "true") -> str:
    """run_id, best_metric, best: the highest median of a run's cells, by the first of MAIN_METRICS that it has.

    condition: which `samples` to read, whole runs at least.
    """
    first = " ".join(f"WHEN count({name}) > 0 THEN '{name}'" for name in MAIN_METRICS)
    value = " ".join(f"WHEN '{name}' THEN {name}" for name in MAIN_METRICS)
    return f"""
        WITH counted AS ({_counted(condition)}),
        judged AS (SELECT run_id, CASE {first} END AS best_metric FROM counted GROUP BY run_id),
        by_round AS (
            SELECT run_id, best_metric, cell, round, median(CASE best_metric {value} END) AS best
            FROM counted JOIN judged USING (run_id) GROUP BY run_id, best_metric, cell, round
        ),
        by_cell AS (
            SELECT run_id, best_metric, cell, median(best) AS best FROM by_round GROUP BY run_id, best_metric, cell
        )
        SELECT run_id, best_metric, max(best) AS best FROM by_cell GROUP BY run_id, best_metric"""


def _counted(condition: str) -> str:
    """The samples that count, as by engine.samples.is_counted."""
    return f"""
        SELECT * FROM samples WHERE NOT is_replaced AND {condition}
        AND (flag = 'clean' OR run_id NOT IN ({_quiet_runs(condition)}))"""


def _quiet_runs(condition: str) -> str:
    """The runs of which only clean samples count."""
    by_round = f"""
        SELECT run_id, cell, round, bool_or(flag = 'clean') AS is_clean FROM samples
        WHERE NOT is_replaced AND run_id IN (SELECT DISTINCT run_id FROM samples WHERE {condition} AND flag != 'clean')
        GROUP BY run_id, cell, round"""
    by_cell = f"""
        SELECT run_id, count(*) AS num, count(*) FILTER (is_clean) AS num_clean FROM ({by_round})
        GROUP BY run_id, cell"""
    return f"""
        SELECT run_id FROM ({by_cell})
        GROUP BY run_id HAVING bool_and(num_clean >= least(num, {FEWEST_CLEAN}))"""


def _medians(metrics: Iterable[str]) -> str:
    return ", ".join(f"median({name}) AS {name}" for name in metrics)
