"""Comparison of configurations of several runs: differing and common settings, and verdicts against a baseline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.bench.analysis.caveats import ELSEWHERE, caveats
from engine.bench.analysis.disturbance import is_mostly_disturbed, without_rounds
from engine.bench.analysis.entries import (
    NOTED_METRIC,
    Entry,
    Offer,
    heading,
    in_order,
    label_of,
    marks_of,
    offer,
    shown,
)
from engine.bench.analysis.rounds import APART
from engine.bench.analysis.run_to_run import between_runs, run_to_run
from engine.bench.analysis.summary import (
    TABLE_METRICS,
    CellSummary,
    pairs_within,
    proven_best,
    sentence_of,
    words_of,
)
from engine.bench.analysis.wording import escaped, figure, row, verdict_text
from engine.errors import ConfigError
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME, main_metrics
from engine.stats import FIRST_LOOK, Verdict, compare_many
from engine.units import quantity

_MOST_NOTED = 3


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Compared entries and the findings on them.

    offered: label of every configuration that the runs have to compare, by key; entries: the chosen ones, in the order
    of the choice. differing: settings in which the entries differ, in display order; same: the others with their value;
    a setting that an entry lacks is no difference. metrics: the first of them decides. baseline: key of the entry that
    the others are compared with; best: key of the recommended entry, the baseline unless another is proven better; both
    None where nothing was measured. verdicts: by (key, metric), none for the baseline and for figures from notes; those
    within the baseline's run are the ones of its summary, see `compare_runs` for the families. run_to_run: by key of an
    entry of another run, the verdict of the main metric against the same configuration of the baseline's run: a family
    of its own. between_runs: these in a sentence, empty without any. warnings: caveats of the comparison, each a
    sentence.
    """

    offered: Mapping[str, str]
    entries: tuple[Entry, ...]
    differing: tuple[str, ...]
    same: Mapping[str, Any]
    metrics: tuple[str, ...]
    baseline: str | None
    best: str | None
    verdicts: Mapping[tuple[str, str], Verdict]
    run_to_run: Mapping[str, Verdict]
    between_runs: str
    warnings: tuple[str, ...]
    sentence: str

    @property
    def main_metric(self) -> str:
        """The metric that decides."""
        return self.metrics[0]

    @property
    def measured(self) -> tuple[str, ...]:
        """All metrics that any entry has, in the order of METRICS."""
        return tuple(name for name in METRICS_BY_NAME if any(name in entry.cell.metrics for entry in self.entries))

    def to_markdown(self) -> str:
        """Return the sentence, a table of settings, figures and verdicts, the common settings, and the warnings."""
        units = {name: METRICS_BY_NAME[name] for name in self.metrics}
        head = ["entry", *map(heading, self.differing), *(units[name].label for name in units), "verdict", "remark"]
        lines = [row([escaped(name) for name in head]), row(["---"] * len(head)), *map(self._row, self.entries)]
        same = ", ".join(f"{label_of(name)} {shown(name, value)}" for name, value in self.same.items())
        notes = [f"- {escaped(warning)}" for warning in self.warnings]
        shared = f"Same for all: {same}." if same else ""
        below = [line for one in (shared, self.between_runs) if one for line in (escaped(one), "")]
        return "\n".join([escaped(self.sentence), "", *lines, "", *below, *notes, *([""] if notes else [])])

    def _row(self, entry: Entry) -> str:
        settings = [shown(name, entry.settings[name]) if name in entry.settings else "" for name in self.differing]
        figures = [figure(entry.cell.metrics.get(name), METRICS_BY_NAME[name].unit) for name in self.metrics]
        verdict = self.verdicts.get((entry.key, self.main_metric))
        word = verdict_text(verdict) if verdict else "baseline" if entry.key == self.baseline else ""
        return row([escaped(entry.label), *map(escaped, settings), *figures, word, ", ".join(entry.marks)])


def compare_runs(
    runs: Sequence[RunRecord],
    *,
    chosen: Sequence[str] | None = None,
    baseline: str | None = None,
    metrics: Sequence[str] | None = None,
) -> Comparison:
    """Compare configurations of runs, whichever machine, model and version they were measured with.

    chosen: keys of the configurations to compare (None: all where they are few, else of each run its first and its
    best); a key that no run has is reported in a warning. baseline: a key among them; one without a measured figure is
    replaced by the first that has enough of them. metrics: those to judge by, the first decides; raises ConfigError for
    one that does not exist.

    Configurations of the baseline's run are compared with it by pairs of rounds, those of a run of engines with the
    baseline's engine under the same load; those of other runs with the baseline, as independent samples. So there are
    two families for each metric: all configurations of the baseline's run, chosen or not, and the chosen configurations
    of all other runs. Their joint family-wise error rate is at most one in twenty.
    """
    offered = offer(runs)
    keys = list(dict.fromkeys(offered.first if chosen is None else chosen))
    entries = [offered.entries[key] for key in keys if key in offered.entries]
    names = _metrics(entries, metrics)
    base = _baseline(entries, names[0], baseline)
    if base is not None:
        entries = [replace(entry, marks=marks_of(entry, base)) for entry in entries]
    verdicts = {} if base is None else _verdicts(entries, base, names, offered)
    between = {} if base is None else run_to_run(entries, base, offered, names[0])
    differing, same = _settings(entries)
    cells = [
        replace(entry.cell, number=number, label=entry.label, verdict=verdicts.get((entry.key, names[0])))
        for number, entry in enumerate(entries)
    ]
    place = None if base is None else [entry.key for entry in entries].index(base.key)
    best = proven_best(cells, names[0], place)
    return Comparison(
        offered={key: entry.label for key, entry in offered.entries.items()},
        entries=tuple(entries),
        differing=differing,
        same=same,
        metrics=names,
        baseline=base.key if base else None,
        best=None if best is None else entries[best].key,
        verdicts=verdicts,
        run_to_run=between,
        between_runs="" if base is None else between_runs(between.values(), base.run.name or "the baseline", names[0]),
        warnings=caveats(entries, base, len(keys) - len(entries)),
        sentence=_sentence(entries, cells, names[0], place, best),
    )


