"""The argument parser of all commands."""

import argparse
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """Reads the words of a command; one that it does not know ends with the usage of that very command.

    argparse hands them up to the outermost parser, whose usage has no flags.
    """

    def parse_known_args(  # type: ignore[override]  # the base has overloads for other namespaces
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the base class, but nothing unknown is left over. Raises SystemExit (2)."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, []
