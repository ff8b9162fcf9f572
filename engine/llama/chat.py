"""A model's own chat template, rendered in a sandbox with a time limit. Templates are data from outside."""

import datetime
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ConfigError
from engine.llama.model import Model

LIMIT_S = 1.0
_LONGEST = 1 << 22


def render_chat(template: str, messages: Sequence[Mapping[str, str]], *, bos: str, eos: str) -> str:
    """The prompt text of `messages` (role, content) with the opening of the assistant's turn.

    For the main thread of a worker: the limit of one second rests on SIGALRM. Raises ConfigError when there is no
    template, when it refuses the messages, or when it takes too long.
    """
    if not template:
        raise ConfigError("this model has no chat template: write the whole prompt in completion mode")
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
    try:
        with _time_limit():
            text = environment.from_string(template).render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                bos_token=bos,
                eos_token=eos,
                tools=None,
            )
    except (TemplateError, TypeError, ValueError, OverflowError, MemoryError, TimeoutError, RecursionError) as error:
        raise ConfigError(f"the model's chat template failed: {error}") from error
    if len(text) > _LONGEST:
        raise ConfigError(f"the model's chat template made {len(text):,} characters; {_LONGEST:,} are allowed")
    return text


def prompt_of(model: Model, messages: Sequence[Mapping[str, str]]) -> tuple[str, list[int]]:
    """What a model's own template makes of messages, and its ids; BOS is added only where the template has not written
    it. As `render_chat` for the rest."""
    vocabulary = model.vocabulary
    bos = vocabulary.names.get(vocabulary.bos, "") if vocabulary.bos is not None else ""
    eos = next((name for token, name in vocabulary.names.items() if vocabulary.is_end(token)), "")
    text = render_chat(model.chat_template, messages, bos=bos, eos=eos)
    has_bos = bool(bos) and text.startswith(bos)
    return text, model.tokenize(text, add_bos=not has_bos, special=True)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_options: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


@contextmanager
def _time_limit() -> Iterator[None]:
    def expire(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"it ran longer than {LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
