"""Import and export of runs: rows of llama-bench in both directions, and logs of timed blocks as import only."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from engine.bench.planning.plan import Plan
from engine.errors import ConfigError, ModelError
from engine.exchange.llama_bench_rows import DEFAULTS, FIELDS, Row, checked_row, with_samples
from engine.exchange.llama_bench_text import Format, read_rows, write_rows
from engine.exchange.logs import is_timing_log, read_timing_log
from engine.ids import new_id
from engine.jsonable import figure
from engine.models.reading import read_model
from engine.runs import IMPORTED_ROW, CellRecord, RunRecord
from engine.samples import METRICS_BY_NAME, SAMPLE, SYSTEM_NOISE, Samples, is_counted

MOST_BYTES = 64 << 20

_MEASURED = ("avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts")
_WORKLOAD = ("n_prompt", "n_gen", "n_depth", "test_time", *_MEASURED)
_LOAD = {"none": "none", "dio": "none", "mlock": "mlock", "mmap+mlock": "mlock"}
_LOAD_MODES = {"mlock": "mmap+mlock"}


def read_run(data: bytes, name: str = "") -> RunRecord:
    """Read a run from a file: rows of llama-bench (JSON, JSONL, CSV, SQL) or a log of timed blocks.

    Raises ConfigError with line and reason for a file that contains anything else.
    """
    text = text_of(data)
    return read_timing_log(text, name) if is_timing_log(text) else run_of(read_rows(text), name)


def text_of(data: bytes) -> str:
    """Decode a file as UTF-8; raises ConfigError with the line of an invalid byte, and for a file that is too large."""
    if len(data) > MOST_BYTES:
        raise ConfigError(f"the file has {len(data):,} bytes; the limit is {MOST_BYTES:,}: split it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"line {line}: not UTF-8 text: byte {data[error.start]:#04x}") from error


def run_of(rows: Sequence[Row], name: str = "") -> RunRecord:
    """Return a run with a configuration for each row; the rows are those that `read_rows` returns."""
    labels = _labels(rows)
    cells = tuple(_cell(number, row, label) for number, (row, label) in enumerate(zip(rows, labels, strict=True)))
    commits = sorted({row["build_commit"] for row in rows})
    return RunRecord(
        id=new_id(),
        created_at=min(map(_moment, rows)),
        name=name,
        question="speed",
        status="done",
        plan=Plan(name=name, model=rows[0]["model_filename"], rounds=max(1, *map(_num_samples, rows))).to_dict(),
        machine={key: _joined(rows, f"{key}_info") for key in ("cpu", "gpu")},
        versions={"llama.cpp": ", ".join(commits)},
        cells=cells,
        samples=_samples(rows),
        origin="llama-bench",
    )


def write_run(run: RunRecord, form: Format) -> str:
    """Return the run in llama-bench's format: a row for the prompt and one for generation of each configuration.

    Only configurations of one process with one stream are exported, since a row cannot represent others; `sidecar`
    contains all. Raises ConfigError where none can be exported.
    """
    rows = [row for cell in run.cells for row in _rows_of(run, cell)]
    if not rows:
        raise ConfigError("no configuration of this run fits llama-bench, which runs one process and one stream only")
    return write_rows(rows, form)


def sidecar(run: RunRecord) -> str:
    """Return a JSON of what llama-bench's rows cannot represent: plan, machine, and all configurations with facts."""
    values = {
        "id": run.id,
        "name": run.name,
        "question": run.question,
        "origin": run.origin,
        "plan": run.plan,
        "machine": run.machine,
        "versions": run.versions,
        "outcome": run.outcome,
        "cells": [
            {
                "number": cell.number,
                "label": cell.label,
                "status": cell.status,
                "reason": cell.reason,
                "settings": cell.settings,
                "facts": {key: figure(value) for key, value in cell.facts.items()},
                "is_exported": bool(_rows_of(run, cell)),
            }
            for cell in run.cells
        ],
    }
    return json.dumps(values, indent=2, ensure_ascii=False, default=str) + "\n"


# import


def _cell(number: int, row: Row, label: str) -> CellRecord:
    threads = max(row["n_threads"], 1)
    settings = {
        "layout": f"1x{threads}",
        "parallel": 1,
        "model": row["model_filename"],
        "arm": "llama-bench",
        "n_batch": row["n_batch"],
        "n_ubatch": row["n_ubatch"],
        "type_k": row["type_k"],
        "type_v": row["type_v"],
        "flash_attn": None if row["flash_attn"] < 0 else bool(row["flash_attn"]),
        "n_gpu_layers": row["n_gpu_layers"],
        "load": _LOAD.get(row["load_mode"], "mmap"),
        "share_weights": not row["repack"],
        "num_prompt": row["n_prompt"],
        "num_generated": row["n_gen"],
        "depth": row["n_depth"],
        IMPORTED_ROW: {name: value for name, value in row.items() if not name.startswith("samples_")},
    }
    facts = {} if _num_samples(row) else {"stddev_per_s": row["stddev_ts"]}
    return CellRecord(number=number, label=label, settings=settings, status="done", facts=facts)


def _num_samples(row: Row) -> int:
    return len(row.get("samples_ns", ()))


def _labels(rows: Sequence[Row]) -> list[str]:
    """Return labels: pp512 or tg128 @ d1024, then the other fields in which the rows differ."""
    differing = [name for name in FIELDS if name not in _WORKLOAD and len({row[name] for row in rows}) > 1]
    return [" · ".join([_test(row), *(_shown(name, row[name]) for name in differing)]) for row in rows]


