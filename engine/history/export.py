"""Trial export: JSON and CSV for other programs."""

import csv
import io
from typing import Any

import msgspec

from engine.csv_cells import escaped
from engine.history.trials import TrialRecord
from engine.jsonable import completion_to_dict, figure, spec_to_dict
from engine.steps import TokenStep

CSV_COLUMNS = (
    "part",
    "position",
    "id",
    "text",
    "bytes_hex",
    "logprob",
    "rank",
    "entropy",
    "normaliser",
    "p_final",
    "draw",
    "elapsed_s",
    "num_kept",
    "is_forced",
    "is_resampled",
)


def to_json(trial: TrialRecord) -> bytes:
    """Return all stored data of the trial, including the candidates of each step, as indented JSON."""
    values = {
        "id": trial.id,
        "created_at": trial.created_at.isoformat(),
        "parent": trial.parent,
        "label": trial.label,
        "prompt": trial.prompt,
        "messages": trial.messages,
        "sampling": spec_to_dict(trial.sampling),
        "request": spec_to_dict(trial.request),
        "pool": spec_to_dict(trial.pool),
        "model": vars(trial.model),
        "versions": trial.versions,
        "unknown_fields": trial.unknown_fields,
        "completion": completion_to_dict(trial.completion),
    }
    return msgspec.json.format(msgspec.json.encode(values), indent=1)


def to_csv(trial: TrialRecord) -> bytes:
    """Return CSV in UTF-8, a row per prompt step and generated step; candidates are only in the JSON.

    An empty field is a figure that was not recorded. `bytes_hex` is exact, also where `text` is withheld until a
    character is complete, or is escaped by `csv_cells`.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for part, steps in (("prompt", trial.completion.prompt_steps), ("output", trial.completion.steps)):
        for position, step in enumerate(steps):
            writer.writerow([part, position, *_cells(step)])
    return text.getvalue().encode()


def _cells(step: TokenStep) -> list[Any]:
    return [
        step.id,
        escaped(step.text),
        step.bytes.hex(),
        figure(step.logprob),
        step.rank,
        figure(step.entropy),
        figure(step.normaliser),
        figure(step.p_final),
        step.draw,
        step.elapsed_s,
        step.num_kept,
        int(step.is_forced),
        int(step.is_resampled),
    ]
