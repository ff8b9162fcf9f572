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

from engine.chat_options import ChatOptions
from engine.errors import ConfigError

MAX_CHARACTERS = 1 << 20
PLAIN = ChatOptions()


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], bos: str, eos: str, options: ChatOptions = PLAIN
) -> str:
    """Render `messages` (role, content; tool_calls as JSON) to the prompt text.

    Raises ConfigError if the template refuses the messages, fails or writes too much, and if JSON is broken.
    """
    try:
        given = [_decoded(message) for message in messages]
        text = _compiled(template).render(
            {
                **json.loads(options.variables or "{}"),
                "messages": given,
                "add_generation_prompt": options.add_generation_prompt,
                "bos_token": bos,
                "eos_token": eos,
                "tools": json.loads(options.tools) if options.tools else None,
            }
        )
        if options.continue_final_message:
            text = _cut_after(text, given[-1]["content"].strip())
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # a template may raise anything
        raise ConfigError(f"failed: {error or type(error).__name__}") from error
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"produced {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    return text


def _decoded(message: Mapping[str, str]) -> dict[str, Any]:
    return {name: json.loads(text) if name == "tool_calls" else text for name, text in message.items()}


def _cut_after(text: str, final: str) -> str:
    """Return `text` up to the end of the last message's content."""
    place = text.rfind(final)
    if not final or place < 0:
        raise TemplateError("does not write the last message as it is, so that it cannot be continued")
    return text[: place + len(final)]


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
