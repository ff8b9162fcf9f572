"""Code for a call: the same request from OpenAI's client, from curl, from Python without HTTP and from a shell."""

import json
import pprint
import shlex
from dataclasses import replace
from typing import Any

import msgspec
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.api.openai.server import ApiServer
from engine.api.openai.traffic import LONGEST_BODY, CallRow
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts import snippets
from pages.parts.plain import plain
from pages.parts.traffic.call_again import ENDPOINT, request_again

_OF_BOTH = frozenset(
    {
        *("frequency_penalty", "logit_bias", "logprobs", "max_tokens", "model", "n", "presence_penalty", "seed"),
        *("stop", "stream", "stream_options", "temperature", "top_p", "user"),
    }
)
METHODS: dict[str, tuple[str, frozenset[str]]] = {
    "/v1/completions": ("completions.create", _OF_BOTH | {"best_of", "echo", "prompt", "suffix"}),
    "/v1/chat/completions": (
        "chat.completions.create",
        _OF_BOTH
        | {"max_completion_tokens", "messages", "parallel_tool_calls", "response_format", "store"}
        | {"tool_choice", "tools", "top_logprobs"},
    ),
    "/v1/embeddings": ("embeddings.create", frozenset({"dimensions", "encoding_format", "input", "model", "user"})),
}
"""Methods of OpenAI's client, and the fields that each has parameters for; others go into its `extra_body`."""
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
            asked_by_client = {"model": row.model} | asked  # which the client requires
            program = as_openai(endpoint, asked_by_client, api.address, api.key)
            in_openai.code(program, language="python", wrap_lines=True)
            _curl(in_curl, endpoint, asked, api)
        if trial is None or bench.model.engine is None:
            for tab in (in_python, in_shell):
                tab.caption("Only for answers that were kept, while a model is loaded.")
            return
        draft = replace(trial.draft, sampling=replace(trial.draft.sampling, seed=trial.seed))
        snippets.programs(bench, draft, trial, in_python, in_shell)


def _curl(place: DeltaGenerator, endpoint: str, asked: dict[str, Any], api: ApiServer) -> None:
    """Draw the command line of curl, or why there is none."""
    if len(body_of(asked)) > snippets.LONGEST_ARGUMENT:
        place.caption(
            f"The request is longer than {snippets.LONGEST_ARGUMENT:,} bytes, too long for a command line. "
            "Use the code for OpenAI's client."
        )
    else:
        place.code(as_curl(endpoint, asked, api.address, api.key), language="bash", wrap_lines=True)


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
    method, names = METHODS[endpoint]
    given = {name: value for name, value in asked.items() if name in names}
    extra = {name: value for name, value in asked.items() if name not in names}
    given |= {"extra_body": extra} if extra else {}
    lines = ["from openai import OpenAI", "", f"client = OpenAI(base_url={address!r}, api_key={key or 'none'!r})"]
    lines += [f"answer = client.{method}("]
    lines += [f"    {name}={_literal(value)}," for name, value in given.items()]
    lines += [")"]
    lines += ["for chunk in answer:", "    print(chunk)"] if asked.get("stream") is True else ["print(answer)"]
    return "\n".join(lines)


def as_curl(endpoint: str, asked: dict[str, Any], address: str, key: str) -> str:
    """Return a command line that sends the request."""
    parts = [f"curl {shlex.quote(address.removesuffix('/v1') + endpoint)}", "-H 'Content-Type: application/json'"]
    parts += [f"-H {shlex.quote(f'Authorization: Bearer {key}')}"] if key else []
    return " \\\n    ".join([*parts, f"-d {shlex.quote(body_of(asked))}"])


def body_of(asked: dict[str, Any]) -> str:
    """Return a request as JSON, of ASCII characters."""
    return json.dumps(asked, separators=(",", ":"))


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=snippets.WIDTH - 4, compact=True, sort_dicts=False).replace("\n", "\n    ")
