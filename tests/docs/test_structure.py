"""The page on the structure is true to the tree."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "structure.md").read_text("utf-8")


def test_every_place_is_there() -> None:
    places = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert places
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_every_part_of_the_engine_is_named() -> None:
    parts = [path.stem for path in (ROOT / "engine").glob("*.py") if path.stem != "__init__"]
    parts += [path.parent.name for path in (ROOT / "engine").glob("*/__init__.py")]
    assert [part for part in parts if not re.search(rf"\b{part}\b", PAGE)] == []
