"""Job tray below the model bar: running tasks with progress and Stop; empty if nothing runs."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import streamlit as st
from streamlit.navigation.page import Page

from engine.models.details import readable
from engine.tasks import Task
from engine.workbench import Workbench, current
from pages.parts import task_progress
from pages.parts.models import file_task, place
from pages.parts.plain import plain
from pages.parts.prompt_lab import diff_address

REFRESH_S, WHILE_MEASURING_S = 1.0, 5.0
OVERVIEW, LAB, BENCHMARK, COMPARE = "overview", "prompt_lab", "benchmark", "compare"
HISTORY, MODELS, EMBEDDINGS = "history", "models", "embeddings"
"""Pages on which running tasks can be watched."""

SWEEPS = {
    "speed": "Sweep", "settings": "Tuning", "python": "Cost of Python", "engines": "Engines", "users": "Users",
    "embedding": "Embeddings",
}  # fmt: skip


class Job(NamedTuple):
    """A running task: its title, its subject, the page where it is watched and that page's query parameters."""

    title: str
    about: str
    page: str
    query: dict[str, str]
    task: Task[Any]

    @property
    def line(self) -> str:
        """The subject and the current step."""
        return " · ".join(part for part in (self.about, self.task.doing) if part) or self.task.name


def show(pages: Mapping[str, Page]) -> None:
    """Draw the tray; `pages` is indexed by BENCHMARK and the other names above."""
    begun = list(jobs(current()))
    if begun:
        bench = current()
        is_measuring = bench.bench.running is not None or bench.nodes_bench.running is not None
        every = WHILE_MEASURING_S if is_measuring else REFRESH_S
        st.fragment(_follow, run_every=every)(pages, begun)


def jobs(bench: Workbench) -> Iterator[Job]:
    """Yield every running task, one for each title."""
    benchmark, comparison, file = bench.bench.running, bench.compare.running, bench.files.task
    loads, backends, meaning = bench.load_order.running, bench.backends.running, bench.meaning.reading
    prepared, imported = bench.bench.background.running, bench.importing.running
    joining, workers = bench.clusters.task, bench.clusters.changing
    replay, diff, card = bench.replays.running, bench.diffs.running, bench.cards.running
    if card is not None:
        yield Job("This machine", "", OVERVIEW, {}, card)
    elif benchmark is not None and bench.bench.task is not None:
        yield Job("Benchmark", SWEEPS[benchmark.plan.question], BENCHMARK, {"run": benchmark.run_id}, bench.bench.task)
    over_nodes = bench.nodes_bench.running
    if over_nodes is not None:
        asked = over_nodes.plan.question
        yield Job("Benchmark over nodes", SWEEPS[asked], BENCHMARK, {"question": asked}, over_nodes)
    if comparison is not None:
        yield Job("Comparison", "", COMPARE, {"comparison": comparison.record.id}, comparison)
    if file is not None and file.is_running:
        view = place.GET if file.kind == "get" else place.QUANTISE
        yield Job(file_task.DOING[file.kind], file.name, MODELS, {"view": view}, file)
    if loads is not None:
        query = {"view": place.ORDER, "model": readable(loads.a), "second": readable(loads.b)}
        yield Job("Load order", "", MODELS, query, loads)
    if backends is not None:
        yield Job("Embedding backends", "", EMBEDDINGS, {}, backends)
    if meaning is not None and not meaning.is_stopped:
        yield Job("Search by meaning", "", HISTORY, {"view": "trials", "by": "meaning"}, meaning)
    if prepared is not None:
        yield Job("In the background", prepared.name, BENCHMARK, {}, prepared)
    if imported is not None:
        yield Job("Import", imported.name, HISTORY, {}, imported)
    if joining is not None and joining.is_running:
        yield Job("Cluster", joining.address, LAB, {}, joining)
    if workers is not None and workers.is_running:
        yield Job("Workers", "", LAB, {}, workers)
    if replay is not None:
        yield Job("Replay", "", LAB, {"trial": replay.trial.id}, replay)
    if diff is not None:
        yield Job("Comparison of models", "", LAB, diff_address.query(diff), diff)


def _follow(pages: Mapping[str, Page], begun: list[Job]) -> None:
    """Draw the tasks that ran when the page was drawn, and those started since."""
    now = {job.title: job for job in jobs(current())}
    for job in begun:
        if job.title not in now:
            st.caption(plain(job.title))
            st.page_link(
                pages[job.page], label="Ended: open", icon=":material/done:", width="stretch",
                query_params=job.query,
            )  # fmt: skip
    for job in now.values():
        _draw(pages[job.page], job)


def _draw(page: Page, job: Job) -> None:
    st.caption(plain(job.title))
    st.page_link(page, label=plain(job.line), icon=":material/speed:", width="stretch", query_params=job.query)
    st.progress(job.task.share)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(plain(task_progress.left(job.task)), width="stretch")
        st.button("Stop", key=f"tray_stop_{job.title}", type="tertiary", on_click=job.task.stop)
