"""`python -m engine trials`: saved trials, listed, shown, replayed and written to files."""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from engine.commands.arguments import check_writable
from engine.commands.history import list_found
from engine.commands.history_arguments import SHOWN, ListArguments
from engine.commands.keeping import readable
from engine.commands.parser import PROGRAM, Parser
from engine.commands.printing import print_json, print_json_text, print_text
from engine.commands.table import one_line, percent_of, table
from engine.commands.watched import watch
from engine.comparing.replay import Difference, Replay
from engine.errors import ConfigError, quoted
from engine.files import writing_whole
from engine.history import History, TrialRecord
from engine.history.export import to_csv, to_json, to_text
from engine.history.filters import Filter
from engine.history.trial_file import trial_bytes
from engine.jsonable import figure, step_to_dict
from engine.models.details import readable as readable_name
from engine.models.library import find_model
from engine.private_files import persons_umask
from engine.settings import Settings
from engine.units import counted, quantity, significant
from engine.validation import Spec
from engine.workbench.replays import Replayed, ReplayTask
from engine.workbench.trials import perplexity

FORMATS = {".json": to_json, ".trial": trial_bytes, ".csv": to_csv, ".txt": to_text}
"""What `export` writes, by the ending of the file's name."""
_PREFIX = re.compile("[0-9a-f-]{1,36}")
_MOST_NAMED = 5

Given = dict[str, Any]


def run(words: Sequence[str]) -> None:
    """Run the command. Raises EngineError, SystemExit for unknown flags, KeyboardInterrupt after Ctrl+C."""
    given = vars(_parser().parse_args(words[1:]))
    given["act"](given)


