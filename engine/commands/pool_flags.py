"""Flags of a pool's parameters: the same names and help in every command that opens a pool or sizes one."""

import argparse
from collections.abc import Mapping
from typing import Any

from engine.specs import DTYPES

HELPS = {
    "n_ctx": "tokens per sequence",
    "parallel": "sequences per instance",
    "threads": "default: the fastest number, up to the cores this process may use",
    "instances": "worker processes",
    "type_k": "type of the keys, such as q8_0",
    "type_v": "type of the values",
    "dtype": "type of weights and arithmetic in transformers (default: a folder's own; llama.cpp runs a GGUF file)",
    "share_weights": "one copy of the weights for all instances; default: what is faster here, measured",
}


def add(group: argparse._ActionsContainer, *names: str, defaults: Mapping[str, Any] | None = None) -> None:
    """Add a flag for each of these parameters. defaults: values that the help names."""
    for name in names:
        text = HELPS[name] + (f" (default: {defaults[name]})" if defaults and name in defaults else "")
        flag = f"--{name.replace('_', '-')}"
        if name == "share_weights":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        elif name == "dtype":
            group.add_argument(flag, choices=DTYPES, help=text)
        elif name.startswith("type_"):
            group.add_argument(flag, metavar="TYPE", help=text)
        else:
            group.add_argument(flag, type=int, metavar="N", help=text)


def add_cluster(group: argparse._ActionsContainer) -> None:
    """Add the flag of the cluster on whose nodes the instances run."""
    group.add_argument(
        "--cluster", default="", metavar="ADDRESS",
        help="run the instances on the nodes of this Ray cluster, HOST:PORT, or auto for the one of this machine; by "
        "default one on each node",
    )  # fmt: skip


def given_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given; of the others the PoolSpec has the defaults."""
    return {name: given[name] for name in HELPS if given.get(name) is not None}
