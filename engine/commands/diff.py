"""`python -m engine diff`: what another model or another setting changes at the tokens of a saved trial."""

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any

from engine.commands import pool_flags
from engine.commands.parser import PROGRAM, Parser
from engine.commands.printing import print_json, print_text
from engine.commands.table import one_line, percent_of
from engine.commands.trials import add_id, named_trial
from engine.commands.watched import watch
from engine.comparing.model_diff import ChangedToken, ModelDiff
from engine.errors import ConfigError
from engine.history import TrialRecord
from engine.jsonable import figure, spec_to_dict
from engine.models import ModelFile, find_model
from engine.models.folder_specs import is_by_transformers
from engine.settings import Settings
from engine.specs import KV_TYPES, PoolSpec
from engine.units import significant
from engine.workbench.model_diffs import Diffed, DiffTask, Other

SHOWN = 20
"""Most changed tokens that are printed."""
_SETTINGS = ("type_k", "type_v", "threads", "share_weights", "dtype")
_CONTEXT_CHARACTERS = 30

Given = dict[str, Any]


def run(words: Sequence[str]) -> None:
    """Run the command. Raises EngineError, SystemExit for unknown flags, KeyboardInterrupt after Ctrl+C."""
    given = vars(_parser().parse_args(words[1:]))
    trial = named_trial(given)
    done = watch(DiffTask(trial, _other(given), Settings.from_environment()))
    if given["json"]:
        print_json(_plain(trial, done))
    else:
        print_text("\n".join(_lines(done, given["limit"])))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=f"{PROGRAM} diff",
        description="Compute the tokens of a saved trial by its own model and by another one, and compare.",
        allow_abbrev=False,
    )
    add_id(parser)
    parser.add_argument(
        "--model", metavar="MODEL", help="other file or folder, or a name from the list (default: the trial's own)"
    )
    parser.add_argument("--kv-type", metavar="TYPE", help=f"type of keys and values: {', '.join(KV_TYPES)}")
    pool_flags.add(parser.add_argument_group("machine", "Settings of the other model."), *_SETTINGS)
    parser.add_argument("--limit", type=int, default=SHOWN, metavar="N", help=f"most changed tokens (default: {SHOWN})")
    parser.add_argument("--json", action="store_true", help="print JSON, with every token")
    return parser


def _other(given: Given) -> Other:
    """Return the other side. Raises ConfigError for a setting out of range, and where nothing would differ."""
    if given["limit"] < 1:
        raise ConfigError(f"--limit {given['limit']}: must be at least 1")
    if given["kv_type"] and (given["type_k"] or given["type_v"]):
        raise ConfigError("--kv-type sets both --type-k and --type-v: give either it or those")
    settings = pool_flags.given_values(given)
    if given["kv_type"]:
        settings |= {"type_k": given["kv_type"], "type_v": given["kv_type"]}
    PoolSpec(**settings)
    model = find_model(given["model"]).path if given["model"] else None
    return Other(model, tuple(sorted(settings.items())))


def _lines(done: Diffed, limit: int) -> Iterator[str]:
    diff = done.diff
    yield diff.sentence
    yield f"perplexity {significant(diff.perplexity, 4)} and {significant(diff.other_perplexity, 4)}"
    yield f"largest change of a log-probability {significant(diff.change_max)} nats"
    yield f"first: {_side(done.file, done.spec)}"
    yield f"other: {_side(done.other_file, done.other_spec)}"
    if done.moved is not None:
        yield f"recorded log-probabilities differ from the first by up to {significant(done.moved)} nats"
    changed = diff.most_changed(limit)
    if changed:
        yield ""
        yield f"{'token':>6} {'nats':>7} {'KL':>9} {'first':>7} {'other':>7}   text; most probable of each"
        yield from map(_line, changed)


def _line(one: ChangedToken) -> str:
    before = one_line(one.before)[-_CONTEXT_CHARACTERS:]
    best = " | ".join(one_line(repr(text)) for text in (one.best, one.other_best))
    return (
        f"{one.position + 1:>6,} {one.change:>+7.3f} {significant(one.kl):>9} {percent_of(one.logprob):>7} "
        f"{percent_of(one.other_logprob):>7}   {before}[{one_line(one.text)}]; {best}"
    )


def _side(file: ModelFile, spec: PoolSpec) -> str:
    if is_by_transformers(file, spec):
        return f"{file.path.name}, {spec.dtype} by transformers"
    return f"{file.path.name} {file.quantisation}, {spec.type_k} keys, {spec.type_v} values"


def _plain(trial: TrialRecord, done: Diffed) -> Given:
    diff = done.diff
    return {
        "trial": trial.id,
        "first": _plain_side(done.file, done.spec, diff.perplexity),
        "other": _plain_side(done.other_file, done.other_spec, diff.other_perplexity),
        "sentence": diff.sentence,
        "is_prompt": diff.is_prompt,
        "num_tokens": len(diff.steps),
        "kl_mean": figure(diff.kl_mean),
        "kl_mean_bits": figure(diff.kl_mean / math.log(2)),
        "kl_max": figure(diff.kl_max),
        "change_max": figure(diff.change_max),
        "first_flip": diff.first_flip,
        "num_flips": diff.num_flips,
        "recorded_change": figure(done.moved),
        "tokens": _plain_tokens(diff),
        "most_changed": [one.position for one in diff.most_changed(len(diff.steps))],
    }


def _plain_side(file: ModelFile, spec: PoolSpec, perplexity: float) -> Given:
    about = {"path": str(file.path), "name": file.name, "quantisation": file.quantisation}
    return {**about, "pool": spec_to_dict(spec), "perplexity": figure(perplexity)}


def _plain_tokens(diff: ModelDiff) -> list[Given]:
    return [
        {
            "position": one.position,
            "id": diff.steps.ids[one.position],
            "text": one.text,
            "logprob": figure(one.logprob),
            "other_logprob": figure(one.other_logprob),
            "change": figure(one.change),
            "kl": figure(one.kl),
            "best": one.best,
            "other_best": one.other_best,
        }
        for one in diff.changed()
    ]
