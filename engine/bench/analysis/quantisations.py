"""Cost and benefit of quantising a model: size, speed at few and at many sequences, and KL against the original."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.bench.analysis.disturbance import is_mostly_disturbed, without_rounds
from engine.bench.analysis.rounds import Rounds
from engine.bench.analysis.summary import first_measured, medians_of
from engine.bench.analysis.wording import escaped, figure, row, times, verdict_text
from engine.errors import ConfigError, ModelError
from engine.models.reading import read_model
from engine.runs import CellRecord, RunRecord, quantisation_in
from engine.samples import METRICS_BY_NAME
from engine.stats import Interval, Verdict, compare_many
from engine.stats.evidence import ByRound
from engine.units import counted, digits, percent, quantity, significant


class Size(NamedTuple):
    """Size of a file, as given by its header; NaN where the file no longer exists."""

    quantisation: str
    num_bytes: float = math.nan
    bits_per_weight: float = math.nan


@dataclass(frozen=True, kw_only=True)
class QuantisationFigures:
    """Figures of one file of the model.

    speeds: by number of sequences, the metric of `Quantisations.metric`. verdicts: on these against the original, by
    number of sequences. gain: whether the file gains more over the original at the fewest sequences than at the most
    ("more", "less" or "same"), its ratio that of the two gains. Both are empty for the original. kl_mean, kl_max: nats
    per token against the original; num_different: number of greedy answers that differ from the original's; all three
    NaN where not measured.
    """

    model: str
    size: Size
    speeds: Mapping[int, Interval]
    verdicts: Mapping[int, Verdict]
    gain: Verdict | None
    kl_mean: float
    kl_max: float
    num_different: float

    @property
    def label(self) -> str:
        """The file name without its extension."""
        return Path(self.model).name.removesuffix(".gguf")


@dataclass(frozen=True, kw_only=True)
class Quantisations:
    """All files of a run, the original first.

    metric: the metric used as speed; sequences: the measured numbers of sequences. sentence: recommends a file;
    batches: whether low-bit formats gain most at small batches on this machine.
    """

    files: tuple[QuantisationFigures, ...]
    metric: str
    sequences: tuple[int, ...]
    sentence: str
    batches: str

    def to_markdown(self) -> str:
        """Return both sentences and a table of size, divergence and speed."""
        unit = METRICS_BY_NAME[self.metric].unit
        speeds = [f"{METRICS_BY_NAME[self.metric].label}, {counted(number, 'sequence')}" for number in self.sequences]
        head = ["file", "size", "bits per weight", "KL, nats per token", *speeds, "verdict"]
        rows = [
            row(
                [
                    escaped(file.label),
                    quantity(file.size.num_bytes, "B"),
                    digits(file.size.bits_per_weight),
                    digits(file.kl_mean),
                    *(figure(file.speeds.get(number), unit) for number in self.sequences),
                    verdict_text(file.verdicts[self.sequences[0]]) if self.sequences[0] in file.verdicts else "",
                ]
            )
            for file in self.files
        ]
        said = [escaped(sentence) for sentence in (self.sentence, self.batches) if sentence]
        return "\n".join([" ".join(said), "", row(head), row(["---"] * len(head)), *rows, ""])


def has_quantisations(run: RunRecord) -> bool:
    """Return True for a run that `quantisations` can evaluate."""
    cells = _comparable(run)
    return len({cell.settings["model"] for cell in cells}) > 1 and any("kl_mean" in cell.facts for cell in cells)


def quantisations(run: RunRecord) -> Quantisations:
    """Return the figures of each file that the run measured; the original is the reference of the compared answers.

    Where other settings than the number of sequences vary too, the first configuration of each file and number
    represents all. Raises ConfigError where the run measured fewer than two files or compared no answers.
    """
    if not has_quantisations(run):
        raise ConfigError("this run does not compare quantisations: vary the model and compare the answers")
    cells = _by_file(run)
    original = next(str(cell.settings["model"]) for cell in _comparable(run) if "kl_mean" in cell.facts)
    rounds = Rounds.of(run.samples)
    medians = medians_of(run, rounds)
    metric = first_measured(medians)
    intervals = {cell.number: cell.metrics[metric] for cell in medians if metric in cell.metrics}
    figures = rounds.by_cell(metric)
    speeds = {
        model: {number: figures[cell.number] for number, cell in own.items() if cell.number in figures}
        for model, own in cells.items()
    }
    verdicts, gains = _verdicts(run, speeds, original), _gains(speeds, original)
    files = tuple(
        QuantisationFigures(
            model=model,
            size=_size(model),
            speeds={number: intervals[cell.number] for number, cell in own.items() if cell.number in intervals},
            verdicts=verdicts.get(model, {}),
            gain=gains.get(model),
            kl_mean=_fact(own, "kl_mean"),
            kl_max=_fact(own, "kl_max"),
            num_different=_fact(own, "num_different"),
        )
        for model, own in sorted(cells.items(), key=lambda item: item[0] != original)
    )
    sequences = tuple(sorted({number for file in files for number in file.speeds}))
    return Quantisations(
        files=files,
        metric=metric,
        sequences=sequences,
        sentence=_sentence(files, sequences),
        batches=_batches(files, sequences),
    )


def _comparable(run: RunRecord) -> list[CellRecord]:
    """Return the configurations that have a file and a number of sequences, as imported ones may not."""
    return [cell for cell in run.cells if cell.settings.get("model") and cell.settings.get("parallel")]


def _by_file(run: RunRecord) -> dict[str, dict[int, CellRecord]]:
    """Return the configurations of each file by number of sequences, the fewest first."""
    found: dict[str, dict[int, CellRecord]] = {}
    for cell in sorted(_comparable(run), key=lambda cell: cell.settings["parallel"]):
        found.setdefault(str(cell.settings["model"]), {}).setdefault(cell.settings["parallel"], cell)
    return found


Speeds = Mapping[str, Mapping[int, ByRound]]


def _verdicts(run: RunRecord, speeds: Speeds, original: str) -> dict[str, dict[int, Verdict]]:
    """Return verdicts on each file at each number of sequences that the original has too, corrected as one family."""
    is_disturbed = is_mostly_disturbed(run.samples)
    theirs = speeds[original]
    keys = [(model, number) for model, own in speeds.items() for number in own if model != original]
    keys = [(model, number) for model, number in keys if number in theirs]
    found = compare_many([(speeds[model][number], theirs[number]) for model, number in keys])
    verdicts: dict[str, dict[int, Verdict]] = {}
    for (model, number), verdict in zip(keys, found, strict=True):
        verdicts.setdefault(model, {})[number] = without_rounds(verdict) if is_disturbed else verdict
    return verdicts


def _gains(speeds: Speeds, original: str) -> dict[str, Verdict]:
    """Compare, for each file, its gain over the original at the fewest sequences with its gain at the most."""
    theirs = speeds[original]
    pairs = {}
    for model, own in speeds.items():
        shared = sorted(own.keys() & theirs.keys())
        if model != original and len(shared) > 1:
            few, many = shared[0], shared[-1]
            pairs[model] = _ratios(own[few], theirs[few]), _ratios(own[many], theirs[many])
    return dict(zip(pairs, compare_many(list(pairs.values()), is_more_better=None), strict=True))


def _ratios(ours: ByRound, theirs: ByRound) -> dict[int, float]:
    return {number: ours[number] / theirs[number] for number in ours.keys() & theirs.keys() if theirs[number] > 0}


def _size(model: str) -> Size:
    try:
        file = read_model(model)
    except ModelError:
        return Size(quantisation_in(Path(model).name))
    return Size(file.quantisation, file.size, 8 * file.weights_bytes / max(file.num_parameters, 1))


def _fact(cells: Mapping[int, CellRecord], name: str) -> float:
    """Return the fact of the configuration with the fewest sequences that has it.

    Answers are compared with one request at a time, so all configurations of a file have the same value.
    """
    return next((cell.facts[name] for cell in cells.values() if name in cell.facts), math.nan)


def _sentence(files: Sequence[QuantisationFigures], sequences: tuple[int, ...]) -> str:
    """Return the sentence that names the fastest of the files proven faster, and its cost."""
    original = files[0]
    if not sequences:
        return "Nothing was measured."
    few = sequences[0]
    faster = [file for file in files if few in file.verdicts and file.verdicts[few].word == "faster"]
    at = counted(few, "sequence")
    if not faster:
        verdicts = [file.verdicts[few] for file in files if few in file.verdicts]
        undecided = [verdict for verdict in verdicts if verdict.word == "not enough data"]
        more = max((verdict.more_rounds for verdict in undecided), default=0)
        lacking = f"run {counted(more, 'more round')}" if more else "run it again on a quiet machine"
        reason = f": not enough data, {lacking}" if undecided else ""
        return f"No quantisation is proven faster than {original.label} at {at}{reason}."
    best = max(faster, key=lambda file: file.speeds[few].value)
    share = best.size.num_bytes / original.size.num_bytes
    sized = "" if math.isnan(share) else f", at {percent(share)} of its size"
    kl = "" if math.isnan(best.kl_mean) else f" and KL {significant(best.kl_mean)} nats per token"
    return (
        f"{best.label} is the fastest at {at}: {times(best.verdicts[few].ratio)} the speed of {original.label}"
        f"{sized}{kl}."
    )


def _batches(files: Sequence[QuantisationFigures], sequences: tuple[int, ...]) -> str:
    """Return the sentence on whether low-bit formats gain most at small batches on this machine."""
    most_bits = files[0].size.bits_per_weight
    gains = [file.gain for file in files if file.gain is not None and not file.size.bits_per_weight > most_bits]
    if not gains:
        return ""
    num_more, num_less = (sum(gain.word == word for gain in gains) for word in ("more", "less"))
    few, many = counted(sequences[0], "sequence"), counted(sequences[-1], "sequence")
    counts = f"{num_more} of {len(gains)} gain more over the original at {few} than at {many}, {num_less} gain less"
    if num_more > num_less:
        return f"Low-bit formats gain most at small batches here: {counts}."
    if any(gain.word == "not enough data" for gain in gains) and not num_less:
        return f"Not enough data to tell whether low-bit formats gain most at small batches: {counts}."
    return f"Low-bit formats do not gain most at small batches here: {counts}."
