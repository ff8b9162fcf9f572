"""`python -m engine beams`: the best continuations of a prompt by beam search; the best one is saved as a trial."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from engine.chat_options import chat_messages
from engine.commands import pool_flags
from engine.commands.arguments import XRAY_TOP_K, from_standard_input
from engine.commands.parser import PROGRAM, Parser
from engine.commands.printing import print_json, print_text
from engine.commands.table import one_line
from engine.comparing.beam_search import GREEDY, find_beams
from engine.comparing.beams import Beams, BeamSearch, BeamSpec
from engine.errors import HistoryError
from engine.jobs import Job
from engine.jsonable import spec_to_dict
from engine.models.library import embedded_model
from engine.pool.pool import Pool
from engine.progress_line import ProgressLine
from engine.settings import Settings
from engine.specs import MAX_PROMPT_CHARACTERS, PoolSpec
from engine.units import counted

EARLY_STOPPING = {"false": False, "true": True, "never": "never"}
_HELPS = {
    "num_beams": "beams that are followed at the same time",
    "length_penalty": "exponent of the length in the score; above 0 favours long sequences",
    "early_stopping": "when to end: true at num_beams complete sequences, false once no running beam scores better at "
    "its present length, never once a better one is impossible",
    "max_new_tokens": "length of the longest sequence",
    "num_return_sequences": "sequences that are returned (default: as many as beams)",
}

Given = dict[str, Any]


def run(words: Sequence[str]) -> None:
    """Run the command. Raises EngineError, SystemExit for unknown flags, KeyboardInterrupt after Ctrl+C."""
    given = vars(_parser().parse_args(words[1:]))
    settings = Settings.from_environment()
    spec = _spec(given)
    prompt = _prompt(given["prompt"])
    messages = chat_messages(prompt, given["system"]) if given["chat"] or given["system"] else []
    pool_spec = PoolSpec(**{"parallel": spec.num_beams, **pool_flags.given_values(given)})
    with Pool(given["model"] or settings.model or embedded_model(), **pool_spec.to_dict()) as pool:
        created_at = datetime.now(UTC)
        text, ids = pool.render_chat(messages) if messages else (prompt, pool.tokenize(prompt))
        beams = _found(pool, ids, spec)
        if given["json"]:
            print_json(_plain(ids, beams))
        else:
            print_text("\n".join(_lines(beams)))
        if given["keep"] is not False:
            from engine.commands.keeping import keep  # imports DuckDB, which is not needed before

            try:
                keep(_as_job(pool, ids, beams), pool, created_at, settings, prompt=text, messages=messages, beams=beams)
            except HistoryError as error:
                print(f"not saved: {error}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=f"{PROGRAM} beams",
        description="Find the best continuations of a prompt by beam search, as transformers' generate does.",
        allow_abbrev=False,
    )
    parser.add_argument("--prompt", required=True, help="text to continue; -: read standard input")
    parser.add_argument("--chat", action="store_true", help="the prompt is a message, in the model's own chat template")
    parser.add_argument("--system", default="", metavar="TEXT", help="system message before it; implies --chat")
    parser.add_argument(
        "--model", default="",
        help="GGUF file or folder of safetensors (default: LOGITBENCH_MODEL, else the shipped model)",
    )  # fmt: skip
    _add_search(parser.add_argument_group("search", "Names and meaning as in transformers."))
    pool_flags.add(
        parser.add_argument_group("machine"), "n_ctx", "parallel", "threads", "dtype",
        defaults={"n_ctx": PoolSpec.n_ctx, "parallel": "one for each beam"},
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, with the tokens of each sequence")
    parser.add_argument(
        "--keep", action=argparse.BooleanOptionalAction, help="save the search in the history as a trial (default: yes)"
    )
    return parser


def _add_search(group: argparse._ActionsContainer) -> None:
    for field in fields(BeamSpec):
        flag, help = f"--{field.name.replace('_', '-')}", _HELPS[field.name]
        if field.name == "early_stopping":
            group.add_argument(flag, choices=EARLY_STOPPING, help=f"{help} (default: false)")
        else:
            kind, shown = (float, "X") if isinstance(field.default, float) else (int, "N")
            help += "" if field.default is None else f" (default: {field.default})"
            group.add_argument(flag, type=kind, metavar=shown, help=help)


def _spec(given: Given) -> BeamSpec:
    """Return the parameters of the search. Raises ConfigError for one out of range."""
    values = {name: given[name] for name in _HELPS if given[name] is not None}
    if "early_stopping" in values:
        values["early_stopping"] = EARLY_STOPPING[values["early_stopping"]]
    return BeamSpec(**values)


def _prompt(given: str) -> str:
    return from_standard_input(lambda file: file.read(MAX_PROMPT_CHARACTERS + 1)) if given == "-" else given


def _found(pool: Pool, ids: Sequence[int], spec: BeamSpec) -> Beams:
    """Return what the search finds, showing its progress on standard error."""
    line = ProgressLine()

    def show(search: BeamSearch) -> None:
        length = counted(spec.max_new_tokens, "token")
        line.show(f"{search.length:,} of at most {length}", step=10 * search.length // spec.max_new_tokens)

    try:
        return find_beams(pool, ids, spec, on_progress=show)
    finally:
        line.end()


def _lines(beams: Beams) -> list[str]:
    lines = [f"{'score':>10} {'logprob':>10} {'tokens':>7}   text"]
    for one in beams.sequences:
        lines.append(f"{one.score:>10.4f} {one.logprob:>10.4f} {len(one.ids):>7,}   {one_line(one.text)}")
    summary = f"{counted(beams.num_pruned, 'other beam')} pruned, {counted(beams.num_computed, 'token')} computed"
    return [*lines, "", summary]


def _plain(prompt_ids: Sequence[int], beams: Beams) -> Given:
    """Return the search as JSON values; the tree of all its tokens is in the exported trial."""
    return {
        "prompt_ids": [*prompt_ids],
        "spec": spec_to_dict(beams.spec),
        "sequences": [{**one._asdict(), "logprob": one.logprob} for one in beams.sequences],
        "num_pruned": beams.num_pruned,
        "num_computed": beams.num_computed,
        "num_least": beams.num_least,
    }


def _as_job(pool: Pool, ids: Sequence[int], beams: Beams) -> Job:
    """Have the tokens of the best sequence recorded with their candidates."""
    best, most = beams.sequences[0].ids, beams.spec.max_new_tokens
    job = pool.submit([*ids, *best], GREEDY, forced=len(best), max_tokens=most, top_k=XRAY_TOP_K)
    job.result()
    return job
