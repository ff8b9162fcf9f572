"""Conversion of runs, configurations and samples to database rows and back.

Samples go through Arrow, never through Python rows.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.errors import ConfigError
from engine.history import run_schema
from engine.history.checks import stored_time
from engine.history.trials import as_uuid
from engine.runs import CellRecord, RunRecord, RunSummary
from engine.samples import FLAGS, SAMPLE, Samples

MODEL_CHARACTERS = 200
SENTENCE = "sentence"
"""Key of the outcome for a run's first line."""


def run_row(run: RunRecord) -> dict[str, Any]:
    """Return the run's row of `runs`, by column.

    Raises ConfigError where its id is not a UUID, its time cannot be stored, or a value is not of its type in
    `run_schema`.
    """
    if as_uuid(run.id) is None:
        raise ConfigError(f"id = {run.id!r}: must be a UUID as text")
    return {
        "id": run.id,
        "created_at": stored_time(run.created_at),
        "name": run.name,
        "question": run.question,
        "status": run.status,
        "origin": run.origin,
        "model_name": _model_name(run),
        "machine_hash": str(run.machine.get("hash", "")),
        "plan": _checked_json("plan", run.plan),
        "machine": _checked_json("machine", run.machine),
        "versions": _checked_json("versions", run.versions),
        **outcome_columns(run.outcome),
    }


def outcome_columns(outcome: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of `runs` that an outcome fills. Raises ConfigError as `run_row` does."""
    return {"outcome": _checked_json("outcome", outcome), "sentence": str(outcome.get(SENTENCE, ""))}


def run_of(row: dict[str, Any], cells: tuple[CellRecord, ...], samples: Samples) -> RunRecord:
    """Return the run of a row of `runs`; values of a wrong type, stored by earlier versions, are left out."""
    decoded: dict[str, Any] = {
        name: run_schema.sound(name, msgspec.json.decode(row[name])) for name in run_schema.OF_RUN
    }
    plain = {name: row[name] for name in ("name", "question", "status", "origin")}
    created_at = row["created_at"].replace(tzinfo=UTC)
    return RunRecord(id=str(row["id"]), created_at=created_at, cells=cells, samples=samples, **plain, **decoded)


def summary_of(row: dict[str, Any]) -> RunSummary:
    """Return a run's summary, from a row with its fields as columns."""
    return RunSummary(**{**row, "id": str(row["id"]), "created_at": row["created_at"].replace(tzinfo=UTC)})


def cell_rows(run_id: str, cells: Iterable[CellRecord]) -> pa.Table:
    """Return the configurations' rows of `cells`. Raises ConfigError as `run_row` does."""
    rows = [
        {
            **vars(cell),
            "run_id": run_id,
            "settings": _checked_json("settings", cell.settings),
            "facts": _checked_json("facts", cell.facts),
        }
        for cell in cells
    ]
    texts = ("run_id", "label", "settings", "status", "reason", "facts")
    return pa.Table.from_pylist(rows, pa.schema({"number": pa.int32(), **dict.fromkeys(texts, pa.string())}))


def cell_of(row: dict[str, Any]) -> CellRecord:
    """Return the configuration of a row of `cells`, read as in `run_of`; a fact that was not a finite number is NaN."""
    return CellRecord(
        number=row["number"],
        label=row["label"],
        settings=run_schema.sound("settings", msgspec.json.decode(row["settings"])),
        status=row["status"],
        reason=row["reason"],
        facts=facts_of(run_schema.sound("facts", msgspec.json.decode(row["facts"]))),
    )


def facts_of(facts: Mapping[str, float | None]) -> dict[str, float]:
    """Return decoded facts with NaN for null."""
    return {name: np.nan if value is None else value for name, value in facts.items()}


def sample_rows(run_id: str, samples: Samples) -> pa.Table:
    """Return the samples' rows of `samples`."""
    ids = pa.array([run_id]).take(pa.array(np.zeros(len(samples), np.int32)))
    return sample_table(samples).append_column("run_id", ids)


def sample_table(samples: Samples) -> pa.Table:
    """Return samples as a table with a column per field of SAMPLE: the flag as its word, null for NaN."""
    columns = {name: pa.array(np.ascontiguousarray(samples[name]), from_pandas=True) for name in SAMPLE.names or ()}
    return pa.table({**columns, "flag": pa.array(FLAGS).take(columns["flag"])})


def samples_of(table: pa.Table) -> Samples:
    """Return the samples that `sample_table` wrote; metrics and system noise without a column are NaN."""
    samples = np.zeros(len(table), SAMPLE)
    for name in SAMPLE.names or ():
        if name == "flag":
            samples[name] = pc.index_in(table[name], pa.array(FLAGS)).to_numpy()
        else:
            samples[name] = table[name].to_numpy() if name in table.column_names else np.nan
    return samples


def to_json(value: Any) -> str:
    """Return a value as JSON, including NumPy scalars and arrays; a number that is not finite becomes null."""
    return msgspec.json.encode(value, enc_hook=_plain).decode()


def _checked_json(part: run_schema.Part, values: Mapping[str, Any]) -> str:
    """Return a part of a run as JSON; raises ConfigError naming a value that is not of its type."""
    written = to_json(values)
    try:
        run_schema.check(part, msgspec.json.decode(written))
    except ValueError as error:
        raise ConfigError(f"The run cannot be saved: {error}") from error
    return written


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _model_name(run: RunRecord) -> str:
    """Return the names of the model files in the configurations, or else in the plan."""
    paths = [cell.settings["model"] for cell in run.cells if cell.settings.get("model")] or [run.plan.get("model", "")]
    names = (Path(str(path)).name.removesuffix(".gguf") for path in paths)
    return ", ".join(dict.fromkeys(names))[:MODEL_CHARACTERS]
