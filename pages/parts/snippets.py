"""Code for a draft: the same trial from Python and from a shell."""

import pprint
import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.backends.address import is_address
from engine.backends.connecting import ExternalEngine
from engine.backends.known import KnownEngine
from engine.specs import PoolSpec, Sampling
from engine.workbench.trials import Draft, Message

WIDTH = 100


def copy_button(draft: Draft, model: str, spec: PoolSpec, server: ExternalEngine | None) -> None:
    """Draw a popover with both programs, each with its own copy button."""
    with st.popover("Copy as code", icon=":material/code:", type="tertiary", key="lab_copy"):
        in_python, in_shell = st.tabs(["Python", "Shell"])
        in_python.code(as_python(draft, model, spec, server), language="python", wrap_lines=True)
        shell(in_shell, draft, model, spec)


def shell(place: DeltaGenerator, draft: Draft, model: str, spec: PoolSpec) -> None:
    """Draw the command line, or why there is none."""
    if is_address(model):
        place.caption("The command line runs models of this machine. Use the Python code for an external engine.")
    elif draft.messages and asked_of(draft.messages) is None:
        place.caption(
            "The command line takes one message and a system message, not a longer chat. Use the Python code."
        )
    else:
        place.code(as_shell(draft, model, spec), language="bash", wrap_lines=True)


def asked_of(messages: Sequence[Message]) -> tuple[str, str] | None:
    """Return the system message ("" for none) and the message of the user; None for any other chat."""
    match [(message["role"], message["content"]) for message in messages]:
        case [("user", text)]:
            return "", text
        case [("system", system), ("user", text)] if system:
            return system, text
        case _:
            return None


def as_python(draft: Draft, model: str, spec: PoolSpec, server: ExternalEngine | None = None) -> str:
    """Return a program that runs `draft` through the engine's public API.

    model: path of a model that runs with `spec`; server: the external engine that takes its place, None for none. One
    that was started here ends with the workbench, so that a pool runs its model instead.
    """
    options = [f"max_tokens={draft.request.max_tokens}"]
    left_out = ("max_tokens", "generated", "forced", "stages", "watched")  # the last two are recorded for the page
    options += [f"{k}={v!r}" for k, v in draft.request.to_dict().items() if k not in left_out]
    pool = "".join(f", {name}={value!r}" for name, value in spec.to_dict().items())
    opened = _connect(server) if isinstance(server, KnownEngine) else f"Pool({model!r}{pool})"
    lines = [f"from engine import {', '.join(sorted(('Sampling', opened.partition('(')[0])))}", ""]
    if draft.messages:
        lines += [f"messages = {pprint.pformat(list(draft.messages), width=WIDTH, sort_dicts=False)}"]
    else:
        lines += [f"prompt = {pprint.pformat(draft.prompt, width=WIDTH)}"]
    lines += [*_sampling(draft.sampling), "", f"with {opened} as pool:"]
    if draft.messages:
        lines += ["    _, prompt = pool.render_chat(messages)"]
    lines += [f"    job = pool.submit(prompt, sampling, {', '.join(options)})"]
    if draft.request.max_tokens:
        lines += ["    for step in job:", '        print(step.text, end="", flush=True)']
    else:
        lines += ["    for step in job.result().prompt_steps:", "        print(step.text, step.logprob)"]
    return "\n".join(lines)


def _connect(server: KnownEngine) -> str:
    """Return the call that connects to an external engine."""
    named = f", {server.model!r}" if server.model else ""
    keyed = f", api_key_env={server.api_key_env!r}" if server.api_key_env else ""
    return f"connect({server.url!r}{named}{keyed})"


def _sampling(sampling: Sampling) -> list[str]:
    """Return the lines that make the sampling, with a long text in a variable of its own."""
    values: dict[str, str] = {name: repr(value) for name, value in sampling.to_dict().items()}
    texts = [name for name in ("grammar", "json_schema") if name in values]
    lines = [f"{name} = {pprint.pformat(getattr(sampling, name), width=WIDTH)}" for name in texts]
    if sampling.logit_bias:
        biases = (f"{token}: {bias!r}".replace("-inf", 'float("-inf")') for token, bias in sampling.logit_bias)
        values["logit_bias"] = f"{{{', '.join(biases)}}}"
    values |= {name: name for name in texts}
    return [*lines, f"sampling = Sampling({', '.join(f'{name}={value}' for name, value in values.items())})"]


def as_shell(draft: Draft, model: str, spec: PoolSpec) -> str:
    """Return a command line that runs `draft` and prints its text; fields at their defaults are left out.

    A chat has one message of the user, and a system message at most.
    """
    request, asked = draft.request, asked_of(draft.messages)
    system, prompt = asked or ("", draft.prompt)
    options = [_option("--prompt", prompt)]
    options += ([_option("--system", system)] if system else ["--chat"]) if asked else []
    options += [_option("--model", model)]
    options += [_option("--max-tokens", request.max_tokens), _option("--top-k", request.top_k)]
    for field in fields(Sampling):
        value = getattr(draft.sampling, field.name)
        if value != field.default:
            options += _flag(field.name, value)
    options += [_option("--stop", stop) for stop in request.stop]
    options += ["--prompt-logprobs"] * request.prompt_logprobs + ["--no-reuse-prefix"] * (not request.reuse_prefix)
    options += [_option("--n-ctx", spec.n_ctx)] * (spec.n_ctx != PoolSpec.n_ctx) + ["--stream"] * bool(
        request.max_tokens
    )
    return " \\\n    ".join(["python -m engine generate", *options])


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + ("sampler-top-k" if name == "top_k" else name.replace("_", "-"))
    if name == "logit_bias":
        return [_option(flag, f"{token}={bias}") for token, bias in value]
    return [" ".join([flag, *map(shlex.quote, value)]) if isinstance(value, tuple) else _option(flag, value)]


def _option(flag: str, value: object) -> str:
    """Return a flag with its value quoted for a shell; joined by = if the value could be mistaken for a flag."""
    return f"{flag}{'=' if str(value).startswith('-') else ' '}{shlex.quote(str(value))}"
