"""Workers of a run: opened once, shared, kept open while memory allows, replaced."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from engine import MemoryRefused, ModelError
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.target import EngineTarget, Measured, Target
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning.feasibility import Feasibility
from engine.bench.planning.plan import Cell
from engine.models.memory import estimate
from engine.models.reading import read_model
from tests.engine.bench.cell_maker import make_cell


class Empty:
    """Target that measures nothing."""

    facts: Mapping[str, float]
    remark = ""

    def __init__(self) -> None:
        self.facts = {}
        self.is_closed = False

    def warm_up(self, timeout_s: float) -> None: ...

    def sample(self, seed: int, timeout_s: float) -> Measured:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True


class Opener:
    """Opener of empty targets, recorded by cell; refuses the first `num_refusals` times for lack of memory."""

    def __init__(self, num_refusals: int = 0) -> None:
        self.opened: list[tuple[int, Empty]] = []
        self.num_refusals = num_refusals

    def __call__(self, cell: Cell, timeout: LoadTimeout) -> Target:
        if self.num_refusals:
            self.num_refusals -= 1
            raise MemoryRefused("no room")
        self.opened.append((cell.number, Empty()))
        return self.opened[-1][1]

    @property
    def open_cells(self) -> list[int]:
        return [number for number, target in self.opened if not target.is_closed]


@pytest.fixture
def cells(story_model: Path) -> list[Cell]:
    """Three cells, each with its own workers."""
    return [make_cell(story_model, number, pool={"n_ctx": 256 * (number + 1)}) for number in range(3)]


@pytest.fixture
def targets() -> Iterator[TargetPool]:
    made = TargetPool()
    yield made
    made.close()


def test_a_target_is_opened_once(cells: list[Cell]) -> None:
    opener = Opener()
    targets = TargetPool(opener)
    assert [targets.target(cells[n]) is targets.target(cells[n]) for n in (0, 1, 0)] == [True] * 3
    assert opener.open_cells == [0, 1]
    targets.close()
    assert opener.open_cells == []


def test_the_longest_unused_make_room(cells: list[Cell]) -> None:
    need = [estimate(read_model(cell.model), cell.pool).total for cell in cells]
    opener = Opener()
    targets = TargetPool(opener, memory_bytes=need[0] + need[2])
    for number in (0, 1, 0, 2):
        targets.target(cells[number])
    assert opener.open_cells == [0, 2]
    targets.target(cells[1])
    assert opener.open_cells == [1]


def test_workers_of_nodes_take_no_memory_of_this_machine(cells: list[Cell]) -> None:
    opener = Opener()
    targets = TargetPool(opener, memory_bytes=1, feasibility=Feasibility(is_here=False))
    for cell in cells:
        targets.target(cell)
    assert opener.open_cells == [0, 1, 2]


def test_one_that_is_larger_than_all_memory_is_still_tried(cells: list[Cell]) -> None:
    opener = Opener()
    TargetPool(opener, memory_bytes=1).target(cells[0])
    assert opener.open_cells == [0]


def test_a_refusal_closes_others_until_it_opens(cells: list[Cell]) -> None:
    opener = Opener()
    targets = TargetPool(opener)
    targets.target(cells[0])
    targets.target(cells[1])
    opener.num_refusals = 2
    targets.target(cells[2])
    assert opener.open_cells == [2]
    opener.num_refusals = 2
    with pytest.raises(MemoryRefused):
        targets.target(cells[0])


def test_dropped_workers_are_opened_anew(cells: list[Cell]) -> None:
    opener = Opener()
    targets = TargetPool(opener)
    before = targets.target(cells[0])
    targets.drop(cells[0])
    targets.drop(cells[1])
    assert opener.open_cells == []
    assert targets.target(cells[0]) is not before


def test_cells_that_differ_in_what_is_asked_share_their_pool(
    targets: TargetPool, cells: list[Cell], story_model: Path
) -> None:
    first, second = cells[0], make_cell(story_model, 7, num_generated=2)
    opened = [targets.target(cell) for cell in (first, second, cells[1])]
    pools = [target.engine for target in opened if isinstance(target, EngineTarget)]
    assert pools[0] is pools[1] is not pools[2]
    targets.drop(second)
    assert targets.target(first) is not opened[0]


def test_a_cold_load_comes_first_and_once(cells: list[Cell]) -> None:
    targets = TargetPool(measures_cold=True)
    facts = targets.target(cells[0]).facts
    assert {"load_cold_s", "resident_share", "load_warm_s"} <= set(facts)
    targets.drop(cells[0])
    again = targets.target(cells[0]).facts
    assert again["load_cold_s"] == facts["load_cold_s"]
    targets.close()


def test_a_cell_that_cannot_load_leaves_the_others(targets: TargetPool, cells: list[Cell], tmp_path: Path) -> None:
    kept = targets.target(cells[0])
    with pytest.raises(ModelError, match="none"):
        targets.target(replace(cells[1], model=str(tmp_path / "none.gguf")))
    assert targets.target(cells[0]) is kept
