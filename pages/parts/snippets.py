"""A draft as a program: the same trial from Python and from a shell."""

import json
import pprint
import shlex
from dataclasses import fields

import streamlit as st

from engine.specs import PoolSpec, Sampling
from engine.trials import Draft

WIDTH = 100


def copy_button(draft: Draft, model: str, spec: PoolSpec) -> None:
    """A popover with both programs, each with its own copy button."""
    with st.popover("Copy as code", icon=":material/code:", key="lab_copy"):
        in_python, in_shell = st.tabs(["Python", "Shell"])
        in_python.code(as_python(draft, model, spec), language="python", wrap_lines=True)
        in_shell.code(as_shell(draft, model, spec), language="bash", wrap_lines=True)
        if draft.messages:
            in_shell.caption("The shell takes a prompt: this is the conversation as the chat template renders it.")


def as_python(draft: Draft, model: str, spec: PoolSpec) -> str:
    """A program that runs `draft` through the engine's public surface."""
    sampling = ", ".join(f"{name}={value!r}" for name, value in draft.sampling.to_dict().items())
    options = [f"max_tokens={draft.request.max_tokens}"]
    options += [f"{k}={v!r}" for k, v in draft.request.to_dict().items() if k not in ("max_tokens", "generated")]
    pool = "".join(f", {name}={value!r}" for name, value in spec.to_dict().items())
    lines = ["from engine import Pool, Sampling", ""]
    if draft.messages:
        lines += [f"messages = {pprint.pformat(list(draft.messages), width=WIDTH, sort_dicts=False)}"]
    else:
        lines += [f"prompt = {pprint.pformat(draft.prompt, width=WIDTH)}"]
    lines += [f"sampling = Sampling({sampling})", "", f"with Pool({model!r}{pool}) as pool:"]
    if draft.messages:
        lines += ["    _, prompt = pool.render_chat(messages)"]
    lines += [f"    job = pool.submit(prompt, sampling, {', '.join(options)})"]
    if draft.request.max_tokens:
        lines += ["    for step in job:", '        print(step.text, end="", flush=True)']
    else:
        lines += ["    for step in job.result().prompt_steps:", "        print(step.text, step.logprob)"]
    return "\n".join(lines)


def as_shell(draft: Draft, model: str, spec: PoolSpec) -> str:
    """A command line that runs `draft`; fields at their defaults are left out."""
    words = ["python", "-m", "engine", "generate", "--prompt", draft.prompt, "--model", model]
    words += ["--max-tokens", str(draft.request.max_tokens), "--top-k", str(draft.request.top_k)]
    for field in fields(Sampling):
        value = getattr(draft.sampling, field.name)
        if value != field.default:
            words += _flag(field.name, value)
    for stop in draft.request.stop:
        words += ["--stop", stop]
    if draft.request.prompt_logprobs:
        words += ["--prompt-logprobs"]
    if not draft.request.reuse_prefix:
        words += ["--no-reuse-prefix"]
    if spec.n_ctx != PoolSpec.n_ctx:
        words += ["--n-ctx", str(spec.n_ctx)]
    return _wrapped(words)


def _flag(name: str, value: object) -> list[str]:
    flag = "--" + ("sampler-top-k" if name == "top_k" else name.replace("_", "-"))
    if isinstance(value, tuple):
        return [flag, json.dumps(value)] if name == "logit_bias" else [flag, *map(str, value)]
    return [flag, str(value)]


def _wrapped(words: list[str]) -> str:
    """Shell-quoted words, a new line before each flag."""
    lines: list[str] = []
    for word in words:
        quoted = shlex.quote(word)
        if word.startswith("--") and len(lines[-1:]) and lines:
            lines.append(quoted)
        elif lines:
            lines[-1] += " " + quoted
        else:
            lines.append(quoted)
    return " \\\n    ".join(lines)
