"""Arguments of `bench`, `tune`, `reconcile` and `limits`, parsed into plans and options."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.bench.planning.axes import AXES, EMBEDDING_AXES, axes_of
from engine.bench.planning.axis import Axis, values_of
from engine.bench.planning.candidates import settings_plan
from engine.bench.planning.cells import ARRIVALS
from engine.bench.planning.layout import AUTO, LIBRARY_DEFAULT
from engine.bench.planning.plan import ARMS, GOALS, Plan, Question
from engine.bench.planning.plan_file import read_plan
from engine.bench.planning.presets import PRESETS, preset
from engine.bench.planning.product import unvaried
from engine.bench.planning.prompts import read_prompts, sample_prompts
from engine.bench.planning.remote import MOST_PROMPTS, MOST_TEXTS
from engine.commands.arguments import MEASURING
from engine.commands.parser import PROGRAM, Parser
from engine.embedding.models import EMBEDDED_NAME
from engine.errors import ConfigError
from engine.models.library import embedded_model
from engine.over_nodes.cluster_bench import check_for_nodes
from engine.settings import Settings

SAMPLES = "samples"
_METAVARS = {
    "layout": "I×T", "whole": "N", "real": "X", "switch": "on|off", "choice": "NAME", "engine": "NAME",
    "backend": "NAME", "path": "PATH",
}  # fmt: skip
EMBEDDING: Question = "embedding"
_EMBEDDING_ONLY = tuple(axis for axis in EMBEDDING_AXES if axis.name not in {each.name for each in AXES})
_INSTANCES = Axis("instances", "Processes", "{}", "worker processes")
_THREADS = Axis("threads", "Threads", "{}", "threads of each process")

Given = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """Arguments of `bench`, `tune` or `reconcile`: the plan of a run, which has the question, and options.

    out: file for the whole run. builds_llama_bench: build llama-bench first where it is missing. sends_to_others: the
    plan's requests may go to external engines on other machines. cluster: address of the cluster on each of whose nodes
    the plan is measured, empty for this machine. is_together: on all of them as one.
    """

    plan: Plan
    is_dry_run: bool = False
    is_json: bool = False
    out: Path | None = None
    builds_llama_bench: bool = False
    sends_to_others: bool = False
    cluster: str = ""
    is_together: bool = False


@dataclass(frozen=True, kw_only=True)
class ResumeArguments:
    """Arguments of `bench resume`: the id of a stopped or interrupted run, and options."""

    run: str
    is_json: bool = False
    out: Path | None = None
    sends_to_others: bool = False


@dataclass(frozen=True, kw_only=True)
class LimitsArguments:
    """Arguments of `limits`: whether to measure this machine's limits again, and how to print them."""

    is_measured_again: bool = False
    is_json: bool = False


BenchCommand = BenchArguments | ResumeArguments | LimitsArguments


