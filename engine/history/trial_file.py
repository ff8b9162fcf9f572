"""Trial file: a trial as msgpack, with its figures as raw arrays and its tokenizer.

Nothing in it is executed, every field is checked, unknown fields are rejected.
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np

from engine.files import read_regular
from engine.history.beam_part import BeamPart, check_beams
from engine.history.columns import step_rows
from engine.history.step_checks import checked_steps
from engine.history.trials import EngineIdentity, ModelIdentity, TrialRecord
from engine.jsonable import spec_from_dict, spec_to_dict
from engine.protocol import LogprobsOf
from engine.results import Completion, FinishReason, Timings, is_context_full
from engine.specs import MAX_RECORDED, PoolSpec, Request, Sampling
from engine.stages import stages_of
from engine.step_parts import RECORD, StageColumns
from engine.steps import StepTable
from engine.vocabulary import Vocabulary, checked_size

FORMAT = 1
MOST_BYTES = 512 << 20

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of the parts of a file; reading one raises ValueError, TypeError or OverflowError where invalid."""


class TokenizerPart(Part, frozen=True):
    """Serialised Vocabulary."""

    pieces: tuple[bytes, ...]
    kinds: bytes
    names: dict[int, str]
    bos: Count | None
    add_bos: bool
    add_space_prefix: bool

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Self:
        """Return the part for a vocabulary. Raises ConfigError for a partial vocabulary."""
        stored = vocabulary.whole()
        return cls(**{name: getattr(stored, name) for name in cls.__struct_fields__})

    def read(self) -> Vocabulary:
        """Return the vocabulary. Raises ConfigError for one that is too large."""
        if len(self.kinds) != len(self.pieces):
            raise ValueError(f"the tokenizer has {len(self.pieces):,} pieces but {len(self.kinds):,} kinds")
        return checked_size(Vocabulary(**msgspec.structs.asdict(self)))


class _Steps(Part, frozen=True):
    """Serialised StepTable: RECORD rows, and (n, k) matrices of int32, float32, float32, all little-endian."""

    k: Annotated[int, msgspec.Meta(ge=0, le=MAX_RECORDED)]
    records: bytes
    top_ids: bytes
    top_logprobs: bytes
    top_p_final: bytes
    stage_kept: bytes = b""
    stage_mass: bytes = b""
    top_cut: bytes = b""

    @classmethod
    def of(cls, table: StepTable) -> Self:
        matrices = (table.records, table.top_ids, table.top_logprobs, table.top_p_final, *(table.stage_columns or ()))
        return cls(table.k, *(matrix.tobytes() for matrix in matrices))

    def read(self, vocabulary: Vocabulary, *, is_prompt: bool, stages: tuple[str, ...] = ()) -> StepTable:
        records = np.frombuffer(self.records, RECORD)
        shape = len(records), self.k
        ids = np.frombuffer(self.top_ids, "<i4").reshape(shape)
        logprobs = np.frombuffer(self.top_logprobs, "<f4").reshape(shape)
        p_final = np.frombuffer(self.top_p_final, "<f4").reshape(shape)
        _check_ids(records["id"], 0, vocabulary)
        _check_ids(ids, -1, vocabulary)
        found = self._stages(len(records), len(stages)) if stages else None
        return StepTable.of(
            vocabulary, records, ids, logprobs, p_final, is_prompt=is_prompt, stages=stages, stage_columns=found
        )

    def _stages(self, num_steps: int, num_stages: int) -> StageColumns:
        kept = np.frombuffer(self.stage_kept, "<i4").reshape(num_steps, num_stages)
        mass = np.frombuffer(self.stage_mass, "<f4").reshape(num_steps, num_stages)
        return StageColumns(kept, mass, np.frombuffer(self.top_cut, np.uint8).reshape(num_steps, self.k))


class ModelPart(Part, frozen=True):
    """Serialised ModelIdentity."""

    name: str
    path: str
    hash: str
    quantisation: str
    num_parameters: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class EnginePart(Part, frozen=True):
    """Serialised EngineIdentity."""

    name: str
    url: str
    dialect: str
    logprobs_of: LogprobsOf

    @classmethod
    def of(cls, engine: EngineIdentity | None) -> Self | None:
        """Return the part for an engine, None for none."""
        return None if engine is None else cls(**vars(engine))

    def read(self) -> EngineIdentity:
        """Return the engine. Raises ConfigError for texts beyond their limits."""
        return EngineIdentity(**msgspec.structs.asdict(self))


class TimingsPart(Part, frozen=True):
    """Serialised Timings."""

    queue_s: Seconds
    load_s: Seconds
    prefill_s: Seconds
    ttft_s: Seconds
    decode_s: Seconds
    num_prompt: Count
    num_cached: Count
    num_generated: Count
    threads: Count | None = None
    threads_batch: Count | None = None


