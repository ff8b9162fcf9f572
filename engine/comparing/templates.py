"""Prompt templates with {{variables}}, filled from a row of a small table."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from engine.errors import ConfigError

_VARIABLE = re.compile(r"\{\{[ \t]*([^\W\d]\w*)[ \t]*\}\}")


def variables(template: str) -> tuple[str, ...]:
    """Return the names of the variables in order of first occurrence; other braces are text."""
    return tuple(dict.fromkeys(_VARIABLE.findall(template)))


def lengths(template: str) -> tuple[int, Counter[str]]:
    """Return the number of characters outside variables, and how often each variable occurs."""
    found = list(_VARIABLE.finditer(template))
    num_fixed = len(template) - sum(len(one[0]) for one in found)
    return num_fixed, Counter(one[1] for one in found)


def check_values(names: Iterable[str], values: Mapping[str, str]) -> None:
    """Raise ConfigError naming the first variable that has no value."""
    for name in names:
        if name not in values:
            raise ConfigError(
                f"The prompt has {{{{{name}}}}}, but no value for it. Set {name!r} in the table, or "
                "remove it from the prompt."
            )


def render(template: str, values: Mapping[str, str]) -> str:
    """Return the template with each variable replaced by its value; braces within a value stay text.

    Raises ConfigError as `check_values` does.
    """
    check_values(variables(template), values)
    return _VARIABLE.sub(lambda found: values[found[1]], template)
