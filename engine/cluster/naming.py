"""Names of nodes: a node is called as Ray lists it, with a part of its id where another one has the same name.

Which of the two depends on the connection, and on when each node came; so both are understood wherever a node is named.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from engine.errors import ConfigError, quoted

_ID_DIGITS = 6


class Named(Protocol):
    """A node. name: what a connection calls it; given_name: as Ray lists it; id: its number in Ray."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def given_name(self) -> str: ...


Node = TypeVar("Node", bound=Named)


def with_id(given_name: str, id: str) -> str:
    """Return the name of a node that no other one has."""
    return f"{given_name} ({id[:_ID_DIGITS]})"


def without_id(name: str) -> tuple[str, str]:
    """Return the parts of a name that `with_id` may have made, its first digits of an id last; empty without these."""
    before, _, last = name.rpartition(" (")
    digits = last.removesuffix(")")
    is_one = before and digits != last and len(digits) == _ID_DIGITS and set(digits) <= set("0123456789abcdef")
    return (before, digits) if is_one else (name, "")


def node_called(nodes: Sequence[Node], name: str) -> Node:
    """Return the node that a name means, given by this connection or by another one.

    Raises ConfigError where it means none of them, or several.
    """
    for called in ([node.name for node in nodes], [with_id(node.given_name, node.id) for node in nodes]):
        if name in called:
            return nodes[called.index(name)]
    same = [node for node in nodes if node.given_name == name]
    if len(same) == 1:
        return same[0]
    if same:
        raise ConfigError(f"{len(same)} nodes are named {quoted(name)}: give one of {_listed(same)}")
    raise ConfigError(f"node {quoted(name)}: is not one that can be used; these can: {_listed(nodes)}")


def _listed(nodes: Sequence[Named]) -> str:
    return ", ".join(node.name for node in nodes) or "none"
