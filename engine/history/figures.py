"""SQL queries for the medians of samples.

They compute the figures of a configuration as engine.bench.analysis.summary does, without reading samples into Python.
"""

from collections.abc import Collection, Iterable

from engine.samples import ENGINES_METRIC, ENGINES_QUESTION, FEWEST_CLEAN, MAIN_METRICS

CHOSEN = "chosen AS (SELECT unnest($ids::UUID[]) AS run_id, unnest($numbers::INTEGER[]) AS cell)"
"""WITH clause for a selection of configurations, by run and number."""

IN_CHOSEN = "samples.rowid IN (SELECT samples.rowid FROM samples SEMI JOIN chosen USING (run_id, cell))"
"""Condition for the samples of `chosen`; by rowid, so that only their figures are read: 80 ms instead of 140 ms for 200
configurations."""


def by_round(metrics: Iterable[str], condition: str = "true") -> str:
    """Return a query for run_id, cell, round, num_counted, and each metric's median over the round's counted samples.

    condition: on `samples`; it must select whole configurations at least.
    """
    return f"""
        SELECT run_id, cell, round, count(*) AS num_counted, {_medians(metrics)}
        FROM ({_counted(condition)}) GROUP BY run_id, cell, round"""


def by_cell(metrics: Collection[str], condition: str = "true") -> str:
    """Return a query for run_id, cell, num_counted, and for each metric the median of the rounds' medians."""
    return f"""
        SELECT run_id, cell, sum(num_counted)::BIGINT AS num_counted, {_medians(metrics)}
        FROM ({by_round(metrics, condition)}) GROUP BY run_id, cell"""


def best_of_runs(condition: str = "true") -> str:
    """Return a query for run_id, best_metric, best: the highest median among a run's configurations.

    best_metric: the first of its question's main metrics that the run has. condition: on `samples`; it must select
    whole runs.
    """
    of_engines = f"WHEN question = '{ENGINES_QUESTION}' AND count({ENGINES_METRIC}) > 0 THEN '{ENGINES_METRIC}' "
    first = of_engines + " ".join(f"WHEN count({name}) > 0 THEN '{name}'" for name in MAIN_METRICS)
    value = " ".join(f"WHEN '{name}' THEN {name}" for name in MAIN_METRICS)
    return f"""
        WITH counted AS ({_counted(condition)}),
        judged AS (
            SELECT run_id, CASE {first} END AS best_metric
            FROM counted JOIN (SELECT id AS run_id, question FROM runs) USING (run_id) GROUP BY run_id, question
        ),
        by_round AS (
            SELECT run_id, best_metric, cell, round, median(CASE best_metric {value} END) AS best
            FROM counted JOIN judged USING (run_id) GROUP BY run_id, best_metric, cell, round
        ),
        by_cell AS (
            SELECT run_id, best_metric, cell, median(best) AS best FROM by_round GROUP BY run_id, best_metric, cell
        )
        SELECT run_id, best_metric, max(best) AS best FROM by_cell GROUP BY run_id, best_metric"""


def _counted(condition: str) -> str:
    """Return a query for the samples that count, as in engine.samples.is_counted."""
    return f"""
        SELECT * FROM samples WHERE NOT is_replaced AND {condition}
        AND (flag = 'clean' OR run_id NOT IN ({_quiet_runs(condition)}))"""


def _quiet_runs(condition: str) -> str:
    """Return a query for the runs with disturbed samples of which only the clean samples count."""
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
