"""`python -m engine cost`: time and cost of a job on each known machine."""

import argparse
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from engine.commands.keeping import readable
from engine.commands.parser import PROGRAM, Parser
from engine.commands.printing import print_json, print_text
from engine.commands.table import printable
from engine.cost import (
    WAYS,
    Answer,
    CostJob,
    Estimate,
    Rate,
    Way,
    answer,
    best_by_machine,
    estimates,
    fastest_first,
)
from engine.errors import ConfigError, HistoryError
from engine.jsonable import figure
from engine.models.library import embedded_model
from engine.pool.pool import Pool
from engine.settings import Settings
from engine.stats import Interval
from engine.units import NOT_MEASURED, counted, digits, dollars
from engine.workbench.costing import NUM_RUNS, count_with, load_prices, rates_of, read_price_file, reference_rates

_WAYS: dict[Way, str] = {"notes": "with one rate for all tokens", "apart": "with a separate prompt rate"}
_HOURS = {"": 1.0, "h": 1.0, "min": 1 / 60, "m": 1 / 60, "d": 24.0}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(h|min|m|d|)")
_FLAGS = {
    "documents": ("N", "number of documents"),
    "words_per_document": ("N", "words per document"),
    "tokens_per_word": ("X", "tokens per word"),
    "tokens_per_document": ("N", "tokens per document, instead of words"),
    "output_tokens": ("N", "tokens generated for each document"),
    "embedding_sentences": ("N", "sentences to embed, in total"),
    "concurrency": ("N", "documents processed concurrently; 0: as many as were measured"),
    "utilisation": ("SHARE", "share of the paid time spent working"),
    "startup_s": ("S", "start-up seconds, paid once"),
}
_SHORT = {"words_per_document": "--words", "tokens_per_document": "--tokens", "output_tokens": "--output"}

_HEAD = f"{'tok/s':>9}{'ktokens/$':>11}{'hours':>9}{'cost':>12}  speed"
_WIDEST = 60
"""Characters of the first column; longer names end in an ellipsis."""

Given = Mapping[str, Any]
Ways = dict[Way, tuple[Answer, list[Estimate]]]


