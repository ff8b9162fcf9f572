"""docs/structure.md: its paths exist, it names every part of the engine, and its diagram matches the imports."""

import re
from pathlib import Path

from tests.docs import import_graph

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


def test_the_diagram_is_drawn_from_the_imports() -> None:
    drawn = import_graph.DRAWING.search(PAGE)
    assert drawn is not None and drawn[0] == import_graph.diagram()


def test_arrows_that_others_imply_are_left_out() -> None:
    imports = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set[str]()}
    assert import_graph.reduced(imports) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}
