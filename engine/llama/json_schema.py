"""JSON schema to GBNF conversion by llama-cpp-python. Run it in a separate process: it never ends on some patterns."""

import json
from typing import Any

from llama_cpp import llama_grammar

from engine.errors import ConfigError
from engine.llama.grammar_syntax import MAX_REPETITIONS

MAX_DEPTH = 128
"""Levels of JSON; each nested object takes two."""
MAX_MEMBERS = 1000
"""Maximum number of values of an enum, of alternatives, and of items of a tuple."""
MAX_PROPERTIES = 256
"""The converter creates a rule for each pair of optional properties that may follow each other."""

_BOUNDS = (("minLength", "maxLength"), ("minItems", "maxItems"))
_MEMBERS = ("enum", "anyOf", "oneOf", "allOf", "items", "prefixItems")
_VALUES = ("const", "enum", "default", "examples")


def gbnf_of_schema(text: str) -> str:
    """Convert a schema to a grammar. Raises ConfigError if it is not a schema, has no grammar, or exceeds a limit."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigError("is not a JSON object")
    _check(schema, "#", 0)
    llama_grammar._build_repetition = _repetition
    try:
        grammar: str = llama_grammar.json_schema_to_gbnf(text)
    except MemoryError:
        raise
    except Exception as error:  # the converter uses assertions, and presumes keys that a schema need not have
        said = str(error) if isinstance(error, AssertionError | ValueError) else repr(error)
        raise ConfigError(f"cannot be converted to a grammar: {said[:300]}") from error
    return grammar


def _check(schema: Any, path: str, depth: int) -> None:
    """Check a schema, and everything nested in it, against the limits; raises ConfigError."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"has more than {MAX_DEPTH} levels, the limit, at {path[:60]}…")
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
    """Raise ConfigError for a repetition that llama.cpp rejects or would treat as unbounded."""
    for name in (low, high):
        num = schema.get(name)
        if isinstance(num, dict):  # a property of that name
            return
        if num is not None and (isinstance(num, bool) or not isinstance(num, int) or not 0 <= num <= MAX_REPETITIONS):
            raise ConfigError(
                f"has {name} = {num} in {path}: must be a whole number from 0 to {MAX_REPETITIONS:,}, "
                "llama.cpp's limit; use a smaller one or omit it"
            )
    if schema.get(low, 0) > schema.get(high, MAX_REPETITIONS):
        raise ConfigError(f"has {low} = {schema[low]} in {path}, which is more than {high} = {schema[high]}")


def _repetition(
    item: str, low: int, high: int | None, separator_rule: str | None = None, item_rule_is_literal: bool = False
) -> str:
    """Return the grammar text of `item` repeated; replaces the converter's own function.

    The original writes repetitions out: a maxLength of 2,000 becomes 2,000 nested groups. An empty alternative is used
    instead of "?", because llama.cpp counts a group with "?" as repeated.
    """
    del item_rule_is_literal
    if not separator_rule:
        return f"{item}{{{low},{'' if high is None else high}}}"
    if high == 0:
        return ""
    more = _repetition(f"({separator_rule} {item})", max(low - 1, 0), None if high is None else high - 1)
    return f"{item} {more}" if low else f"({item} {more} | )"
