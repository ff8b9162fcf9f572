"""Machine and version facts of a run as text: one fact per name, sizes with their unit."""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.runs import RunRecord
from pages.parts.units import size


def facts(run: RunRecord) -> dict[str, str]:
    """Return machine fingerprint and versions as text by name; nested facts are prefixed with the outer name."""
    return dict(_facts({**run.machine, **run.versions}))


def _facts(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if name == "hash":
            continue
        if isinstance(value, Mapping):
            yield from _facts(value, f"{before}{name} ")
        elif name.endswith("_bytes") and isinstance(value, int | float):
            yield before + name.removesuffix("_bytes"), size(value)
        elif value is not None:
            yield before + name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
