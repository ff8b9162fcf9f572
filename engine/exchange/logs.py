"""Import of two log formats for timings and candidates: timed blocks, and lines with the candidates of a step."""

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from engine.bench.planning.plan import Plan
from engine.errors import ConfigError
from engine.ids import new_id
from engine.runs import CellRecord, RunRecord
from engine.samples import Samples, make_sample

MOST_BLOCKS = 10_000
MOST_STEPS = 100_000

_HEAD = re.compile(r"^### *MODEL_NUM: *(\d{1,9}) *\| *ITER: *(\d{1,9}) *### *$")
_NUMBERS = {"time_load": float, "time_infer": float, "time_script": float, "comp_tokens": int}
_SETTINGS = ("model_fn", "MAX_TOKENS", "N_THREADS")
_COUNT = re.compile("[0-9]{1,9}")
_PADDED = 12
_CANDIDATE = re.compile(
    r"\[(\d{1,12})\] +- +(\d{1,9}): '((?:(?!\n\[).){0,80}?)' \( *(\d{1,3}(?:\.\d{1,12})?)\)[ \t]*(?:\n|$)", re.S
)
_SAMPLED = re.compile(r"\[(\d{1,12})\] sampled token: +(\d{1,9}): '((?:(?!\n\[).){0,80}?)'[ \t]*(?:\n|$)", re.S)


class LoggedCandidate(NamedTuple):
    """One candidate as logged: id, text, and its probability with the few digits that were written."""

    id: int
    text: str
    p: float


class LoggedStep(NamedTuple):
    """One step: Unix seconds, its candidates most probable first, and the sampled token (None: not logged)."""

    at: int
    candidates: tuple[LoggedCandidate, ...]
    sampled: LoggedCandidate | None


# timed blocks


class _Block(NamedTuple):
    """One block: model and iteration from its heading, its values by name, the line number of its heading."""

    model: int
    iteration: int
    values: dict[str, str]
    line: int

    def number(self, name: str) -> float:
        """Return a figure of the block; raises ConfigError where it is missing or not a valid number."""
        try:
            value = float(_NUMBERS[name](self.values[name]))
        except KeyError:
            raise ConfigError(f"line {self.line}: this block has no {name}") from None
        except (ValueError, OverflowError):
            value = math.nan
        if not 0 <= value < 1e9:
            raise ConfigError(f"line {self.line}: {name} = {self.values[name]!r:.80}: must be a number of at least 0")
        return value


