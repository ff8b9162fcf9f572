"""What the cost of a job is reckoned from: speeds of runs and of the notes, prices, real documents."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.bench.exchange.files import ROW
from engine.bench.findings.disturbance import basis
from engine.bench.findings.rounds import Rounds
from engine.bench.findings.summary import CellSummary, medians_of
from engine.bench.planning.layout import parse_layout
from engine.cost import Counted, Price, Provenance, Rate, Speed, count_folder, count_texts, read_prices, write_prices
from engine.cost.prices import check_unique
from engine.errors import ConfigError
from engine.history.whole_file import write_whole
from engine.pool.pool import Pool
from engine.reference import NOTED_BY_HAND, REFERENCE, embedding_timings, noted_throughputs, reference_runs
from engine.runs import RunRecord, machine_label, quantisation_in
from engine.settings import shipped_folder
from engine.stats import Interval
from engine.workbench import Workbench

PRICES, PRICES_BEFORE = "prices.csv", "prices-before.csv"
"""The person's table, and the one that it took the place of."""

NUM_RUNS = 20
"""The latest runs whose speeds are offered."""

EMBEDDING = "sentences_per_s"
END_TO_END = "tokens over total seconds, prompt included"
UNKNOWN_MACHINE = "unknown machine"

_WORKLOAD = ("num_prompt", "num_generated", "depth", ROW)


def rates(bench: Workbench) -> list[Rate]:
    """Speeds of the latest runs here, then those of the notes."""
    runs = (bench.bench.run(summary.id) for summary in bench.bench.recent()[:NUM_RUNS])
    return [*rates_of(run for run in runs if run is not None), *reference_rates()]


def rates_of(runs: Iterable[RunRecord]) -> list[Rate]:
    """A rate for each cell that generated anything, with the fastest embedding that was measured on its machine."""
    measured = [(run, medians_of(run, Rounds.of(run.samples))) for run in runs]
    found = [rate for run, cells in measured for cell in cells if (rate := _rate(run, cell, cells))]
    embedding = _fastest((_machine_of(run), _embedding_speed(run, cell)) for run, cells in measured for cell in cells)
    return [replace(rate, embedding=embedding.get(rate.machine)) for rate in found]


def reference_rates() -> list[Rate]:
    """The configurations of the notes, and the machines that the notes took to be as fast as another.

    What the notes say of a machine's throughput by price stands with its fastest configuration; its sentences a second
    stand with all of them.
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
            (like,) = (rate for rate in own if rate.label == noted.as_layout)
            found.append(_taken_over(like, noted.machine, noted.ktokens_per_usd))
    return found


def load_prices(home: Path) -> tuple[Price, ...]:
    """The person's table of prices, else the one that ships. Raises ConfigError with file and line."""
    path = home / PRICES
    if not path.exists():
        path = shipped_folder() / "prices" / PRICES
    return read_price_file(path)


