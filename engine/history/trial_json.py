"""JSON of trials, as `export` writes it, read back.

Nothing in it is executed, every field is checked, unknown fields are rejected. What follows from other fields (texts
of tokens, rates) and what no history keeps (watched words) is not read; the bytes of each token must be those of its
tokenizer.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from engine.files import decoded_json
from engine.history.beam_part import BeamPart, check_beams
from engine.history.columns import step_rows
from engine.history.export import FAMILY_FORMAT, TRIAL_FORMAT, VERSION
from engine.history.families import MOST_MEMBERS
from engine.history.step_checks import checked_steps
from engine.history.trial_file import FORMAT, Count, EnginePart, ModelPart, Part, TimingsPart, TokenizerPart, TrialPart
from engine.history.trials import TrialRecord, as_uuid
from engine.jsonable import spec_from_dict
from engine.results import FinishReason
from engine.specs import MAX_RECORDED, MAX_WATCHED, Request, Sampling
from engine.stages import FORBIDDEN, MAX_STAGES, stages_of
from engine.step_parts import FORCED, INSPECTED, RECORD, RESAMPLED, SHARED_MOMENT, StageColumns
from engine.steps import StepTable
from engine.vocabulary import Vocabulary

Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Figure = Number | Literal["-inf"] | None
Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]

_FORMAT = re.compile(rf'"format"\s*+:\s*+"(?:{TRIAL_FORMAT}|{FAMILY_FORMAT})"')
_FIGURES = ("logprob", "entropy", "normaliser", "p_final", "draw", "elapsed_s")


class _Candidate(Part, frozen=True):
    id: Count
    bytes: tuple[Byte, ...]
    text: str
    logprob: Figure
    p_final: Figure


class _Stage(Part, frozen=True):
    stage: str
    kept: Count
    mass: Number
    cut: tuple[Count, ...]


class _Watched(Part, frozen=True):
    ids: tuple[Count, ...]
    logprob: Figure
    rank: Count


class _Step(Part, frozen=True):
    id: Count
    bytes: tuple[Byte, ...]
    text: str
    logprob: Figure
    rank: Count | None
    entropy: Figure
    normaliser: Figure
    p_final: Figure
    draw: Figure
    elapsed_s: Figure
    num_kept: Count | None
    is_forced: bool
    is_resampled: bool
    top: Annotated[tuple[_Candidate, ...], msgspec.Meta(max_length=MAX_RECORDED)]
    stages: Annotated[tuple[_Stage, ...], msgspec.Meta(max_length=MAX_STAGES)] = ()
    forbidden: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_RECORDED)] = ()
    watched: Annotated[tuple[_Watched, ...], msgspec.Meta(max_length=MAX_WATCHED)] = ()
    shares_moment: bool = False

    @property
    def flags(self) -> int:
        """The flags of its record. It has a log-probability exactly where figures were recorded."""
        marks = INSPECTED * (self.logprob is not None) | SHARED_MOMENT * self.shares_moment
        return FORCED * self.is_forced | RESAMPLED * self.is_resampled | marks


class _Timings(TimingsPart, frozen=True):
    prefill_per_s: Number | None = None
    decode_per_s: Number | None = None


class _Completion(Part, frozen=True):
    id: str
    text: str
    finish_reason: FinishReason
    is_context_full: bool
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
    prompt_ids: tuple[Count, ...]
    prompt_steps: tuple[_Step, ...]
    steps: tuple[_Step, ...]
    timings: _Timings


class _Trial(Part, frozen=True, kw_only=True):
    id: str
    created_at: datetime
    parent: str | None
    label: str
    prompt: str
    messages: tuple[dict[str, str], ...]
    sampling: dict[str, Any]
    request: dict[str, Any]
    pool: dict[str, Any]
    model: ModelPart
    versions: dict[str, str]
    unknown_fields: tuple[str, ...]
    completion: _Completion
    tokenizer: str
    engine: EnginePart | None = None
    client: str = ""
    node: str = ""
    beams: BeamPart | None = None

    def read(self, tokenizers: dict[str, Vocabulary]) -> TrialRecord:
        if self.tokenizer not in tokenizers:
            raise ValueError(f"the tokenizer of trial {self.id} is missing")
        vocabulary, completion = tokenizers[self.tokenizer], self.completion
        _check_ids(completion.prompt_ids, vocabulary)
        stages = stages_of(spec_from_dict(Sampling, self.sampling)) if _has_stages(completion.steps) else ()
        if stages and not spec_from_dict(Request, self.request).stages:
            raise ValueError("there are stages, though its request is for none")
        names = {*TrialPart.__struct_fields__} & {*_Trial.__struct_fields__}
        part = TrialPart(
            format=FORMAT,
            **{name: getattr(self, name) for name in names - {"id", "parent"}},
            id=_normal_id(self.id),
            parent=None if self.parent is None else _normal_id(self.parent),
            prompt_ids=completion.prompt_ids,
            text=completion.text,
            finish_reason=completion.finish_reason,
            timings=TimingsPart(*(getattr(completion.timings, name) for name in TimingsPart.__struct_fields__)),
            seed=completion.seed,
        )
        prompt_steps = _table(completion.prompt_steps, vocabulary, (), is_prompt=True)
        trial = part.read(prompt_steps, _table(completion.steps, vocabulary, stages, is_prompt=False))
        if trial.beams is not None:
            check_beams(trial.beams, len(vocabulary), trial.completion.steps.ids)
        for rows in step_rows(trial):
            checked_steps(rows, "steps")
        return trial


class _Head(msgspec.Struct):
    """What tells the format; other fields are passed over."""

    format: Literal["logitbench-trial", "logitbench-trials"]
    version: int


class _TrialFile(_Trial, frozen=True, kw_only=True):
    format: str
    version: int
    tokenizers: dict[str, TokenizerPart]


class _FamilyFile(Part, frozen=True):
    format: str
    version: int
    trials: Annotated[tuple[_Trial, ...], msgspec.Meta(max_length=MOST_MEMBERS)]
    tokenizers: dict[str, TokenizerPart]


def is_trial_json(text: str) -> bool:
    """Return whether a text claims to be the JSON of trials."""
    return text.lstrip()[:1] == "{" and _FORMAT.search(text) is not None


def trials_from_json(content: str) -> list[TrialRecord]:
    """Return the trials that `to_json` or `family_to_json` wrote.

    Raises ValueError, TypeError or OverflowError for other content.
    """
    head = decoded_json(content, _Head)
    if head.version != VERSION:
        raise ValueError(f"version {head.version}; this version reads version {VERSION}")
    parts: Sequence[_Trial]
    if head.format == TRIAL_FORMAT:
        single = decoded_json(content, _TrialFile)
        parts, tokenizers = [single], single.tokenizers
    else:
        family = decoded_json(content, _FamilyFile)
        parts, tokenizers = family.trials, family.tokenizers
    vocabularies = {hash: _tokenizer(hash, part) for hash, part in tokenizers.items()}
    trials = [part.read(vocabularies) for part in parts]
    _check_family(trials)
    return trials


def _tokenizer(hash: str, part: TokenizerPart) -> Vocabulary:
    vocabulary = part.read()
    if vocabulary.hash != hash:
        raise ValueError(f"tokenizer {hash[:80]} has other content than its hash says")
    return vocabulary


def _check_family(trials: Sequence[TrialRecord]) -> None:
    """Raise ValueError where two trials have the same id, or one descends from itself."""
    parents = {trial.id: trial.parent for trial in trials}
    if len(parents) < len(trials):
        raise ValueError("two trials have the same id")
    settled: set[str] = set()
    for id in parents:
        above: set[str] = set()
        at: str | None = id
        while at in parents and at not in settled:
            if at in above:
                raise ValueError(f"trial {at} descends from itself")
            above.add(at)
            at = parents[at]
        settled |= above


def _normal_id(id: str) -> str:
    """Return a UUID in its usual form; other texts as they are, which TrialRecord refuses."""
    return str(as_uuid(id) or id)


def _check_ids(ids: Sequence[int], vocabulary: Vocabulary) -> None:
    if ids and max(ids) >= len(vocabulary):
        raise ValueError(f"token {max(ids):,} is outside the tokenizer's {len(vocabulary):,} tokens")


def _check_tokens(tokens: Sequence[_Step | _Candidate], vocabulary: Vocabulary) -> None:
    _check_ids([token.id for token in tokens], vocabulary)
    for token in tokens:
        if bytes(token.bytes) != vocabulary.pieces[token.id]:
            raise ValueError(f"token {token.id:,} has other bytes than its tokenizer says")


def _has_stages(steps: Sequence[_Step]) -> bool:
    """Return whether the steps have stages. Raises ValueError where only some of them do."""
    if any(step.forbidden and not step.stages for step in steps):
        raise ValueError("a step has forbidden candidates without stages")
    with_stages = sum(1 for step in steps if step.stages)
    if with_stages not in (0, len(steps)):
        raise ValueError("only some of its steps have stages")
    return with_stages > 0


def _table(steps: Sequence[_Step], vocabulary: Vocabulary, stages: tuple[str, ...], *, is_prompt: bool) -> StepTable:
    """Return the step table; candidates and stages are padded as in one that the history returns."""
    _check_tokens(steps, vocabulary)
    shape = len(steps), max((len(step.top) for step in steps), default=0)
    records = np.zeros(len(steps), RECORD)
    for name in _FIGURES:
        records[name] = [_float(getattr(step, name)) for step in steps]
    records["id"] = [step.id for step in steps]
    records["rank"] = [step.rank or 0 for step in steps]
    records["num_kept"] = [step.num_kept or 0 for step in steps]
    records["flags"] = [step.flags for step in steps]
    ids, logprobs = np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32)
    p_final = np.zeros(shape, np.float32)
    for row, top in enumerate(step.top for step in steps):
        _check_tokens(top, vocabulary)
        ids[row, : len(top)] = [one.id for one in top]
        logprobs[row, : len(top)] = [_float(one.logprob) for one in top]
        p_final[row, : len(top)] = [_float(one.p_final) for one in top]
        if top and np.isnan(p_final[row, : len(top)]).all():  # nothing was drawn
            p_final[row] = np.nan
    columns = _stage_columns(steps, stages, shape) if stages else None
    return StepTable.of(
        vocabulary, records, ids, logprobs, p_final, is_prompt=is_prompt, stages=stages, stage_columns=columns
    )


def _stage_columns(steps: Sequence[_Step], stages: tuple[str, ...], shape: tuple[int, int]) -> StageColumns:
    cut = np.zeros(shape, np.uint8)
    for row, step in enumerate(steps):
        if tuple(stage.stage for stage in step.stages) != stages:
            raise ValueError(f"the stages of a step are not those of its sampling: {', '.join(stages)}")
        places = {one.id: place for place, one in enumerate(step.top)}
        removed = list(chain.from_iterable(stage.cut for stage in step.stages))
        if len(places) < len(step.top) or len({*removed}) < len(removed) or not places.keys() >= {*removed}:
            raise ValueError("the stages of a step do not cut its own candidates, each once at most")
        if not places.keys() >= {*step.forbidden}:
            raise ValueError("the forbidden tokens of a step are not among its candidates")
        for number, stage in enumerate(step.stages, 1):
            cut[row, [places[id] for id in stage.cut]] = number
        cut[row, [places[id] for id in step.forbidden]] |= FORBIDDEN
    kept = np.array([[stage.kept for stage in step.stages] for step in steps], np.int32)
    mass = np.array([[stage.mass for stage in step.stages] for step in steps], np.float32)
    return StageColumns(kept, mass, cut)


def _float(figure: float | str | None) -> float:
    return np.nan if figure is None else float(figure)