def _metrics(entries: Sequence[Entry], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the deciding metric, then those of the table that any entry has."""
    unknown = [name for name in wanted or () if name not in METRICS_BY_NAME]
    if unknown:
        raise ConfigError(f"there is no metric {unknown[0]!r}; known: {', '.join(METRICS_BY_NAME)}")
    if wanted:
        return tuple(dict.fromkeys(wanted))
    num_having = {name: sum(name in entry.cell.metrics for entry in entries) for name in METRICS_BY_NAME}
    questions = {entry.run.question for entry in entries if not entry.is_noted}
    speeds = [name for name in main_metrics(questions.pop() if len(questions) == 1 else "") if num_having[name]]
    main = max(speeds or METRICS_BY_NAME, key=lambda name: num_having[name])
    return tuple(dict.fromkeys([main, *(name for name in (*TABLE_METRICS, NOTED_METRIC) if num_having[name])]))


def _baseline(entries: Sequence[Entry], main: str, wanted: str | None) -> Entry | None:
    able = [entry for entry in entries if main in entry.cell.metrics and not entry.is_noted]
    enough = [entry for entry in able if entry.cell.metrics[main].num >= FIRST_LOOK]
    return next((entry for entry in able if entry.key == wanted), next(iter(enough or able), None))


def _verdicts(
    entries: Sequence[Entry], base: Entry, metrics: Sequence[str], offered: Offer
) -> dict[tuple[str, str], Verdict]:
    found: dict[tuple[str, str], Verdict] = {}
    for name in metrics:
        metric = METRICS_BY_NAME[name]
        theirs = offered.rounds[base.run.id].by_round(base.cell.number, name)
        if not theirs:
            continue
        own = pairs_within(base.run, offered.rounds[base.run.id], base.cell.number, metric)
        judged = [entry for entry in entries if name in entry.cell.metrics and not entry.is_noted]
        others = [entry for entry in judged if entry.run.id != base.run.id]
        by_cell = {id: offered.rounds[id].by_cell(name) for id in {entry.run.id for entry in others}}
        verdicts = compare_many(
            [*own.values(), *((by_cell[entry.run.id][entry.cell.number], theirs) for entry in others)],
            [base.run.origin not in APART] * len(own) + [False] * len(others),
            is_more_better=metric.is_more_better,
            words=words_of(metric),
        )
        within = dict(zip(own, verdicts, strict=False))
        mine = (entry for entry in judged if entry.run.id == base.run.id and entry.cell.number in within)
        found |= {(entry.key, name): within[entry.cell.number] for entry in mine}
        found |= {(entry.key, name): one for entry, one in zip(others, verdicts[len(own) :], strict=True)}
    runs = {entry.run.id: entry.run for entry in entries}
    disturbed = {id for id, run in runs.items() if is_mostly_disturbed(run.samples)}
    keys = {entry.key for entry in entries if disturbed & {entry.run.id, base.run.id}}
    return {key: without_rounds(one) if key[0] in keys else one for key, one in found.items()}


def _settings(entries: Sequence[Entry]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of differing settings, and the others with their value, in display order."""
    differing, same = [], {}
    for name in in_order(name for entry in entries for name in entry.settings):
        values = [entry.settings[name] for entry in entries if name in entry.settings]
        if len({repr(value) for value in values}) > 1:
            differing.append(name)
        else:
            same[name] = values[0]
    return tuple(differing), same


def _sentence(
    entries: Sequence[Entry], cells: Sequence[CellSummary], main: str, base: int | None, best: int | None
) -> str:
    """Return which entry to use, where it was measured if elsewhere, and the related figures from notes."""
    if not entries:
        return "Select runs to compare."
    said = [] if base is None else [sentence_of(cells, main, base, best, nothing="Nothing here")]
    if best is not None and entries[best].marks:
        elsewhere = ", ".join(ELSEWHERE[mark] for mark in entries[best].marks)
        said.append(f"It was measured {elsewhere}.")
    said.append(_from_notes(entries, main))
    return " ".join(filter(None, said)) or f"No entry has {METRICS_BY_NAME[main].label}."


def _from_notes(entries: Sequence[Entry], main: str) -> str:
    """Return the best noted figure of each machine, with its model; empty where notes have no figure of this metric."""
    best: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: -_median(entry, main)):
        if entry.is_noted and main in entry.cell.metrics:
            best.setdefault(entry.run.id, entry)
    metric = METRICS_BY_NAME[main]
    figures = []
    for entry in list(best.values())[:_MOST_NOTED]:
        model = entry.settings.get("model", "unknown model")
        figures.append(f"{entry.label} ({model}): {quantity(_median(entry, main), metric.unit)}")
    return f"From notes ({metric.label}): {'; '.join(figures)}." if figures else ""


def _median(entry: Entry, metric: str) -> float:
    return entry.cell.metrics[metric].value if metric in entry.cell.metrics else -math.inf
