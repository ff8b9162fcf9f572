"""All quantisations of a model: the plan, the findings of a run, and whether few bits gain most at small batches."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.bench.analysis.quantisations import Quantisations, has_quantisations, quantisations
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.target import Target, open_engine_target
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Cell
from engine.bench.planning.quantisations import SEQUENCES, quantisations_plan
from engine.bench.running import session
from engine.errors import ConfigError
from engine.models.quantise import QuantiseJob
from engine.models.reading import read_model
from engine.runs import RunRecord
from engine.stats import FIRST_LOOK
from tests.engine.bench.fakes import Kept
from tests.engine.bench.run_maker import measured_run

pytestmark = pytest.mark.usefixtures("short_samples")

WITHIN_S = 60.0
ORIGINAL, SMALL, SMALLEST = "/models/story-F16.gguf", "/models/story-Q8_0.gguf", "/models/story-Q4_0.gguf"


class Keeper(Kept):
    """Recorder of a run that saves nothing."""

    def begin(self, run: RunRecord) -> None: ...
    def finish(self, status: str, outcome: Mapping[str, Any]) -> None: ...


@pytest.fixture(scope="module")
def smaller(story_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shipped model quantised to four bits per weight."""
    target = tmp_path_factory.mktemp("smaller") / "story-Q4_0.gguf"
    return QuantiseJob(read_model(story_model), "Q4_0", target, threads=2, may_requantise=True).start().result(WITHIN_S)


def run_of(speeds: dict[str, tuple[float, float]], kl: dict[str, float], **changes: Any) -> RunRecord:
    """Return a run of files at 1 and at 8 sequences, with their KL."""
    settings: list[dict[str, Any]] = [{"model": model, "parallel": number} for number in (1, 8) for model in speeds]
    run = measured_run(
        "r", [speeds[one["model"]][one["parallel"] == 8] for one in settings], settings=settings, **changes
    )
    facts = [{"kl_mean": kl[one["model"]], "kl_max": 2.0, "num_different": 3.0} for one in settings]
    return replace(run, cells=tuple(replace(c, facts=f) for c, f in zip(run.cells, facts, strict=True)))


def found(
    small: tuple[float, float] = (30.0, 60.0), smallest: tuple[float, float] = (40.0, 50.0), **changes: Any
) -> Quantisations:
    speeds = {ORIGINAL: (20.0, 50.0), SMALL: small, SMALLEST: smallest}
    return quantisations(run_of(speeds, {ORIGINAL: 0.0, SMALL: 0.001, SMALLEST: 0.05}, **changes))


# Plan


def test_every_file_is_measured_at_every_number_of_sequences_and_the_original_comes_first(
    story_model: Path, smaller: Path
) -> None:
    plan = quantisations_plan([story_model, smaller, story_model], cores=2)
    cells = cells_of(plan)
    assert [(cell.pool.parallel, cell.model) for cell in cells] == [
        (number, str(path)) for number in SEQUENCES for path in (story_model.resolve(), smaller)
    ]
    assert not any(cell.refusal for cell in cells)
    assert {cell.pool.threads for cell in cells} == {2}
    assert plan.compares_answers
    assert plan.rounds == FIRST_LOOK


def test_one_file_alone_is_refused(story_model: Path) -> None:
    with pytest.raises(ConfigError, match="quantise it first"):
        quantisations_plan([story_model, story_model])


# Run


@pytest.mark.slow
def test_a_run_ends_in_size_speed_and_divergence(
    story_model: Path, smaller: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_quickly(cell: Cell, timeout: LoadTimeout | None = None, **_others: object) -> Target:
        return open_engine_target(cell, timeout, sample_s=0.02)

    monkeypatch.setattr(session, "open_target", open_quickly)
    plan = quantisations_plan([story_model, smaller], cores=1)
    few = replace(
        plan, axes={**plan.axes, "parallel": (1, 2)}, rounds=1, workload={"num_prompt": 8, "num_generated": 8}
    )
    run = session.Session(few, Keeper()).run()
    assert run.status == "done"
    first, second = quantisations(run).files
    assert (first.model, second.model) == (str(story_model.resolve()), str(smaller))
    assert first.kl_mean == first.kl_max == first.num_different == 0
    assert 0 < second.kl_mean < second.kl_max
    assert second.size.num_bytes == smaller.stat().st_size < first.size.num_bytes
    assert (first.size.quantisation, second.size.quantisation) == ("Q8_0", "Q4_0")
    assert 4.5 < second.size.bits_per_weight < 5.5
    assert set(first.speeds) == set(second.speeds) == {1, 2}
    assert second.verdicts[1].word == "not enough data"


# Findings


def test_speeds_are_judged_against_the_original_at_as_many_sequences() -> None:
    result = found()
    assert [file.model for file in result.files] == [ORIGINAL, SMALL, SMALLEST]
    assert result.sequences == (1, 8)
    original, small, smallest = result.files
    assert not original.verdicts and original.gain is None
    assert small.verdicts[1].ratio.value == pytest.approx(1.5, rel=0.02)
    assert smallest.verdicts[1].word == "faster"
    assert smallest.verdicts[8].word == "same"
    assert (smallest.kl_mean, smallest.num_different) == (0.05, 3)


def test_the_fastest_is_named_with_what_it_costs() -> None:
    assert found().sentence == (
        "story-Q4_0 is the fastest at 1 sequence: 2.00 times (1.99 to 2.01) the speed of story-F16 "
        "and KL 0.050 nats per token."
    )
    slow = found(small=(19.0, 50.0), smallest=(20.0, 40.0))
    assert slow.sentence == "No quantisation is proven faster than story-F16 at 1 sequence."
    assert "at 1 sequence: not enough data, run" in found(num_rounds=3).sentence


def test_whether_few_bits_gain_most_at_small_batches() -> None:
    assert found().batches.startswith("Low-bit formats gain most at small batches here: 2 of 2 gain more")
    assert found((22.0, 60.0), (21.0, 70.0)).batches.startswith("Low-bit formats do not gain most")
    assert "Not enough data to tell" in found(num_rounds=3).batches
    assert [file.gain.word for file in found().files[1:] if file.gain] == ["more", "more"]


def test_files_that_are_gone_have_no_size_but_their_name_tells_the_quantisation() -> None:
    original, _small, smallest = found().files
    assert (original.size.quantisation, smallest.size.quantisation) == ("F16", "Q4_0")
    assert math.isnan(smallest.size.num_bytes) and math.isnan(smallest.size.bits_per_weight)


def test_the_table_has_a_line_for_each_file_and_escapes_names() -> None:
    text = found().to_markdown()
    assert len([line for line in text.splitlines() if line.startswith("| story")]) == 3
    assert "| story-Q4\\_0 | – | – | 0.0500 | 40.0 tok/s" in text
    assert "faster: 2.00 times" in text


def test_runs_without_an_answer() -> None:
    assert not has_quantisations(measured_run("r", [1.0, 2.0]))
    with pytest.raises(ConfigError, match="does not compare quantisations"):
        quantisations(measured_run("r", [1.0, 2.0]))
    nothing = run_of({ORIGINAL: (1.0, 1.0), SMALL: (1.0, 1.0)}, {ORIGINAL: 0.0, SMALL: 0.1}, num_rounds=0)
    assert quantisations(nothing).sentence == "Nothing was measured."
