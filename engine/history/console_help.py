"""Help for the SQL console: descriptions of the history's columns, and ready-made queries."""

from typing import NamedTuple

from engine.samples import METRICS


class Ready(NamedTuple):
    """A ready-made query and its display name."""

    name: str
    sql: str


COMMENTS: dict[tuple[str, str], str] = {
    ("runs", "created_at"): "UTC",
    ("runs", "deleted_at"): "UTC; set while a deletion can still be undone",
    ("runs", "origin"): "measured, or the source of an import",
    ("runs", "machine_hash"): "hash of the machine's fingerprint",
    ("runs", "sentence"): "result of the run, in one line",
    ("runs", "plan"): "JSON",
    ("runs", "machine"): "JSON: the fingerprint",
    ("runs", "versions"): "JSON",
    ("runs", "outcome"): "JSON",
    ("cells", "number"): "number of the configuration in its run, as in samples.cell",
    ("cells", "settings"): "JSON: by axis name",
    ("cells", "facts"): "JSON: figures measured once",
    ("samples", "cell"): "cells.number",
    ("samples", "round"): "from 0",
    ("samples", "position"): "order in the run, from 0",
    ("samples", "started_at"): "Unix seconds",
    ("samples", "flag"): "clean, contended, throttled or cold",
    ("samples", "is_anchor"): "sample of the control, to detect drift",
    ("samples", "is_replaced"): "measured again, so excluded",
    **{
        ("samples", metric.name): f"{metric.label}{metric.unit and f', {metric.unit}'}: {metric.formula}"
        for metric in METRICS
    },
    ("trials", "created_at"): "UTC",
    ("trials", "deleted_at"): "UTC; set while a deletion can still be undone",
    ("trials", "parent"): "trial that this one continues or repeats",
    ("trials", "label"): "purpose, empty for an ordinary trial",
    ("trials", "messages"): "JSON: the conversation, empty for a completion",
    ("trials", "sampling"): "JSON",
    ("trials", "request"): "JSON",
    ("trials", "pool"): "JSON",
    ("trials", "tokenizer"): "tokenizers.hash",
    ("trials", "mean_surprise_bits"): "mean of -log2 of the model's probabilities",
    ("trials", "unknown_fields"): "fields of an API call that were ignored",
    ("trials", "engine"): "JSON: external engine that answered, NULL for a pool",
    ("trials", "logprobs_of"): "what its log-probabilities are of",
    ("trials", "client"): "who asked, for a call of the API",
    ("trials", "node"): "node of a cluster whose worker answered, NULL for this machine",
    ("trials", "beams"): "JSON: beam search whose best sequence this is",
    ("steps", "is_prompt"): "prompt token, not a generated one",
    ("steps", "id"): "token id; its bytes are tokenizers.pieces[id + 1]",
    ("steps", "logprob"): "nats, before sampling",
    ("steps", "entropy"): "nats",
    ("steps", "p_final"): "probability just before the draw",
    ("steps", "elapsed_s"): "seconds since the previous step",
    ("steps", "num_kept"): "candidates that sampling kept",
    ("steps", "top_ids"): "candidates, most probable first",
    ("steps", "top_p_final"): "up to the last candidate that sampling kept",
    ("steps", "stage_kept"): "candidates left after each sampler stage",
    ("steps", "stage_mass"): "their probability before any sampler",
    ("steps", "top_cut"): "for each candidate the stage that removed it, from 1, or 0; + 128: forbidden by the grammar",
    ("vectors", "part"): "prompt or output",
    ("vectors", "model_hash"): "hash of the embedding model's files",
    ("vectors", "is_cut"): "the text was longer than the model can read",
    ("vectors", "vector"): "unit length, NULL where there was no text",
    ("saved_views", "query"): "JSON: parameters of the History page's address",
    ("reports", "deleted_at"): "UTC; set while a deletion can still be undone",
    ("reports", "blocks"): "JSON: texts, runs, trends and trials in order",
    ("marks", "kind"): "run, trial or comparison",
    ("marks", "id"): "runs.id, trials.id or comparisons.id",
}

_COUNTED = "runs.deleted_at IS NULL AND samples.flag = 'clean' AND NOT samples.is_replaced"
_MEASURED = """FROM samples
    JOIN cells ON cells.run_id = samples.run_id AND cells.number = samples.cell
    JOIN runs ON runs.id = samples.run_id"""

