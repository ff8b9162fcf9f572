"""`python -m engine embed --backends`: speed of each backend here, and agreement of its vectors with float32."""

from engine.commands.printing import print_json, print_text
from engine.embedding.choice import (
    LOSSLESS,
    BackendSpeed,
    Measurement,
    auto_backend,
    backend_table,
    kept_measurement,
)
from engine.embedding.measuring import Progress, measure_backends
from engine.embedding.models import EmbeddingModel, find_model
from engine.progress_line import ProgressLine
from engine.units import counted, digits, percent, quantity

_HEAD = (
    f"{'backend':<14} {'texts/s':>9} {'tok/s':>9} {'x torch':>8} {'worst cos':>10} {'mean cos':>9} {'ranks':>8} "
    f"{'memory':>9}"
)


def show_backends(model: str, *, is_new: bool, is_json: bool) -> None:
    """Print the stored measurement of a model; measure now where `is_new` or none is stored. Raises EngineError."""
    found = find_model(model)
    measured = None if is_new else kept_measurement(found)
    if measured is None:
        measured = _measure(model)
    if is_json:
        print_json(_plain(found, measured), indent=None)
    else:
        print_text(_sentence(found, measured))


def _measure(model: str) -> Measurement | None:
    line = ProgressLine()

    def tell(progress: Progress) -> None:
        line.show(f"measuring: {percent(progress.share)}, {progress.doing}", step=int(10 * progress.share))

    measured = measure_backends(model, on_progress=tell)
    line.end()
    return measured


def _plain(model: EmbeddingModel, measured: Measurement | None) -> dict[str, object]:
    about = {"measured": measured.measured, "num_texts": measured.num_texts} if measured else {}
    rows = [row.to_dict() for row in backend_table(model, measured)]
    return {"model": model.name, "auto": auto_backend(model, measured), **about, "backends": rows}


def _sentence(model: EmbeddingModel, measured: Measurement | None) -> str:
    lines = [f"Backends of {model.name}"]
    if measured:
        lines[0] += f", {counted(measured.num_texts, 'text')} in {counted(measured.num_rounds, 'round')}"
    lines += ["", _HEAD, *(_line(row) for row in backend_table(model, measured)), ""]
    lines.append(
        f"auto is {auto_backend(model, measured)}: the fastest whose cosines to float32 are all at least {LOSSLESS}"
    )
    return "\n".join(lines)


def _line(row: BackendSpeed) -> str:
    if row.reason:
        return f"{row.name:<14} {row.reason}"
    near = row.agreement
    return (
        f"{row.name:<14} {digits(row.texts_per_s):>9} {digits(row.tokens_per_s):>9} {digits(row.speedup):>8} "
        f"{near.worst_cosine:>10.5f} {near.mean_cosine:>9.5f} {near.rank_correlation:>8.4f} "
        f"{quantity(row.memory_bytes, 'B'):>9}"
    )
