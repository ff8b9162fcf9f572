"""The ranking among reference machines: only models of about the same size are ever drawn on one axis."""

from dataclasses import replace

import pytest

from engine.errors import ConfigError
from engine.history import History
from engine.models.size_class import SIZE_CLASSES
from engine.runs import RunRecord
from pages.parts.history import machine_ranking
from pages.parts.history.machine_ranking import MEASURED, REFERENCE
from tests.engine.history.trial_maker import uuid7
from tests.pages.app import address, open_page

SMALL, SEVEN = "up to 0.1 B", "5 to 10 B"


@pytest.fixture
def seven(runs: list[RunRecord], history: History) -> RunRecord:
    """A run of a model of 7 B, which is a hundred times slower than those of the model that ships."""
    path = "/models/mistral-7b-Q4_K_M.gguf"
    cells = tuple(replace(cell, settings={**cell.settings, "model": path}) for cell in runs[0].cells)
    samples = runs[0].samples.copy()
    samples["end_to_end_per_s"] = samples["tokens_per_s"] / 100
    run = replace(runs[0], id=uuid7(), cells=cells, samples=samples, plan={**runs[0].plan, "model": path})
    history.runs.keep(run)
    return run


def test_models_are_told_apart_by_name_and_by_file(seven: RunRecord, history: History) -> None:
    found = machine_ranking.points(history)
    of_run = {point.run_id: point.size for point in found if point.group == MEASURED}
    assert of_run.pop(seven.id) == SEVEN and set(of_run.values()) == {SMALL}
    assert {point.size for point in found if point.group == REFERENCE} == {SEVEN}


def test_a_chart_has_one_size_and_the_address_says_which(seven: RunRecord) -> None:
    at = open_page("history.py", "History", view="reference")
    control = at.segmented_control(key="history_size")
    assert control.options == [SMALL, SEVEN] and control.value == SEVEN
    assert "with models of 5 to 10 B" in at.main.subheader[0].value.replace("\\", "")
    control.set_value(SMALL).run()
    assert address(at)["size"] == SMALL
    sentence = at.main.subheader[0].value.replace("\\", "")
    assert "with models of up to 0.1 B" in sentence and "reference machines" not in sentence


def test_no_axis_has_two_sizes(seven: RunRecord, history: History) -> None:
    found = machine_ranking.points(history)
    for size in (SMALL, SEVEN):
        of_size = [point for point in found if point.size == size]
        drawn = machine_ranking.chart(of_size)
        places = [x for trace in drawn.data for x in trace.x]
        assert len(places) == len(of_size) and max(places) == max(point.per_s for point in of_size)
    assert max(point.per_s for point in found if point.size == SEVEN) < min(
        point.per_s for point in found if point.size == SMALL and point.group == MEASURED
    )


def test_an_unknown_size_is_a_class_of_its_own(
    runs: list[RunRecord], history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: str) -> None:
        raise ConfigError(f"{path}: does not exist")

    machine_ranking._size.clear()
    monkeypatch.setattr(machine_ranking, "read_model", gone)
    try:
        sizes = {point.size for point in machine_ranking.points(history) if point.group == MEASURED}
    finally:
        machine_ranking._size.clear()
    assert sizes == {SIZE_CLASSES[-1]}
    at = open_page("history.py", "History", view="reference", size="nonsense")
    assert at.main.subheader and not at.main.error
