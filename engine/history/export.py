"""Trial export: JSON that can be imported again, CSV for other programs, and plain text."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from pathlib import PurePath
from typing import Any

import msgspec

from engine.comparing.branch_tree import TokenPath, branches_of
from engine.csv_cells import escaped
from engine.history.beam_part import BeamPart
from engine.history.trial_file import TokenizerPart
from engine.history.trials import TrialRecord
from engine.jsonable import completion_to_dict, figure, spec_to_dict
from engine.step_parts import FORCED
from engine.steps import TokenStep
from engine.vocabulary import Vocabulary

TRIAL_FORMAT, FAMILY_FORMAT = "logitbench-trial", "logitbench-trials"
VERSION = 1
"""Version of the JSON of a trial, and of several."""

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
    """Return all stored data of the trial, with the candidates of each step and its tokenizer, as JSON.

    Of the model's path only the name of the file, as the folders of this machine are nobody else's business; of an
    external engine no address.
    """
    return bytes(_object({**_head(TRIAL_FORMAT), **_trial(trial), "tokenizers": _tokenizers([trial])}))


def family_to_json(trials: Sequence[TrialRecord]) -> bytes:
    """Return all stored data of several trials, of which some may come from others, as one JSON document."""
    listed = _array(_object(_trial(trial)) for trial in trials)
    return bytes(_object({**_head(FAMILY_FORMAT), "trials": listed, "tokenizers": _tokenizers(trials)}))


def _head(format: str) -> dict[str, Any]:
    return {"format": format, "version": VERSION}


def _trial(trial: TrialRecord) -> dict[str, Any]:
    completion = completion_to_dict(trial.completion)
    steps = {name: _array(map(msgspec.json.encode, completion[name])) for name in ("prompt_steps", "steps")}
    return {
        "id": trial.id,
        "created_at": trial.created_at.astimezone(UTC).isoformat(),
        "parent": trial.parent,
        "label": trial.label,
        "prompt": trial.prompt,
        "messages": trial.messages,
        "sampling": spec_to_dict(trial.sampling),
        "request": spec_to_dict(trial.request),
        "pool": spec_to_dict(trial.pool),
        "model": {**vars(trial.model), "path": "" if trial.engine else PurePath(trial.model.path).name},
        "versions": trial.versions,
        "unknown_fields": trial.unknown_fields,
        "engine": trial.engine and {**vars(trial.engine), "url": ""},
        "client": trial.client,
        **({"node": trial.node} if trial.node else {}),
        **({} if trial.beams is None else {"beams": BeamPart.of(trial.beams)}),
        "completion": _object({**completion, **steps}),
        "tokenizer": trial.completion.steps.vocabulary.hash,
    }


def _tokenizers(trials: Iterable[TrialRecord]) -> msgspec.Raw:
    """Return the tokenizers of the trials by their hash."""
    by_hash = {(one := trial.completion.steps.vocabulary).hash: one for trial in trials}
    return _object({hash: TokenizerPart.of(one) for hash, one in by_hash.items()})


def _object(values: Mapping[str, Any]) -> msgspec.Raw:
    """Return the JSON of an object with a line for each member."""
    lines = (msgspec.json.encode(name) + b": " + msgspec.json.encode(value) for name, value in values.items())
    return msgspec.Raw(b"{\n" + b",\n".join(lines) + b"\n}")


def _array(items: Iterable[bytes]) -> msgspec.Raw:
    """Return the JSON of an array with a line for each item."""
    lines = b",\n".join(items)
    return msgspec.Raw(b"[\n" + lines + b"\n]" if lines else b"[]")


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


def to_text(trial: TrialRecord) -> bytes:
    """Return the prompt, or the messages of a chat, and the answer as plain text in UTF-8."""
    return "\n\n".join(_asked(trial) + _answered(trial)).encode() + b"\n"


def family_to_text(trials: Sequence[TrialRecord]) -> bytes:
    """Return the trials of a family as an outline: their prompt, then the tree of their answers.

    An answer is indented below what it has in common with others.
    """
    by_id = {trial.id: trial for trial in trials}
    lines = ["\n\n".join(_asked(trials[0])), "", "answers:"] if trials else []
    for branch in branches_of(map(_path, trials)):
        steps = by_id[branch.trial_id].completion.steps
        text = _text_of(steps.vocabulary, steps.ids[branch.start : branch.end])
        indent = "  " * branch.depth
        lines += [f"{indent}{'  ' if number else '- '}{line}" for number, line in enumerate(text.splitlines() or [""])]
    return "\n".join(lines).encode() + b"\n"


def _text_of(vocabulary: Vocabulary, ids: list[int]) -> str:
    """Return the text of tokens; where they add none, their names."""
    return vocabulary.join(ids).decode("utf-8", "replace") or "".join(map(vocabulary.text, ids))


def _path(trial: TrialRecord) -> TokenPath:
    records = trial.completion.steps.records
    return TokenPath(trial.id, records["id"], records["logprob"], records["flags"] & FORCED != 0)


def _asked(trial: TrialRecord) -> list[str]:
    if trial.messages:
        return [f"{message.get('role', '')}:\n{message.get('content', '')}" for message in trial.messages]
    return [f"prompt:\n{trial.prompt}"]


def _answered(trial: TrialRecord) -> list[str]:
    return [f"answer:\n{trial.completion.text}"] if len(trial.completion.steps) else []
