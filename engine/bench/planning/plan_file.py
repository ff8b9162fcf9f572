"""Plans as JSON for files and text fields, in a form that people can read and edit."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.bench.planning.axes import parse_values
from engine.bench.planning.plan import Plan, Question
from engine.errors import ConfigError, quoted
from engine.files import read_regular

MOST_CHARACTERS, MOST_BRACKETS = 4 << 20, 100_000
"""Limits of a plan as JSON: its texts may be long, its lists and objects are few."""

_TEXTS = ("name", "model")
_OBJECTS = ("axes", "pool", "workload", "objective")


def plan_to_json(plan: Plan) -> str:
    """Return the JSON that `plan_from_json` reads: everything that differs from the defaults."""
    return json.dumps(plan.to_dict(), indent=1, ensure_ascii=False)


def plan_from_json(text: str, source: str = "the plan") -> Plan:
    """Read a plan from JSON.

    The values of an axis may also be one value, or a text such as "1-8*2", see `parse_values`. Raises ConfigError with
    `source` and the reason: invalid JSON (with its line), unknown names, values out of range.
    """
    if len(text) > MOST_CHARACTERS or text.count("[") + text.count("{") > MOST_BRACKETS:
        raise ConfigError(
            f"{source}: too large for a plan: up to {MOST_CHARACTERS:,} characters and {MOST_BRACKETS:,} brackets "
            "are allowed"
        )
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: not JSON ({error})") from None
    except ValueError:
        raise ConfigError(f"{source}: has a number of more than {sys.get_int_max_str_digits():,} digits") from None
    if not isinstance(values, dict):
        raise ConfigError(f'{source}: must be an object with the fields of a plan, such as "model" and "axes"')
    try:
        _check_kinds(values)
        question = values.get("question", Plan.question)
        axes = {name: _values(name, given, question) for name, given in values.get("axes", {}).items()}
        return Plan.from_dict({**values, "axes": axes})
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def read_plan(path: Path) -> Plan:
    """Read the plan in a file. Raises ConfigError as plan_from_json does, and where the file cannot be read."""
    try:
        if path.stat().st_size > 4 * MOST_CHARACTERS:
            raise ConfigError(f"{path}: too large for a plan")
        text = read_regular(path).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    return plan_from_json(text, str(path))


def _check_kinds(values: dict[str, Any]) -> None:
    """Check the types that the specs rely on."""
    _check(values, _TEXTS, str, "a string")
    _check(values, _OBJECTS, dict, "an object")
    for name in ("prompts", "texts"):
        given = values.get("workload", {}).get(name, [])
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise ConfigError(f"workload.{name} must be a list of strings")


def _check(values: dict[str, Any], names: Iterable[str], kind: type, what: str) -> None:
    for name in names:
        if name in values and not isinstance(values[name], kind):
            raise ConfigError(f"{name} = {quoted(values[name])}: must be {what}")


def _values(name: str, given: Any, question: Question) -> tuple[Any, ...]:
    if isinstance(given, str):
        return parse_values(name, given, question)
    return tuple(given) if isinstance(given, list) else (given,)
