"""Summary of a run: each configuration's figures with intervals and verdict, and one sentence with a recommendation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.bench.analysis.disturbance import Disturbance, disturbance_of, is_mostly_disturbed, without_rounds
from engine.bench.analysis.engines import (
    Load,
    Rival,
    compared_with,
    engine_name,
    engines_sentence,
    uncompared,
    words_of_load,
)
from engine.bench.analysis.rounds import APART, Rounds, round_s
from engine.bench.analysis.wording import SPEEDS, cosine, escaped, figure, gain_of, looks, row, times, verdict_text
from engine.runs import CellStatus, RunRecord
from engine.samples import ENGINES_QUESTION, METRICS_BY_NAME, Metric, Samples, main_metrics
from engine.stats import Interval, Verdict, compare_many
from engine.stats.evidence import ByRound
from engine.stats.verdicts import SAME_WITHIN, Word
from engine.units import counted, duration

TABLE_METRICS = (
    "tokens_per_s",
    "prefill_per_s",
    "decode_per_s",
    "ttft_s",
    "tpot_s",
    "goodput_per_s",
    "sentences_per_s",
    "embedded_per_s",
    "pss_bytes",
)
"""Columns of the table, where measured."""

AGREEMENT = {"worst_cosine": "worst cosine", "mean_cosine": "mean cosine", "rank_correlation": "rank correlation"}
"""Facts of an embedding configuration: agreement of its vectors with float32's, over the bundled sentences."""


_FEWEST_OF_INTERVAL = 6
"""Rounds below which no interval of a median reaches 95 %, see engine.stats.median_interval."""


