"""Code for a draft: the same trial from Python and from a shell.

The code of a trial sends the token ids of its prompt: as text or messages where these have the same ids, else the ids.
"""

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
from engine.chat_options import ChatOptions
from engine.specs import PoolSpec, Sampling
from engine.workbench import Workbench
from engine.workbench.trials import Draft, Message, Trial
from pages.parts.plain import plain

WIDTH = 100
MOST_IDS = 16_000
"""Token ids of a prompt that are written as code: with six digits each they fit into one argument of a program."""
LONGEST_ARGUMENT = 131_000
"""Bytes of one argument of a program; Linux allows 131,072 with its flag."""
TOO_MANY_IDS = f"The prompt has more than {MOST_IDS:,} tokens, too many to be written as code."
OTHER_IDS = (
    "The command line sends text, and the text of this prompt tokenises to other ids. "
    "Use the Python code, which sends the ids."
)
ALONE = "its messages alone, without tools and options of the chat template that may have been sent with them."


def copy_button(bench: Workbench, draft: Draft, trial: Trial | None) -> None:
    """Draw a popover with both programs, each with its own copy button; `trial` as for `programs`."""
    with st.popover("Copy as code", icon=":material/code:", type="tertiary", key="lab_copy"):
        in_python, in_shell = st.tabs(["Python", "Shell"])
        programs(bench, draft, trial, in_python, in_shell)


def programs(
    bench: Workbench, draft: Draft, trial: Trial | None, in_python: DeltaGenerator, in_shell: DeltaGenerator
) -> None:
    """Draw both programs for the loaded model, and what is not as in the trial; where there is none, the reason.

    trial: the one whose draft it is, None for a draft that has not run. Draws nothing while no model is loaded.
    """
    engine = bench.model.engine
    if engine is None:
        return
    is_same = True if trial is None else bench.plain_prompts.is_same(trial)
    ids = trial.prompt_ids if trial is not None and is_same is False else ()
    if trial is not None and is_same is None and (said := _unsure(bench, trial)):
        for tab in (in_python, in_shell):
            tab.caption(plain(said))
    if len(ids) > MOST_IDS:
        in_python.caption(TOO_MANY_IDS)
    else:
        program = as_python(draft, engine.model, engine.spec, bench.model.server, ids)
        in_python.code(program, language="python", wrap_lines=True)
    if why := against_shell(draft, engine.model, ids):
        in_shell.caption(why)
    else:
        in_shell.code(as_shell(draft, engine.model, engine.spec), language="bash", wrap_lines=True)


def _unsure(bench: Workbench, trial: Trial) -> str:
    """Return the caption for a trial whose prompt cannot be tokenised again to compare; empty where none is needed."""
    alone = ALONE if trial.draft.messages else "the text of its prompt."
    if bench.model.identity is not None and bench.model.identity.hash != trial.model.hash:
        return f"This runs the loaded model. {trial.model.name}, which answered, is another one. It sends {alone}"
    if trial.client or trial.draft.chat != ChatOptions():
        return f"The token ids of the prompt are not known. This sends {alone}"
    return ""


def against_shell(draft: Draft, model: str, ids: Sequence[int] = ()) -> str:
    """Return why a draft cannot run from the command line; empty where it can. ids: as in `as_python`."""
    sampling, asked = draft.sampling, asked_of(draft.messages)
    texts = [*(asked or ("", draft.prompt)), *draft.request.stop, sampling.grammar, sampling.json_schema]
    lists = [value for name, value in vars(sampling).items() if isinstance(value, tuple) and name != "logit_bias"]
    if is_address(model):
        why = "The command line runs models of this machine. Use the Python code for an external engine."
    elif ids:
        why = OTHER_IDS
    elif draft.messages and asked is None:
        why = "The command line takes one message and a system message, not a longer chat. Use the Python code."
    elif texts[1] == "-":
        why = "The command line reads standard input for a prompt that is only a hyphen. Use the Python code."
    elif any("\0" in text for text in texts if text):
        why = "A command line cannot have a null character. Use the Python code."
    elif any(len(text.encode()) > LONGEST_ARGUMENT for text in texts if text):
        why = f"A command line has room for texts of {LONGEST_ARGUMENT:,} bytes. Use the Python code."
    elif any(not value or any(each.startswith("-") for each in value) for value in lists):
        why = "The command line has no place for an empty list, or one with a text that begins with a hyphen."
        why += " Use the Python code."
    else:
        why = ""
    return why


def asked_of(messages: Sequence[Message]) -> tuple[str, str] | None:
    """Return the system message ("" for none) and the message of the user; None for any other chat."""
    if any(message.keys() != {"role", "content"} for message in messages):
        return None
    match [(message["role"], message["content"]) for message in messages]:
        case [("user", text)]:
            return "", text
        case [("system", system), ("user", text)] if system:
            return system, text
        case _:
            return None


def as_python(
    draft: Draft, model: str, spec: PoolSpec, server: ExternalEngine | None = None, ids: Sequence[int] = ()
) -> str:
    """Return a program that runs `draft` through the engine's public API.

    model: path of a model that runs with `spec`; server: the external engine that takes its place, None for none. One
    that was started here ends with the workbench, so that a pool runs its model instead. ids: token ids of the prompt,
    to send in the place of the text or messages; empty for none.
    """
    options = [f"max_tokens={draft.request.max_tokens}"]
    left_out = ("max_tokens", "generated", "forced", "stages", "watched")  # the last two are recorded for the page
    options += [f"{k}={v!r}" for k, v in draft.request.to_dict().items() if k not in left_out]
    pool = "".join(f", {name}={value!r}" for name, value in spec.to_dict().items())
    opened = _connect(server) if isinstance(server, KnownEngine) else f"Pool({model!r}{pool})"
    lines = [f"from engine import {', '.join(sorted(('Sampling', opened.partition('(')[0])))}", ""]
    if ids:
        lines += [f"prompt = {pprint.pformat(list(ids), width=WIDTH, compact=True)}"]
    elif draft.messages:
        lines += [f"messages = {pprint.pformat(list(draft.messages), width=WIDTH, sort_dicts=False)}"]
    else:
        lines += [f"prompt = {pprint.pformat(draft.prompt, width=WIDTH)}"]
    lines += [*_sampling(draft.sampling), "", f"with {opened} as pool:"]
    if draft.messages and not ids:
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

    Only for a draft for which `against_shell` gives no reason.
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
