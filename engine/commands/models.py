"""`python -m engine models`: the model files of this machine, their metadata, and whether they fit in memory."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine.commands import models_get, models_order, models_quantize, models_synth, pool_flags
from engine.commands.parser import PROGRAM, Parser
from engine.commands.printing import print_json, print_text
from engine.errors import ConfigError
from engine.jsonable import figure
from engine.models import (
    BrokenFile,
    LibraryEntry,
    ModelFile,
    Place,
    TensorGroup,
    by_type,
    details,
    estimate,
    find_model,
    model_hash,
    read_library,
)
from engine.models.fit import SEQUENCES, notes_example
from engine.models.fit_report import fit_report
from engine.specs import PoolSpec
from engine.units import NOT_MEASURED, counted, digits, percent, quantity
from engine.workbench.model_library import in_memory
from engine.workbench.model_manager import default_spec

_HEAD = f"{'name':<40} {'type':<8} {'size':>9} {'needs':>9}  {'fits':<5} {'in RAM':>6}  place"
_VALUE_CHARACTERS = 120

Given = dict[str, Any]


def run(words: Sequence[str]) -> None:
    """Run the command. Raises EngineError, SystemExit for unknown flags, KeyboardInterrupt after Ctrl+C."""
    given = vars(_parser().parse_args(words[1:]))
    given["act"](given)


def _parser() -> argparse.ArgumentParser:
    # Abbreviated flags are rejected, so that a new flag cannot break scripts.
    parser: argparse.ArgumentParser = Parser(
        prog=f"{PROGRAM} models", description="Model files of this machine.", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="list|show|fit|get|quantize|synth|order")
    listing = commands.add_parser("list", help="list the model files found here", allow_abbrev=False)
    listing.set_defaults(act=_list)
    listing.add_argument("folders", nargs="*", metavar="DIR", help="search only here (default: everywhere)")
    showing = commands.add_parser("show", help="show the metadata of a model file", allow_abbrev=False)
    showing.set_defaults(act=_show)
    showing.add_argument("model", metavar="MODEL", help="file, or a name from the list")
    showing.add_argument("--hash", action="store_true", help="read the whole file for its SHA-256")
    fitting = _add_fit(commands)
    for each in (listing, showing, fitting):
        each.add_argument("--json", action="store_true", help="print JSON")
    for module in (models_get, models_quantize, models_synth, models_order):
        module.add_parser(commands)
    return parser


def _add_fit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "fit", help="show how much memory a model needs, and what fits here", allow_abbrev=False
    )
    parser.set_defaults(act=_fit)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("model", nargs="?", metavar="MODEL", help="file, or a name from the list")
    source.add_argument("--notes", action="store_true", help="an example instead of a file: 540 B parameters")
    table = parser.add_argument_group("table")
    table.add_argument(
        "--contexts", metavar="N,N", help="tokens per sequence (default: doubling up to the trained context)"
    )
    table.add_argument("--sequences", metavar="N,N", help=f"default: {','.join(map(str, SEQUENCES))}")
    pool = parser.add_argument_group("pool")
    pool_flags.add(pool, "n_ctx", "parallel", "instances", "type_k", "type_v", "share_weights", "dtype")
    return parser


def _list(given: Given) -> None:
    places = [Place("Folder", _folder(name)) for name in given["folders"]]
    entries = read_library(places or None)
    if given["json"]:
        print_json({"models": [_plain(entry) for entry in entries]})
    else:
        print_text("\n".join([_HEAD, *map(_line, entries)]) if entries else "No model files found.")


def _folder(name: str) -> Path:
    path = Path(name).absolute()
    if not path.is_dir():
        raise ConfigError(f"{name}: is not a folder")
    return path


def _plain(entry: LibraryEntry) -> dict[str, Any]:
    """Return an entry with its memory need and its share in the page cache; for a broken file, only the entry."""
    if isinstance(entry.file, BrokenFile):
        return entry.to_dict()
    needed = estimate(entry.file, default_spec(entry.file))
    return {
        **entry.to_dict(),
        "needed_bytes": needed.total,
        "fits": needed.fits,
        "in_memory": figure(in_memory(entry.file)),
    }


def _line(entry: LibraryEntry) -> str:
    if isinstance(entry.file, BrokenFile):
        return f"{entry.name:<40.40} cannot be used: {entry.file.reason}"
    plain = _plain(entry)
    share = plain["in_memory"]
    return (
        f"{entry.name:<40.40} {entry.file.quantisation:<8} {quantity(entry.file.size, 'B'):>9} "
        f"{quantity(plain['needed_bytes'], 'B'):>9}  {'yes' if plain['fits'] else 'no':<5} "
        f"{NOT_MEASURED if share is None else percent(share):>6}  {entry.place.name}: {entry.label}"
    )


def _show(given: Given) -> None:
    file = find_model(given["model"])
    facts = details(file) | ({"sha256": model_hash(file.path)} if given["hash"] else {})
    if given["json"]:
        print_json(facts)
        return
    lines = [f"{name:<18} {_fact(name, value)}" for name, value in facts.items() if isinstance(value, str | int)]
    lines += ["", *map(_group_line, by_type(file)), "", f"{counted(len(file.metadata), 'key')} of metadata:"]
    lines += [f"  {key} = {_cut(value)}" for key, value in facts["metadata"].items()]
    print_text("\n".join(lines))


def _fact(name: str, value: str | int) -> str:
    if name in ("size", "weights_bytes"):
        return quantity(float(value), "B")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:,}"


def _group_line(group: TensorGroup) -> str:
    return (
        f"  {group.name:<8} {quantity(group.num_bytes, 'B'):>9}  {counted(group.num_tensors, 'tensor')}, "
        f"{digits(group.bits_per_value)} bits per value"
    )


def _cut(value: Any) -> str:
    """Return a value on one line, shortened to 120 characters."""
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}… ({len(text):,} characters)"


def _fit(given: Given) -> None:
    if given["notes"]:
        example = notes_example()
        if given["json"]:
            print_json({"says": example.says, "row": asdict(example.row)})
        else:
            print_text(f"{example.says}.")
        return
    file = find_model(given["model"])
    report = fit_report(
        file, _pool(file, given), _numbers(given, "contexts"), _numbers(given, "sequences") or SEQUENCES
    )
    if given["json"]:
        print_json(report.to_dict())
    else:
        print_text(str(report))


def _pool(file: ModelFile, given: Given) -> PoolSpec:
    """Return the default pool parameters of a file, with the values of the flags in place of its own."""
    said = pool_flags.given_values(given)
    return replace(default_spec(file), **said)


def _numbers(given: Given, name: str) -> list[int]:
    """Parse comma-separated whole numbers; an empty list where the flag is not given."""
    try:
        return [int(part) for part in given[name].split(",")] if given[name] else []
    except ValueError:
        raise ConfigError(f"--{name} {given[name]}: must be comma-separated whole numbers") from None