@dataclass(frozen=True, kw_only=True)
class CellSummary:
    """One configuration of a run: medians over rounds with their 95 % intervals, for every metric that was measured.

    num_counted: samples behind the medians; num_disturbed: samples that were not clean, without replaced ones;
    num_replaced: those. verdict: against the baseline, by the main metric; None for the baseline itself and for a
    configuration without samples.
    """

    number: int
    label: str
    settings: Mapping[str, Any]
    status: CellStatus
    reason: str
    facts: Mapping[str, float]
    metrics: Mapping[str, Interval] = field(default_factory=dict)
    num_counted: int = 0
    num_disturbed: int = 0
    num_replaced: int = 0
    verdict: Verdict | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of a run; best: number of the recommended configuration, the baseline unless another is proven better.

    baseline and best are None where no configuration has the main metric. baselines: all that others are compared
    with: for the question "engines" there is one under each load.
    """

    cells: tuple[CellSummary, ...]
    main_metric: str
    baseline: int | None
    best: int | None
    sentence: str
    disturbance: Disturbance
    baselines: frozenset[int] = frozenset()

    def cell(self, number: int | None) -> CellSummary | None:
        """Return the configuration with that number; None where there is none."""
        return next((cell for cell in self.cells if cell.number == number), None)

    def to_markdown(self) -> str:
        """Return the sentence and a table of the main metrics of configurations measured, failed or refused."""
        names = [
            name for name in (self.main_metric, *TABLE_METRICS) if any(name in cell.metrics for cell in self.cells)
        ]
        names = list(dict.fromkeys(names))
        facts = {name: label for name, label in AGREEMENT.items() if any(name in cell.facts for cell in self.cells)}
        head = ["configuration", "rounds", *(METRICS_BY_NAME[name].label for name in names), *facts.values(), "verdict"]
        shown = [cell for cell in self.cells if cell.metrics or cell.status in ("failed", "refused")]
        lines = [row(head), row(["---"] * len(head)), *(row(self._columns(cell, names, facts)) for cell in shown)]
        few = any(cell.metrics and _num_rounds(cell) < _FEWEST_OF_INTERVAL for cell in self.cells)
        note = "Median over rounds (95 % interval" + ("; range below six rounds)." if few else ").")
        num_untried = len(self.cells) - len(shown)
        note += f" {counted(num_untried, 'configuration')} not measured." if num_untried else ""
        if any(cell.verdict is not None and math.isfinite(cell.verdict.p_value) for cell in shown):
            note += " p is corrected for multiple comparisons and repeated looks."
        disturbed = [escaped(self.disturbance.sentence), ""] if self.disturbance.sentence else []
        return "\n".join([escaped(self.sentence), "", *lines, "", note, "", *disturbed])

    def _columns(self, cell: CellSummary, names: list[str], facts: Iterable[str]) -> list[str]:
        figures = [figure(cell.metrics.get(name), METRICS_BY_NAME[name].unit) for name in names]
        near = [cosine(cell.facts.get(name, math.nan)) for name in facts]
        return [escaped(cell.label), str(_num_rounds(cell)), *figures, *near, self._verdict(cell)]

    def _verdict(self, cell: CellSummary) -> str:
        if cell.status in ("failed", "refused"):
            return escaped(f"{cell.status}: {cell.reason}")
        if cell.verdict is None:
            return "baseline" if cell.number in self.baselines else ""
        return verdict_text(cell.verdict)


def summarise(run: RunRecord, *, main_metric: str | None = None, baseline: int | None = None) -> Summary:
    """Summarise a run, finished or not.

    main_metric, baseline: judge by another metric than `first_measured`, or against another configuration. A baseline
    without samples is replaced by the first configuration that has some. For the verdicts see `verdicts_within`.
    """
    rounds = Rounds.of(run.samples)
    cells = medians_of(run, rounds)
    main = main_metric or first_measured(cells, run.question)
    measured = [cell.number for cell in cells if main in cell.metrics]
    wanted = 0 if baseline is None else baseline
    base = wanted if wanted in measured else next(iter(measured), None)
    verdicts = {} if base is None else verdicts_within(run, rounds, base, METRICS_BY_NAME[main])
    cells = tuple(replace(cell, verdict=verdicts.get(cell.number)) for cell in cells)
    best = proven_best(cells, main, base)
    sentence = run.outcome.get("sentence") or _sentence(run, cells, main, base, best)
    against = {} if base is None else compared_with(run, base)
    return Summary(
        cells=cells,
        main_metric=main,
        baseline=base,
        best=best,
        sentence=sentence,
        disturbance=disturbance_of(run, rounds.samples),
        baselines=frozenset(against.values()) | ({base} if base is not None else set()),
    )


def _sentence(run: RunRecord, cells: Sequence[CellSummary], main: str, base: int | None, best: int | None) -> str:
    seconds = round_s(run.samples)
    if run.question == ENGINES_QUESTION and base is not None:
        comparison = engines_sentence(loads_of(run, cells, main, base), METRICS_BY_NAME[main], seconds)
        if comparison:
            return " ".join(filter(None, (comparison, uncompared(run, base))))
    return sentence_of(cells, main, base, best, seconds)


def loads_of(run: RunRecord, cells: Sequence[CellSummary], metric: str, base: int) -> list[Load]:
    """Return the engines of a run under each load, in the order of the plan; only those with a verdict."""
    by_number, rivals = {cell.number: cell for cell in cells}, dict[int, list[Rival]]()
    for number, other in compared_with(run, base).items():
        cell = by_number[number]
        if cell.verdict is not None:
            rival = Rival(number, engine_name(cell.settings), cell.metrics[metric].value, cell.verdict)
            rivals.setdefault(other, []).append(rival)
    return [
        Load(
            words_of_load(run, by_number[number].settings),
            number,
            engine_name(by_number[number].settings),
            tuple(found),
        )
        for number, found in sorted(rivals.items())
    ]


def under_last_load(run: RunRecord, summary: Summary) -> Summary:
    """Return the summary of a run with the question "engines" with only the configurations under the last load."""
    base = summary.baseline
    loads = [] if base is None else loads_of(run, summary.cells, summary.main_metric, base)
    if not loads:
        return summary
    last = loads[-1]
    numbers = {last.base, *(rival.number for rival in last.rivals)}
    cells = tuple(cell for cell in summary.cells if cell.number in numbers)
    best = proven_best(cells, summary.main_metric, last.base)
    return replace(summary, cells=cells, baseline=last.base, best=best)


def medians_of(run: RunRecord, rounds: Rounds) -> tuple[CellSummary, ...]:
    """Return every configuration of a run with its medians, without verdicts; `rounds`: those of its samples."""
    metrics = rounds.intervals()
    return tuple(
        CellSummary(
            number=cell.number,
            label=cell.label,
            settings=cell.settings,
            status=cell.status,
            reason=cell.reason,
            facts=cell.facts,
            metrics=metrics.get(cell.number, {}),
            num_counted=rounds.num_counted.get(cell.number, 0),
            num_disturbed=rounds.num_disturbed.get(cell.number, 0),
            num_replaced=rounds.num_replaced.get(cell.number, 0),
        )
        for cell in run.cells
    )


def by_round(samples: Samples, cell: int, metric: str) -> dict[int, float]:
    """Return the median of a configuration's counted samples by round; `samples`: all of the run."""
    return Rounds.of(samples).by_round(cell, metric)


