"""Tables on every page: heads in lower case, except for abbreviations and names; figures that are sorted as numbers."""

import json
import re
from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.analysis.entries import heading, label_of
from engine.bench.planning.axes import AXES_BY_NAME
from engine.runs import RunRecord
from engine.units import NOT_MEASURED
from engine.workbench import Workbench
from pages.parts import branches, probable_view
from pages.parts.prompt_lab import beams_view
from pages.parts.traffic import call_cells
from tests.pages.app import open_page

TITLES = {
    "benchmark.py": "Benchmark", "compare.py": "Compare", "history.py": "History", "cost.py": "Cost",
    "models.py": "Models",
}  # fmt: skip


def is_low(head: str) -> bool:
    """Whether a head begins in lower case, with a sign, or with an abbreviation such as KV."""
    first = head.split(maxsplit=1)[0] if head.strip() else ""
    return first[:1].lower() == first[:1] or first[1:] != first[1:].lower()


def heads(at: AppTest) -> Iterator[str]:
    """The heads of all tables of a page, as they are shown."""
    for table in at.main.dataframe:
        config = json.loads(table.proto.columns or "{}")
        yield from (config.get(name, {}).get("label") or str(name) for name in table.value.columns)


every_table = pytest.mark.parametrize(
    ("script", "query"),
    [
        ("benchmark.py", {"run": "RUNS"}),
        ("benchmark.py", {"question": "speed"}),
        ("benchmark.py", {"question": "embedding"}),
        ("compare.py", {"runs": "RUNS", "cells": "all"}),
        ("history.py", {"view": "runs", "columns": "all"}),
        ("history.py", {"view": "runs", "rows": "cells", "columns": "all"}),
        ("history.py", {"trend": "RUNS.0"}),
        ("history.py", {"view": "reference"}),
        ("cost.py", {}),
        ("models.py", {}),
        ("models.py", {"view": "get"}),
        ("models.py", {"view": "fit"}),
        ("models.py", {"view": "quantise"}),
    ],
)


def opened(script: str, query: dict[str, str], runs: list[RunRecord]) -> AppTest:
    """A page with the runs that its query asks for."""
    ids = ",".join(run.id for run in runs) if script == "compare.py" else runs[-1].id
    return open_page(script, TITLES[script], **{name: value.replace("RUNS", ids) for name, value in query.items()})


@every_table
def test_heads_of_a_page_are_in_lower_case(
    bench: Workbench, runs: list[RunRecord], script: str, query: dict[str, str]
) -> None:
    names = {run.name for run in runs}
    found = [head for head in heads(opened(script, query, runs)) if head not in names]
    assert found and [head for head in found if not is_low(head)] == []


FIGURE = re.compile(r"≈? ?\d[\d,]*(\.\d+)?( ?[A-Za-z%/]+( \d+ [a-z]+)*)?")
"""A figure as text, with or without its unit, or a duration: "1.20 GB", "12", "1 h 20 min"."""
DATES = ("dated", "noted")
"""Heads of columns of years and months, which people may write otherwise."""


@every_table
def test_figures_of_a_page_are_sorted_as_numbers(
    bench: Workbench, runs: list[RunRecord], script: str, query: dict[str, str]
) -> None:
    as_text = []
    for table in opened(script, query, runs).main.dataframe:
        for name, values in table.value.items():
            shown = [text for text in values if isinstance(text, str) and text not in ("", NOT_MEASURED)]
            if shown and name not in DATES and all(map(FIGURE.fullmatch, shown)):
                as_text.append((name, shown[:3]))
    assert as_text == []


def test_heads_of_trees_and_of_calls_are_in_lower_case() -> None:
    trees = (branches.HEADS, probable_view.HEADS, beams_view.SEQUENCE_HEADS, beams_view.TREE_HEADS)
    found = [head for each in trees for _kind, head in each] + [column.heading for column in call_cells.COLUMNS]
    assert [head for head in found if not is_low(head)] == []


def test_settings_are_headed_by_their_labels_in_lower_case() -> None:
    assert heading("layout") == "layout" and heading("n_gpu_layers") == "layers on the GPU"
    assert heading("logitbench") == "Logitbench" and heading("llama.cpp") == "llama.cpp"
    assert all(heading(name).lower() == label_of(name).lower() and is_low(heading(name)) for name in AXES_BY_NAME)
    assert [heading(name) for name in ("", " ", "_", "__")] == ["", " ", " ", "  "]  # of imported runs
