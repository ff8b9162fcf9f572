"""JSON schemas as GBNF grammars, by llama-cpp-python's converter. For a process of its own: some patterns never end."""

import json
from typing import Any

from llama_cpp import llama_grammar

from engine.errors import ConfigError
from engine.llama.gbnf import MAX_REPETITIONS

MAX_DEPTH = 128
"""Levels of JSON; each object within an object takes two."""
MAX_MEMBERS = 1000
"""Values of an enum, alternatives, items of a tuple."""
MAX_PROPERTIES = 256
"""The converter makes a rule for each optional property after each other one."""

_BOUNDS = (("minLength", "maxLength"), ("minItems", "maxItems"))
_MEMBERS = ("enum", "anyOf", "oneOf", "allOf", "items", "prefixItems")
_VALUES = ("const", "enum", "default", "examples")


def gbnf_of_schema(text: str) -> str:
    """The grammar of a schema. Raises ConfigError for what is no schema, has no grammar, or is beyond a limit."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigError("is no JSON object, as a schema with a grammar must be")
    _check(schema, "#", 0)
    llama_grammar._build_repetition = _repetition
    try:
        grammar: str = llama_grammar.json_schema_to_gbnf(text)
    except MemoryError:
        raise
    except Exception as error:  # the converter asserts, and takes for granted what a schema need not have
        said = str(error) if isinstance(error, AssertionError | ValueError) else repr(error)
        raise ConfigError(f"cannot be turned into a grammar: {said[:300]}") from error
    return grammar


def _check(schema: Any, path: str, depth: int) -> None:
    """Hold a schema, and all within it, to the limits."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"has more than {MAX_DEPTH} levels, the most allowed, at {path[:60]}…")
    if isinstance(schema, list):
        for place, inner in enumerate(schema):
            _check(inner, f"{path}/{place}", depth + 1)
    if not isinstance(schema, dict):
        return
    for low, high in _BOUNDS:
        _check_bounds(schema, low, high, path)
    for name in _MEMBERS:
        num = len(schema[name]) if isinstance(schema.get(name), list) else 0
        if num > MAX_MEMBERS:
            raise ConfigError(f"has {num:,} members in {path}/{name}; at most {MAX_MEMBERS:,} are allowed")
    properties = schema.get("properties")
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        raise ConfigError(f"has {len(properties):,} properties in {path}; at most {MAX_PROPERTIES:,} are allowed")
    for name, inner in schema.items():
        if name not in _VALUES:
            _check(inner, f"{path}/{name}", depth + 1)


def _check_bounds(schema: dict[str, Any], low: str, high: str, path: str) -> None:
    """Raise for a repetition that llama.cpp refuses, or takes for one without an upper bound."""
    for name in (low, high):
        num = schema.get(name)
        if isinstance(num, dict):  # a property of that name
            return
        if num is not None and (isinstance(num, bool) or not isinstance(num, int) or not 0 <= num <= MAX_REPETITIONS):
            raise ConfigError(
                f"has {name} = {num} in {path}: must be a whole number from 0 to {MAX_REPETITIONS:,}, the most that "
                "llama.cpp repeats; give a smaller one or leave it out"
            )
    if schema.get(low, 0) > schema.get(high, MAX_REPETITIONS):
        raise ConfigError(f"has {low} = {schema[low]} in {path}, which is more than {high} = {schema[high]}")


def _repetition(
    item: str, low: int, high: int | None, separator_rule: str | None = None, item_rule_is_literal: bool = False
) -> str:
    """`item` repeated, in place of the converter's own function.

    That one writes repetitions out: a maxLength of 2,000 is 2,000 groups inside each other. An empty alternative stands
    where "?" would do, because llama.cpp counts what is behind a "?" as repeated.
    """
    del item_rule_is_literal
    if not separator_rule:
        return f"{item}{{{low},{'' if high is None else high}}}"
    if high == 0:
        return ""
    more = _repetition(f"({separator_rule} {item})", max(low - 1, 0), None if high is None else high - 1)
    return f"{item} {more}" if low else f"({item} {more} | )"