def words_of(metric: Metric) -> tuple[Word, Word]:
    """Return the words for better and worse, or for more and less where neither is better."""
    if metric.unit in SPEEDS:
        return "faster", "slower"
    return ("less", "more") if metric.is_more_better is False else ("more", "less")


def first_measured(cells: Sequence[CellSummary], question: str = "") -> str:
    """Return the first of the question's main metrics, else of METRICS, that any configuration has."""
    present = {name for cell in cells for name in cell.metrics}
    names = main_metrics(question)
    return next((name for name in (*names, *METRICS_BY_NAME) if name in present), names[0])


def verdicts_within(run: RunRecord, rounds: Rounds, base: int, metric: Metric) -> dict[int, Verdict]:
    """Return verdicts on all other configurations of a run that have the metric, by number, against `base`; for the
    question "engines" against its engine under the same load.

    All of them form one family, whichever of them are displayed: where nothing differs, at most one run in twenty has a
    configuration that is called better or worse. The tests are paired by round where the rounds were common ones. Where
    most samples were disturbed, the verdicts ask for no further rounds.
    """
    pairs = pairs_within(run, rounds, base, metric)
    is_paired = [run.origin not in APART] * len(pairs)
    found = compare_many(list(pairs.values()), is_paired, is_more_better=metric.is_more_better, words=words_of(metric))
    found = [without_rounds(one) for one in found] if is_mostly_disturbed(run.samples) else found
    return dict(zip(pairs, found, strict=True))


def pairs_within(run: RunRecord, rounds: Rounds, base: int, metric: Metric) -> dict[int, tuple[ByRound, ByRound]]:
    """Return figures by round of the other configurations with the metric, by number, each with those of the one that
    it is compared with: `base`, or for the question "engines" its engine under the same load."""
    return _pairs(run, rounds, compared_with(run, base), metric)


def _pairs(
    run: RunRecord, rounds: Rounds, against: Mapping[int, int], metric: Metric
) -> dict[int, tuple[ByRound, ByRound]]:
    """Return figures by round of the configurations of `against`, each with those of the one that it names."""
    figures = rounds.by_cell(metric.name)
    pairs = [(cell.number, against[cell.number]) for cell in run.cells if cell.number in against]
    return {one: (figures[one], figures[other]) for one, other in pairs if one in figures and other in figures}


def proven_best(cells: Sequence[CellSummary], main: str, base: int | None) -> int | None:
    """Return the number of the configuration with the best median among those proven better; else the baseline."""
    metric = METRICS_BY_NAME[main]
    if metric.is_more_better is None:
        return base
    better, _ = words_of(metric)
    proven = [cell for cell in cells if cell.verdict and cell.verdict.word == better]
    sign = 1 if metric.is_more_better else -1
    return max(proven, key=lambda cell: sign * cell.metrics[main].value).number if proven else base


