"""Import formats: recognise files and pasted text by content, read and validate them.

They come from other workbenches, programs and people and may be hostile: where a workbench serves pages, only
`import_program` calls this module.
"""

import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from engine.bench.analysis.summary import summarise
from engine.errors import ConfigError, HistoryError
from engine.exchange import llama_bench_files as exchange
from engine.exchange.logprob_log import trial_of_log
from engine.exchange.logs import LoggedStep, is_timing_log, read_candidate_log
from engine.exchange.parquet_runs import runs_of_parquet
from engine.files import open_regular, read_regular
from engine.history import TrialRecord, run_from_bytes
from engine.history.archives.members import manifest_of, telling
from engine.history.archives.parts import MANIFEST
from engine.history.trial_file import trial_from_bytes
from engine.history.trial_json import is_trial_json, trials_from_json
from engine.history.trials import OUTPUT_CHARACTERS
from engine.ids import content_id
from engine.reference.lines import read_lines
from engine.reference.machines import noted_run
from engine.runs import RunRecord

Kind = Literal["run", "trial", "trials", "archive", "llama-bench", "timing log", "candidates", "parquet", "lines"]
LABELS: dict[Kind, str] = {
    "run": "a run of this workbench",
    "trial": "a trial of this workbench",
    "trials": "trials of this workbench",
    "archive": "runs and trials of this workbench",
    "llama-bench": "llama-bench results",
    "timing log": "a timing log",
    "candidates": "a candidate log",
    "parquet": "a Parquet table",
    "lines": "timings noted by hand",
}
MOST_BYTES = 512 << 20
SHOWN, SHOWN_STEPS = 40, 50

_CANDIDATE = re.compile(r"\[\d{1,12}\] +(?:- +\d|sampled token:)")
_OF_LLAMA_BENCH = re.compile(r"[\[{]|CREATE|INSERT|BEGIN|PRAGMA|--|.*\bn_prompt\b", re.IGNORECASE)
_NOTED = re.compile(r"^[^\d\n]*+\d.*?\b(?:tok|tkn|t/s|tps)", re.IGNORECASE | re.MULTILINE)
_HINTS = {
    "| model ": "it is llama-bench's Markdown table, which has no samples: run llama-bench with -o jsonl",
    "label,cell,round,": "it is a table of samples for other programs: export the run as a file",
    "part,position,id,": "it is a table of steps for other programs: export the trial as an archive",
}


class Arrival(NamedTuple):
    """Contents of a file to import. num: rows of any kind. Of an archive, only counts are known before the import."""

    kind: Kind
    num: int
    rows: list[dict[str, Any]]
    runs: tuple[RunRecord, ...] = ()
    trials: tuple[TrialRecord, ...] = ()


def read_arrival(name: str, data: bytes | Path) -> Arrival:
    """Read and validate a file to import. Raises ConfigError or HistoryError with the reason where it is unreadable."""
    if is_archive(data):
        return _archive(name, data)
    content = _content(name, data)
    if content.startswith(b"PK"):
        return _of_runs("run", [replace(run_from_bytes(content, name), origin=name)])
    if content.startswith(b"PAR1"):
        return _of_runs("parquet", runs_of_parquet(content, name))
    if content.startswith(b"\xde\x00"):  # header of the map in a trial's file; never the start of a text
        return _trials(name, lambda: [trial_from_bytes(content)])
    return _of_text(name, content)


def _of_text(name: str, content: bytes) -> Arrival:
    text = exchange.text_of(content)
    start = text.lstrip()
    if not start:
        raise ConfigError(f"{name} is empty. Choose another file.")
    if is_trial_json(text):
        return _trials(name, partial(trials_from_json, text))
    if hint := _hint(start):
        raise ConfigError(f"{name} cannot be imported: {hint}.")
    id = content_id(content)
    if is_timing_log(text):
        return _of_runs("timing log", [replace(exchange.read_run(content, name), id=id)])
    if _CANDIDATE.match(start):
        steps = read_candidate_log(text)
        rows = _candidate_rows(steps)
        return Arrival("candidates", len(rows), rows, trials=(trial_of_log(steps, id, name),))
    if _OF_LLAMA_BENCH.match(start):
        return _of_runs("llama-bench", [replace(exchange.read_run(content, name), id=id)])
    if _NOTED.search(text):
        timings = read_lines(text)
        rows = [timing._asdict() for timing in timings]
        return Arrival("lines", len(rows), rows, runs=(noted_run(timings, machine=Path(name).stem),))
    raise ConfigError(
        f"{name}: unknown format; it begins with {start[:SHOWN]!r}. Known formats: {', '.join(LABELS.values())}."
    )