def _test(row: Row) -> str:
    parts = [f"{kind}{num}" for kind, num in (("pp", row["n_prompt"]), ("tg", row["n_gen"])) if num]
    depth = f" @ d{row['n_depth']}" if row["n_depth"] else ""
    return "+".join(parts) + depth


def _shown(name: str, value: Any) -> str:
    return str(value) if FIELDS[name] is str and value else f"{name} {value}"


def _joined(rows: Sequence[Row], name: str) -> str:
    return "; ".join(sorted({row[name] for row in rows}))


def _moment(row: Row) -> datetime:
    with suppress(ValueError):
        moment = datetime.fromisoformat(row["test_time"])
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return datetime.now(UTC)


def _samples(rows: Sequence[Row]) -> Samples:
    """Return one sample for each of llama-bench's; a row without samples counts as one, with its average."""
    seconds = [np.array(row.get("samples_ns") or [_average_ns(row)], np.float64) / 1e9 for row in rows]
    samples = np.zeros(sum(map(len, seconds)), SAMPLE)
    for name in (*METRICS_BY_NAME, *SYSTEM_NOISE):
        samples[name] = math.nan
    samples["position"] = np.arange(len(samples))
    start = 0
    for number, (row, took) in enumerate(zip(rows, seconds, strict=True)):
        part = samples[start : start + len(took)]
        start += len(took)
        part["cell"], part["round"], part["duration_s"] = number, np.arange(len(took)), took
        part["started_at"] = _moment(row).timestamp() + np.cumsum(took) - took
        for name, values in _metrics(row, took).items():
            part[name] = values
    return samples


def _average_ns(row: Row) -> float:
    num_tokens: int = row["n_prompt"] + row["n_gen"]
    return 1e9 * num_tokens / float(row["avg_ts"])


def _metrics(row: Row, took: np.ndarray[Any, np.dtype[np.float64]]) -> Mapping[str, Any]:
    """Return llama-bench's figures as in METRICS; a row with prompt and generation has no speed of either one."""
    num_prompt, num_generated = row["n_prompt"], row["n_gen"]
    if not num_generated:
        return {"prefill_per_s": num_prompt / took}
    if not num_prompt:
        rate = num_generated / took
        return {"tokens_per_s": rate, "decode_per_s": rate, "tpot_s": 1 / rate}
    return {"end_to_end_per_s": num_generated / took, "e2e_s": took}


# export


def _rows_of(run: RunRecord, cell: CellRecord) -> list[Row]:
    samples = run.samples[is_counted(run.samples) & (run.samples["cell"] == cell.number)]
    if not len(samples):
        return []
    if IMPORTED_ROW in cell.settings:
        with suppress(ConfigError):  # an imported row that has since been found malformed
            return [_as_it_came(cell.settings[IMPORTED_ROW], cell, samples)]
        return []
    settings = cell.settings
    is_single = str(settings.get("layout", "")).startswith("1x") and settings.get("parallel") == 1
    if not is_single or settings.get("users") or settings.get("rate_per_s"):
        return []
    row = _settings_row(run, cell, samples)
    num_prompt, num_generated, depth = (settings.get(name) or 0 for name in ("num_prompt", "num_generated", "depth"))
    tests = (
        ({"n_prompt": num_prompt, "n_gen": 0, "n_depth": depth}, num_prompt, "prefill_per_s"),
        ({"n_prompt": 0, "n_gen": num_generated, "n_depth": depth + num_prompt}, num_generated, "decode_per_s"),
    )
    return [
        with_samples(row | test, _nanoseconds(num, samples[metric]))
        for test, num, metric in tests
        if num and np.isfinite(samples[metric]).any()
    ]


def _nanoseconds(num_tokens: int, rates: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    found: list[int] = np.rint(1e9 * num_tokens / rates[np.isfinite(rates)]).astype(np.int64).tolist()
    return found


def _as_it_came(row: Mapping[str, Any], cell: CellRecord, samples: Samples) -> Row:
    """Return an imported row; its spread is computed only where its samples are known."""
    row = checked_row(f"configuration {cell.number}", {name: row[name] for name in FIELDS if name in row})
    if "stddev_per_s" in cell.facts:
        return row
    return with_samples(row, np.rint(1e9 * samples["duration_s"]).astype(int).tolist())


def _settings_row(run: RunRecord, cell: CellRecord, samples: Samples) -> Row:
    """Return the fields of a row that do not depend on the test, from what the run records."""
    settings = cell.settings
    llama = run.machine.get("llama") or {}
    flash_attn = settings.get("flash_attn")
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=float(samples["started_at"].min()))
    return {
        **DEFAULTS,
        **_model_fields(str(settings.get("model", ""))),
        "build_commit": llama.get("commit") or "unknown",
        "cpu_info": str(run.machine.get("cpu", "")),
        "n_threads": int(str(settings["layout"]).partition("x")[2]),
        **{name: settings[name] for name in ("n_batch", "n_ubatch", "type_k", "type_v") if settings.get(name)},
        "n_gpu_layers": settings.get("n_gpu_layers", 0),
        "flash_attn": -1 if flash_attn is None else int(flash_attn),
        "load_mode": _LOAD_MODES.get(settings.get("load", "mmap"), settings.get("load", "mmap")),
        "repack": not settings.get("share_weights", False),
        "test_time": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
    }


def _model_fields(path: str) -> Row:
    """Return the model's type, size and number of parameters where its file still exists."""
    with suppress(ModelError, OSError):
        file = read_model(path)
        return {
            "model_filename": path,
            "model_type": f"{file.architecture} {file.quantisation}",
            "model_size": file.weights_bytes,
            "model_n_params": file.num_parameters,
        }
    return {"model_filename": path}
