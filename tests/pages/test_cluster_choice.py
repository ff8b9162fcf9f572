"""Clusters in the model bar: what is missing, what was typed, and the nodes of a real one with their workers."""

from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.models import embedded_model
from engine.workbench import Workbench, cluster_manager
from pages.parts.cluster_choice import build
from pages.parts.model_bar import CLUSTER
from tests.pages.app import frame, press
from tests.pages.conftest import wait_for_model
from tests.ray_cluster import RayCluster, ray_cluster
from tests.waiting import until

has_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs requirements-ray.txt")


@pytest.fixture
def picker(bench: Workbench) -> Iterator[AppTest]:
    """The picker at the choice of a cluster, with nothing connected before and after."""
    at = press(frame().run(), "model_change")
    at.segmented_control(key="pick_source").set_value(CLUSTER).run()
    assert not at.exception, at.exception
    yield at
    bench.clusters.close()


def ended(at: AppTest, bench: Workbench) -> AppTest:
    """The page once the connection is made, or has failed."""
    task = bench.clusters.task
    assert task is not None
    until(lambda: not task.is_running, "the connection attempt does not end", 120)
    at.run()
    assert not at.exception, at.exception
    return at


def bare(text: str) -> str:
    """The text as a person reads it, without the marks that keep Markdown from reading it."""
    return text.replace("\\", "").replace("\u2060", "")


def keys(at: AppTest) -> list[str]:
    """Keys of all buttons."""
    return [button.key for button in at.button if button.key]


def test_without_ray_a_sentence_names_the_extra(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_manager, "find_spec", lambda _name: None)
    at = press(frame().run(), "model_change")
    at.segmented_control(key="pick_source").set_value(CLUSTER).run()
    assert not at.exception, at.exception
    (caption,) = [one.value for one in at.caption if "Ray" in one.value]
    assert "requirements-ray.txt" in bare(caption) and "logitbench[cluster]" in bare(caption)
    assert not {"cluster_connect", "pick_load"} & set(keys(at))


@has_ray
@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("nonsense", "must be HOST:PORT"),
        ("127.0.0.1:99999", "must be HOST:PORT"),
        ("127.0.0.1:1", "No Ray cluster answers at 127.0.0.1:1"),
        ("a\0b:1", "cluster"),
        ("x" * 400, "Address: 400 characters; at most 300"),
    ],
)
def test_an_address_where_no_cluster_is_says_so(bench: Workbench, picker: AppTest, typed: str, error: str) -> None:
    picker.text_input(key="cluster_address").set_value(typed)
    press(picker, "cluster_connect")
    at = ended(picker, bench) if bench.clusters.task is not None else picker
    assert any(error in bare(one.value) for one in at.error), [one.value for one in at.error]
    assert at.text_input(key="cluster_address").value == typed
    assert "cluster_connect" in keys(at) and "pick_load" not in keys(at)


def test_the_build_of_a_node_is_short(bench: Workbench) -> None:
    assert build({"llama": "b9951", "commit": "0123456789abcdef", "features": "AVX2 = 1"}) == "b9951 0123456789abcdef"
    assert build({"error": "no library"}) == "cannot be loaded: no library"
    assert build({}) == "not reported"


class Spread:
    """Engine that only counts its workers."""

    def __init__(self, **counts: int) -> None:
        self.counts, self.calls = counts, list[str]()

    def nodes(self) -> list[Any]:
        return [SimpleNamespace(name=name, num_workers=count) for name, count in self.counts.items()]

    def add_worker(self, node: str) -> None:
        self.calls.append(f"+{node}")

    def remove_worker(self, node: str) -> None:
        self.calls.append(f"-{node}")


def test_workers_are_added_before_others_are_removed() -> None:
    engine: Any = Spread(a=3, b=0, c=1)
    task = cluster_manager.Changing(engine, {"a": 1, "b": 2, "c": 1}).start()
    task.result(60)
    assert engine.calls == ["+b", "+b", "-a", "-a"]


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    with ray_cluster("b", "c") as cluster:
        yield cluster


@has_ray
@pytest.mark.slow
def test_a_model_runs_on_the_nodes_that_were_chosen_and_its_workers_change(
    bench: Workbench, ray: RayCluster, picker: AppTest
) -> None:
    picker.text_input(key="cluster_address").set_value(ray.address)
    press(picker, "cluster_connect")
    at = ended(picker, bench)
    assert bench.clusters.task is not None and bench.clusters.task.doing == "2 of 2 nodes ready"
    assert bench.cluster[0] == ray.address and [node.name for node in bench.cluster[1]] == ["b", "c"]
    assert at.dataframe[-1].value["node"].tolist() == ["b", "c"]
    assert at.number_input(key="cluster_b").value == 1
    at.number_input(key="cluster_c").set_value(0).run()
    at.number_input(key="cluster_b").set_value(-1).run()
    assert any("whole number" in bare(one.value) for one in at.error) and "pick_load" not in keys(at)
    at.number_input(key="cluster_b").set_value(1).run()
    assert not at.exception, at.exception
    press(at, "pick_load")
    wait_for_model(bench)
    try:
        engine, identity = bench.model.loaded()
        assert bench.model.cluster is not None and identity.path == str(embedded_model())
        assert engine.submit("Once", max_tokens=3).result().text
        assert bench.model.step == "loading the model" and bench.cluster[0] == ray.address
        at = frame().run()
        assert any("1 worker on 1 node" in bare(one.value) for one in at.caption)
        press(at, "model_machine")
        assert at.button(key="workers_change").disabled
        at.number_input(key="workers_c").set_value(1).run()
        press(at, "workers_change")
        task = bench.clusters.changing
        assert task is not None
        task.result(120)
        at.run()
        assert not at.exception, at.exception
        assert any("2 workers on 2 nodes" in bare(one.value) for one in at.caption)
        assert sorted(at.dataframe[-1].value["node"].tolist()) == ["b", "c"]
    finally:
        bench.load_default()
        wait_for_model(bench)
