"""The same configuration in several runs: whether a later run is faster than an earlier one, with nothing else changed.

Runs of other hours are compared as independent samples, so the state of the machine may explain a difference.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from engine.bench.analysis.disturbance import is_mostly_disturbed, without_rounds
from engine.bench.analysis.entries import Entry, Offer
from engine.bench.analysis.summary import words_of
from engine.samples import METRICS_BY_NAME
from engine.stats import Verdict, compare_many

SURROUNDINGS = ("machine", "llama.cpp", "logitbench")
"""Settings of an entry that may differ between two measurements of the same configuration."""


def counterparts(entries: Sequence[Entry], base: Entry, offered: Offer) -> dict[str, Entry]:
    """Return by key of an entry of another run the entry of the baseline's run that has the same settings."""
    own = {_identity(one): one for one in offered.entries.values() if one.run.id == base.run.id}
    others = (entry for entry in entries if entry.run.id != base.run.id and not entry.is_noted)
    return {entry.key: own[_identity(entry)] for entry in others if _identity(entry) in own}


def run_to_run(entries: Sequence[Entry], base: Entry, offered: Offer, name: str) -> dict[str, Verdict]:
    """Return the verdict on a metric of each entry of another run against its counterpart, by key: one family."""
    metric, found = METRICS_BY_NAME[name], counterparts(entries, base, offered)
    judged = [one for one in entries if one.key in found and name in one.cell.metrics]
    judged = [one for one in judged if name in found[one.key].cell.metrics]
    theirs = offered.rounds[base.run.id].by_cell(name)
    ours = {id: offered.rounds[id].by_cell(name) for id in {one.run.id for one in judged}}
    verdicts = compare_many(
        [(ours[one.run.id][one.cell.number], theirs[found[one.key].cell.number]) for one in judged],
        [False] * len(judged),
        is_more_better=metric.is_more_better,
        words=words_of(metric),
    )
    runs = {one.run.id: one.run for one in (base, *judged)}
    disturbed = {id for id, run in runs.items() if is_mostly_disturbed(run.samples)}
    return {
        one.key: without_rounds(verdict) if disturbed & {one.run.id, base.run.id} else verdict
        for one, verdict in zip(judged, verdicts, strict=True)
    }


def between_runs(verdicts: Iterable[Verdict], base: str, metric: str) -> str:
    """Return the verdicts in one sentence, with the range of the ratios; empty without any. base: name of the run."""
    known = [one for one in verdicts if one.ratio.num]
    if not known:
        return ""
    numbers = Counter("undecided" if one.word == "not enough data" else one.word for one in known)
    words = ", ".join(f"{number:,} {word}" for word, number in numbers.items())
    low, high = min(one.ratio.value for one in known), max(one.ratio.value for one in known)
    times = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return f"Against the same configuration of {base}: {words}; {times} times its {METRICS_BY_NAME[metric].label}."


def _identity(entry: Entry) -> str:
    """Return the settings of an entry but those of its surroundings, as text to compare."""
    settings: Mapping[str, object] = entry.settings
    return repr(sorted((name, repr(value)) for name, value in settings.items() if name not in SURROUNDINGS))
