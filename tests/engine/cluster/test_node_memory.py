"""Memory of a node: its own figure counts, not this machine's, and a refusal names the node and both numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.cluster.node_memory import check_fits_on
from engine.errors import MemoryRefused
from engine.models import read_model
from engine.models.memory import estimate
from engine.specs import PoolSpec
from engine.units import quantity


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_free_on_the_node_decides(kind: str, story_model: Path, story_folder: Path) -> None:
    model = read_model(story_model if kind == "file" else story_folder)
    spec = PoolSpec(n_ctx=256, instances=2)
    total = estimate(model, spec, 0).total
    found = check_fits_on("b", total, model, spec)
    assert (found.available, found.total) == (total, total)
    with pytest.raises(MemoryRefused, match="^Node b: ") as caught:
        check_fits_on("b", total - 1, model, spec)
    message = str(caught.value)
    assert quantity(total, "B") in message and f"available: {quantity(total - 1, 'B')}" in message
    check_fits_on("b", total - 1, model, replace(spec, instances=1))
