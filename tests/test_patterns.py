"""Every regular expression of the engine and the pages takes steps in proportion to its text, whatever that is."""

import ast
import importlib
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine.errors import EngineError
from engine.exchange.foreign_files import read_arrival
from engine.exchange.llama_bench_text import read_rows
from tests import regex_steps
from tests.regex_steps import Pump, TooManySteps

ROOT = Path(__file__).resolve().parents[1]
SHORT, LONG = 150, 300
MOST_GROWTH = 1.45
"""Of the steps for a character where a text becomes twice as long: 1 where they are in proportion to it, 2 where to its
square."""
MOST_STEPS = 60_000
FUNCTIONS = ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
AT_START = {"match", "fullmatch"}


class Used(NamedTuple):
    """A pattern, where it stands, and whether it is only tried at one place of a text."""

    pattern: re.Pattern[str]
    is_anchored: bool


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of each module that has a regular expression."""
    for path in sorted([*ROOT.glob("engine/**/*.py"), *ROOT.glob("pages/**/*.py"), ROOT / "app.py"]):
        text = path.read_text()
        if re.search(r"^import re$", text, re.MULTILINE):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), text
        assert not re.search(r"^from re import|^import re as", text, re.MULTILINE), path


def used() -> dict[str, Used]:
    """Every pattern, by module and line."""
    found: dict[str, Used] = {}
    for name, text in sources():
        tree, module = ast.parse(text), importlib.import_module(name)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and _name(node.func) in {f"re.{each}" for each in FUNCTIONS}):
                continue
            if isinstance(node.args[0], ast.Call) and _name(node.args[0].func) == "re.escape":
                continue  # plain text
            pattern = _compiled(node, vars(module))
            found[f"{name}:{node.lineno}:{node.col_offset}"] = Used(pattern, _is_anchored(tree, node))
    return found


def _name(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Attribute) else ""


def _compiled(node: ast.Call, names: dict[str, Any]) -> re.Pattern[str]:
    """The pattern of a call, which must be one of the module's constants."""
    flags = [each.value for each in node.keywords if each.arg == "flags"]
    position = {"sub": 4, "subn": 4, "split": 3, "compile": 1}.get(_name(node.func)[3:], 2)
    flags += node.args[position : position + 1]
    given, *other = (eval(ast.unparse(each), dict(names)) for each in (node.args[0], *flags))
    if isinstance(given, re.Pattern):
        return regex_steps.text_pattern(given)
    return regex_steps.text_pattern(re.compile(given, *other))


def _is_anchored(tree: ast.AST, call: ast.Call) -> bool:
    function = _name(call.func)[3:]
    if function != "compile":
        return function in AT_START
    target = next(
        (node.targets[0] for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.value is call), None
    )
    if not isinstance(target, ast.Name):
        return False
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == target.id]
    num_named = sum(isinstance(node, ast.Name) and node.id == target.id for node in ast.walk(tree))
    return num_named == 1 + len(uses) and {node.attr for node in uses} <= AT_START


PATTERNS = used()


def steps(one: Used, text: str) -> int:
    return regex_steps.search(one.pattern, text, most=MOST_STEPS, is_anchored=one.is_anchored).steps


def is_slow(one: Used, pump: Pump) -> bool:
    """Whether steps grow faster than the text."""
    try:
        few, many = (steps(one, text) / len(text) for text in (pump.text(SHORT), pump.text(LONG)))
        return many > MOST_GROWTH * few
    except TooManySteps:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_steps_grow_as_the_text(name: str) -> None:
    one = PATTERNS[name]
    drawn = random.Random(one.pattern.pattern)
    assert not [pump for pump in regex_steps.pumps(one.pattern, drawn, 40) if is_slow(one, pump)], one.pattern


@pytest.mark.parametrize("name", PATTERNS)
def test_the_matcher_that_counts_gives_what_re_gives(name: str) -> None:
    one = PATTERNS[name]
    drawn = random.Random(one.pattern.pattern)
    for pump in regex_steps.pumps(one.pattern, drawn, 40):
        text = pump.text(drawn.choice((1, 8, 30)))
        found = one.pattern.match(text) if one.is_anchored else one.pattern.search(text)
        counted = regex_steps.search(one.pattern, text, most=10**7, is_anchored=one.is_anchored)
        assert counted.span == (None if found is None else found.span()), text


@pytest.mark.parametrize(
    ("pattern", "is_anchored"),
    [
        (r"\s*(?:'((?:[^']|''|'(?!\s{0,9}[,)]))*)'|([^\s,')]+))\s*([,)])", True),
        (r"\d.*?\b(?:tok|tkn|t/s|tps)", False),
        (r"INSERT\s+INTO\s+t\s*(?:\(([^)]*)\)\s*)?VALUES\s*\(", False),
        (r"CREATE\s+TABLE\s+t\s*\(([^)]*)\)\s*;", False),
        (r"(a|aa)+$", True),
        (r"(a*)*b", True),
        (r"\w+\s*\w+;", True),
        (r"\s+$", False),
        (r"(.*)(.*)(.*)x", True),
        (r" - at (?:`key` in )?`\$\.?([^`.\[]*)[^`]*`\Z", False),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_slow_patterns_are_found(pattern: str, is_anchored: bool, seed: int) -> None:
    one = Used(re.compile(pattern, re.IGNORECASE), is_anchored)
    assert any(is_slow(one, pump) for pump in regex_steps.pumps(one.pattern, random.Random(seed), 40))


REPORTED = {
    "quotes in a value": "INSERT INTO llama_bench VALUES ('" + "''" * 2_000,
    "digits without a word": "x" + "1" * 50_000,
    "tables without an end": "CREATE TABLE llama_bench (" * 12_000,
    "columns without an end": "INSERT INTO llama_bench (" * 12_000,
    "white space": "INSERT" + " " * 200_000,
}


@pytest.mark.parametrize("text", REPORTED.values(), ids=REPORTED)
def test_the_reported_texts_are_refused(text: str) -> None:
    with pytest.raises(EngineError):
        read_arrival("pasted", text.encode())
    with pytest.raises(EngineError):
        read_rows(text)
