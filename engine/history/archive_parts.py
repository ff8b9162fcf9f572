"""What an archive is made of: the names of its members and the forms of their lines; docs/formats.md describes it."""

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from engine.comparing.arms import MAX_ARMS, MAX_REPEATS, MAX_ROWS, MAX_TRIALS
from engine.history import comparisons, marks
from engine.history.trial_file import Part, TrialPart
from engine.results import StepTable
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
    """What an archive says of itself: lines and rows of its members, by their names without endings."""

    format: Literal["logitbench-archive"]
    version: int
    created_at: datetime
    counts: dict[str, int]


class ArchivedTrial(TrialPart, frozen=True):
    """A trial whose steps and tokenizer lie in members of their own. tokenizer: the hash of its Vocabulary."""

    tokenizer: str
    mean_surprise_bits: float | None


class Mark(Part, frozen=True):
    """What a person said of a run, a trial or a comparison."""

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
    """An arm of a comparison, without what has its default."""

    label: str = ""
    model: str = ""
    sampling: dict[str, Any] = msgspec.field(default_factory=dict)
    max_tokens: int = 1
    stop: tuple[str, ...] = ()
    variables: dict[str, str] = msgspec.field(default_factory=dict)


class ComparisonPart(Part, frozen=True):
    """The plan of a comparison, without what has its default."""

    prompt: str
    arms: tuple[ArmPart, ...]
    rows: tuple[dict[str, str], ...] = ()
    repeats: int = 1
    is_chat: bool = False
    before: tuple[dict[str, str], ...] = ()
    is_apart: bool = False


class AnswerPart(Part, frozen=True):
    """One answer of a comparison: the places of arm, row and repeat, and the trial."""

    arm: Annotated[int, msgspec.Meta(ge=0, lt=MAX_ARMS)]
    row: Annotated[int, msgspec.Meta(ge=0, lt=MAX_ROWS)]
    repeat: Annotated[int, msgspec.Meta(ge=0, lt=MAX_REPEATS)]
    trial_id: str = ""
    error: str = ""
    is_shared: bool = False


class ArchivedComparison(Part, frozen=True):
    """A comparison: `spec` what was compared, a ComparisonPart, as its table has it."""

    id: uuid.UUID
    created_at: datetime
    name: str
    spec: msgspec.Raw
    trials: Annotated[tuple[AnswerPart, ...], msgspec.Meta(max_length=MAX_TRIALS)]


class StagedComparison(Part, frozen=True):
    """A comparison on its way in: both as JSON of this version."""

    id: uuid.UUID
    created_at: datetime
    name: Annotated[str, msgspec.Meta(max_length=comparisons.NAME_CHARACTERS)]
    spec: str
    trials: str


def no_steps() -> StepTable:
    """A table without steps: those of an archived trial lie elsewhere."""
    return StepTable(_NO_VOCABULARY, 0)


def stem(name: str) -> str:
    """The name of a member without its ending, under which the manifest counts it."""
    return name.partition(".")[0]
