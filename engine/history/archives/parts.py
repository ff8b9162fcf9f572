"""Archive format: the names of the members and the types of their lines (described in docs/formats.md)."""

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from engine.comparing.arms import MAX_ARMS, MAX_REPEATS, MAX_ROWS, MAX_TRIALS, ComparisonRecord
from engine.history import comparisons, marks
from engine.history.trial_file import Part, TrialPart
from engine.steps import StepTable
from engine.vocabulary import Vocabulary

FORMAT: Literal["logitbench-archive"] = "logitbench-archive"
VERSION = 1
MANIFEST = "manifest.json"
RUNS, TRIALS, TOKENIZERS = "runs.jsonl", "trials.jsonl", "tokenizers.jsonl"
MARKS, COMPARISONS = "marks.jsonl", "comparisons.jsonl"
SAMPLES, STEPS = "samples.parquet", "steps.parquet"
MEMBERS = (MANIFEST, RUNS, TRIALS, TOKENIZERS, MARKS, COMPARISONS, SAMPLES, STEPS)

IDS_AT_ONCE = 200

_NO_VOCABULARY = Vocabulary((), b"", {}, None, False, False)


class Manifest(Part, frozen=True):
    """Manifest of an archive. counts: number of lines or rows of each member, by its name without extension."""

    format: Literal["logitbench-archive"]
    version: int
    created_at: datetime
    counts: dict[str, int]


class ArchivedTrial(TrialPart, frozen=True):
    """A trial whose steps and tokenizer are in separate members. tokenizer: the hash of its Vocabulary."""

    tokenizer: str
    mean_surprise_bits: float | None


class Mark(Part, frozen=True):
    """A person's marks on a run, a trial or a comparison: star, archive, note and tags."""

    kind: marks.Kind
    id: uuid.UUID
    is_starred: bool
    is_archived: bool
    note: Annotated[str, msgspec.Meta(max_length=marks.NOTE_CHARACTERS)]
    tags: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=marks.TAG_CHARACTERS)], ...],
        msgspec.Meta(max_length=marks.MOST_TAGS),
    ]


class ArmPart(Part, frozen=True):
    """A variant of a comparison; fields with their default value are omitted."""

    label: str = ""
    model: str = ""
    sampling: dict[str, Any] = msgspec.field(default_factory=dict)
    max_tokens: int = 1
    stop: tuple[str, ...] = ()
    variables: dict[str, str] = msgspec.field(default_factory=dict)


class ComparisonPart(Part, frozen=True):
    """The plan of a comparison; fields with their default value are omitted."""

    prompt: str
    arms: tuple[ArmPart, ...]
    rows: tuple[dict[str, str], ...] = ()
    repeats: int = 1
    is_chat: bool = False
    before: tuple[dict[str, str], ...] = ()
    is_apart: bool = False


class AnswerPart(Part, frozen=True):
    """One answer of a comparison: the indices of variant, row and repeat, and the id of the trial."""

    arm: Annotated[int, msgspec.Meta(ge=0, lt=MAX_ARMS)]
    row: Annotated[int, msgspec.Meta(ge=0, lt=MAX_ROWS)]
    repeat: Annotated[int, msgspec.Meta(ge=0, lt=MAX_REPEATS)]
    trial_id: str = ""
    error: str = ""
    is_shared: bool = False


class ArchivedComparison(Part, frozen=True):
    """A comparison in an archive. spec: its plan, a ComparisonPart, as JSON in the form that the table stores."""

    id: uuid.UUID
    created_at: datetime
    name: str
    spec: msgspec.Raw
    trials: Annotated[tuple[AnswerPart, ...], msgspec.Meta(max_length=MAX_TRIALS)]


class StagedComparison(Part, frozen=True):
    """A comparison in a staging folder: `spec` and `trials` are JSON of this version."""

    id: uuid.UUID
    created_at: datetime
    name: Annotated[str, msgspec.Meta(max_length=comparisons.NAME_CHARACTERS)]
    spec: str
    trials: str


def comparison_line(record: ComparisonRecord) -> bytes:
    """Return a comparison as a line of an archive."""
    answers = tuple(AnswerPart(**answer._asdict()) for answer in record.answers)
    spec = msgspec.Raw(msgspec.json.encode(record.plan.to_dict()))
    return msgspec.json.encode(ArchivedComparison(uuid.UUID(record.id), record.created_at, record.name, spec, answers))


def no_steps() -> StepTable:
    """Return an empty step table, as the steps of an archived trial are in a separate member."""
    return StepTable(_NO_VOCABULARY, 0)


def stem(name: str) -> str:
    """Return a member's name without its extension, the key of its count in the manifest."""
    return name.partition(".")[0]