def sentence_of(
    cells: Sequence[CellSummary],
    main: str,
    base: int | None,
    best: int | None,
    seconds_of_round: float = math.nan,
    *,
    nothing: str = "No setting",
) -> str:
    """Return the best configuration and its proven or estimated gain, and one that may be better still.

    nothing: start of the sentence where no configuration is better.
    """
    by_number = {cell.number: cell for cell in cells}
    if base is None or best is None:
        return _nothing(cells)
    metric, theirs, chosen = METRICS_BY_NAME[main], by_number[base], by_number[best]
    given = f"{_name(chosen)}: {figure(chosen.metrics[main], metric.unit)} {metric.label}"
    verdicts = {cell.number: cell.verdict for cell in cells if cell.verdict is not None}
    if not verdicts or metric.is_more_better is None:
        return f"{given}."
    better, _ = words_of(metric)
    is_faster = better == "faster"
    sign = 1 if metric.is_more_better else -1
    undecided = [by_number[number] for number, verdict in verdicts.items() if _may_be_better(verdict, sign)]
    likely = max(undecided, key=lambda cell: sign * cell.metrics[main].value, default=None)
    missing = _missing(likely, seconds_of_round) if likely is not None else ""
    if best in verdicts:
        said = f"{given}, {times(verdicts[best].ratio)} that of {_name(theirs)}."
        if likely is None or sign * likely.metrics[main].value <= sign * chosen.metrics[main].value:
            return said
        may_be = f"may be {better}" if is_faster else f"may have {better} {metric.label}"
        seen = figure(likely.metrics[main], metric.unit)
        return f"{said} {_name(likely)} {may_be} still, at {seen}: {missing} settle it."
    is_better = f"is {better}" if is_faster else f"has {better} {metric.label}"
    if likely is not None:
        return _estimate(likely, theirs, verdicts[likely.number].ratio, metric, missing)
    num_same = sum(verdict.word == "same" for verdict in verdicts.values())
    alike = f" ({num_same} of {len(verdicts)} the same within ±{100 * SAME_WITHIN:.0f} %)" if num_same else ""
    kept = f"keep it, at {figure(theirs.metrics[main], metric.unit)} {metric.label}"
    return f"{nothing} {is_better} than {_name(theirs)}{alike}: {kept}."


def _estimate(likely: CellSummary, theirs: CellSummary, ratio: Interval, metric: Metric, missing: str) -> str:
    """Return the estimate of a configuration against the baseline, and what is missing for a verdict."""
    does = "confirm it" if gain_of(ratio, metric.is_more_better).value > 1 else "settle it"
    return f"{looks(_name(likely), _name(theirs), ratio, metric)}; {missing} {does}."


def _nothing(cells: Sequence[CellSummary]) -> str:
    reason = next((cell.reason for cell in cells if cell.status in ("failed", "refused") and cell.reason), "")
    return f"Nothing could be measured: {reason}" if reason else "No measurements yet."


def _may_be_better(verdict: Verdict, sign: int) -> bool:
    """Return True for an undecided verdict whose interval leaves room for a relevant improvement."""
    best = verdict.ratio.high if sign > 0 else 1 / verdict.ratio.low
    return verdict.word == "not enough data" and not best <= 1 + SAME_WITHIN


def _missing(cell: CellSummary, seconds_of_round: float) -> str:
    """Return what an undecided verdict needs: rounds, with their duration where known, else a quiet machine."""
    more = cell.verdict.more_rounds if cell.verdict else 0
    if not more:
        return "a run on a quiet machine would"
    time = f" (about {duration(more * seconds_of_round)})" if math.isfinite(seconds_of_round) else ""
    return f"{counted(more, 'more round')}{time} would"


def _name(cell: CellSummary) -> str:
    return cell.label or "This setting"


def _num_rounds(cell: CellSummary) -> int:
    return max((interval.num for interval in cell.metrics.values()), default=0)
