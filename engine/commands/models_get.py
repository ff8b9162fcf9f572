"""`python -m engine models get`: downloads a model of the catalogue or any repository, or lists what they offer."""

import argparse
from contextlib import nullcontext, suppress
from typing import Any

from engine.commands.printing import print_json, print_text
from engine.commands.watched import watch
from engine.errors import ConfigError, HistoryError
from engine.files import named_path
from engine.history import open_to_read
from engine.jsonable import figure
from engine.machine.fingerprint import fingerprint, fingerprint_hash
from engine.machine.limits import Limits
from engine.machine.memory import available_memory
from engine.models.catalogue import Choice, Entry, choices, look_up, read_catalogue
from engine.models.download import Download
from engine.models.hub import Repository, read_repository
from engine.private_files import persons_umask
from engine.settings import Settings
from engine.units import NOT_MEASURED, quantity

Given = dict[str, Any]

_HEAD = f"{'name':<28} {'size':>9} {'needs':>9}  {'fits':<5} {'at most':>13}  licence"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `get` to the parser of `models`."""
    get = commands.add_parser("get", help="download a model; without a name: show the catalogue", allow_abbrev=False)
    get.set_defaults(act=_act)
    get.add_argument("name", nargs="?", metavar="NAME", help="name in the catalogue, or owner/name of any repository")
    get.add_argument("wanted", nargs="?", default="", metavar="FILE", help="one of its files, or a quantisation")
    get.add_argument("--list", action="store_true", help="download nothing, list what the repository offers")
    get.add_argument("--folder", metavar="DIR", help="folder for models (default: the first of LOGITBENCH_MODELS)")
    get.add_argument("--json", action="store_true", help="print JSON")


def _act(given: Given) -> None:
    if given["name"] is None:
        _show_catalogue(is_json=given["json"])
    elif given["list"]:
        _show_choices(given["name"], is_json=given["json"])
    else:
        _get(given)


def _get(given: Given) -> None:
    repository, choice = look_up(given["name"], given["wanted"])
    folder = named_path(given["folder"]) if given["folder"] else Settings.from_environment().models
    with persons_umask() if given["folder"] else nullcontext():
        paths = watch(Download(repository, choice.files, folder))
    if given["json"]:
        print_json({**_facts(repository), "bytes": choice.num_bytes, "files": [str(path) for path in paths]})
    else:
        print_text("\n".join(str(path) for path in paths))


def _show_choices(name: str, *, is_json: bool) -> None:
    address = name if "/" in name else read_catalogue().named(name).repository
    repository = read_repository(address)
    offered = choices(repository)
    if is_json:
        print_json({**_facts(repository), "choices": [_choice(choice) for choice in offered]})
        return
    if not offered:
        raise ConfigError(f"{repository.name} has no GGUF file and no sentence-transformers folder")
    print_text("\n".join(f"{quantity(choice.num_bytes, 'B'):>9}  {choice.name}" for choice in offered))


def _facts(repository: Repository) -> dict[str, Any]:
    return {
        "repository": repository.name,
        "commit": repository.commit,
        "license": repository.license,
        "is_gated": repository.is_gated,
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "name": choice.name,
        "kind": choice.kind,
        "quantisation": choice.quantisation,
        "bytes": choice.num_bytes,
        "files": [file.path for file in choice.files],
    }


def _show_catalogue(*, is_json: bool) -> None:
    catalogue, limits, free = read_catalogue(), _limits(), available_memory()
    rows = [_entry(entry, limits, free) for entry in catalogue.entries]
    if is_json:
        print_json({"dated": catalogue.dated, "source": catalogue.source, "models": rows})
        return
    print_text("\n".join([_HEAD, *map(_line, rows)]))


def _entry(entry: Entry, limits: Limits | None, free: int) -> dict[str, Any]:
    """Return an entry with its memory need and, where this machine's limits are known, its highest possible speed."""
    needed = entry.needed_bytes()
    return {
        **entry.to_dict(),
        "needed_bytes": needed,
        "fits": needed <= free,
        "tokens_per_s": figure(entry.tokens_per_s(limits.bandwidth_bytes_per_s)) if limits else None,
        "texts_per_s": figure(entry.texts_per_s(limits.flops)) if limits else None,
    }


def _line(row: Given) -> str:
    unit = "tok/s" if row["kind"] == "text" else "texts/s"
    speed = row["tokens_per_s"] if row["kind"] == "text" else row["texts_per_s"]
    return (
        f"{row['name']:<28} {quantity(1e9 * row['size_gb'], 'B'):>9} {quantity(row['needed_bytes'], 'B'):>9}  "
        f"{'yes' if row['fits'] else 'no':<5} {NOT_MEASURED if speed is None else quantity(speed, unit):>13}  "
        f"{row['license']}{', gated' if row.get('is_gated') else ''}"
    )


def _limits() -> Limits | None:
    """Return the stored limits of this machine; None where there are none or the history cannot be opened now."""
    path = Settings.from_environment().history
    if path.is_file():
        with suppress(HistoryError), open_to_read(path) as history:
            kept = history.runs.limits(fingerprint_hash(fingerprint()))
            return Limits.from_dict(kept) if kept else None
    return None
