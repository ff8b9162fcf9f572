"""History commands: `history list|show|compare|export|import|sql|snapshot|gc`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.bench.analysis.comparison import Comparison, compare_runs
from engine.bench.analysis.disturbance import samples_in_words
from engine.bench.analysis.wording import plain_verdict
from engine.commands import history_arguments as words_of
from engine.commands.bench_printing import json_of_run, print_run
from engine.commands.keeping import LEFT, owned, readable
from engine.commands.out_file import table_of, write_rows, write_text
from engine.commands.printing import print_json, print_json_text
from engine.commands.table import one_line, printable, table
from engine.errors import ConfigError, HistoryLocked
from engine.exchange.importer import Importer
from engine.history import INBOX, History, TrialRecord, write_snapshot
from engine.history.archives.exporting import export_history
from engine.history.columns import step_rows
from engine.history.console import Result
from engine.history.database_writer import DatabaseWriter
from engine.history.export import to_csv, to_json
from engine.history.references import reference_rows
from engine.history.run_columns import sample_table
from engine.jsonable import figure, plain
from engine.private_files import persons_umask
from engine.reference import reference_run
from engine.runs import RunRecord
from engine.settings import Settings
from engine.units import counted, quantity

WIDTH = 48


def run(words: Sequence[str]) -> None:
    """Run one of these commands. Raises EngineError, SystemExit for unknown flags."""
    settings = Settings.from_environment()
    given = words_of.parse(words)
    match given:
        case words_of.ImportArguments():
            import_files(settings, given)
        case words_of.GcArguments():
            purge(settings, given)
        case _:
            with readable(settings) as history:
                _read(history, given)


def _read(history: History, given: words_of.Command) -> None:
    match given:
        case words_of.ListArguments():
            list_found(history, given)
        case words_of.ShowArguments():
            show(history, given)
        case words_of.CompareArguments():
            compare(history, given)
        case words_of.ExportArguments():
            export(history, given)
        case words_of.SqlArguments():
            query(history, given)
        case words_of.SnapshotArguments():
            snapshot(history, given)


def list_found(history: History, given: words_of.ListArguments) -> None:
    """Print a line for each run or trial; after the runs, the reference timings that match the filter."""
    find = history.find.runs if given.kind == "runs" else history.find.trials
    found = find(given.wanted, limit=given.limit)
    if given.out is not None:
        write_rows(given.out, table_of(found.rows))
        return
    references = reference_rows(given.wanted) if given.kind == "runs" else []
    if given.is_json:
        print_json({"total": found.total, "rows": plain(found.rows), "references": plain(references)})
        return
    for row in found.rows:
        said = row["sentence"] or row["name"] if given.kind == "runs" else row["title"]
        print(_line(row, f"{row['created_at']:%Y-%m-%d %H:%M}", said, _remark(row)))
    print(f"{len(found.rows):,} of {counted(found.total, given.kind[:-1])}")
    for row in references:
        print(_line(row, row["noted"], row["sentence"], f"reference: {row['source']}, {row['machine']}"))


def _line(row: Mapping[str, Any], when: str, said: str, remark: str) -> str:
    shown = f"{_shown(said):<{WIDTH}}  {printable(remark, is_terminal=True)}"
    return f"{row['id']}  {when:<16}  {row['model_name']:<20.20}  {shown}".rstrip()


def _remark(row: Mapping[str, Any]) -> str:
    """Return how many samples of a run were disturbed, in words; empty for none."""
    if not row.get("num_disturbed"):
        return ""
    return samples_in_words(row["num_disturbed"], row["num_samples"], row["num_replaced"])


def show(history: History, given: words_of.ShowArguments) -> None:
    """Print a run as `bench` does or a trial as `generate` does, or write it to a file."""
    kept = _kept(history, given.id)
    if given.out is not None:
        _write_kept(given.out, kept)
        return
    if isinstance(kept, RunRecord):
        print_run(kept, is_json=given.is_json)
    elif given.is_json:
        print_json_text(to_json(kept).decode())
    else:
        print(table(kept.completion))


def compare(history: History, given: words_of.CompareArguments) -> None:
    """Print a comparison of runs' configurations with a baseline, with the verdicts of the benchmark."""
    runs = [_run(history, id) for id in given.runs]
    comparison = compare_runs(runs, baseline=given.baseline or None)
    if given.is_json:
        print_json(_compared(comparison))
    else:
        print(comparison.to_markdown())


def export(history: History, given: words_of.ExportArguments) -> None:
    """Write an archive of the whole history, or of the named runs and trials."""
    is_whole = not given.runs and not given.trials
    ids = {} if is_whole else {"run_ids": given.runs, "trial_ids": given.trials}
    with persons_umask():
        counts = export_history(history, given.path, **ids).counts
    sentence = f"{given.path}: {counted(counts['runs'], 'run')}, {counted(counts['trials'], 'trial')}"
    _print({"path": str(given.path), "counts": counts}, sentence, is_json=given.is_json)


