"""Which node of a cluster measured a stored run: a node has another id each time Ray is started there, and several may
have the same name."""

from collections.abc import Sequence
from typing import NamedTuple

from engine.cluster.naming import without_id
from engine.cluster.remote_node import RemoteNode
from engine.protocol import NodeInfo
from engine.runs import NODE, RunRecord

NAME_CHARACTERS = 100
"""Characters of a node's name that its runs keep."""
IDENTITY = "node"
"""Key of what `identity` returns in the machine of a run."""


class Found(NamedTuple):
    """The node that measured a run, or why it is not known which one did, as a sentence without its end."""

    node: NodeInfo | None
    reason: str = ""


def identity(node: RemoteNode) -> dict[str, str]:
    """Return what tells a node from others: the name that Ray lists, its id there, its address."""
    return {"name": node.given_name[:NAME_CHARACTERS], "id": node.id, "address": node.address}


def node_of(run: RunRecord, nodes: Sequence[NodeInfo]) -> Found:
    """Return the node among these that measured a run: the one of the same id, which lasts while Ray runs there; else
    the one of the same name, and where several have that name or had it then, the one of the same address too.

    A run of an earlier version has only what its connection called the node, maybe with digits of its id.
    """
    shown = run.origin.removeprefix(NODE)
    name, digits = without_id(shown)
    stored = run.machine.get(IDENTITY, {"name": name, "id": digits})
    name, id, address = (stored.get(key, "") for key in ("name", "id", "address"))
    named = [node for node in nodes if node.given_name[:NAME_CHARACTERS] in (name, shown)]
    same = [node for node in named if id and node.id.startswith(id)]
    here = [node for node in named if address and node.address == address]
    was_shared = bool(address) and shown != name
    known = next((some for some in (same, here, [] if was_shared else named) if len(some) == 1), [])
    if known:
        return Found(known[0])
    if not named:
        return Found(None, f"the cluster has no {run.origin} now")
    listed = ", ".join(f"{node.name} at {node.address}" for node in named)
    reason = f"several nodes are or were named {name}, and which of them measured this run is not known"
    return Found(None, f"{reason}; there {'is' if len(named) == 1 else 'are'} now {listed}")
