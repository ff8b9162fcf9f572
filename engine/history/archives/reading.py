"""Archive reader: stages an archive from an untrusted source as typed lines and tables of known columns."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.comparing.arms import Answer, check_answers
from engine.history import comparisons
from engine.history.archives.members import lines_of, manifest_of, tables_of
from engine.history.archives.parts import (
    COMPARISONS,
    MANIFEST,
    MARKS,
    RUNS,
    SAMPLES,
    STEPS,
    TOKENIZERS,
    TRIALS,
    ArchivedComparison,
    ArchivedTrial,
    ComparisonPart,
    Mark,
    StagedComparison,
    no_steps,
    stem,
)
from engine.history.archives.staging import StagingWriter
from engine.history.checks import stored_time
from engine.history.run_file import ALWAYS, RUN_SAMPLES, RunPart
from engine.history.step_checks import REQUIRED, STEP_COLUMNS
from engine.history.trial_file import TokenizerPart
from engine.samples import no_samples

_tokenizer = msgspec.json.Decoder(TokenizerPart).decode
_run = msgspec.json.Decoder(RunPart).decode
_trial = msgspec.json.Decoder(ArchivedTrial).decode
_mark = msgspec.json.Decoder(Mark).decode
_comparison = msgspec.json.Decoder(ArchivedComparison).decode
_plan = msgspec.json.Decoder(ComparisonPart).decode


def stage_archive(source: bytes | str | Path, writer: StagingWriter) -> Iterator[float]:
    """Read an archive piece by piece into a staging folder; yields the share that is done, 0 to 1.

    Raises errors that `members.telling` turns into a HistoryError.
    """
    with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as content:
        counts = manifest_of(content).counts
        total = max(sum(counts.values()), 1)
        num_seen = 0
        for member in (TOKENIZERS, RUNS, TRIALS, MARKS, COMPARISONS, SAMPLES, STEPS):
            num_before = num_seen
            entries = _tables(content, member, writer) if member in _COLUMNS else _lines(content, member, writer)
            for num in entries:
                num_seen += num
                yield min(num_seen / total, 1.0)
            if num_seen - num_before != counts.get(stem(member)):
                raise ValueError(
                    f"{member} has {num_seen - num_before:,} entries, but {MANIFEST} lists {counts.get(stem(member))}"
                )


_COLUMNS = {
    SAMPLES: (RUN_SAMPLES, ("run_id", *ALWAYS)),
    STEPS: (STEP_COLUMNS, REQUIRED),
}


def _tables(content: zipfile.ZipFile, member: str, writer: StagingWriter) -> Iterator[int]:
    for rows in tables_of(content, member, writer.folder, *_COLUMNS[member]):
        writer.add_rows(member, rows)
        yield len(rows)


def _lines(content: zipfile.ZipFile, member: str, writer: StagingWriter) -> Iterator[int]:
    for part in lines_of(content, member, _READ[member]):
        writer.add(member, part)
        yield 1


def _read_tokenizer(line: bytes) -> TokenizerPart:
    part = _tokenizer(line)
    part.read()
    return part


def _read_run(line: bytes) -> RunPart:
    part = _run(line)
    part.read(no_samples())
    return part


def _read_trial(line: bytes) -> ArchivedTrial:
    part = _trial(line)
    part.read(no_steps(), no_steps())
    return part


def read_comparison(line: bytes) -> StagedComparison:
    """Read and check a comparison of an archive. Raises ConfigError, ValueError or msgspec's errors."""
    part = _comparison(line)
    _plan(part.spec)
    answers = [Answer(**msgspec.structs.asdict(answer)) for answer in part.trials]
    row: dict[str, Any] = {
        "id": part.id,
        "created_at": stored_time(part.created_at),
        "name": part.name,
        "spec": bytes(part.spec).decode(),
        "trials": msgspec.json.encode([answer._asdict() for answer in answers]).decode(),
    }
    check_answers(comparisons.record_of(row).plan, answers)
    return StagedComparison(**row)


_READ = {
    TOKENIZERS: _read_tokenizer,
    RUNS: _read_run,
    TRIALS: _read_trial,
    MARKS: _mark,
    COMPARISONS: read_comparison,
}
