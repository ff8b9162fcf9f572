"""Arguments of `history list|show|compare|export|import|sql|snapshot|gc`, parsed into one class per command."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from engine.commands.arguments import OTHERS
from engine.commands.out_file import checked_path
from engine.commands.parser import PROGRAM, Parser
from engine.errors import ConfigError
from engine.history.console import MOST_ROWS, SHORT_S
from engine.history.filters import Filter

Kind = Literal["runs", "trials"]
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Command:
    """Base of the commands' arguments; `is_json`: print JSON instead of text."""

    is_json: bool = False


@dataclass(frozen=True, kw_only=True)
class ListArguments(Command):
    """Filter of the runs or trials to list, newest first. out: file to write instead of printing, also below."""

    kind: Kind
    wanted: Filter
    limit: int
    out: Path | None


@dataclass(frozen=True, kw_only=True)
class ShowArguments(Command):
    """Run or trial to show, by its id."""

    id: str
    out: Path | None


@dataclass(frozen=True, kw_only=True)
class CompareArguments(Command):
    """Runs to compare, by their ids. baseline: key RUN.CELL of a configuration, empty for the first."""

    runs: tuple[str, ...]
    baseline: str


@dataclass(frozen=True, kw_only=True)
class ExportArguments(Command):
    """Archive to write, of these runs and trials; of everything where neither is given."""

    path: Path
    runs: tuple[str, ...]
    trials: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ImportArguments(Command):
    """Files to import."""

    paths: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class SqlArguments(Command):
    """SQL query with a limit on the rows of its result and a timeout in seconds."""

    query: str
    limit: int
    timeout_s: float
    out: Path | None


@dataclass(frozen=True, kw_only=True)
class SnapshotArguments(Command):
    """File to copy the whole history to."""

    path: Path


@dataclass(frozen=True, kw_only=True)
class GcArguments(Command):
    """Request to purge deleted runs and trials."""


def parse(words: Sequence[str]) -> Command:
    """Parse one of these commands. Raises ConfigError for values out of range, SystemExit (2) for unknown flags."""
    whole = Parser(prog=PROGRAM)
    history = whole.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "history", help=OTHERS["history"], allow_abbrev=False
    )
    commands = history.add_subparsers(required=True, metavar="list|show|compare|export|import|sql|snapshot|gc")
    for name, help, add, read in (
        ("list", "list runs or trials, newest first", _add_list, _list),
        ("show", "show one run or trial", _add_show, _show),
        ("compare", "compare runs", _add_compare, _compare),
        ("export", "export runs and trials as one archive", _add_export, _export),
        ("import", "import files of this and of other programs", _add_import, _import),
        ("sql", "run one read-only query", _add_sql, _sql),
        ("snapshot", "copy the whole history into a DuckDB file", _add_snapshot, SnapshotArguments),
        ("gc", "purge deleted runs and trials", _add_nothing, GcArguments),
    ):
        # Abbreviated flags are rejected, so that a new flag cannot break scripts.
        parser = commands.add_parser(name, help=help, allow_abbrev=False)
        add(parser)
        parser.add_argument("--json", dest="is_json", action="store_true", help="print JSON")
        parser.set_defaults(read=read)
    values = vars(whole.parse_args(words))
    command: Command = values.pop("read")(**values)
    return command


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", choices=("runs", "trials"), default="runs", help="default: runs")
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="only with this model; repeated: any of them"
    )
    parser.add_argument(
        "--tag", action="append", default=[], metavar="TAG", help="only with this tag; repeated: all of them"
    )
    parser.add_argument("--since", metavar="DAY", help="only since this day, such as 2026-11-21")
    parser.add_argument("--text", default="", help="only with these words, also in prompts and outputs")
    parser.add_argument("--limit", type=int, default=SHOWN, metavar="N", help=f"most rows (default: {SHOWN})")
    _add_out(parser, "the rows")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id of a run or a trial")
    _add_out(parser, "the samples of a run or the steps of a trial (as JSON, everything)")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="ids of runs")
    parser.add_argument(
        "--baseline",
        default="",
        metavar="RUN.NUMBER",
        help="configuration to compare with (default: the first one of the first run)",
    )


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="FILE.zip", help="archive to write")
    parser.add_argument(
        "--run",
        dest="runs",
        action="append",
        default=[],
        metavar="RUN",
        help="only this run; may be given several times",
    )
    parser.add_argument(
        "--trial", dest="trials", action="append", default=[], metavar="TRIAL",
        help="only this trial; may be given several times",
    )  # fmt: skip


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="FILE", help="archive, run or trial, or a file of another program"
    )


def _add_sql(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="SELECT", help="one SELECT, PIVOT, EXPLAIN or DESCRIBE")
    parser.add_argument("--limit", type=int, default=MOST_ROWS, metavar="N", help=f"most rows (default: {MOST_ROWS:,})")
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        type=float,
        default=SHORT_S,
        metavar="S",
        help=f"time limit, seconds (default: {SHORT_S:g})",
    )
    _add_out(parser, "the rows")


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="FILE.duckdb", help="file to write; must not exist yet")


def _add_out(parser: argparse.ArgumentParser, what: str) -> None:
    help = f"write {what} to this file instead: .parquet, .csv or .json"
    parser.add_argument("--out", type=Path, metavar="FILE", help=help)


def _checked_out(given: Path | None) -> Path | None:
    return given and checked_path(given)


def _add_nothing(_: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no arguments of its own."""


def _list(
    *, model: list[str], tag: list[str], since: str | None, text: str, out: Path | None, **others: Any
) -> ListArguments:
    wanted = Filter(models=tuple(model), tags=tuple(tag), since=_day(since), text=text)
    return ListArguments(wanted=wanted, out=_checked_out(out), **others)


def _show(*, out: Path | None, **others: Any) -> ShowArguments:
    return ShowArguments(out=_checked_out(out), **others)


def _sql(*, out: Path | None, **others: Any) -> SqlArguments:
    return SqlArguments(out=_checked_out(out), **others)


def _day(text: str | None) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigError(f"--since {text}: must be a day such as 2026-11-21") from None


def _compare(*, runs: list[str], **others: Any) -> CompareArguments:
    return CompareArguments(runs=tuple(runs), **others)


def _export(*, runs: list[str], trials: list[str], **others: Any) -> ExportArguments:
    return ExportArguments(runs=tuple(runs), trials=tuple(trials), **others)


def _import(*, paths: list[Path], **others: Any) -> ImportArguments:
    return ImportArguments(paths=tuple(paths), **others)
