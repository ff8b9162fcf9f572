"""A cluster in the real browser: chosen in the model bar, run, and its workers changed while it runs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import lend_exports
from tests.e2e.conftest import RUN, Server, is_settled, run_opening, running
from tests.processes import children_with
from tests.ray_cluster import RayCluster, ray_cluster
from tests.waiting import until

OpenPage = Callable[[str], Page]

pytestmark = pytest.mark.slow
pytest.importorskip("ray")


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    with ray_cluster("b", "c") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, exported: Path) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("cluster")
    lend_exports(home, exported)
    with running(home) as found:
        yield found


def test_a_cluster_is_joined_run_on_and_given_other_workers(
    server: Server, ray: RayCluster, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)
    page.get_by_role("button", name="Change", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Cluster", exact=True).click()
    address = dialog.get_by_role("textbox", name="Address")
    address.fill("nowhere")
    dialog.get_by_role("button", name="Connect").click()
    expect(dialog.get_by_text("must be HOST")).to_be_visible()
    address.fill(ray.address)
    dialog.get_by_role("button", name="Connect").click()
    expect(dialog.get_by_text("2 nodes")).to_be_visible()
    expect(dialog.get_by_role("spinbutton", name="Workers on b")).to_have_value("1")
    dialog.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_text("2 workers on 2 nodes")).to_be_visible()
    run_opening(page, 16)
    page.get_by_role("button", name="This cluster").click()
    on_b = dialog.get_by_role("spinbutton", name="Workers on b")
    on_b.fill("0")
    on_b.press("Enter")
    dialog.get_by_role("button", name="Change", exact=True).click()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_text("1 worker on 1 node")).to_be_visible()
    run_opening(page, 16)
    page.get_by_role("button", name="Eject").click()
    expect(page.get_by_text("No model is loaded.", exact=True)).to_be_visible()
    until(
        lambda: not children_with("engine.cluster.nodes", psutil.Process(server.process.pid)),
        "the program that speaks to Ray does not end",
    )
