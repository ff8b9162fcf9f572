"""Argument parser of all commands."""

import argparse
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """Argument parser that rejects unknown arguments with the usage of the subcommand they were given to.

    argparse passes them up to the outermost parser, whose usage has no flags.
    """

    def parse_known_args(  # type: ignore[override]  # the base has overloads for other namespaces
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as the base class does, but reject unknown arguments. Raises SystemExit (2)."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, []
