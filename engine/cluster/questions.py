"""Questions that an agent answers about its node, and the calls that bring a model there; see NodeFiles for these."""

from collections.abc import Callable
from typing import Any

from engine.cluster.node_files import NodeFiles
from engine.machine.fingerprint import about_llama

FILE_CALLS = ("offer", "block", "finish", "abort")


def questions(files: NodeFiles) -> dict[str, Callable[..., Any]]:
    """Return what a front may call, by name; msgspec encodes the answers."""
    return {"about_llama": about_llama, **{name: getattr(files, name) for name in FILE_CALLS}}
