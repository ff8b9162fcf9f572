"""`python -m engine models order`: loads two models as A, B, A and reports whether B evicted A from memory."""

import argparse
from typing import Any

from engine.bench.measurement.load_order import LoadStep, measure_load_order
from engine.commands.printing import print_json, print_text
from engine.models import find_model
from engine.progress_line import ProgressLine
from engine.units import percent, quantity

Given = dict[str, Any]

_HEAD = f"{'load':<5} {'loading':>9} {'first token':>12} {'A in RAM':>17} {'B in RAM':>17}"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `order` to the parser of `models`."""
    order = commands.add_parser("order", help="load A, B and A again: does B evict A from memory?", allow_abbrev=False)
    order.set_defaults(act=_act)
    for name in ("a", "b"):
        order.add_argument(name, metavar=name.upper(), help="file, or a name from the list")
    order.add_argument("--json", action="store_true", help="print JSON")


def _act(given: Given) -> None:
    a, b = (find_model(given[name]) for name in ("a", "b"))
    line = ProgressLine()
    try:
        order = measure_load_order(
            a.path, b.path, on_progress=lambda share: line.show(f"loading: {percent(share)}", step=int(10 * share))
        )
    finally:
        line.end()
    if given["json"]:
        print_json(order.to_dict())
    else:
        lines = [f"A {order.a}", f"B {order.b}", "", _HEAD, *map(_line, order.steps), "", order.says]
        print_text("\n".join(lines))


def _line(step: LoadStep) -> str:
    shares = "  ".join(
        f"{quantity(step.before[name], ''):>6} to {quantity(step.after[name], ''):<6}" for name in ("A", "B")
    )
    return f"{step.name:<5} {quantity(step.load_s, 's'):>9} {quantity(step.first_token_s, 's'):>12}  {shares}"
