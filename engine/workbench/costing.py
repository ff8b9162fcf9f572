"""Inputs of a cost estimate: speeds of runs and of the reference notes, prices, and counts of real documents."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.bench.analysis.disturbance import basis
from engine.bench.analysis.explanation import in_words
from engine.bench.analysis.rounds import Rounds
from engine.bench.analysis.summary import CellSummary, medians_of
from engine.bench.planning.engines import is_external
from engine.bench.planning.layout import parse_layout
from engine.cost import Counted, Price, Provenance, Rate, Speed, count_folder, count_texts, read_prices, write_prices
from engine.cost.documents import OnFile
from engine.cost.prices import MOST_BYTES, check_unique
from engine.errors import ConfigError
from engine.files import open_regular, read_regular, write_whole
from engine.protocol import Engine
from engine.reference import NOTED_BY_HAND, REFERENCE, embedding_timings, noted_throughputs, reference_runs
from engine.runs import IMPORTED_ROW, RunRecord, machine_label, quantisation_in
from engine.settings import shipped_folder
from engine.stats import Interval
from engine.tasks import Task
from engine.workbench import Workbench
from engine.workbench.machine_card import own_machine

PRICES, PRICES_BEFORE = "prices.csv", "prices-before.csv"
"""File names of the user's price table and of the one it replaced."""

NUM_RUNS = 20
"""Number of latest runs whose speeds are offered."""

EMBEDDING = "sentences_per_s"
END_TO_END = "tokens over total seconds, prompt included"
UNKNOWN_MACHINE, UNKNOWN_MODEL = "unknown machine", "unknown model"

Documents = str | Path | Iterable[tuple[str, bytes]]

_WORKLOAD = ("num_prompt", "num_generated", "depth", IMPORTED_ROW)


def rates(bench: Workbench) -> list[Rate]:
    """Return the rates of this workbench's latest runs, then those of the reference notes."""
    runs = (bench.bench.run(summary.id) for summary in bench.bench.recent()[:NUM_RUNS])
    return [*rates_of(run for run in runs if run is not None), *reference_rates()]


def rates_of(runs: Iterable[RunRecord]) -> list[Rate]:
    """Return a rate for each configuration that generated tokens, with its machine's fastest measured embedding."""
    measured = [(run, medians_of(run, Rounds.of(run.samples))) for run in runs]
    here = this_machine()
    found = [rate for run, cells in measured for cell in cells if (rate := _rate(run, cell, cells, here))]
    embedding = _fastest((_machine_of(run), _embedding_speed(run, cell)) for run, cells in measured for cell in cells)
    return [replace(rate, embedding=embedding.get(rate.machine)) for rate in found]


def this_machine() -> str:
    """Return the name under which runs of this machine are listed: its processor, with the cores that it may use."""
    return own_machine() or UNKNOWN_MACHINE


def reference_rates() -> list[Rate]:
    """Return the rates of the reference notes, including machines that the notes assume to be as fast as another.

    The noted throughput per dollar of a machine is attached to its fastest configuration; its sentences per second are
    attached to all of them.
    """
    found = rates_of(reference_runs())
    embedding = _fastest(
        (timing.machine, Speed(_exactly(timing.sentences_per_s), "noted", f"{timing.model} by {timing.engine}"))
        for timing in embedding_timings()
    )
    found = [replace(rate, embedding=embedding.get(rate.machine)) for rate in found]
    for noted in noted_throughputs():
        own = [rate for rate in found if rate.machine == noted.as_machine]
        if noted.machine == noted.as_machine:
            best = max(own, key=lambda rate: rate.generation.per_s.value)
            found[found.index(best)] = replace(best, noted_ktokens_per_usd=noted.ktokens_per_usd)
        else:
            (like,) = (rate for rate in own if rate.label == in_words({"layout": noted.as_layout}))
            found.append(_taken_over(like, noted.machine, noted.ktokens_per_usd))
    return found


def load_prices(home: Path) -> tuple[Price, ...]:
    """Load the user's price table, else the shipped one. Raises ConfigError with file and line."""
    path = home / PRICES
    if not path.exists():
        path = shipped_folder() / "prices" / PRICES
    return read_price_file(path)