def parse(words: Sequence[str]) -> BenchCommand:
    """Parse one of these commands.

    Raises ConfigError for values out of range and for unreadable files, SystemExit (2) for unknown flags.
    """
    whole: argparse.ArgumentParser = Parser(prog=PROGRAM)
    add_commands(whole.add_subparsers(required=True, metavar="COMMAND"))
    return read(whole.parse_args(words))


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands to a parser; `read` converts what it parsed."""
    # Abbreviated flags are rejected, so that a new flag cannot break scripts.
    bench = commands.add_parser("bench", help=MEASURING["bench"], allow_abbrev=False)
    bench.set_defaults(read=_bench)
    source = bench.add_mutually_exclusive_group()
    source.add_argument("--plan", metavar="FILE", help="plan as JSON; flags override its values")
    source.add_argument("--preset", choices=PRESETS, help="default, without axes: quick")
    _add_plan(bench)
    _add_embedding(bench)
    resume = bench.add_subparsers(metavar="resume").add_parser("resume", help="resume a run", allow_abbrev=False)
    resume.set_defaults(read=_resume)
    resume.add_argument("run", metavar="RUN", help="id of a stopped or interrupted run")
    _add_output(resume)

    tune = commands.add_parser("tune", help=MEASURING["tune"], allow_abbrev=False)
    tune.set_defaults(read=_tune)
    tune.add_argument("--goal", choices=GOALS, default=Plan.goal, help=f"default: {Plan.goal}")
    tune.add_argument("--budget", type=float, default=Plan.budget_s, metavar="S", help="time limit, seconds")
    tune.add_argument(
        "--may-change-answers",
        action="store_true",
        help="also try settings that change the answers, such as smaller KV cache types",
    )
    _add_plan(tune)

    reconcile = commands.add_parser("reconcile", help=MEASURING["reconcile"], allow_abbrev=False)
    reconcile.set_defaults(read=_reconcile)
    reconcile.add_argument("--build-llama-bench", action="store_true", help="build llama-bench first if it is missing")
    _add_plan(reconcile)

    limits = commands.add_parser("limits", help=MEASURING["limits"], allow_abbrev=False)
    limits.set_defaults(read=_limits)
    limits.add_argument("--again", action="store_true", help="measure again")
    limits.add_argument("--json", action="store_true", help="print JSON")


def read(given: argparse.Namespace) -> BenchCommand:
    """Convert the parsed arguments of a command of `add_commands`. Raises ConfigError."""
    values = vars(given)
    command: BenchCommand = values["read"](values)
    return command


def _add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of all commands that run a plan."""
    parser.add_argument("--name", help="name of the run")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"samples per configuration (default: {Plan.rounds})")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the order and of the prompts' tokens")
    parser.add_argument("--timeout", type=float, metavar="S", help="time limit of one sample, seconds")
    parser.add_argument("--prompts", metavar="FILE", help=f"use these prompts; {SAMPLES}: the shipped ones")
    parser.add_argument(
        "--cold", action="store_true", help="also time each model's load with its file evicted from the page cache"
    )
    parser.add_argument("--compare-answers", action="store_true", help="also compare the configurations' answers")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan's estimated time and memory, and measure nothing"
    )
    parser.add_argument(
        "--cluster",
        default="",
        metavar="ADDRESS",
        help="measure the whole plan on each node of this Ray cluster, HOST:PORT, or auto for the one of this machine",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="with --cluster: measure all nodes as one pool with a worker on each, for the number of users",
    )
    _add_output(parser)
    axes = parser.add_argument_group(
        "axes",
        "Comma-separated values; numbers also as ranges: 1-4, 1-7+2, 1-8*2. Every combination is measured.",
    )
    axes.add_argument(
        "--instances", "--workers", metavar="N", help="worker processes; with --threads, instead of --layout"
    )
    axes.add_argument("--threads", metavar="N", help="threads of each process; auto, llama-cpp-default or numbers")
    for axis in AXES:
        again = "; may be given several times" if axis.kind == "path" else ""
        options: Given = {"action": "append"} if axis.kind == "path" else {}
        axes.add_argument(
            *_flags(axis),
            dest=axis.name,
            metavar=_METAVARS[axis.kind],
            help=axis.help.replace("%", "%%") + again,
            **options,
        )


