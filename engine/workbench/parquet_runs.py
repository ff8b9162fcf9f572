"""Parquet from elsewhere as runs: a table of samples, or rows of llama-bench."""

import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from engine.bench.exchange.files import run_of
from engine.bench.exchange.llama_bench_rows import checked_row
from engine.bench.exchange.llama_bench_text import MOST_ROWS
from engine.bench.planning.plan import Plan
from engine.content_ids import content_id
from engine.errors import ConfigError
from engine.history.run_file import ALWAYS, COLUMNS, MOST_SAMPLES, checked_samples
from engine.history.trials import as_uuid
from engine.runs import CellRecord, RunRecord
from engine.samples import Samples

MOST_UNPACKED = 1 << 30
RUN_ID, LABEL = "run_id", "label"


def runs_of_parquet(content: bytes, name: str) -> list[RunRecord]:
    """The runs in a table: one for all rows of llama-bench, one for each `run_id` of samples.

    Samples have the columns of engine.samples.SAMPLE, `flag` as its word; `label` names the cell of a row. A run keeps
    its id where that is a UUID. Raises ConfigError for another table and for what no sample can be.
    """
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        _check_size(file.metadata)
        names = file.schema_arrow.names
        if "n_prompt" in names:
            return [replace(run_of(_bench_rows(file.read()), name), id=content_id(content))]
        missing = [column for column in ALWAYS if column not in names]
        if missing:
            raise ConfigError(f"it has columns neither of samples ({missing[0]} is missing) nor of llama-bench")
        known = [column for column in (RUN_ID, LABEL, *COLUMNS) if column in names]
        return list(_runs(file.read(columns=known), content, name))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{name} cannot be read as Parquet: {error}") from error


def _check_size(about: pq.FileMetaData) -> None:
    num_bytes = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if about.num_rows > MOST_SAMPLES or num_bytes > MOST_UNPACKED:
        raise ConfigError(f"it has {about.num_rows:,} rows, {num_bytes:,} bytes; up to {MOST_SAMPLES:,} rows are read")
    if not about.num_rows:
        raise ConfigError("it has no rows")


def _bench_rows(table: pa.Table) -> list[dict[str, Any]]:
    if len(table) > MOST_ROWS:
        raise ConfigError(f"it has more than {MOST_ROWS:,} rows: split it")
    return [
        checked_row(f"row {number}", {key: _plain(value) for key, value in row.items() if value is not None})
        for number, row in enumerate(table.to_pylist())
    ]


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def _runs(table: pa.Table, content: bytes, name: str) -> Iterator[RunRecord]:
    types = {**COLUMNS, RUN_ID: pa.string(), LABEL: pa.string()}
    table = pa.table({column: table[column].cast(types[column]) for column in table.column_names})
    samples = checked_samples(table, lambda row: f"row {row}")
    ids = np.array(table[RUN_ID].to_pylist() if RUN_ID in table.column_names else [None] * len(table), object)
    labels = np.array(table[LABEL].to_pylist() if LABEL in table.column_names else [None] * len(table), object)
    for id in dict.fromkeys(ids.tolist()):
        mine = ids == id
        yield _run(id, samples[mine], labels[mine], content, name)


def _run(id: str | None, samples: Samples, labels: np.ndarray[Any, Any], content: bytes, name: str) -> RunRecord:
    if len(np.unique(samples["position"])) < len(samples):
        raise ConfigError("two samples of one run have the same position")
    known = dict(zip(samples["cell"].tolist()[::-1], labels.tolist()[::-1], strict=True))
    cells = tuple(
        CellRecord(number=number, label=known[number] or f"cell {number}", settings={}, status="done")
        for number in sorted(known)
    )
    return RunRecord(
        id=str(as_uuid(id or "") or content_id(content + (id or "").encode())),
        created_at=datetime.fromtimestamp(float(samples["started_at"].min()), UTC),
        name=name,
        question="speed",
        status="done",
        plan=Plan(name=name, rounds=min(int(samples["round"].max()) + 1, 10_000)).to_dict(),
        machine={},
        versions={},
        cells=cells,
        samples=samples,
        origin=name,
    )
