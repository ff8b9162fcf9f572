"""Tree of branches in a real browser: which rows are written before the first paint."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from pages.parts import token_strip

pytestmark = pytest.mark.slow

SCRIPTS = ("element", "tree")
FIRST_PAINT = """(data) => {
  window.setTimeout = () => 0; // what comes after the first paint
  const tree = new Tree(() => {});
  tree.folded = new Set(["0"]);
  document.body.append(tree.root);
  tree.show(data);
  return tree.rows.map((row) => row.hasChildNodes());
}"""
NUM_FOLDED, NUM_SHOWN = 60, 80


def test_the_first_paint_has_the_rows_that_are_shown_and_the_open_one(page: Page) -> None:
    folder = Path(token_strip.__file__).parent
    page.add_script_tag(content="\n".join((folder / f"{name}.js").read_text("utf-8") for name in SCRIPTS))
    is_below = [False, *[True] * NUM_FOLDED, *[False] * NUM_SHOWN]
    rows: list[dict[str, Any]] = [
        {
            "key": str(index), "parent": 0 if below else None, "depth": int(below), "name": "", "text": "a",
            "cells": [], "is_open": index == len(is_below) - 1,
        }
        for index, below in enumerate(is_below)
    ]  # fmt: skip
    data = {"title": "Branches", "note": "", "help": "", "heads": [["label", "Text"]], "rows": rows, "can_mark": True}
    is_filled = page.evaluate(FIRST_PAINT, data)
    filled = [index for index, is_so in enumerate(is_filled) if is_so]
    assert filled == [0, *range(NUM_FOLDED + 1, NUM_FOLDED + 40), len(rows) - 1]
