"""Code for a call: the same request from OpenAI's client, from curl, from Python without HTTP and from a shell."""

import json
import pprint
import shlex
from dataclasses import replace
from typing import Any

import msgspec
import streamlit as st

from engine.api.openai.server import ApiServer
from engine.api.openai.traffic import LONGEST_BODY, CallRow
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts import snippets
from pages.parts.plain import plain
from pages.parts.traffic.call_again import ENDPOINT, request_again

METHODS = {
    "/v1/completions": "completions.create",
    "/v1/chat/completions": "chat.completions.create",
    "/v1/embeddings": "embeddings.create",
}
OPENAI_FIELDS = frozenset(
    {
        *("best_of", "dimensions", "echo", "encoding_format", "frequency_penalty", "input", "logit_bias", "logprobs"),
        *("max_completion_tokens", "max_tokens", "messages", "model", "n", "parallel_tool_calls", "presence_penalty"),
        *("prompt", "response_format", "seed", "stop", "store", "stream", "stream_options", "suffix", "temperature"),
        *("tool_choice", "tools", "top_logprobs", "top_p", "user"),
    }
)
"""Fields that OpenAI's client has parameters for; others go into its `extra_body`."""
MOST_NESTED = 100
"""Levels of a request that is written as code; its writers call themselves for each."""
NO_CODE = "The request is no JSON object, or is nested too deeply, so it cannot be written as code."


def show(bench: Workbench, api: ApiServer, row: CallRow, trial: Trial | None) -> None:
    """Draw a popover with the programs, each with its own copy button."""
    with st.popover("Copy as code", icon=":material/code:", key="traffic_code"):
        in_openai, in_curl, in_python, in_shell = st.tabs(["OpenAI client", "curl", "Python", "Shell"])
        endpoint, asked, said = copied(row, trial)
        for tab in (in_openai, in_curl) if said else ():
            tab.caption(plain(said))
        if asked is not None:
            in_openai.code(as_openai(endpoint, asked, api.address, api.key), language="python", wrap_lines=True)
            in_curl.code(as_curl(endpoint, asked, api.address, api.key), language="bash", wrap_lines=True)
        engine = bench.model.engine
        if trial is None or engine is None:
            for tab in (in_python, in_shell):
                tab.caption("Only for answers that were kept, while a model is loaded.")
            return
        draft = replace(trial.draft, sampling=replace(trial.draft.sampling, seed=trial.seed))
        program = snippets.as_python(draft, engine.model, engine.spec, bench.model.server)
        in_python.code(program, language="python", wrap_lines=True)
        snippets.shell(in_shell, draft, engine.model, engine.spec)


def copied(row: CallRow, trial: Trial | None) -> tuple[str, dict[str, Any] | None, str]:
    """Return endpoint and fields of the request to copy, None for none, and what is to be said about it.

    A request that was cut is not sent as it was: its answer is asked for again, if that was kept.
    """
    if not row.is_cut:
        asked = request_of(row)
        return row.endpoint, asked, "" if asked is not None else NO_CODE
    said = f"The request has {row.num_bytes:,} bytes, of which the first {LONGEST_BODY:,} are kept"
    again = request_again(trial, row.model) if trial is not None and trial.done() else None
    if again is None or is_too_deep(again):
        return row.endpoint, None, f"{said}, so it cannot be copied as it was sent."
    said += ". This asks for the same answer instead: by the token ids of its prompt, with its settings and seed."
    return ENDPOINT, again, f"{said} What else the request asked for, such as log-probabilities, is left out."


def request_of(row: CallRow) -> dict[str, Any] | None:
    """Return the fields of a request; None where it is no JSON object, or is nested too deeply."""
    try:
        asked = msgspec.json.decode(row.body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return None if is_too_deep(asked) else asked


def is_too_deep(asked: dict[str, Any]) -> bool:
    """Return whether a request is nested too deeply to be written as code."""
    level: list[Any] = [asked]
    for _ in range(MOST_NESTED):
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        level = [one for one in level if isinstance(one, dict | list)]
    return bool(level)


def as_openai(endpoint: str, asked: dict[str, Any], address: str, key: str) -> str:
    """Return a program that sends the request through OpenAI's client."""
    given = {name: value for name, value in asked.items() if name in OPENAI_FIELDS}
    extra = {name: value for name, value in asked.items() if name not in OPENAI_FIELDS}
    given |= {"extra_body": extra} if extra else {}
    lines = ["from openai import OpenAI", "", f"client = OpenAI(base_url={address!r}, api_key={key or 'none'!r})"]
    lines += [f"answer = client.{METHODS.get(endpoint, 'completions.create')}("]
    lines += [f"    {name}={_literal(value)}," for name, value in given.items()]
    lines += [")"]
    lines += ["for chunk in answer:", "    print(chunk)"] if asked.get("stream") is True else ["print(answer)"]
    return "\n".join(lines)


def as_curl(endpoint: str, asked: dict[str, Any], address: str, key: str) -> str:
    """Return a command line that sends the request."""
    parts = [f"curl {shlex.quote(address.removesuffix('/v1') + endpoint)}", "-H 'Content-Type: application/json'"]
    parts += [f"-H {shlex.quote(f'Authorization: Bearer {key}')}"] if key else []
    return " \\\n    ".join([*parts, f"-d {shlex.quote(json.dumps(asked))}"])


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=snippets.WIDTH - 4, compact=True, sort_dicts=False).replace("\n", "\n    ")
