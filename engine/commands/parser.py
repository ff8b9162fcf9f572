"""Argument parser of all commands."""

import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PROGRAM = "logitbench" if Path(sys.argv[0]).name == "logitbench" else "python -m engine"
"""How this program was started, as its usage shows it."""

_FLAG = re.compile(r"(-[^-\d.\s]|--)[^=\s]*(=.*)?", re.DOTALL)
"""Words that are flags and not values: no lone dash, no negative number, no text with spaces."""


class _Subcommands(argparse._SubParsersAction):  # type: ignore[type-arg]  # is no generic class at run time
    """Subcommands whose own --help begins with what the help of the command above says of them."""

    def add_parser(self, name: str, *, help: str | None = None, **options: Any) -> Any:
        """Add the parser of a subcommand; help: what it does, without a capital and a full stop."""
        does = help or ""
        end = "" if does.endswith("?") else "."
        return super().add_parser(name, help=help, description=does[:1].upper() + does[1:] + end, **options)


class Parser(argparse.ArgumentParser):
    """Argument parser that rejects unknown flags first, by name, with the usage of the subcommand they were given to.

    argparse would take the value of an unknown flag for a positional argument and complain of that or of missing
    arguments, and pass unknown arguments up to the outermost parser, whose usage has no flags.
    """

    _subcommands: Mapping[str, "Parser"] = {}

    def add_subparsers(self, **options: Any) -> Any:
        """Add subcommands as the base class does; the parser of each checks the words after its name."""
        added = super().add_subparsers(action=_Subcommands, **options)
        self._subcommands = added.choices
        return added

    def parse_known_args(  # type: ignore[override]  # the base has overloads for other namespaces
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as the base class does, but reject unknown arguments. Raises SystemExit (2)."""
        words = sys.argv[1:] if args is None else args
        for flag in self._flags_in(words):
            if flag not in self._option_string_actions:
                self.error(f"unknown flag {flag}: {self._hint(flag)}")
        known, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, []

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, with very long words shortened. Raises SystemExit (2)."""
        super().error(re.sub(r"(\S{100})\S{100,}", r"\1…", message))

    def _flags_in(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the flags given to this parser: those before the name of a subcommand and before `--`."""
        takes_value = False
        for word in words:
            if takes_value and not (word.startswith("--") and _FLAG.fullmatch(word)):
                takes_value = False
            elif word == "--" or word in self._subcommands:
                return
            elif _FLAG.fullmatch(word):
                flag, equals, _value = word.partition("=")
                action = self._option_string_actions.get(flag)
                takes_value = action is not None and action.nargs is None and not equals
                yield flag

    def _hint(self, flag: str) -> str:
        """Return where an unknown flag belongs, else the nearest flag of this parser and its subcommands."""
        homes = [name for name, parser in self._subcommands.items() if flag in parser._option_string_actions]
        if homes:
            return f"it belongs after {' or '.join(homes)}"
        parsers = (self, *self._subcommands.values())
        known = dict.fromkeys(known for parser in parsers for known in parser._option_string_actions)
        near = difflib.get_close_matches(flag, known, n=1)
        return f"did you mean {near[0]}?" if near else "--help lists the known ones"
