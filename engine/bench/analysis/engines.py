"""Engines side by side: who is compared with whom, and the answer to "Which engine is fastest here?"."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine.bench.analysis.wording import SPEEDS, gain_of
from engine.bench.planning.axes import AXES_BY_NAME
from engine.bench.planning.engines import label_of
from engine.bench.planning.product import short_paths
from engine.runs import RunRecord
from engine.samples import ENGINES_METRIC, ENGINES_QUESTION, Metric
from engine.stats import Verdict
from engine.stats.verdicts import SAME_WITHIN
from engine.units import counted, duration


class Rival(NamedTuple):
    """Another engine under a load. value: its median; verdict: on it, against the engine that all are compared with."""

    number: int
    engine: str
    value: float
    verdict: Verdict


class Load(NamedTuple):
    """Engines under the same load. words: that load, such as "16 users"; base: the configuration compared with."""

    words: str
    base: int
    engine: str
    rivals: tuple[Rival, ...]


def compared_with(run: RunRecord, base: int) -> dict[int, int]:
    """Return by number the configuration that each one is compared with: `base`, for every question but "engines".

    There it is the engine of `base` under the same load, which is everything that the plan varies beside the engine.
    """
    if run.question != ENGINES_QUESTION:
        return {cell.number: base for cell in run.cells if cell.number != base}
    settings = {cell.number: cell.settings for cell in run.cells}
    engine = settings.get(base, {}).get("arm")
    bases = {load_of(run, values): number for number, values in settings.items() if values.get("arm") == engine}
    return {
        number: bases[load]
        for number, values in settings.items()
        if values.get("arm") != engine and (load := load_of(run, values)) in bases
    }


def uncompared(run: RunRecord, base: int) -> str:
    """Return which engines are compared with nothing, and why, as a sentence; empty where all are."""
    if run.question != ENGINES_QUESTION:
        return ""
    against, settings = compared_with(run, base), {cell.number: cell.settings for cell in run.cells}
    engine = settings.get(base, {}).get("arm")
    alone = [values for number, values in settings.items() if values.get("arm") != engine and number not in against]
    names = list(dict.fromkeys(engine_name(values) for values in alone))
    if not names:
        return ""
    subject = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} compared with nothing"
    if len(run.plan.get("axes", {}).get("model", ())) > 1:
        return f"{subject}: the plan varies the model, and which one an external engine runs is not its choice."
    return f"{subject}: {engine_name(settings.get(base, {}))} was not measured under the same load."


def load_of(run: RunRecord, settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return what a plan varies beside the engine, with the values of a configuration.

    A single model is none of it: external engines, whose model the plan does not choose, have none in their settings.
    """
    axes = run.plan.get("axes", {})
    names = [name for name in axes if name != "arm" and not (name == "model" and len(axes[name]) == 1)]
    return tuple((name, settings.get(name)) for name in names)


def words_of_load(run: RunRecord, settings: Mapping[str, Any]) -> str:
    """Return the load of a configuration, such as "16 users"; empty where the plan varies only the engine."""
    load = load_of(run, settings)
    short = short_paths([cell.settings for cell in run.cells], [name for name, _value in load])
    known = [(name, short.get(name, {}).get(value, value)) for name, value in load if name in AXES_BY_NAME]
    return ", ".join(AXES_BY_NAME[name].show(value) for name, value in known)


def engine_name(settings: Mapping[str, Any]) -> str:
    """Return the name of a configuration's engine for people."""
    return label_of(str(settings.get("arm", "pool")))


def engines_sentence(loads: Sequence[Load], metric: Metric, seconds_of_round: float = math.nan) -> str:
    """Return who is fastest under the last load, and then under the first; empty where nothing can be compared."""
    able = [load for load in loads if load.rivals]
    chosen = list(dict.fromkeys([*able[-1:], *able[:1]]))
    said = [
        f"{'with ' + load.words + ', ' if load.words else ''}{_finding(load, metric, seconds_of_round)}"
        for load in chosen
    ]
    text = "; ".join(said)
    return f"{text[:1].upper() if text.startswith(('with', 'this')) else text[:1]}{text[1:]}." if text else ""


def strongest(load: Load, metric: Metric) -> Rival:
    """Return the engine with the best median among those that are compared with the base."""
    sign = 1 if metric.is_more_better is not False else -1
    return max(load.rivals, key=lambda rival: sign * rival.value)


def _finding(load: Load, metric: Metric, seconds_of_round: float) -> str:
    """Return the comparison of the base with its strongest rival."""
    rival = strongest(load, metric)
    verdict = rival.verdict
    if metric.unit not in SPEEDS:
        return f"{rival.engine} has {verdict.ratio.value:.2f} times the {metric.label} of {load.engine}"
    if verdict.word == "same":
        return f"{load.engine} and {rival.engine} differ by less than {100 * SAME_WITHIN:.0f} %"
    gain = gain_of(verdict.ratio, metric.is_more_better).value
    if verdict.word not in ("faster", "slower"):
        missing = counted(verdict.more_rounds, "more round") if verdict.more_rounds else "a run on a quiet machine"
        known = verdict.more_rounds and math.isfinite(seconds_of_round)
        time = f" (about {duration(verdict.more_rounds * seconds_of_round)})" if known else ""
        return f"{load.engine} and {rival.engine} cannot be told apart yet: {missing}{time} would tell"
    is_ours = gain < 1
    first, second = (load.engine, rival.engine) if is_ours else (rival.engine, load.engine)
    return f"{first} {_times(1 / gain if is_ours else gain, metric)} {second}"


def _times(gain: float, metric: Metric) -> str:
    if metric.name == ENGINES_METRIC:
        return f"generates {gain:.2f} times as many tokens per second, prefill included, as"
    if metric.name == "tokens_per_s":
        return f"generates {gain:.2f} times as many tokens per second as"
    return f"is {gain:.2f} times as fast ({metric.label}) as"
