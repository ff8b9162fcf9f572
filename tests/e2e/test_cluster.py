"""A cluster in the real browser: chosen in the model bar, run, and its workers changed while it runs."""

import re
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


def field(page: Page, label: str, value: str) -> None:
    """Type into a field and leave it, then wait for the page."""
    box = page.get_by_label(label, exact=True)
    box.fill(value)
    box.press("Enter")
    is_settled(page)


def joined(page: Page, ray: RayCluster) -> Page:
    """The page with the cluster connected and the picker closed."""
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)
    page.get_by_role("button", name="Change", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Cluster", exact=True).click()
    connect, disconnect = (dialog.get_by_role("button", name=name, exact=True) for name in ("Connect", "Disconnect"))
    expect(connect.or_(disconnect)).to_be_visible()
    if connect.count():
        dialog.get_by_role("textbox", name="Address").fill(ray.address)
        connect.click()
    expect(disconnect).to_be_visible(timeout=120_000)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    return page


def small_plan(page: Page) -> None:
    """The Benchmark page with a plan of one configuration, two rounds."""
    page.get_by_role("link", name="Benchmark").first.click()
    page.get_by_role("heading", name="Benchmark", exact=True).wait_for()
    is_settled(page)
    new = page.get_by_role("button", name="New plan")
    if new.count():
        new.click()
        is_settled(page)
    field(page, "Layout", "1x1")
    field(page, "Sequences", "1, 2")
    field(page, "Rounds", "2")


def test_a_plan_is_measured_on_each_node_and_the_nodes_stand_beside_each_other(
    server: Server, ray: RayCluster, open_page: OpenPage
) -> None:
    page = joined(open_page(server.url), ray)
    small_plan(page)
    expect(page.get_by_text(re.compile("2 nodes of .* b, c"))).to_be_visible()
    page.get_by_role("button", name="Run on each node").click()
    stop = page.get_by_role("button", name="Stop", exact=True).last
    expect(page.get_by_text(re.compile(r"^c · waits"))).to_be_visible(timeout=120_000)
    expect(page.get_by_text(re.compile(r"^b · [1-9]\d* samples? of \d+"))).to_be_visible(timeout=120_000)
    stop.click()
    expect(page.get_by_text("from node b")).to_be_visible()
    expect(page.get_by_role("heading", name="Nodes")).to_have_count(0)  # the other one had not begun

    small_plan(page)
    page.get_by_role("button", name="Run on each node").click()
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible(timeout=300_000)
    expect(page.get_by_text("from node b")).to_be_visible()
    page.get_by_role("button", name="c", exact=True).click()
    expect(page.get_by_text("from node c")).to_be_visible()
    page.get_by_role("link", name="Compare nodes").click()
    page.get_by_role("heading", name="Compare", exact=True).wait_for()
    is_settled(page)
    for node in "bc":
        expect(page.get_by_text(re.compile(f" on {node} · node {node}$")).first).to_be_visible()

    page.goto(f"{server.url}/history?view=runs&origins=node%20c")
    page.get_by_role("heading", name="History", exact=True).wait_for()
    expect(page.get_by_text("1 run", exact=True)).to_be_visible()


def test_all_nodes_together_tell_how_many_users_they_serve(
    server: Server, ray: RayCluster, open_page: OpenPage
) -> None:
    page = joined(open_page(server.url), ray)
    page.goto(f"{server.url}/benchmark?question=users")
    is_settled(page)
    field(page, "Users", "1")
    field(page, "Rounds", "1")
    page.get_by_role("button", name="Run on all nodes together").click()
    expect(page.get_by_text("from cluster of 2 nodes")).to_be_visible(timeout=300_000)
    expect(page.get_by_role("heading", name=re.compile("^The cluster of 2 nodes serves"))).to_be_visible()


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
    disconnect = dialog.get_by_role("button", name="Disconnect")
    expect(address.or_(disconnect)).to_be_visible()
    if disconnect.count():  # a test before this one has connected
        disconnect.click()
    address.fill("nowhere")
    dialog.get_by_role("button", name="Connect").click()
    expect(dialog.get_by_text("must be HOST")).to_be_visible()
    address.fill(ray.address)
    dialog.get_by_role("button", name="Connect").click()
    expect(dialog.get_by_role("button", name="Disconnect")).to_be_visible(timeout=120_000)
    expect(dialog.get_by_text("2 nodes")).to_be_visible()
    expect(dialog.get_by_role("spinbutton", name="Workers on b")).to_have_value("1")
    dialog.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_text("2 workers on 2 nodes")).to_be_visible()
    run_opening(page, 16)
    expect(page.get_by_text(re.compile("^Answered on node [bc]$"))).to_be_visible()
    page.get_by_role("button", name="This cluster").click()
    on_b = dialog.get_by_role("spinbutton", name="Workers on b")
    on_b.fill("0")
    on_b.press("Enter")
    dialog.get_by_role("button", name="Change workers").click()
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
