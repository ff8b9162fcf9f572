"""Prompt templates with {{variables}}, filled from a row of a small table."""

import re
from collections.abc import Mapping

from engine.errors import ConfigError

_VARIABLE = re.compile(r"\{\{[ \t]*([^\W\d]\w*)[ \t]*\}\}")


def variables(template: str) -> tuple[str, ...]:
    """Return the names of the variables in order of first occurrence; other braces are text."""
    return tuple(dict.fromkeys(_VARIABLE.findall(template)))


def render(template: str, values: Mapping[str, str]) -> str:
    """Return the template with each variable replaced by its value; braces within a value stay text.

    Raises ConfigError naming the first variable that has no value.
    """
    for name in variables(template):
        if name not in values:
            raise ConfigError(
                f"The prompt has {{{{{name}}}}}, but no value for it. Set {name!r} in the table, or "
                "remove it from the prompt."
            )
    return _VARIABLE.sub(lambda found: values[found[1]], template)