def import_files(settings: Settings, given: words_of.ImportArguments) -> None:
    """Import files; while another process owns the history, write their runs and trials to its inbox.

    Raises ConfigError for an archive in that case.
    """
    imported: list[dict[str, Any]] = []
    with Importer(settings.home) as importer:
        try:
            with owned(settings) as history:
                for path in given.paths:
                    taken = importer.take_in(history, path.name or str(path), path)
                    imported.append({"path": str(path), **taken._asdict()})
        except HistoryLocked as locked:
            for path in given.paths:
                kind = importer.hand_over(path.name or str(path), path, settings.home / INBOX)
                if kind == "archive":
                    raise ConfigError(
                        f"{path} is an archive, which only the process that has the history open can import. {locked}"
                    ) from locked
                imported.append({"path": str(path), "kind": kind, "sentence": LEFT})
    lines = "\n".join(f"{one['path']}: {one['sentence']}" for one in imported)
    _print({"files": imported}, lines, is_json=given.is_json)


def query(history: History, given: words_of.SqlArguments) -> None:
    """Print the rows of a query, tab-separated; the reason for missing rows goes to standard error."""
    result = history.console.run(given.query, limit=given.limit, timeout_s=given.timeout_s)
    if given.out is not None:
        write_rows(given.out, result.table)
    elif given.is_json:
        about = {"columns": result.columns, "types": result.types, "why_truncated": result.why_truncated}
        print_json({**about, "rows": plain(result.table.to_pylist())})
        return
    else:
        for row in (result.columns, *_rows(result)):
            print("\t".join("" if value is None else one_line(str(value)) for value in row))
    if result.is_truncated:
        print(result.why_truncated, file=sys.stderr)


def snapshot(history: History, given: words_of.SnapshotArguments) -> None:
    """Write a snapshot of the whole history as one DuckDB file."""
    with persons_umask():
        num_bytes = write_snapshot(history, given.path)
    values = {"path": str(given.path), "num_bytes": num_bytes}
    _print(values, f"{given.path}: {quantity(num_bytes, 'B')}", is_json=given.is_json)


def purge(settings: Settings, given: words_of.GcArguments) -> None:
    """Purge deleted runs and trials.

    `History.open` purges too, so the history is constructed without it.
    """
    with History(DatabaseWriter.open(settings.history)) as history:
        num_purged = history.gc()
    _print({"num_purged": num_purged}, f"{num_purged:,} deleted runs and trials purged", is_json=given.is_json)


def _write_kept(path: Path, kept: RunRecord | TrialRecord) -> None:
    """Write a run's samples or a trial's steps as rows; as JSON, the whole record as --json prints it."""
    if isinstance(kept, RunRecord):
        as_json, table = json_of_run(kept), sample_table(kept.samples)
    else:
        as_json, table = to_json(kept).decode(), pa.concat_tables(step_rows(kept))
    if path.suffix == ".json":
        write_text(path, as_json)
    elif path.suffix == ".csv" and isinstance(kept, TrialRecord):
        write_text(path, to_csv(kept).decode())
    else:
        write_rows(path, table)


def _rows(result: Result) -> Sequence[Sequence[Any]]:
    return list(zip(*(column.to_pylist() for column in result.table.columns), strict=True))


def _kept(history: History, id: str) -> RunRecord | TrialRecord:
    found = history.runs.run(id) or history.trial(id) or reference_run(id)
    if found is None:
        raise ConfigError(f"There is no run or trial {id!r}. The command history list shows their ids.")
    return found


def _run(history: History, id: str) -> RunRecord:
    found = _kept(history, id)
    if not isinstance(found, RunRecord):
        raise ConfigError(f"{id} is a trial; only runs can be compared.")
    return found


def _compared(comparison: Comparison) -> dict[str, Any]:
    entries = [
        {
            "key": entry.key,
            "label": entry.label,
            "settings": dict(entry.settings),
            "marks": entry.marks,
            "metrics": {name: _finite(interval) for name, interval in entry.cell.metrics.items()},
            "verdicts": {
                name: plain_verdict(verdict) for (key, name), verdict in comparison.verdicts.items() if key == entry.key
            },
        }
        for entry in comparison.entries
    ]
    about = {name: getattr(comparison, name) for name in ("sentence", "baseline", "best", "differing", "warnings")}
    return {**about, "same": dict(comparison.same), "entries": entries}


def _finite(interval: Any) -> dict[str, Any]:
    return {name: figure(value) for name, value in interval._asdict().items()}


def _shown(text: str) -> str:
    line = printable(" ".join(text.split()), is_terminal=True)
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _print(values: Mapping[str, Any], sentence: str, *, is_json: bool) -> None:
    if is_json:
        print_json(values)
    else:
        print(sentence)
