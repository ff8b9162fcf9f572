"""Chat template rendering in Jinja's sandbox. Templates are foreign programs: run this in a separate process."""

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ConfigError

MAX_CHARACTERS = 1 << 20


def render_chat(template: str, messages: Sequence[Mapping[str, str]], bos: str, eos: str) -> str:
    """Render `messages` (role, content) to the prompt text, including the opening of the assistant's turn.

    Raises ConfigError if the template refuses the messages, fails or writes too much.
    """
    try:
        text = _compiled(template).render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=True,
            bos_token=bos,
            eos_token=eos,
            tools=None,
        )
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # a template may raise anything
        raise ConfigError(f"failed: {error or type(error).__name__}") from error
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"produced {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    return text


@lru_cache(maxsize=1)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
    return environment.from_string(template)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_options: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
