"""Arguments of `generate`, parsed into specs: a flag for each field of Sampling, a few for the machine."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, TypeVar

from engine.chat_options import chat_messages
from engine.commands import pool_flags
from engine.commands.parser import PROGRAM, Parser
from engine.errors import ConfigError
from engine.specs import MAX_PROMPT_CHARACTERS, MAX_SCHEMA_CHARACTERS, PoolSpec, Request, Sampling

T = TypeVar("T")

XRAY_TOP_K = 20
"""Candidates recorded for an X-ray where no number is given."""

MEASURING = {
    "bench": "compare the speed of a model's settings",
    "tune": "find the fastest settings for this machine",
    "reconcile": "compare the figures with llama-bench's",
    "limits": "measure what this machine's memory and cores can do",
}
"""Commands whose arguments engine.commands.bench_arguments parses."""

OTHERS = {
    "beams": "find the best continuations of a prompt by beam search",
    "cost": "estimate what a job costs on rented machines",
    "diff": "compare a saved trial's tokens with another model or setting",
    "embed": "embed the texts of a file",
    "engines": "add and check servers with an OpenAI-compatible API",
    "history": "list, show, export and import saved runs and trials",
    "models": "list, download and quantise models, and show whether they fit",
    "serve": "answer other programs through an OpenAI-compatible API",
    "trials": "list, show, replay and export saved trials",
}
"""Commands that parse their own arguments, each in the module of engine.commands with its name."""

SAMPLING_HELP = {
    "temperature": "0 takes the most probable token",
    "top_k": "keep the K most probable candidates; 0: all",
    "top_p": "keep the most probable candidates up to this mass; 1: all",
    "min_p": "drop candidates below this share of the best one's probability; 0: none",
    "typical_p": "keep candidates of typical surprise up to this mass; 1: all",
    "top_n_sigma": "keep candidates within N standard deviations of the best logit; -1: all",
    "xtc_probability": "probability of dropping all but the least probable candidate above the threshold; 0: never",
    "xtc_threshold": "minimum probability of a candidate that XTC may drop",
    "repeat_penalty": "divide the logits of recent tokens; 1: no penalty",
    "frequency_penalty": "subtract this for each recent occurrence of a token",
    "presence_penalty": "subtract this once from recent tokens",
    "penalty_last_n": "tokens that count as recent; -1: the whole context",
    "dry_multiplier": "strength of the penalty on repeated sequences; 0: off",
    "dry_base": "growth of that penalty with the length of the repetition",
    "dry_allowed_length": "longest repetition without a penalty",
    "dry_penalty_last_n": "tokens searched for repetitions; -1: the whole context",
    "dry_sequence_breakers": "strings that end a repetition",
    "mirostat": "1 or 2: keep the surprise constant instead; 0: off",
    "mirostat_tau": "target surprise, bits",
    "mirostat_eta": "learning rate",
    "logit_bias": "add VALUE to the logit of a token id, -inf bans it; may be given several times",
    "grammar": "GBNF that the text must follow, or @FILE",
    "json_schema": "JSON schema that the text must follow, or @FILE",
    "seed": "random seed (default: a random one, reported)",
    "samplers": "sampler stages, in order",
}
_META = {
    "logit_bias": "ID=VALUE",
    "grammar": "TEXT",
    "json_schema": "TEXT",
    "dry_sequence_breakers": "TEXT",
    "samplers": "STAGE",
}


@dataclass(frozen=True)
class Arguments:
    """Arguments of `generate`; `model` empty: the one of the settings, else the shipped one.

    is_chat: `prompt` is a person's message; system: the message before it, empty for none. prompts, out: files of many
    prompts and of their answers, instead of `prompt`; both empty for none. watched: words as typed, whose tokens the
    model tells. cluster: address of the one whose nodes run the pool, empty for this machine.
    """

    prompt: str
    prompts: str
    out: str
    is_chat: bool
    system: str
    model: str
    sampling: Sampling
    request: Request
    watched: tuple[str, ...]
    pool: PoolSpec
    cluster: str
    is_json: bool
    is_stream: bool
    is_kept: bool

    @property
    def messages(self) -> list[dict[str, str]]:
        """Messages of a chat; empty for a prompt that is continued as text."""
        return chat_messages(self.prompt, self.system) if self.is_chat else []


def parse(words: Sequence[str] | None) -> Arguments:
    """Parse the arguments of a command line, sys.argv's where None.

    Raises ConfigError for a value out of range or an unreadable file, SystemExit (2) for unknown flags.
    """
    given = vars(_parser().parse_args(words))
    sampling = {field.name: given[f"sampling_{field.name}"] for field in fields(Sampling)}
    if sampling["logit_bias"] is not None:
        sampling["logit_bias"] = tuple(map(_bias, sampling["logit_bias"]))
    for name in ("grammar", "json_schema"):
        sampling[name] = _text(name, sampling[name]) if sampling[name] is not None else None
    _check_files(given)
    if given["stages"] and given["top_k"] is None:
        given["top_k"] = XRAY_TOP_K
    return Arguments(
        prompt=_prompt(given["prompt"] or ""),
        prompts=given["prompts"] or "",
        out=given["out"] or "",
        is_chat=given["chat"] or bool(given["system"]),
        system=given["system"],
        model=given["model"],
        sampling=Sampling(**_present(sampling)),
        request=Request(**_present({field.name: given.get(field.name) for field in fields(Request)})),
        watched=tuple(given["watch"] or ()),
        pool=PoolSpec(**pool_flags.given_values(given)),
        cluster=given["cluster"],
        is_json=given["json"],
        is_stream=given["stream"],
        is_kept=given["keep"] is not False,
    )


def _check_files(given: dict[str, Any]) -> None:
    """Raise ConfigError where --prompts and --out do not come together, or with what shows or stores one answer."""
    if bool(given["prompts"]) != bool(given["out"]):
        problem = "--prompts: needs --out FILE" if given["prompts"] else "--out: needs --prompts FILE"
        raise ConfigError(f"{problem}; the answers of a file of prompts go into another file")
    for name in ("json", "stream", "keep", "watch") if given["prompts"] else ():
        if given[name]:
            raise ConfigError(f"--{name}: is for a single prompt; --out has the answers to --prompts")


def _parser() -> argparse.ArgumentParser:
    whole = Parser(
        prog=PROGRAM,
        description="Logitbench on the command line. Each command has its own --help.",
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    # Abbreviated flags are rejected, so that a new flag cannot break scripts.
    parser = commands.add_parser("generate", help="complete a prompt, or each prompt of a file", allow_abbrev=False)
    for name, does in {**MEASURING, **OTHERS}.items():
        commands.add_parser(name, help=does)  # listed for the help only, parsed elsewhere
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="text to complete; -: read standard input")
    prompt.add_argument(
        "--prompts",
        metavar="FILE",
        help="complete many: .jsonl (prompt or messages, id), or plain lines; -: standard input",
    )
    parser.add_argument(
        "--out", metavar="FILE.jsonl", help="append their answers here; the same command again continues"
    )
    parser.add_argument(
        "--chat", action="store_true", help="each prompt is a message, sent in the model's own chat template"
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="system message before it; implies --chat")
    parser.add_argument(
        "--model", default="",
        help="GGUF file or folder of safetensors (default: LOGITBENCH_MODEL, else the shipped model)",
    )  # fmt: skip
    _add_request(parser)
    _add_sampling(parser.add_argument_group("sampling", "The defaults are llama.cpp's."))
    machine = parser.add_argument_group("machine")
    pool_flags.add(
        machine, "n_ctx", "parallel", "threads", "instances", "dtype",
        defaults={"n_ctx": PoolSpec.n_ctx, "parallel": PoolSpec.parallel},
    )  # fmt: skip
    pool_flags.add_cluster(machine)
    return whole


def _add_request(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_argument_group("request")
    asked.add_argument(
        "--max-tokens", type=int, metavar="N", help=f"default: {Request.max_tokens}; 0: only score the prompt"
    )
    asked.add_argument("--top-k", type=int, metavar="K", help="candidates to record with each token (default: 0, none)")
    asked.add_argument(
        "--xray", dest="stages", action="store_true", default=None,
        help=f"record what each sampler stage left of the candidates; --top-k is then {XRAY_TOP_K} by default",
    )  # fmt: skip
    asked.add_argument(
        "--watch", action="append", metavar="WORD",
        help="record the probability and rank of a word of one token: ' yes' with the space, yes with and without, "
        "Yes|yes both together; may be given several times",
    )  # fmt: skip
    asked.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be given several times"
    )
    asked.add_argument(
        "--prompt-logprobs", action="store_true", default=None, help="also report logprobs of the prompt's tokens"
    )
    asked.add_argument(
        "--no-reuse-prefix",
        dest="reuse_prefix",
        action="store_false",
        default=None,
        help="compute the whole prompt, without prefix reuse",
    )
    shown = parser.add_argument_group("output").add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the whole completion with its steps as JSON")
    shown.add_argument("--stream", action="store_true", help="print the text as it is generated")
    parser.add_argument(
        "--keep", action=argparse.BooleanOptionalAction, help="save the trial of --prompt in the history (default: yes)"
    )


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    for field in fields(Sampling):
        # --top-k is the number of recorded candidates, as in Pool.submit.
        flag = "--sampler-top-k" if field.name == "top_k" else "--" + field.name.replace("_", "-")
        options: dict[str, Any] = {"dest": f"sampling_{field.name}", "help": _help(field.name, field.default)}
        if field.name == "logit_bias":
            options |= {"action": "append", "metavar": _META[field.name]}
        elif isinstance(field.default, tuple):
            options |= {"nargs": "+", "metavar": _META[field.name]}
        elif isinstance(field.default, str):
            options |= {"metavar": _META[field.name]}
        else:
            is_real = isinstance(field.default, float)
            options |= {"type": float if is_real else int, "metavar": "X" if is_real else "N"}
        group.add_argument(flag, **options)


def _help(name: str, default: Any) -> str:
    text = SAMPLING_HELP[name].replace("%", "%%")
    is_worth = default not in (None, "", ())
    shown = " ".join(map(repr, default)) if isinstance(default, tuple) else default
    return f"{text} (default: {shown})" if is_worth else text


def _present(values: dict[str, Any]) -> dict[str, Any]:
    """Return only the given values: the specs have the defaults."""
    return {name: value for name, value in values.items() if value is not None}


def _prompt(given: str) -> str:
    if given != "-":
        return given
    return from_standard_input(lambda file: file.read(MAX_PROMPT_CHARACTERS + 1))


def from_standard_input(read: Callable[[TextIO], T]) -> T:
    """Return what `read` makes of standard input. Raises ConfigError where that is closed or cannot be read."""
    if sys.stdin is None:
        raise ConfigError("standard input is closed: pipe the text to this command, or give it otherwise than by -")
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # in the C locale what is not text would come as surrogates
    try:
        return read(sys.stdin)
    except OSError as error:
        raise ConfigError(f"standard input cannot be read ({error})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not text in {error.encoding}: {error.reason} at {error.start}") from error


def _text(name: str, given: str) -> str:
    """Return the value itself, or the content of the file named after @; of an endless one no more than is allowed."""
    if not given.startswith("@"):
        return given
    option = f"--{name.replace('_', '-')} {given}"
    try:
        with open(given[1:], encoding="utf-8") as file:
            text = file.read(MAX_SCHEMA_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option}: the file cannot be read ({error})") from error
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise ConfigError(f"{option}: the file has more than {MAX_SCHEMA_CHARACTERS:,} characters")
    return text


def check_writable(path: Path) -> None:
    """Raise ConfigError where no file can be written at this path; called before the output is computed."""
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(f"--out {path}: the folder {folder} does not exist; create it or choose another")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"--out {path}: cannot be written; choose another path")


def _bias(given: str) -> tuple[int, float]:
    token, _, bias = given.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise ConfigError(f"--logit-bias {given}: must be a token id and a number, such as 13=-inf") from None
