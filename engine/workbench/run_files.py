"""Files of a run: everything, its samples, or rows of llama-bench with what those leave out."""

import csv
import io

from engine.csv_cells import escaped
from engine.exchange import llama_bench_files as exchange
from engine.history import run_bytes
from engine.runs import RunRecord
from engine.samples import SAMPLE

_FIELDS = SAMPLE.names or ()


def run_file(run: RunRecord, kind: str) -> bytes:
    """Return a run as a file of this kind.

    kind: "run" (everything, for another workbench), "csv" (samples), "llama-bench" (JSONL), "sidecar" (JSON: what those
    rows leave out).
    """
    if kind == "llama-bench":
        return exchange.write_run(run, "jsonl").encode()
    if kind == "sidecar":
        return exchange.sidecar(run).encode()
    return run_bytes(run) if kind == "run" else _samples_csv(run)


def _samples_csv(run: RunRecord) -> bytes:
    labels = {cell.number: cell.label for cell in run.cells}
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["label", *_FIELDS])
    writer.writerows([escaped(cell) for cell in (labels.get(row[0], ""), *row)] for row in run.samples.tolist())
    return text.getvalue().encode()