def is_timing_log(text: str) -> bool:
    """Return True if the first non-blank line is the heading of a timed block."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return first.startswith("### MODEL_NUM")


def read_timing_log(text: str, name: str = "") -> RunRecord:
    """Read a run with a configuration for each model, token limit and number of threads, and a sample for each block.

    Samples are in the order of the log within a configuration, whose first load counts as the cold one. Raises
    ConfigError with line and reason.
    """
    blocks = list(_blocks(text))
    if not blocks:
        raise ConfigError("line 1: no block that begins with ### MODEL_NUM: … | ITER: … ###")
    if len(blocks) > MOST_BLOCKS:
        raise ConfigError(f"the log has more than {MOST_BLOCKS:,} blocks: split it")
    by_cell: dict[tuple[str, ...], list[_Block]] = {}
    for block in blocks:
        by_cell.setdefault(tuple(block.values.get(key, "") for key in _SETTINGS), []).append(block)
    is_alone = len({key[0] for key in by_cell}) == len(by_cell)
    cells = [_cell(number, key, mine, is_alone=is_alone) for number, (key, mine) in enumerate(by_cell.items())]
    samples = np.concatenate(
        [
            _sample(number, index, block)
            for number, mine in enumerate(by_cell.values())
            for index, block in enumerate(mine)
        ]
    )
    samples["position"] = np.arange(len(samples))
    model = blocks[0].values.get("model_fn", "")
    return RunRecord(
        id=new_id(),
        created_at=datetime.now(UTC),
        name=name,
        question="speed",
        status="done",
        plan=Plan(name=name, model=model, rounds=max(map(len, by_cell.values()))).to_dict(),
        machine={},
        versions={},
        cells=tuple(cells),
        samples=samples,
        origin="log",
    )


def _blocks(text: str) -> Iterator[_Block]:
    """Yield the blocks; values follow a colon, and the output, which comes last, may span any number of lines."""
    block: _Block | None = None
    for line, words in enumerate(text.splitlines(), 1):
        head = _HEAD.match(words)
        if head:
            if block:
                yield block
            block = _Block(int(head[1]), int(head[2]), {}, line)
        elif words.startswith("### MODEL_NUM"):
            raise ConfigError(f"line {line}: not a header of the form ### MODEL_NUM: 1 | ITER: 1 ###")
        elif block is not None and "output" not in block.values:
            key, colon, value = words.partition(":")
            if words.strip() and not (colon and key in (*_NUMBERS, *_SETTINGS, "output")):
                raise ConfigError(f"line {line}: {words!r:.80}: neither a value nor the header of a block")
            if colon:
                block.values[key] = value.strip()
        elif block is None and words.strip():
            raise ConfigError(f"line {line}: {words!r:.80}: comes before the first block")
    if block:
        yield block


def _cell(number: int, key: tuple[str, ...], blocks: list[_Block], *, is_alone: bool) -> CellRecord:
    model, most_tokens, threads = key
    loads = [block.number("time_load") for block in blocks]
    facts = {"load_cold_s": loads[0]}
    if len(loads) > 1:
        facts["load_warm_s"] = float(np.median(loads[1:]))
    settings: dict[str, Any] = {"model": model, "parallel": 1}
    if _COUNT.fullmatch(threads):
        settings["layout"] = f"1x{threads}"
    if _COUNT.fullmatch(most_tokens):
        settings["num_generated"] = int(most_tokens)
    label = model if is_alone else f"{model} · {threads} threads · {most_tokens} tokens"
    return CellRecord(
        number=number, label=label or f"model {number + 1}", settings=settings, status="done", facts=facts
    )


def _sample(cell: int, index: int, block: _Block) -> Samples:
    seconds, num_tokens = block.number("time_infer"), block.number("comp_tokens")
    if not seconds or not num_tokens:
        raise ConfigError(f"line {block.line}: a block of 0 seconds or 0 tokens measures nothing")
    block.number("time_script")
    rate = num_tokens / seconds
    return make_sample(cell=cell, round=index, duration_s=seconds, end_to_end_per_s=rate, e2e_s=seconds)


# candidates of steps


def read_candidate_log(text: str) -> list[LoggedStep]:
    """Read the steps of a log of lines `[seconds] - id: 'text' (probability)`, each ended by its `sampled token` line.

    Texts are left-padded with spaces to 12 characters, so the leading spaces of a piece itself are lost. One is
    restored, since the pieces of most vocabularies begin with one; the sampled token's own line, which is not padded,
    corrects its candidate. Raises ConfigError with line and reason.
    """
    steps: list[LoggedStep] = []
    found: list[LoggedCandidate] = []
    at = end = 0
    while end < len(text):
        if match := _CANDIDATE.match(text, end):
            found.append(_candidate(match, text))
        elif match := _SAMPLED.match(text, end):
            steps.append(_step(int(match[1]), found, LoggedCandidate(int(match[2]), match[3], math.nan)))
            found = []
        else:
            end = _skip_blank(text, end)
            continue
        at, end = int(match[1]), match.end()
        if len(steps) > MOST_STEPS:
            raise ConfigError(f"the log has more than {MOST_STEPS:,} steps: split it")
    if found:
        steps.append(_step(at, found, None))
    if not steps:
        raise ConfigError("line 1: no candidate line: [seconds]  -  id: 'text' (probability)")
    return steps


def _skip_blank(text: str, at: int) -> int:
    """Return the end of a blank line; raises ConfigError for any other line."""
    end = text.find("\n", at)
    line = text[at : end if end >= 0 else len(text)]
    if line.strip():
        number = text.count("\n", 0, at) + 1
        raise ConfigError(f"line {number}: {line!r:.80}: neither a candidate nor a sampled token")
    return end + 1 if end >= 0 else len(text)


def _candidate(match: re.Match[str], text: str) -> LoggedCandidate:
    p = float(match[4])
    if p > 1:
        raise ConfigError(f"line {text.count(chr(10), 0, match.start()) + 1}: {p} is not a probability")
    padded = match[3]
    bare = padded.lstrip(" ")
    is_padded = len(padded) <= _PADDED and len(bare) < len(padded)
    return LoggedCandidate(int(match[2]), " " + bare if is_padded else padded, p)


def _step(at: int, found: list[LoggedCandidate], sampled: LoggedCandidate | None) -> LoggedStep:
    """Return the step with the sampled token's exact text and its probability, where it is among the candidates."""
    if sampled is None:
        return LoggedStep(at, tuple(found), None)
    exact = tuple(one._replace(text=sampled.text) if one.id == sampled.id else one for one in found)
    p = next((one.p for one in exact if one.id == sampled.id), math.nan)
    return LoggedStep(at, exact, sampled._replace(p=p))