def _hint(start: str) -> str:
    """Return why a file of a known kind cannot be imported and what to import instead; empty for other files."""
    if start.startswith("{") and '"completion":' in start:
        return "it is a trial as JSON of an earlier version, without its tokenizer: export the trial again"
    return next((hint for beginning, hint in _HINTS.items() if start.startswith(beginning)), "")


def _content(name: str, data: bytes | Path) -> bytes:
    try:
        num_bytes = len(data) if isinstance(data, bytes) else data.stat().st_size
        if num_bytes > MOST_BYTES:
            raise ConfigError(
                f"{name} has {num_bytes:,} bytes; up to {MOST_BYTES:,} are read, unless it is an archive."
            )
        return data if isinstance(data, bytes) else read_regular(data)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}. Nothing was imported.") from error


# contents of each kind


def is_archive(data: bytes | Path) -> bool:
    """Return whether a file is an archive: a ZIP file with a manifest."""
    try:
        with _opened(data) as file, zipfile.ZipFile(file) as content:
            return MANIFEST in content.namelist()
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile):
        return False


def _opened(data: bytes | Path) -> BinaryIO:
    return BytesIO(data) if isinstance(data, bytes) else open_regular(data)


def _archive(name: str, data: bytes | Path) -> Arrival:
    with telling(name), _opened(data) as file, zipfile.ZipFile(file) as content:
        counts = manifest_of(content).counts
    rows: list[dict[str, Any]] = [{"what": what, "number": number} for what, number in counts.items()]
    return Arrival("archive", sum(counts.values()), rows)


def _trials(name: str, read: Callable[[], list[TrialRecord]]) -> Arrival:
    try:
        trials = read()
    except (ValueError, TypeError, OverflowError) as error:
        raise HistoryError(
            f"{name} cannot be read as a trial of this workbench: {error}. Nothing was imported."
        ) from error
    if len(trials) != 1:
        return Arrival("trials", len(trials), [_trial_row(trial) for trial in trials], trials=tuple(trials))
    steps = trials[0].completion.steps
    rows = [
        {"position": number, "text": step.text, "logprob": step.logprob}
        for number, step in enumerate(steps[:SHOWN_STEPS])
    ]
    return Arrival("trial", len(steps), rows, trials=tuple(trials))


def _trial_row(trial: TrialRecord) -> dict[str, Any]:
    return {
        "title": trial.title,
        "text": trial.completion.text[:OUTPUT_CHARACTERS],
        "model": trial.model.name,
        "tokens": len(trial.completion.steps),
    }


def _of_runs(kind: Kind, runs: Sequence[RunRecord]) -> Arrival:
    rows = list(_cell_rows(runs))
    names = dict.fromkeys(name for row in rows for name in row)
    whole = [{name: row.get(name) for name in names} for row in rows]
    return Arrival(kind, sum(len(run.samples) for run in runs), whole, runs=tuple(runs))


def _cell_rows(runs: Sequence[RunRecord]) -> Iterable[dict[str, Any]]:
    """Yield a row for each configuration: its medians by metric."""
    for run in runs:
        for cell in summarise(run).cells:
            medians = {name: interval.value for name, interval in cell.metrics.items()}
            yield {"run": run.name, "cell": cell.label, "samples": cell.num_counted, **medians}


def _candidate_rows(steps: Sequence[LoggedStep]) -> list[dict[str, Any]]:
    return [
        {
            "step": number,
            "at": step.at,
            "id": one.id,
            "text": one.text,
            "p": one.p,
            "is_sampled": step.sampled is not None and one.id == step.sampled.id,
        }
        for number, step in enumerate(steps)
        for one in step.candidates
    ]