def _parser() -> argparse.ArgumentParser:
    # Abbreviated flags are rejected, so that a new flag cannot break scripts.
    parser: argparse.ArgumentParser = Parser(prog=f"{PROGRAM} trials", description="Saved trials.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="list|show|replay|export")
    listing = commands.add_parser("list", help="list trials, newest first", allow_abbrev=False)
    listing.set_defaults(act=_list)
    listing.add_argument("--limit", type=int, default=SHOWN, metavar="N", help=f"default: {SHOWN}")
    showing = commands.add_parser("show", help="show one trial", allow_abbrev=False)
    showing.set_defaults(act=_show)
    showing.add_argument("--xray", action="store_true", help="each token with its candidates and sampler stages")
    replaying = commands.add_parser("replay", help="run a trial again and compare every token", allow_abbrev=False)
    replaying.set_defaults(act=_replay)
    replaying.add_argument("--model", metavar="MODEL", help="file of its model, or a name from the list, if it moved")
    exporting = commands.add_parser("export", help="write one trial to a file", allow_abbrev=False)
    exporting.set_defaults(act=_export)
    exporting.add_argument(
        "--out", type=Path, required=True, metavar="FILE",
        help=".json or .trial, which history import reads; .csv or .txt",
    )  # fmt: skip
    for each in (showing, replaying, exporting):
        add_id(each)
    for each in (listing, showing, replaying, exporting):
        each.add_argument("--json", action="store_true", help="print JSON")
    return parser


def add_id(parser: argparse.ArgumentParser) -> None:
    """Add the id of a trial."""
    parser.add_argument("id", metavar="ID", help="id of a trial, or its beginning")


def named_trial(given: Given) -> TrialRecord:
    """Return the trial whose id was given or begins so. Raises ConfigError where there is none, or more than one."""
    with readable(Settings.from_environment()) as history:
        return _found(history, given["id"])


def _found(history: History, asked: str) -> TrialRecord:
    prefix = asked.strip().lower()
    ids = history.ids_with(prefix, _MOST_NAMED + 1) if _PREFIX.fullmatch(prefix) else []
    if len(ids) > 1:
        named = ", ".join(ids[:_MOST_NAMED]) + (" and more" if len(ids) > _MOST_NAMED else "")
        raise ConfigError(f"{quoted(asked)} is the beginning of several trials: {named}. Give more of its id.")
    trial = history.trial(ids[0]) if ids else None
    if trial is None:
        raise ConfigError(f"There is no trial {quoted(asked)}. The command trials list shows their ids.")
    return trial


def _list(given: Given) -> None:
    wanted = ListArguments(is_json=given["json"], kind="trials", wanted=Filter(), limit=given["limit"], out=None)
    with readable(Settings.from_environment()) as history:
        list_found(history, wanted)


def _show(given: Given) -> None:
    trial = named_trial(given)
    if given["json"]:
        print_json_text(to_json(trial).decode())
    elif given["xray"]:
        print_text(table(trial.completion))
    else:
        print_text("\n".join(_shown(trial)))


def _shown(trial: TrialRecord) -> Iterator[str]:
    """Yield the lines that describe a trial: prompt, answer, parameters and figures."""
    yield f"trial {trial.id}, {trial.created_at:%Y-%m-%d %H:%M}" + (f", {trial.label}" if trial.label else "")
    if trial.parent:
        yield f"derived from {trial.parent}"
    yield f"model {readable_name(trial.model.name)} {trial.model.quantisation}, {readable_name(trial.model.path)}"
    for title, text in (("prompt", trial.prompt), ("answer", trial.completion.text)):
        yield from ("", f"{title}:", text)
    changed = {**_changed(trial.sampling), **_changed(trial.request)}
    yield from ("", "parameters: " + (", ".join(f"{name} {value}" for name, value in changed.items()) or "defaults"))
    yield "figures: " + ", ".join(_figures(trial))


def _changed(spec: Spec) -> Given:
    """Return the parameters of a trial that are not the defaults; its seed is among the figures."""
    values = {field.name: (getattr(spec, field.name), field.default) for field in fields(spec)}  # type: ignore[arg-type]
    return {
        name: one_line(str(value)) for name, (value, default) in values.items() if value != default and name != "seed"
    }


def _figures(trial: TrialRecord) -> Iterator[str]:
    completion, timings = trial.completion, trial.completion.timings
    yield counted(len(completion.steps), "token")
    yield completion.ending
    if timings.decode_per_s is not None:
        yield quantity(timings.decode_per_s, "tok/s")
    if completion.steps:
        yield f"first token after {quantity(timings.ttft_s, 's')}"
    for name, steps in (("prompt perplexity", completion.prompt_steps), ("perplexity", completion.steps)):
        found = perplexity(steps)
        if found is not None:
            yield f"{name} {significant(found, 3)}"
    yield f"seed {completion.seed}"


def _replay(given: Given) -> None:
    trial = named_trial(given)
    model = find_model(given["model"]).path if given["model"] else None
    done = watch(ReplayTask(trial, model=model))
    if given["json"]:
        print_json(_plain(trial, done))
        return
    lines = [done.replay.sentence]
    if done.replay.difference is not None:
        lines += _both(done.replay.difference)
    print_text("\n".join([*lines, *done.remarks]))


def _both(found: Difference) -> Iterator[str]:
    """Yield the recorded and the replayed distribution beside each other."""
    yield f"{'candidate':<20} {'recorded':>9} {'replayed':>9}"
    for token, recorded, replayed in found.logprobs:
        text = one_line(repr(found.text(token)))
        chosen = [
            name
            for name, step in (("recorded", found.recorded), ("replayed", found.replayed))
            if step is not None and step.id == token
        ]
        yield f"{text:<20} {percent_of(recorded):>9} {percent_of(replayed):>9}  {', '.join(chosen)}".rstrip()


def _plain(trial: TrialRecord, done: Replayed) -> Given:
    replay = done.replay
    return {
        "trial": trial.id,
        "model": str(done.model),
        "sentence": replay.sentence,
        "is_identical": replay.is_identical,
        "num_tokens": replay.num_tokens,
        "num_same": replay.num_same,
        "num_forced": replay.num_forced,
        "largest_change": figure(replay.largest),
        "largest_change_at": replay.largest_at,
        "difference": _plain_difference(replay),
        "remarks": list(done.remarks),
    }


def _plain_difference(replay: Replay) -> Given | None:
    found = replay.difference
    if found is None:
        return None
    replayed = None if found.replayed is None else step_to_dict(found.replayed)
    return {"position": found.position, "recorded": step_to_dict(found.recorded), "replayed": replayed}


def _export(given: Given) -> None:
    path: Path = given["out"]
    if path.suffix not in FORMATS:
        raise ConfigError(f"--out {path}: the name must end with {', '.join(FORMATS)}")
    check_writable(path)
    trial = named_trial(given)
    content = FORMATS[path.suffix](trial)
    try:
        with persons_umask(), writing_whole(path) as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"--out {path}: could not be written: {error}") from error
    if given["json"]:
        print_json({"trial": trial.id, "path": str(path), "num_bytes": len(content)})
    else:
        print_text(f"{path}: {quantity(len(content), 'B')}")
