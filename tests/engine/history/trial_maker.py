"""Synthetic trials with the shape of real ones, for tests and for the processes that tests start."""

import os
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from engine.comparing.beams import BeamEnd, Beams, BeamSpec
from engine.history import ModelIdentity, TrialLabel, TrialRecord
from engine.results import Completion, Timings
from engine.specs import PoolSpec, Request, Sampling
from engine.stages import FORBIDDEN, stages_of
from engine.step_parts import INSPECTED, RECORD, StageColumns
from engine.steps import StepTable
from engine.vocabulary import TokenKind, Vocabulary

NASTY = "a\0b <b onmouseover=x>&amp;</b> \u202eevil\u2066 \x1b[31m \x7f \u2028 \r\n $\\frac{1}{2}$ 🧑\u200d🚀 é"
_PIECES = [bytes([byte]) for byte in range(256)] + [NASTY.encode(), b"", *(f" word{n}".encode() for n in range(3838))]
VOCABULARY = Vocabulary(
    pieces=tuple(_PIECES),
    kinds=bytes(TokenKind.BYTE if n < 256 else TokenKind.END if n == 257 else 0 for n in range(len(_PIECES))),
    names={257: "</s>"},
    bos=257,
    add_bos=True,
    add_space_prefix=True,
)


def uuid7() -> str:
    """Return a time-ordered id, as a submission creates it."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    return str(uuid.UUID(int=value & ~(0xF << 76) & ~(0x3 << 62) | 7 << 76 | 2 << 62))


def make_steps(num_steps: int, k: int = 8, *, seed: int = 0, is_prompt: bool = False) -> StepTable:
    """Return steps whose logits fall off like a language model's; the sampler kept 1 to 40 candidates."""
    random = np.random.default_rng(seed)
    table = StepTable(VOCABULARY, k, is_prompt=is_prompt)
    for _ in range(num_steps):
        logits = random.normal(0, 2.5, len(VOCABULARY)) - np.log(np.arange(1, len(VOCABULARY) + 1))
        normaliser = np.log(np.exp(logits).sum())
        logprobs = logits.astype(np.float32) - np.float32(normaliser)
        order = np.argsort(-logprobs)
        num_kept = int(random.integers(1, 41))
        kept = np.exp(logprobs[order[:num_kept]].astype(np.float64))
        p_final = np.zeros(len(VOCABULARY), np.float32)
        p_final[order[:num_kept]] = kept / kept.sum()
        choice = int(random.integers(num_kept))
        token = order[choice]
        figures = (logprobs[token], 2.5 + random.normal(), normaliser, p_final[token], random.random(), 0.004)
        record = np.array([(token, choice + 1, *figures, INSPECTED if k else 0, num_kept)], RECORD)
        top = order[:k].astype(np.int32)[None]
        table.append(record, top, logprobs[top[0]][None], p_final[top[0]][None])
    return table


def with_stages(trial: TrialRecord, *, seed: int = 0) -> TrialRecord:
    """Return a trial whose steps have stages, of its own sampling."""
    steps, random, names = trial.completion.steps, np.random.default_rng(seed), stages_of(trial.sampling)
    shape = len(steps), len(names)
    forbidden = random.integers(0, 2, (len(steps), steps.k), np.uint8) * np.uint8(FORBIDDEN)
    columns = StageColumns(
        np.sort(random.integers(1, 4096, shape, np.int32))[:, ::-1],
        np.sort(random.random(shape, np.float32))[:, ::-1],
        random.integers(0, len(names) + 1, (len(steps), steps.k), np.uint8) | forbidden,
    )
    whole = StepTable.of(
        steps.vocabulary, steps.records, steps.top_ids, steps.top_logprobs, steps.top_p_final,
        is_prompt=False, stages=names, stage_columns=columns,
    )  # fmt: skip
    return replace(
        trial, request=replace(trial.request, stages=True), completion=replace(trial.completion, steps=whole)
    )


def with_beams(trial: TrialRecord) -> TrialRecord:
    """Return a trial that is the best of two sequences of a beam search; the last token of the other one is another."""
    steps = trial.completion.steps
    ids, logprobs = [*steps.ids], [-0.25] * len(steps)
    spec = BeamSpec(num_beams=2, max_new_tokens=len(ids))
    total = sum(logprobs)
    ends = BeamEnd(len(ids) - 1, spec.score(total, len(ids))), BeamEnd(len(ids), spec.score(total - 1.0, len(ids)))
    parents = (*range(-1, len(ids) - 1), len(ids) - 2)
    tree = parents, (*ids, (ids[-1] + 1) % len(VOCABULARY)), (*logprobs, -1.25), ends
    return replace(trial, label=TrialLabel.BEAMS, beams=Beams(spec, *tree, 20, 12, steps.vocabulary))


def make_trial(num_steps: int = 6, k: int = 8, *, seed: int = 0, **changes: Any) -> TrialRecord:
    """Return a trial; `changes` replace its fields."""
    steps, id = make_steps(num_steps, k, seed=seed), changes.pop("id", uuid7())
    completion = Completion(
        text="what it said",
        steps=steps,
        prompt_steps=StepTable(VOCABULARY, k, is_prompt=True),
        prompt_ids=(257, 300, 301),
        finish_reason="length",
        timings=Timings(0.01, 0.5, 0.1, 0.11, 0.4, 3, 0, num_steps, 2, 1),
        seed=4_294_967_294,
        id=id,
    )
    trial = TrialRecord(
        id=id,
        created_at=datetime.now(UTC),
        prompt="Once upon a time",
        messages=(),
        sampling=Sampling(),
        request=Request(max_tokens=num_steps, top_k=k),
        pool=PoolSpec(instances=2),
        model=ModelIdentity("story", "story.gguf", "0f" * 32, "Q8_0", 7_000_000),
        versions={"llama_cpp_python": "0.3.36"},
        completion=completion,
    )
    return replace(trial, **changes)