READY = (
    Ready(
        "Fastest configurations of each model",
        f"""SELECT runs.model_name, cells.label, median(samples.tokens_per_s) AS median_tokens_per_s,
    count(*) AS num_samples, runs.created_at, runs.id AS run_id
{_MEASURED}
WHERE {_COUNTED} AND samples.tokens_per_s IS NOT NULL
GROUP BY runs.id, runs.model_name, runs.created_at, cells.number, cells.label
QUALIFY row_number() OVER (PARTITION BY runs.model_name ORDER BY median(samples.tokens_per_s) DESC) <= 5
ORDER BY runs.model_name, median_tokens_per_s DESC""",
    ),
    Ready(
        "Reference timings",
        """SELECT machine, model, quantisation, engine, instances, threads, tokens_per_s, noted, source, origin
FROM reference_timings
ORDER BY tokens_per_s DESC""",
    ),
    Ready(
        "Memory against speed",
        f"""SELECT cells.label, runs.model_name, median(samples.pss_bytes) / 1e9 AS pss_gb,
    median(samples.tokens_per_s) AS median_tokens_per_s, runs.id AS run_id
{_MEASURED}
WHERE {_COUNTED} AND samples.pss_bytes IS NOT NULL AND samples.tokens_per_s IS NOT NULL
GROUP BY ALL
ORDER BY pss_gb""",
    ),
    Ready(
        "Runs by week",
        """SELECT date_trunc('week', created_at) AS week, count(*) AS num_runs, count(DISTINCT model_name) AS num_models
FROM runs
WHERE deleted_at IS NULL
GROUP BY week
ORDER BY week""",
    ),
    Ready(
        "Disturbed samples by run",
        """SELECT runs.created_at, runs.name, count(*) AS num_samples,
    count(*) FILTER (samples.flag = 'contended') AS contended,
    count(*) FILTER (samples.flag = 'throttled') AS throttled,
    count(*) FILTER (samples.flag = 'cold') AS cold
FROM samples JOIN runs ON runs.id = samples.run_id
WHERE runs.deleted_at IS NULL
GROUP BY runs.id, runs.created_at, runs.name
ORDER BY runs.created_at DESC""",
    ),
    Ready(
        "Most surprising tokens",
        """WITH picked AS (
    SELECT steps.position, steps.id, steps.logprob, trials.title, trials.tokenizer, trials.id AS trial_id
    FROM steps JOIN trials ON trials.id = steps.trial_id
    WHERE trials.deleted_at IS NULL AND NOT steps.is_prompt AND steps.logprob IS NOT NULL
    ORDER BY steps.logprob
    LIMIT 50
)
SELECT title, position, CAST(pieces[picked.id + 1] AS VARCHAR) AS token, -logprob / ln(2) AS surprise_bits,
    exp(logprob) AS p, trial_id
FROM picked JOIN tokenizers ON tokenizers.hash = picked.tokenizer
ORDER BY surprise_bits DESC""",
    ),
    Ready(
        "Ten slowest tokens",
        """WITH picked AS (
    SELECT steps.position, steps.id, steps.elapsed_s, trials.title, trials.tokenizer, trials.id AS trial_id
    FROM steps JOIN trials ON trials.id = steps.trial_id
    WHERE trials.deleted_at IS NULL AND NOT steps.is_prompt AND steps.position > 0
    ORDER BY steps.elapsed_s DESC NULLS LAST
    LIMIT 10
)
SELECT title, position, CAST(pieces[picked.id + 1] AS VARCHAR) AS token, 1000 * elapsed_s AS ms, trial_id
FROM picked JOIN tokenizers ON tokenizers.hash = picked.tokenizer
ORDER BY ms DESC""",
    ),
    Ready(
        "Trials by model",
        """SELECT model_name, count(*) AS num_trials, sum(num_generated) AS num_tokens,
    avg(mean_surprise_bits) AS mean_surprise_bits,
    median((num_generated - 1) / decode_s) FILTER (decode_s > 0 AND num_generated > 1) AS decode_per_s
FROM trials
WHERE deleted_at IS NULL
GROUP BY model_name
ORDER BY num_tokens DESC""",
    ),
)
