"""Load order on the Models page, without a browser: two models chosen, measured, stopped, shown again."""

import math
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.measurement.load_order import LoadOrder, LoadStep
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.errors import ModelError
from engine.models import read_model
from engine.workbench import Workbench, load_order_manager
from engine.workbench.load_order_manager import LoadOrderManager
from engine.workbench.machine_lease import MachineLease
from engine.workbench.model_manager import ModelManager
from pages.parts.models import order_charts, order_view
from pages.parts.plain import plain
from tests.pages.app import address, open_page, press

HOSTILE = "<b>b **x** :red[y].gguf"
WITHIN_S = 60.0


class ScriptedOrders(LoadOrderManager):
    """Measures what a test says: half of it, then nothing until `end`."""

    def __init__(self) -> None:
        super().__init__(ModelManager(), MachineLease())
        self._half_done, self._go_on = threading.Event(), threading.Event()
        self._outcome: LoadOrder | Exception | None = None

    def start(self, a: Path, b: Path) -> None:
        self._half_done.clear()
        self._go_on.clear()
        super().start(a, b)
        assert self._half_done.wait(WITHIN_S)

    def end(self, outcome: LoadOrder | Exception) -> None:
        self._outcome = outcome
        self._go_on.set()
        assert self._runner.wait(WITHIN_S)

    def measure(self, a: Path, b: Path, **how: Callable[..., object]) -> LoadOrder:
        how["on_opening"](LoadTimeout())
        how["on_progress"](0.5)
        self._half_done.set()
        assert self._go_on.wait(WITHIN_S)
        if isinstance(self._outcome, LoadOrder):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome


@pytest.fixture(autouse=True)
def orders(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> ScriptedOrders:
    scripted = ScriptedOrders()
    monkeypatch.setattr(bench, "load_order", scripted)
    monkeypatch.setattr(load_order_manager, "measure_load_order", scripted.measure)
    return scripted


@pytest.fixture
def folder(models_folder: Path, story_model: Path) -> Path:
    shutil.copy(story_model, models_folder / "a.gguf")
    return models_folder


def page(**query: str) -> AppTest:
    return open_page("models.py", "Models", view="order", **query)


def texts(at: AppTest) -> str:
    shown = [*at.main.caption, *at.main.subheader, *at.main.error]
    return "\n".join(element.value for element in shown)


def order(a: Path, b: Path, left: float = 0.2) -> LoadOrder:
    steps = [
        LoadStep("A", 11.7, 1.0, {"A": 0.0, "B": 0.0}, {"A": 1.0, "B": 0.0}),
        LoadStep("B", 16.9, 1.0, {"A": 1.0, "B": 0.0}, {"A": left, "B": 1.0}),
        LoadStep("A", 8.2, 0.5, {"A": left, "B": 1.0}, {"A": 1.0, "B": 0.5}),
    ]
    return LoadOrder(a, b, steps)


def test_it_opens_on_the_loaded_model_and_another(folder: Path, story_model: Path) -> None:
    at = page()
    assert [box.value for box in at.main.selectbox] == [str(story_model), str(folder / "a.gguf")]
    assert "both should fit" in texts(at)
    (button,) = [one for one in at.main.button if one.proto.type == "primary"]
    assert button.label.startswith(plain("Load A, B, A"))


@pytest.mark.parametrize("view", ["get", "quantise"])
def test_one_model_is_not_enough_and_the_ways_to_another_stand_there(
    folder: Path, story_model: Path, view: str
) -> None:
    (folder / "a.gguf").unlink()
    at = page()
    assert "This needs two models" in texts(at)
    assert [button.key for button in at.main.button] == ["order_to_get", "order_to_quantise"]
    asked = address(press(at, f"order_to_{view}"))
    assert asked.pop("view") == view
    assert asked == ({"model": str(story_model)} if view == "quantise" else {})


def test_a_measurement_is_followed_stopped_and_shown(folder: Path, story_model: Path, orders: ScriptedOrders) -> None:
    at = page()
    at.button(key="order_measure").click().run()
    run = orders.running
    assert run is not None and (run.a, run.b) == (story_model, folder / "a.gguf")
    asked = address(at)  # without it, A would be another file once the loaded model is unloaded
    assert (asked["model"], asked["second"]) == (str(run.a), str(run.b))
    assert (run.share, run.doing) == (0.5, f"Loading {story_model.name}, 1 of 3")
    at.run()
    assert "order_measure" not in [button.key for button in at.main.button]
    at.button(key="order_stop").click().run()
    assert run.is_stopped
    (line,) = [bar.proto.text for bar in at.main.get("progress")]
    assert line == plain(f"Loading {story_model.name}, 1 of 3 · stopping")
    orders.end(order(run.a, run.b))
    at = page(model=str(run.a), second=str(run.b))
    assert plain("B evicted A: 20.0 % of A was still in memory after B.") in texts(at)
    table = at.main.dataframe[0].value
    assert table["loading, s"].tolist() == [11.7, 16.9, 8.2]
    assert table["A in RAM before, %"].tolist() == [0, 100, 20]
    assert len(at.get("plotly_chart")) == 2


def test_a_failure_stands_there_and_a_stop_is_none(folder: Path, orders: ScriptedOrders, story_model: Path) -> None:
    shutil.copy(story_model, folder / HOSTILE)
    asked = {"model": str(folder / "a.gguf"), "second": str(folder / HOSTILE)}
    for is_stopped in (False, True):
        orders.start(*map(Path, asked.values()))
        if is_stopped:
            orders.stop()
        orders.end(ModelError(f"{HOSTILE} is broken"))
        shown = texts(page(**asked))
        assert (plain(f"{HOSTILE} is broken") in shown) is not is_stopped
        assert "<b>" not in shown.replace("\\<", "")


def test_an_address_that_names_no_model_gives_the_usual(folder: Path, story_model: Path) -> None:
    at = page(model="/nowhere.gguf", second=str(story_model))
    assert [box.value for box in at.main.selectbox] == [str(story_model), str(folder / "a.gguf")]


def test_what_is_expected_follows_from_the_sizes(story_model: Path) -> None:
    file = read_model(story_model)
    assert "both should fit" in order_view.expectation(file, file, 2 * file.size)
    assert "evict at least" in order_view.expectation(file, file, 2 * file.size - 10**6)


def test_charts_say_what_was_found() -> None:
    found = order(Path(HOSTILE), Path("b.gguf"))
    times, shares = order_charts.times(found), order_charts.shares(found)
    assert [sum(bar.y[place] for bar in times.data) for place in range(3)] == pytest.approx([12.7, 17.9, 8.7])
    assert [list(bar.y) for bar in shares.data] == [[0, 100, 20, 100], [0, 0, 100, 50]]
    assert shares.layout.title.text == "20.0 % of A was still in memory after B"
    assert "<b>b" not in times.data[0].hovertext[0]
    unreported = order_charts.shares(order(Path("a.gguf"), Path("b.gguf"), math.nan))
    assert "does not report" in unreported.layout.title.text