class TrialPart(Part, frozen=True, kw_only=True):
    """Trial without its steps and its tokenizer."""

    format: int
    id: str
    created_at: datetime
    prompt: str
    messages: tuple[dict[str, str], ...]
    sampling: dict[str, Any]
    request: dict[str, Any]
    pool: dict[str, Any]
    model: ModelPart
    versions: dict[str, str]
    parent: str | None
    label: str
    prompt_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    timings: TimingsPart
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
    unknown_fields: tuple[str, ...] = ()
    engine: EnginePart | None = None
    client: str = ""
    node: str | msgspec.UnsetType = msgspec.UNSET  # left out where empty: versions before refuse the field
    beams: BeamPart | None = None

    @classmethod
    def of(cls, trial: TrialRecord, **further: Any) -> Self:
        """Return the part for a trial; `further` are the fields that a subclass adds."""
        completion = trial.completion
        return cls(
            format=FORMAT,
            id=trial.id,
            created_at=trial.created_at,
            prompt=trial.prompt,
            messages=trial.messages,
            sampling=spec_to_dict(trial.sampling),
            request=spec_to_dict(trial.request),
            pool=spec_to_dict(trial.pool),
            model=ModelPart(**vars(trial.model)),
            versions=trial.versions,
            parent=trial.parent,
            label=trial.label,
            prompt_ids=completion.prompt_ids,
            text=completion.text,
            finish_reason=completion.finish_reason,
            timings=TimingsPart(**completion.timings._asdict()),
            seed=completion.seed,
            unknown_fields=trial.unknown_fields,
            engine=EnginePart.of(trial.engine),
            client=trial.client,
            node=trial.node or msgspec.UNSET,
            beams=BeamPart.of(trial.beams),
            **further,
        )

    def read(self, prompt_steps: StepTable, steps: StepTable) -> TrialRecord:
        """Return the trial with these steps."""
        if self.format != FORMAT:
            raise ValueError(f"format {self.format}; this version reads format {FORMAT}")
        request = spec_from_dict(Request, self.request)
        num_generated = max(len(steps), self.timings.num_generated)  # a server may count more than it sends
        completion = Completion(
            text=self.text,
            steps=steps,
            prompt_steps=prompt_steps,
            prompt_ids=self.prompt_ids,
            finish_reason=self.finish_reason,
            timings=Timings(**msgspec.structs.asdict(self.timings)),
            seed=self.seed,
            id=self.id,
            is_context_full=is_context_full(self.finish_reason, num_generated, request.max_tokens),
        )
        return TrialRecord(
            id=self.id,
            created_at=self.created_at,
            prompt=self.prompt,
            messages=self.messages,
            sampling=spec_from_dict(Sampling, self.sampling),
            request=request,
            pool=spec_from_dict(PoolSpec, self.pool),
            model=ModelIdentity(**msgspec.structs.asdict(self.model)),
            versions=self.versions,
            completion=completion,
            parent=self.parent,
            label=self.label,
            unknown_fields=self.unknown_fields,
            engine=None if self.engine is None else self.engine.read(),
            client=self.client,
            node=self.node if isinstance(self.node, str) else "",
            beams=None if self.beams is None else self.beams.read(steps.vocabulary),
        )


class _File(TrialPart, frozen=True):
    tokenizer: TokenizerPart
    prompt_steps: _Steps
    steps: _Steps

    def trial(self) -> TrialRecord:
        vocabulary = self.tokenizer.read()
        _check_ids(np.asarray(self.prompt_ids, np.int64), 0, vocabulary)
        prompt_steps = self.prompt_steps.read(vocabulary, is_prompt=True)
        has_stages = bool(self.steps.stage_kept)
        names = stages_of(spec_from_dict(Sampling, self.sampling)) if has_stages else ()
        trial = self.read(prompt_steps, self.steps.read(vocabulary, is_prompt=False, stages=names))
        if trial.beams is not None:
            check_beams(trial.beams, len(vocabulary), trial.completion.steps.ids)
        for rows in step_rows(trial):
            checked_steps(rows, "steps")
        return trial


def trial_bytes(trial: TrialRecord) -> bytes:
    """Return the content of a trial file."""
    completion = trial.completion
    parts = _Steps.of(completion.prompt_steps), _Steps.of(completion.steps)
    tokenizer = TokenizerPart.of(completion.steps.vocabulary)
    return msgspec.msgpack.encode(_File.of(trial, tokenizer=tokenizer, prompt_steps=parts[0], steps=parts[1]))


def trial_from_bytes(content: bytes) -> TrialRecord:
    """Return the trial that `trial_bytes` wrote; raises ValueError, TypeError or OverflowError for other content."""
    try:
        return msgspec.msgpack.decode(content, type=_File).trial()
    except RecursionError:
        raise ValueError("it is nested deeper than anything that this version writes") from None
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def read_trial(path: Path) -> TrialRecord:
    """Read a trial from a file; raises as `trial_from_bytes`, and OSError."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    return trial_from_bytes(read_regular(path))


def _check_ids(ids: Any, lowest: int, vocabulary: Vocabulary) -> None:
    if ids.size and not (ids.min() >= lowest and ids.max() < len(vocabulary)):
        raise ValueError(f"a token id is outside the tokenizer's {len(vocabulary):,} tokens")