def _add_embedding(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that apply only to embedding benchmarks."""
    group = parser.add_argument_group("embedding", "Only with --embed; --layout, --model and --prompts apply too.")
    group.add_argument("--embed", action="store_true", help="measure the speed and quality of embedding")
    for axis in _EMBEDDING_ONLY:
        group.add_argument(_flag(axis.name), metavar=_METAVARS[axis.kind], help=f"{axis.help}; {axis.allowed}")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", metavar="FILE", help="write the whole run to this file, for import into a history")
    parser.add_argument(
        "--send-to-others",
        action="store_true",
        help=f"allow requests to external engines on other machines, with at most {MOST_PROMPTS} prompts or "
        f"{MOST_TEXTS:,} texts to embed",
    )


def _bench(given: Given) -> BenchArguments:
    if given["plan"]:
        plan = read_plan(Path(given["plan"]))
        if given["embed"] and not plan.is_embedding:
            raise ConfigError(f"--embed: the plan in {given['plan']} generates text; remove one of the two")
        return _arguments(plan, _axes(given, plan.question), given)
    is_embedding = given["embed"] or given["preset"] == EMBEDDING
    axes = _axes(given, EMBEDDING if is_embedding else Plan.question)
    if given["preset"] or not axes:
        name = EMBEDDING if is_embedding else given["preset"] or "quick"
        plan = preset(name, _model(given, is_embedding))
    else:
        plan = Plan(question=EMBEDDING if is_embedding else _question(axes))
    return _arguments(plan, axes, given)


def _tune(given: Given) -> BenchArguments:
    plan = settings_plan(_model(given), given["goal"], given["budget"], may_change_answers=given["may_change_answers"])
    return _arguments(plan, _axes(given), given)


def _reconcile(given: Given) -> BenchArguments:
    axes = _axes(given)
    if "build" in axes:
        axes["build"] = tuple(dict.fromkeys((None, *axes["build"])))
    arguments = _arguments(preset("python", _model(given)), axes, given)
    return replace(arguments, builds_llama_bench=given["build_llama_bench"])


def _resume(given: Given) -> ResumeArguments:
    return ResumeArguments(
        run=given["run"], is_json=given["json"], out=_path(given["out"]), sends_to_others=given["send_to_others"]
    )


def _limits(given: Given) -> LimitsArguments:
    return LimitsArguments(is_measured_again=given["again"], is_json=given["json"])


def _arguments(plan: Plan, axes: Mapping[str, tuple[Any, ...]], given: Given) -> BenchArguments:
    """Return the arguments of a run: `plan` with the values of the flags in place of its own."""
    workload = unvaried(plan.workload, axes)
    if given["prompts"]:
        texts = sample_prompts() if given["prompts"] == SAMPLES else read_prompts(Path(given["prompts"]))
        workload |= {"texts": texts} if plan.is_embedding else {"asked": "prompts", "prompts": texts}
    if plan.is_embedding and given["cold"]:
        raise ConfigError("--cold times the loading of GGUF files, which --embed does not measure: remove it")
    said = {"name": given["name"], "rounds": given["rounds"], "seed": given["seed"], "timeout_s": given["timeout"]}
    plan = replace(
        plan,
        model=_model(given, plan.is_embedding) if given["model"] or not plan.model else plan.model,
        axes={**plan.axes, **axes},
        pool=unvaried(plan.pool, axes),
        workload=workload,
        measures_cold=plan.measures_cold or given["cold"],
        compares_answers=plan.compares_answers or given["compare_answers"],
        **{name: value for name, value in said.items() if value is not None},
    )
    _check_cluster(plan, given)
    return BenchArguments(
        plan=plan,
        cluster=given["cluster"],
        is_together=given["together"],
        is_dry_run=given["dry_run"],
        is_json=given["json"],
        out=_path(given["out"]),
        sends_to_others=given["send_to_others"],
    )


def _check_cluster(plan: Plan, given: Given) -> None:
    """Raise ConfigError for what cannot go together with a cluster."""
    if not given["cluster"]:
        if given["together"]:
            raise ConfigError("--together is for the nodes of a cluster: give its address with --cluster")
        return
    about_here = {
        "dry_run": "estimates for this machine: leave --cluster out, or measure",
        **({} if given["together"] else {"out": "writes one run, and each node has one: export them from the history"}),
        "build_llama_bench": "builds on this machine: build llama-bench on the nodes",
        "send_to_others": "is for requests from this machine: leave --cluster out",
    }
    for name, why in about_here.items():
        if given.get(name):
            raise ConfigError(f"{_flag(name)} {why}")
    check_for_nodes(plan)


def _model(given: Given, is_embedding: bool = False) -> str:
    """Return the first model named, else the one of the settings, else the shipped one."""
    if given["model"]:
        return str(given["model"][0])
    return EMBEDDED_NAME if is_embedding else str(Settings.from_environment().model or embedded_model())


def _axes(given: Given, question: Question = "speed") -> dict[str, tuple[Any, ...]]:
    """Return the axes set by flags; a single model belongs to the plan and is no axis."""
    known = axes_of(question)
    said = {axis.name: given[axis.name] for axis in (*AXES, *_EMBEDDING_ONLY) if given.get(axis.name) is not None}
    if odd := next((name for name in said if name not in known), None):
        why = "embedding has no such axis" if question == EMBEDDING else "it needs --embed"
        raise ConfigError(f"{_flag(odd)}: {why}")
    axes = {name: _values(known[name], text) for name, text in said.items()}
    if len(axes.get("model", ())) == 1:
        del axes["model"]
    if given["instances"] or given["threads"]:
        if "layout" in axes:
            raise ConfigError("--layout already sets instances and threads: use one or the other")
        axes["layout"] = _layouts(given["instances"] or "1", given["threads"] or AUTO)
    return axes


def _flags(axis: Axis) -> list[str]:
    """Return the flags of an axis, the one to use first: an engine was once called an arm."""
    return ["--engine", _flag(axis.name)] if axis.name == "arm" else [_flag(axis.name)]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _values(axis: Axis, said: str | list[str]) -> tuple[Any, ...]:
    return values_of(axis, said) if isinstance(said, str) else tuple(map(axis.parse, said))


def _layouts(instances: str, threads: str) -> tuple[str, ...]:
    """Return the layouts of all `instances` with all `threads`, which may include named values besides numbers."""
    counts = values_of(_INSTANCES, instances)
    each: list[Any] = []
    for part in map(str.strip, threads.split(",")):
        each += [part] if part in (AUTO, LIBRARY_DEFAULT) else values_of(_THREADS, part)
    return tuple(f"{count}x{number}" for count in counts for number in each)


def _question(axes: Mapping[str, Any]) -> Question:
    """Return the question of a plan that is defined by flags alone."""
    if "arm" in axes:
        return "python" if {*axes["arm"]} <= {*ARMS} and not axes.keys() & ARRIVALS.keys() else "engines"
    return "users" if axes.keys() & {"users", "rate_per_s"} else "speed"


def _path(given: str | None) -> Path | None:
    return Path(given) if given else None
