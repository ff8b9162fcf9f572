"""Measured pools have a fixed number of threads."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from engine import PoolSpec
from engine.bench.measurement import ceiling, load_order
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.plan import Cell
from engine.bench.planning.presets import PRESETS, preset
from engine.errors import ConfigError
from engine.machine.cores import threads_for
from engine.models.reading import read_model
from engine.models.synthetic import write_synthetic

MEASURED: dict[str, tuple[ModuleType, Callable[[Path, Path], object]]] = {
    "the best prefill": (ceiling, lambda path, _other: ceiling.prefill_ceiling(read_model(path), 32)),
    "loads in turn": (load_order, load_order.measure_load_order),
    "loads in turn of two instances": (
        load_order,
        lambda path, other: load_order.measure_load_order(path, other, PoolSpec(instances=2)),
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_configuration_that_generates_says_how_many(name: str, story_model: Path) -> None:
    for cell in planned_cells(preset(name, story_model)):
        if isinstance(cell, Cell):
            assert cell.pool.threads is not None and cell.pool.threads_batch is not None, cell.label


@pytest.mark.parametrize("measured", MEASURED)
def test_pools_that_are_opened_besides_are_given_how_many(
    measured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_synthetic("tiny", path)
    write_synthetic("tiny", other, seed=1)
    opened: list[PoolSpec] = []

    def open_engine(_path: str, spec: PoolSpec, **_options: object) -> NoReturn:
        opened.append(spec)
        raise ConfigError("not opened here")

    module, measure = MEASURED[measured]
    monkeypatch.setattr(module, "open_engine", open_engine)
    with pytest.raises(ConfigError, match="not opened here"):
        measure(path, other)
    assert [spec.threads for spec in opened] == [threads_for(opened[0].instances)]
