"""`python -m engine engines`: servers with an OpenAI-compatible API as engines, by names of their own."""

import argparse
from collections.abc import Sequence
from typing import Any

from engine.backends.connecting import embed_by_known, open_known
from engine.backends.known import KnownEngine, add_known, check_new, find_known, read_known, remove_known
from engine.backends.managed_programs import MANAGED, managed_missing
from engine.backends.report import Fact, found_facts, page_facts
from engine.commands.parser import PROGRAM, Parser
from engine.commands.printing import print_json, print_text
from engine.embedding.specs import EmbedSpec
from engine.protocol import EXTERNAL
from engine.settings import Settings

Given = dict[str, Any]


def run(words: Sequence[str]) -> None:
    """Run the command. Raises EngineError, SystemExit for unknown flags, KeyboardInterrupt after Ctrl+C."""
    given = vars(_parser().parse_args(words[1:]))
    given["act"](given)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog=f"{PROGRAM} engines", description="Servers with an OpenAI-compatible API.", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="list|add|check|remove")
    listing = commands.add_parser("list", help="list the known engines", allow_abbrev=False)
    listing.set_defaults(act=_list)
    adding = commands.add_parser("add", help="check what a server supports, and add it", allow_abbrev=False)
    adding.set_defaults(act=_add)
    adding.add_argument("name", metavar="NAME", help="name for the engine")
    adding.add_argument("url", metavar="URL", help="its address, such as http://localhost:8080")
    adding.add_argument("--model", default="", metavar="M", help="one of its models (default: its first)")
    adding.add_argument(
        "--key-env", default="", metavar="VARIABLE", help="environment variable that has the key, which is not kept"
    )
    checking = commands.add_parser("check", help="check what a known engine supports", allow_abbrev=False)
    for each in (adding, checking):
        each.add_argument(
            "--embeds", action="store_true", help="check its embeddings only, for a server that does not generate"
        )
    checking.set_defaults(act=_check)
    removing = commands.add_parser("remove", help="remove an engine; its trials are kept", allow_abbrev=False)
    removing.set_defaults(act=_remove)
    for each in (checking, removing):
        each.add_argument("name", metavar="NAME", help="a name from the list")
    for each in (listing, adding, checking):
        each.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _list(given: Given) -> None:
    known = read_known(Settings.from_environment().home)
    managed = {kind: managed_missing(kind) for kind in MANAGED}
    if given["json"]:
        print_json({"engines": known, "managed": [{"name": kind, "missing": why} for kind, why in managed.items()]})
        return
    lines = [f"{one.name:<24} {one.url:<40} {one.model or 'its first model'}" for one in known]
    if not known:
        lines = ["No engines are known. Add one: python -m engine engines add NAME http://localhost:8080"]
    lines += [f"{kind:<24} {why or f'can be started here: serve --upstream {kind}'}" for kind, why in managed.items()]
    print_text("\n".join(lines))


def _add(given: Given) -> None:
    engine = KnownEngine(name=given["name"], url=given["url"], model=given["model"], api_key_env=given["key_env"])
    home = Settings.from_environment().home
    check_new(home, engine.name)
    found = _embedding(engine) if given["embeds"] else _found(engine)
    add_known(home, engine)
    _print_found(found, is_json=given["json"])


def _check(given: Given) -> None:
    engine = find_known(Settings.from_environment().home, given["name"])
    _print_found(_embedding(engine) if given["embeds"] else _found(engine), is_json=given["json"])


def _remove(given: Given) -> None:
    remove_known(Settings.from_environment().home, given["name"])
    print_text(f"{given['name']} is forgotten.")


def _found(engine: KnownEngine) -> tuple[list[Fact], list[Fact]]:
    """Return what a server supports, and what each page can do with it. Raises ServerFailed, ConfigError."""
    with open_known(engine) as opened:
        return found_facts(opened.found), page_facts(opened.capabilities)


def _embedding(engine: KnownEngine) -> tuple[list[Fact], list[Fact]]:
    """Return what a server's embeddings are, and what each page can do with them. Raises ServerFailed, ConfigError."""
    with embed_by_known(engine, EmbedSpec(backend=EXTERNAL + engine.name)) as opened:
        found = [Fact("Model", opened.name), Fact("Numbers of a vector", f"{opened.dim:,}")]
    return found, [Fact("Embeddings, Benchmark of embeddings", "yes")]


def _print_found(found: tuple[list[Fact], list[Fact]], *, is_json: bool) -> None:
    if is_json:
        print_json(dict(zip(("found", "pages"), (dict(facts) for facts in found), strict=True)))
        return
    reported, pages = ("\n".join(f"{about:<42} {value}" for about, value in facts) for facts in found)
    print_text(f"{reported}\n\n{pages}")