def run(words: Sequence[str]) -> None:
    """Run the command. Raises EngineError, SystemExit for unknown flags."""
    given = vars(_parser().parse_args(words[1:]))
    settings = Settings.from_environment()
    job = _job(given, settings)
    prices = read_price_file(Path(given["prices"])) if given["prices"] else load_prices(settings.home)
    goals = {"deadline_h": _deadline(given["deadline"]), "budget_usd": _budget(given["budget"])}
    found: dict[str, Ways] = {}
    for model, rates in _by_model([*_measured(settings), *reference_rates()], given["model"]).items():
        by_way = {way: estimates(job, rates, prices, counted_as=way) for way in reversed(WAYS)}
        found[model] = {way: (answer(own, **goals), fastest_first(own)) for way, own in by_way.items()}
    if given["json"]:
        print_json(_plain(job, found))
    else:
        print_text(_text(job, found))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog=f"{PROGRAM} cost", description="Time and cost of a job on each machine.", allow_abbrev=False)
    job = parser.add_argument_group("job")
    for field in fields(CostJob):
        metavar, help = _FLAGS[field.name]
        flag = _SHORT.get(field.name, "--" + field.name.replace("_", "-"))
        kind = int if isinstance(field.default, int) else float
        default = f" (default: {field.default:g})"
        job.add_argument(flag, dest=field.name, type=kind, metavar=metavar, help=help + default)
    job.add_argument("--folder", metavar="DIR", help="count the documents of this folder instead")
    job.add_argument("--gguf", metavar="FILE", help="tokenizer of this model (default: the model in use)")
    wanted = parser.add_argument_group("goal")
    wanted.add_argument(
        "--deadline", metavar="TIME", help="choose the cheapest machine within this time, such as 12h, 90min, 2d"
    )
    wanted.add_argument("--budget", metavar="USD", help="choose the fastest machine within this budget")
    wanted.add_argument("--model", default="", metavar="TEXT", help="only models whose names contain this")
    parser.add_argument("--prices", metavar="FILE", help="price table as CSV (default: the saved one)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _job(given: Given, settings: Settings) -> CostJob:
    values = {field.name: given[field.name] for field in fields(CostJob) if given[field.name] is not None}
    if given["folder"] is None:
        return CostJob.from_dict(values)
    if clash := values.keys() & {"documents", "words_per_document", "tokens_per_document"}:
        raise ConfigError(f"--folder counts the documents, so {' and '.join(sorted(clash))} cannot be given as well")
    with Pool(given["gguf"] or settings.model or embedded_model(), parallel=1) as pool:
        found = count_with(pool, given["folder"])
    for skipped in found.skipped:
        print(f"not counted: {printable(skipped.name, is_terminal=True)}: {skipped.reason}", file=sys.stderr)
    if not found.documents:
        raise ConfigError(f"{given['folder']}: contains no document that could be counted")
    num = len(found.documents)
    return CostJob.from_dict({**values, "documents": num, "tokens_per_document": found.num_tokens / num})


def _measured(settings: Settings) -> list[Rate]:
    """Return the rates of the history's latest runs; none, with the reason on standard error, if it is unreadable."""
    if not settings.history.exists():
        return []
    try:
        with readable(settings) as history:
            runs = (history.runs.run(summary.id) for summary in history.runs.recent(NUM_RUNS))
            return rates_of(run for run in runs if run is not None)
    except HistoryError as error:
        print(f"runs of this machine left out: {error}", file=sys.stderr)
        return []


def _by_model(rates: Sequence[Rate], wanted: str) -> dict[str, list[Rate]]:
    """Return the best rate of each machine, by model. Raises ConfigError where no model matches."""
    found: dict[str, list[Rate]] = {}
    for rate in best_by_machine(rates):
        if wanted.casefold() in rate.model.casefold():
            found.setdefault(rate.model, []).append(rate)
    if not found:
        known = ", ".join(dict.fromkeys(rate.model for rate in rates))
        raise ConfigError(f"--model {wanted}: no speed is known for such a model; known: {known}")
    return found


def _deadline(given: str | None) -> float | None:
    if given is None:
        return None
    match = _LENGTH.fullmatch(given.strip().lower())
    if match is None or not 0 < float(match[1]) * _HOURS[match[2]] < math.inf:
        raise ConfigError(f"--deadline {given}: must be a time such as 12h, 90min or 2d")
    return float(match[1]) * _HOURS[match[2]]


def _budget(given: str | None) -> float | None:
    if given is None:
        return None
    try:
        value = float(given.strip().removeprefix("$"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"--budget {given}: must be dollars above 0")
    return value


def _text(job: CostJob, found: Mapping[str, Ways]) -> str:
    lines = [f"{counted(job.documents, 'document')}, {counted(round(job.num_tokens), 'token')}"]
    for model, ways in found.items():
        for way, (result, own) in ways.items():
            lines += ["", f"{model}, {_WAYS[way]}: {result.sentence}", *_table(own)]
    return "\n".join(lines)


def _table(found: Sequence[Estimate]) -> list[str]:
    names = [" · ".join(filter(None, _name(one).values())) for one in found]
    names = [name if len(name) <= _WIDEST else name[: _WIDEST - 1] + "…" for name in names]
    width = max(map(len, ["machine", *names]))
    lines = [f"  {name:<{width}} {_figures(one)}" for name, one in zip(names, found, strict=True)]
    return [f"  {'machine':<{width}} {_HEAD}", *lines]


def _figures(one: Estimate) -> str:
    speed = one.rate.generation
    remark = f" ({speed.remark})" if speed.remark and speed.provenance != "noted" else ""
    per_usd = _span(one.ktokens_per_usd, digits)
    figures = (
        f"{digits(speed.per_s.value):>9}{per_usd:>11}{_span(one.hours, digits):>9}{_span(one.dollars, dollars):>12}"
    )
    return f"{figures}  {speed.provenance}{remark}"


def _span(interval: Interval, show: Callable[[float], str]) -> str:
    """Format the value, or its upper bound where only that is known, else a dash."""
    if math.isfinite(interval.value):
        return show(interval.value)
    return f"≤ {show(interval.high)}" if math.isfinite(interval.high) else NOT_MEASURED


def _plain(job: CostJob, found: Mapping[str, Ways]) -> dict[str, Any]:
    models = [
        {
            "model": model,
            **{
                way: {
                    "sentence": result.sentence,
                    "chosen": result.chosen and _name(result.chosen),
                    "estimates": [_estimate(one) for one in own],
                }
                for way, (result, own) in ways.items()
            },
        }
        for model, ways in found.items()
    ]
    return {"documents": job.documents, "num_prompt": job.num_prompt, "num_output": job.num_output, "models": models}


def _name(one: Estimate) -> dict[str, str]:
    region = one.price.region if one.price else ""
    return {"machine": one.rate.machine, "label": one.rate.label, "region": region}


def _estimate(one: Estimate) -> dict[str, Any]:
    rate, price = one.rate, one.price
    return {
        **_name(one),
        "quantisation": rate.quantisation,
        "usd_per_h": price.hourly_usd if price else None,
        "hours": _interval(one.hours),
        "dollars": _interval(one.dollars),
        "ktokens_per_usd": _interval(one.ktokens_per_usd),
        "noted_ktokens_per_usd": rate.noted_ktokens_per_usd,
        "tokens_per_s": _interval(rate.generation.per_s),
        "provenance": rate.generation.provenance,
        "remark": rate.generation.remark,
        "divergence": rate.divergence,
        "parts": [
            {
                "name": part.name,
                "amount": part.amount,
                "unit": part.unit,
                "provenance": part.speed and part.speed.provenance,
                "remark": part.speed and part.speed.remark,
                "hours": _interval(part.hours),
            }
            for part in one.parts
        ],
        "assumptions": list(one.assumptions),
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {name: figure(value) for name, value in interval._asdict().items()}