def read_price_file(path: Path) -> tuple[Price, ...]:
    """The prices of a CSV file. Raises ConfigError with file and line."""
    try:
        return read_prices(path.read_bytes().decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from None


def save_prices(home: Path, prices: Iterable[Price]) -> None:
    """Keep the person's table of prices, whole. Raises ConfigError where it contradicts itself or cannot be written."""
    kept = list(prices)
    check_unique(kept)
    try:
        home.mkdir(parents=True, exist_ok=True)
        write_whole(home / PRICES, write_prices(kept).encode())
    except OSError as error:
        raise ConfigError(f"{home / PRICES}: the prices cannot be kept ({error.strerror})") from error


def replace_prices(home: Path, prices: Iterable[Price]) -> None:
    """Keep another table; `restore_prices` brings the one before it back. Raises ConfigError as `save_prices` does."""
    kept, own = list(prices), home / PRICES
    check_unique(kept)
    try:
        if own.exists():
            write_whole(home / PRICES_BEFORE, own.read_bytes())
        else:
            (home / PRICES_BEFORE).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{home / PRICES_BEFORE}: the old prices cannot be kept ({error.strerror})") from error
    save_prices(home, kept)


def has_own_prices(home: Path) -> bool:
    """Whether the person keeps a table, even one that cannot be read."""
    return (home / PRICES).exists()


def forget_prices(home: Path) -> None:
    """Go back to the prices that ship; `restore_prices` brings the person's table back, where there is one.

    Raises ConfigError where it cannot be put aside.
    """
    if has_own_prices(home):
        _move(home / PRICES, home / PRICES_BEFORE)


def restore_prices(home: Path) -> None:
    """Undo the last `replace_prices` or `forget_prices`. Raises ConfigError where the table cannot be put back."""
    if (home / PRICES_BEFORE).exists():
        _move(home / PRICES_BEFORE, home / PRICES)
    else:
        forget_prices(home)


def _move(path: Path, to: Path) -> None:
    try:
        path.replace(to)
    except OSError as error:
        raise ConfigError(f"{path}: the prices cannot be moved to {to.name} ({error.strerror})") from error


def count_with_model(bench: Workbench, documents: str | Path | Iterable[tuple[str, bytes]]) -> Counted:
    """Words and tokens of a folder's documents, or of files as names and contents, by the loaded model's tokenizer.

    Raises ConfigError where the folder cannot be read or something is measured, ModelError without a
    model, WorkerDied.
    """
    with bench.machine.acquire("Counting tokens", "shared"):
        pool, _ = bench.model.loaded()
        return count_with(pool, documents)


def count_with(pool: Pool, documents: str | Path | Iterable[tuple[str, bytes]]) -> Counted:
    """The same by the tokenizer of any pool."""

    def count(text: str) -> int:
        return len(pool.tokenize(text))

    if isinstance(documents, str | Path):
        return count_folder(documents, count)
    return count_texts(documents, count)


def _provenance(run: RunRecord) -> Provenance:
    if run.origin in (REFERENCE, NOTED_BY_HAND):
        return "noted"
    return "measured here" if run.origin == "measured" else "imported"


def _machine_of(run: RunRecord) -> str:
    return machine_label(run.machine) or UNKNOWN_MACHINE


def _embedding_speed(run: RunRecord, cell: CellSummary) -> Speed | None:
    """Texts a second of a cell that embeds; None for any other."""
    found = cell.metrics.get(EMBEDDING)
    remark = " by ".join(filter(None, (_model_of(run, cell.settings)[0], str(cell.settings.get("backend", "")))))
    return Speed(found, _provenance(run), remark) if found and found.value > 0 else None


def _fastest(speeds: Iterable[tuple[str, Speed | None]]) -> dict[str, Speed]:
    """Of each machine the fastest."""
    best: dict[str, Speed] = {}
    for machine, speed in speeds:
        if speed and (machine not in best or speed.per_s.value > best[machine].per_s.value):
            best[machine] = speed
    return best


def _rate(run: RunRecord, cell: CellSummary, cells: Sequence[CellSummary]) -> Rate | None:
    provenance = _provenance(run)
    is_noted = provenance == "noted"

    def speed(name: str, remark: str = "", of: CellSummary = cell) -> Speed | None:
        found = of.metrics.get(name)
        told = "; ".join(filter(None, (remark, "" if is_noted else _basis(run, of))))
        return Speed(found, provenance, told) if found and found.value > 0 else None

    generation = speed("tokens_per_s") or speed("end_to_end_per_s", END_TO_END)
    if generation is None:
        return None
    model, quantisation = _model_of(run, cell.settings)
    return Rate(
        label=cell.label if is_noted else " · ".join(filter(None, (run.name, cell.label))),
        machine=_machine_of(run),
        model=model,
        quantisation=quantisation,
        generation=generation,
        prefill=None if is_noted else speed("prefill_per_s", of=_prefilling(cell, cells)),
        decode=None if is_noted else speed("decode_per_s"),
        num_streams=_num_streams(cell.settings),
        divergence=_finite(cell.facts.get("kl_mean")),
        run_id=run.id,
        cell=cell.number,
    )


def _basis(run: RunRecord, cell: CellSummary) -> str:
    """What the figures of a cell rest on where that is little; of another program's runs the samples tell nothing."""
    if run.origin != "measured":
        return ""
    return basis(run, run.samples[run.samples["cell"] == cell.number], cell.num_counted)


def _prefilling(cell: CellSummary, cells: Sequence[CellSummary]) -> CellSummary:
    """The cell itself, or the one of the same settings that has the prefill, as llama-bench measures it by itself."""
    alike = (other for other in cells if _configuration(other) == _configuration(cell))
    return next((one for one in (cell, *alike) if "prefill_per_s" in one.metrics), cell)


def _configuration(cell: CellSummary) -> dict[str, Any]:
    return {name: value for name, value in cell.settings.items() if name not in _WORKLOAD}


def _taken_over(rate: Rate, machine: str, ktokens_per_usd: float) -> Rate:
    """`rate` as that of another machine."""
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
    """Name of the model without folder and quantisation, and the quantisation."""
    path = str(settings.get("model") or run.plan.get("model", ""))
    name = path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    written = quantisation_in(name)
    bare = name[: name.upper().rfind(written)].rstrip("-._ ") if written else name
    return bare or name, str(settings.get("quantisation", "")) or written


def _num_streams(settings: Mapping[str, Any]) -> int | None:
    """Requests answered together; None where the settings do not tell."""
    if settings.get("users"):
        return int(settings["users"])
    with suppress(ConfigError, KeyError, TypeError, ValueError):
        instances = settings["instances"] if "instances" in settings else parse_layout(settings["layout"]).instances
        return int(instances) * int(settings.get("parallel") or 1)
    return None


def _exactly(value: float) -> Interval:
    """A figure without an interval."""
    return Interval(value, math.nan, math.nan, 1)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
