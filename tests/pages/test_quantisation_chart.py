"""The chart of all quantisations of a model, in a run and by itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.bench.analysis.quantisations import quantisations
from engine.bench.analysis.summary import summarise
from engine.models.synthetic import write_synthetic
from engine.runs import RunRecord
from pages.parts.benchmark import quantisation_chart, run_charts
from tests.engine.bench.run_maker import measured_run

KL = {"F16": 0.0, "Q8_0": 0.001, "Q4_0": 0.05}
SPEEDS = {"F16": (20.0, 50.0), "Q8_0": (30.0, 60.0), "Q4_0": (40.0, 55.0)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """Three files of a model at 1 and at 8 sequences."""
    folder = tmp_path_factory.mktemp("quantisations")
    paths = {name: folder / f"tiny-{name}.gguf" for name in SPEEDS}
    for name, path in paths.items():
        write_synthetic("tiny", path, name)
    return run_of(paths)


def run_of(paths: dict[str, Path]) -> RunRecord:
    cells = [(name, number) for number in (1, 8) for name in paths]
    settings = [{"model": str(paths[name]), "parallel": number} for name, number in cells]
    run = measured_run("r", [SPEEDS[name][number == 8] for name, number in cells], settings=settings)
    facts = [{"kl_mean": KL[name], "kl_max": 1.0, "num_different": 0.0} for name, _number in cells]
    return replace(run, cells=tuple(replace(cell, facts=f) for cell, f in zip(run.cells, facts, strict=True)))


def test_speed_and_divergence_stand_over_the_size_of_each_file(run: RunRecord) -> None:
    found = quantisations(run)
    figure = quantisation_chart.quantisations(found)
    assert figure.layout.title.text.replace("<br>", " ") == found.sentence
    assert figure.layout.title.subtitle.text.replace("<br>", " ") == found.batches
    one, eight, divergence = figure.data
    assert (one.name, eight.name) == ("1 sequence", "8 sequences")
    sizes = sorted(file.size.num_bytes / 1e6 for file in found.files)
    assert list(one.x) == list(divergence.x) == pytest.approx(sizes)
    assert list(one.y) == pytest.approx([40, 30, 20], rel=0.1)
    assert list(divergence.y) == [0.05, 0.001, 0.0]
    assert list(divergence.text) == ["Q4_0", "Q8_0", "F16"]
    assert figure.layout.xaxis2.title.text == "file size, MB"


def test_it_is_the_first_chart_of_such_a_run(run: RunRecord) -> None:
    summary = summarise(run)
    assert next(iter(run_charts.available(run, summary, summary.main_metric))) == "Quantisations"


def test_it_is_left_out_where_the_files_are_gone() -> None:
    gone = run_of({name: Path(f"/nowhere/x-{name}.gguf") for name in SPEEDS})
    summary = summarise(gone)
    assert "Quantisations" not in run_charts.available(gone, summary, summary.main_metric)
