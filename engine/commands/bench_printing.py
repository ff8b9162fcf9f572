"""Runs as printed by commands: a table of their configurations, or JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from engine.bench.analysis.summary import CellSummary, summarise
from engine.bench.analysis.wording import plain_verdict
from engine.commands.printing import print_json_text
from engine.jsonable import figure
from engine.runs import RunRecord


def print_run(done: RunRecord, *, is_json: bool) -> None:
    """Print a run as a table of its configurations, or as JSON."""
    if is_json:
        print_json_text(json_of_run(done))
    else:
        print(summarise(done).to_markdown())
        print(f"run {done.id}")


def json_of_run(done: RunRecord) -> str:
    """Return a run with the results of its configurations, as indented JSON."""
    summary = summarise(done)
    sentence = done.outcome.get("sentence") or summary.sentence
    cells = [_cell(cell) for cell in summary.cells]
    fields = {"id": done.id, "status": done.status, "sentence": sentence, "outcome": dict(done.outcome)}
    fields["disturbance"] = summary.disturbance.to_dict()
    fields |= {"machine": dict(done.machine), "versions": dict(done.versions), "cells": cells}
    return json.dumps(fields, ensure_ascii=False, indent=1, default=asdict)


def _cell(cell: CellSummary) -> Mapping[str, Any]:
    verdict = cell.verdict
    return {
        "number": cell.number,
        "label": cell.label,
        "settings": dict(cell.settings),
        "status": cell.status,
        "reason": cell.reason,
        "facts": {name: figure(value) for name, value in cell.facts.items()},
        "metrics": {
            name: {key: figure(value) for key, value in interval._asdict().items()}
            for name, interval in cell.metrics.items()
        },
        "num_counted": cell.num_counted,
        "num_disturbed": cell.num_disturbed,
        "num_replaced": cell.num_replaced,
        "verdict": None if verdict is None else plain_verdict(verdict),
    }
