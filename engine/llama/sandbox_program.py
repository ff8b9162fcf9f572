"""Child program of a Sandbox: runs chat templates, the schema converter and the grammar parser on foreign text."""

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from typing import IO

import llama_cpp.llama_cpp as llama

from engine.errors import ConfigError
from engine.llama import grammar_ambiguity, grammar_syntax
from engine.llama.chat import render_chat
from engine.llama.json_schema import gbnf_of_schema
from engine.llama.sandbox import CheckGrammar, ConvertSchema, RenderChat
from engine.process.serving import serve

MAX_PARSE_S = 0.1
"""CPU seconds for llama.cpp's parser; a worker spends them again while all its streams wait."""

_SAYS = ("error parsing grammar: ", "unsupported grammar, ", "grammar does not contain")


def main(end: socket.socket) -> None:
    """Warm up, then answer requests until the parent hangs up."""
    render_chat("{{ bos_token }}", [], "", "")
    check_grammar('root ::= "a"')
    serve(end, RenderChat | ConvertSchema | CheckGrammar, _answer)


def _answer(request: RenderChat | ConvertSchema | CheckGrammar) -> str:
    match request:
        case RenderChat():
            return render_chat(request.template, request.messages, request.bos, request.eos, request.options)
        case ConvertSchema():
            text = gbnf_of_schema(request.schema)
            check_grammar(text)
            return text
        case CheckGrammar():
            check_grammar(request.text)
            return ""


def check_grammar(text: str) -> None:
    """Check a grammar against the limits, then have llama.cpp parse it.

    Raises ConfigError for an exceeded limit, or with llama.cpp's reason if it rejects the grammar. Tokens given by name
    are not resolved: that takes a vocabulary, which this process does not have.
    """
    grammar_ambiguity.check(grammar_syntax.read(text))
    with tempfile.TemporaryFile() as said:
        began = time.process_time()
        with _stderr_into(said):
            handle = llama.llama_sampler_init_grammar(None, grammar_syntax.without_token_names(text).encode(), b"root")
        took_s = time.process_time() - began
        if not handle:
            said.seek(0)
            raise ConfigError(f"is rejected by llama.cpp: {_reason(said.read(1 << 16).decode('utf-8', 'replace'))}")
    llama.llama_sampler_free(handle)
    if took_s > MAX_PARSE_S:
        raise ConfigError(f"takes llama.cpp {took_s:.1f} s to parse; at most {MAX_PARSE_S:g} s are allowed")


def _reason(said: str) -> str:
    """Return the line of llama.cpp's log that names the error."""
    for line in said.splitlines():
        for words in _SAYS:
            if words in line:
                return line.partition(words)[2][:200] if words.endswith(": ") else line[line.index(words) :][:200]
    return "it needs GBNF with a rule named root"


@contextlib.contextmanager
def _stderr_into(file: IO[bytes]) -> Iterator[None]:
    """Redirect this process's standard error, C's and Python's, to `file` inside the block."""
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        with open(file.fileno(), "w", closefd=False) as text, contextlib.redirect_stderr(text):
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