def read_price_file(path: Path) -> tuple[Price, ...]:
    """Read the prices of a CSV file. Raises ConfigError with file and line."""
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"has more than {MOST_BYTES:,} bytes")
        return read_prices(content.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from None


def save_prices(home: Path, prices: Iterable[Price]) -> None:
    """Save the user's whole price table. Raises ConfigError where it contradicts itself or cannot be written."""
    kept = list(prices)
    check_unique(kept)
    try:
        home.mkdir(parents=True, exist_ok=True)
        write_whole(home / PRICES, write_prices(kept).encode())
    except OSError as error:
        raise ConfigError(f"{home / PRICES}: the prices cannot be saved ({error.strerror})") from error


def replace_prices(home: Path, prices: Iterable[Price]) -> None:
    """Replace the user's price table; `restore_prices` undoes this. Raises ConfigError as `save_prices` does."""
    kept, own = list(prices), home / PRICES
    check_unique(kept)
    try:
        if own.exists():
            write_whole(home / PRICES_BEFORE, read_regular(own))
        else:
            (home / PRICES_BEFORE).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{home / PRICES_BEFORE}: the old prices cannot be saved ({error.strerror})") from error
    save_prices(home, kept)


def has_own_prices(home: Path) -> bool:
    """Return whether the user has a price table, even an unreadable one."""
    return (home / PRICES).exists()


def forget_prices(home: Path) -> None:
    """Return to the shipped prices; `restore_prices` brings back the user's table, if there is one.

    Raises ConfigError where the user's table cannot be moved aside.
    """
    if has_own_prices(home):
        _move(home / PRICES, home / PRICES_BEFORE)


def restore_prices(home: Path) -> None:
    """Undo the last `replace_prices` or `forget_prices`. Raises ConfigError where the table cannot be moved back."""
    if (home / PRICES_BEFORE).exists():
        _move(home / PRICES_BEFORE, home / PRICES)
    else:
        forget_prices(home)


def _move(path: Path, to: Path) -> None:
    try:
        path.replace(to)
    except OSError as error:
        raise ConfigError(f"{path}: the prices cannot be moved to {to.name} ({error.strerror})") from error


def start_counting(bench: Workbench, documents: Documents) -> Task[Counted]:
    """Start counting words and tokens of documents with the loaded model's tokenizer, in the background.

    documents: a folder, or files as names and contents. Raises ConfigError where a measurement is running, ModelError
    where no model is loaded; the task fails where the folder cannot be read, and with WorkerDied.
    """
    engine, _ = bench.model.loaded()

    def count(task: Task[Counted]) -> Counted:
        def on_file(number: int, num_files: int) -> None:
            task.update(number / num_files, f"File {number + 1:,} of {num_files:,}")

        return count_with(engine, documents, on_file)

    return Task("Counting", count).start(bench.machine.acquire("Counting tokens", "shared"))


def count_with(engine: Engine, documents: Documents, on_file: OnFile = lambda _number, _num_files: None) -> Counted:
    """Count words and tokens of documents with the tokenizer of any engine; see `start_counting` and `OnFile`."""

    def count(text: str) -> int:
        return len(engine.tokenize(text))

    if isinstance(documents, str | Path):
        return count_folder(documents, count, on_file)
    return count_texts(documents, count, on_file)


def _provenance(run: RunRecord) -> Provenance:
    if run.origin in (REFERENCE, NOTED_BY_HAND):
        return "noted"
    return "measured here" if run.origin == "measured" else "imported"


def _machine_of(run: RunRecord) -> str:
    return machine_label(run.machine) or UNKNOWN_MACHINE


def _embedding_speed(run: RunRecord, cell: CellSummary) -> Speed | None:
    """Return texts per second of a configuration that embeds; None for any other, and on an external engine, whose
    model and machine are its own."""
    if is_external(str(cell.settings.get("backend", ""))):
        return None
    found = cell.metrics.get(EMBEDDING)
    remark = " by ".join(filter(None, (_model_of(run, cell.settings)[0], str(cell.settings.get("backend", "")))))
    return Speed(found, _provenance(run), remark) if found and found.value > 0 else None


def _fastest(speeds: Iterable[tuple[str, Speed | None]]) -> dict[str, Speed]:
    """Return the fastest speed of each machine."""
    best: dict[str, Speed] = {}
    for machine, speed in speeds:
        if speed and (machine not in best or speed.per_s.value > best[machine].per_s.value):
            best[machine] = speed
    return best


def _rate(run: RunRecord, cell: CellSummary, cells: Sequence[CellSummary], here: str) -> Rate | None:
    """Return the speeds of a configuration; None where it generated nothing, or on an external engine, whose model and
    machine are its own. here: the name of this machine."""
    if is_external(str(cell.settings.get("arm", ""))):
        return None
    provenance = _provenance(run)
    is_noted = provenance == "noted"

    def speed(name: str, remark: str = "", of: CellSummary = cell) -> Speed | None:
        found = of.metrics.get(name)
        notes = "; ".join(filter(None, (remark, "" if is_noted else _basis(run, of))))
        return Speed(found, provenance, notes) if found and found.value > 0 else None

    generation = speed("tokens_per_s") or speed("end_to_end_per_s", END_TO_END)
    if generation is None:
        return None
    model, quantisation = _model_of(run, cell.settings)
    return Rate(
        label=_noted_label(cell) if is_noted else " · ".join(filter(None, (run.name, cell.label))),
        machine=_machine_of(run),
        model=model or UNKNOWN_MODEL,
        quantisation=quantisation,
        generation=generation,
        prefill=None if is_noted else speed("prefill_per_s", of=_prefilling(cell, cells)),
        decode=None if is_noted else speed("decode_per_s"),
        num_streams=_num_streams(cell.settings),
        divergence=_finite(cell.facts.get("kl_mean")),
        run_id=run.id,
        cell=cell.number,
        is_here=provenance == "measured here" and _machine_of(run) == here,
    )


def _noted_label(cell: CellSummary) -> str:
    """Return the label of a configuration of notes with its layout in words: 1 process with 8 threads."""
    layout = cell.settings.get("layout")
    words = in_words({"layout": layout})
    parts = cell.label.split(" · ")
    return " · ".join(words if words and part.replace(" × ", "x") == layout else part for part in parts)


def _basis(run: RunRecord, cell: CellSummary) -> str:
    """Return a remark where a configuration's figures rest on weak data; empty for runs not measured here.

    The samples of other programs' runs do not show what was disturbed.
    """
    if run.origin != "measured":
        return ""
    return basis(run, run.samples[run.samples["cell"] == cell.number], cell.num_counted)


def _prefilling(cell: CellSummary, cells: Sequence[CellSummary]) -> CellSummary:
    """Return the configuration itself, or the one with equal settings that has the prefill speed.

    llama-bench measures prefill separately.
    """
    alike = (other for other in cells if _configuration(other) == _configuration(cell))
    return next((one for one in (cell, *alike) if "prefill_per_s" in one.metrics), cell)


def _configuration(cell: CellSummary) -> dict[str, Any]:
    return {name: value for name, value in cell.settings.items() if name not in _WORKLOAD}


def _taken_over(rate: Rate, machine: str, ktokens_per_usd: float) -> Rate:
    """Return `rate` as the assumed rate of another machine."""
    remark = f"as {rate.machine}, {rate.label}"
    generation = Speed(rate.generation.per_s, "assumed", remark)
    return replace(
        rate,
        machine=machine,
        label=remark,
        generation=generation,
        embedding=None,
        noted_ktokens_per_usd=ktokens_per_usd,
        run_id="",
        cell=0,
    )


def _model_of(run: RunRecord, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return the model's name without folder and quantisation, and the quantisation."""
    path = str(settings.get("model") or run.plan.get("model", ""))
    name = path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    written = quantisation_in(name)
    bare = name[: name.upper().rfind(written)].rstrip("-._ ") if written else name
    return bare or name, str(settings.get("quantisation", "")) or written


def _num_streams(settings: Mapping[str, Any]) -> int | None:
    """Return the number of requests answered concurrently; None where the settings do not include it."""
    if settings.get("users"):
        return int(settings["users"])
    with suppress(ConfigError, KeyError, TypeError, ValueError):
        instances = settings["instances"] if "instances" in settings else parse_layout(settings["layout"]).instances
        return int(instances) * int(settings.get("parallel") or 1)
    return None


def _exactly(value: float) -> Interval:
    """Return a value as an interval with unknown bounds."""
    return Interval(value, math.nan, math.nan, 1)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
