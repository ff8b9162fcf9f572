"""Import of runs from Parquet: a table of samples, or rows of llama-bench."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine.bench.planning.plan import Plan
from engine.errors import ConfigError
from engine.exchange.llama_bench_files import run_of
from engine.exchange.llama_bench_rows import checked_row
from engine.exchange.llama_bench_text import MOST_ROWS
from engine.exchange.llama_bench_text import MOST_SAMPLES as MOST_BENCH_SAMPLES
from engine.history.parquet_tables import CODED, ParquetTable
from engine.history.run_file import ALWAYS, COLUMNS, MOST_CELLS, MOST_SAMPLES, checked_samples
from engine.history.trials import as_uuid
from engine.ids import content_id
from engine.runs import CellRecord, RunRecord
from engine.samples import Samples

RUN_ID, LABEL = "run_id", "label"
MOST_RUNS = 1_000


def runs_of_parquet(content: bytes, name: str) -> list[RunRecord]:
    """Read the runs of a table: one for all rows of llama-bench, or one for each `run_id` of samples.

    Samples have the columns of engine.samples.SAMPLE, `flag` as a word; `label` names the configuration of a row. A run
    keeps its id if that is a UUID. Raises ConfigError for any other table and for invalid samples.
    """
    try:
        with tempfile.TemporaryFile() as copy:
            copy.write(content)
            copy.flush()
            return _runs_in(copy, content, name)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{name} cannot be read as Parquet: {error}") from error


def _runs_in(file: IO[bytes], content: bytes, name: str) -> list[RunRecord]:
    table = ParquetTable(file, most_rows=MOST_SAMPLES, longest_list=MOST_BENCH_SAMPLES)
    if not table.num_rows:
        raise ConfigError("it has no rows")
    if "n_prompt" in table.names:
        return [replace(run_of(_bench_rows(table), name), id=content_id(content))]
    missing = [column for column in ALWAYS if column not in table.names]
    if missing:
        raise ConfigError(f"it has the columns of neither samples ({missing[0]} is missing) nor llama-bench")
    return list(_runs(table, content, name))


def _bench_rows(table: ParquetTable) -> list[dict[str, Any]]:
    if table.num_rows > MOST_ROWS:
        raise ConfigError(f"it has more than {MOST_ROWS:,} rows: split it")
    rows = (row for piece in table.pieces(dict.fromkeys(table.names)) for row in piece.to_pylist())
    return [
        checked_row(f"row {number}", {key: _plain(value) for key, value in row.items() if value is not None})
        for number, row in enumerate(rows)
    ]


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def _runs(table: ParquetTable, content: bytes, name: str) -> Iterator[RunRecord]:
    types = {**COLUMNS, RUN_ID: CODED, LABEL: CODED}
    whole = pa.concat_tables(table.pieces({column: types[column] for column in types if column in table.names}))
    samples = checked_samples(whole, lambda row: f"row {row}")
    ids, numbers = _coded(whole, RUN_ID)
    if len(ids) > MOST_RUNS:
        raise ConfigError(f"it has {len(ids):,} runs; up to {MOST_RUNS:,} are read")
    labels, places = _coded(whole, LABEL)
    for number in dict.fromkeys(numbers.tolist()):
        mine = numbers == number
        yield _run(ids[number], samples[mine], [labels[place] for place in places[mine].tolist()], content, name)


def _coded(table: pa.Table, column: str) -> tuple[list[str | None], npt.NDArray[np.int64]]:
    """Return the distinct values of a text column, None as the last of them, and each row's index into them."""
    if column not in table.column_names:
        return [None], np.zeros(len(table), np.int64)
    coded = table[column].unify_dictionaries().combine_chunks()
    values = [*coded.dictionary.to_pylist(), None]
    return values, coded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False).astype(np.int64)


def _run(id: str | None, samples: Samples, labels: list[str | None], content: bytes, name: str) -> RunRecord:
    if len(np.unique(samples["position"])) < len(samples):
        raise ConfigError("two samples of one run have the same position")
    known = dict(zip(samples["cell"].tolist()[::-1], labels[::-1], strict=True))
    if len(known) > MOST_CELLS:
        raise ConfigError(f"it has {len(known):,} configurations; up to {MOST_CELLS:,} are read")
    cells = tuple(
        CellRecord(number=number, label=known[number] or f"configuration {number}", settings={}, status="done")
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
