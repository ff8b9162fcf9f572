"""The job tray under the model bar: what runs, how far it is, and Stop; nothing where nothing runs."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import streamlit as st
from streamlit.navigation.page import Page

from engine.bench.running.progress import Progress
from engine.models.details import readable
from engine.units import duration
from engine.workbench import Workbench, current
from engine.workbench.background import Background
from pages.parts.models import file_task, place
from pages.parts.plain import plain

REFRESH_S, WHILE_MEASURING_S = 1.0, 5.0
BENCHMARK, COMPARE, HISTORY, MODELS, EMBEDDINGS = "benchmark", "compare", "history", "models", "embeddings"
"""Pages where what runs can be watched."""

JOBS = {
    "speed": "Sweep", "settings": "Tuning", "python": "Cost of Python", "users": "Users", "embedding": "Embeddings"
}  # fmt: skip
UNKNOWN = "time left: not known yet"


class Job(NamedTuple):
    """One thing that runs: its title, a line about it, where it is watched, share done (0 to 1), what is left in words.

    stop: ends it.
    """

    title: str
    line: str
    page: str
    query: dict[str, str]
    share: float
    left: str
    stop: Callable[[], object]


def show(pages: Mapping[str, Page]) -> None:
    """Draw the tray; `pages` by BENCHMARK and the other names above."""
    begun = list(jobs(current()))
    if begun:
        every = WHILE_MEASURING_S if current().bench.running is not None else REFRESH_S
        st.fragment(_follow, run_every=every)(pages, begun)


def jobs(bench: Workbench) -> Iterator[Job]:
    """Everything that runs now, one of each title."""
    yield from _benchmark(bench)
    yield from _comparison(bench)
    yield from _file(bench)
    yield from _load_order(bench)
    yield from _backends(bench)
    yield from _meaning(bench)
    yield from _background(bench)


def _follow(pages: Mapping[str, Page], begun: list[Job]) -> None:
    """What ran when the page was drawn, and what began since."""
    now = {job.title: job for job in jobs(current())}
    for job in begun:
        if job.title not in now:
            st.caption(plain(job.title))
            st.page_link(
                pages[job.page], label="It has ended: open it", icon=":material/done:", width="stretch",
                query_params=job.query,
            )  # fmt: skip
    for job in now.values():
        _draw(pages[job.page], job)


def _draw(page: Page, job: Job) -> None:
    st.caption(plain(job.title))
    st.page_link(page, label=plain(job.line), icon=":material/speed:", width="stretch", query_params=job.query)
    st.progress(min(job.share, 1.0))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(plain(job.left), width="stretch")
        st.button("Stop", key=f"tray_stop_{job.title}", type="tertiary", on_click=job.stop)


def _benchmark(bench: Workbench) -> Iterator[Job]:
    running = bench.bench.running
    if running is not None:
        progress = running.progress
        line = f"{JOBS[running.plan.question]} {progress.done}/{progress.total}"
        query = {"run": running.run_id}
        yield Job("Benchmark", line, BENCHMARK, query, share(progress), time_left(progress.left_s), bench.bench.stop)


def _comparison(bench: Workbench) -> Iterator[Job]:
    running = bench.compare.running
    if running is not None:
        line = f"{running.done}/{running.total} answers"
        left = running.message or time_left(running.left_s)
        query = {"comparison": running.comparison_id}
        done = running.done / max(running.total, 1)
        yield Job("Comparison", line, COMPARE, query, done, left, bench.compare.stop)


def _file(bench: Workbench) -> Iterator[Job]:
    task = bench.files.task
    if task is not None and task.is_running:
        view = place.GET if task.kind == "get" else place.QUANTISE
        left = time_left(task.progress.left_s, is_stopped=task.is_stopped)
        title = file_task.DOING[task.kind]
        yield Job(title, task.name, MODELS, {"view": view}, task.progress.share, left, bench.files.cancel)


def _load_order(bench: Workbench) -> Iterator[Job]:
    run = bench.load_order.running
    if run is not None:
        query = {"view": place.ORDER, "model": readable(run.a), "second": readable(run.b)}
        left = time_left(run.left_s, is_stopped=run.is_stopped)
        yield Job("Load order", readable(run.loading), MODELS, query, run.share, left, run.stop)


def _backends(bench: Workbench) -> Iterator[Job]:
    run = bench.backends.running
    if run is not None:
        left = time_left(run.left_s, is_stopped=run.is_stopped)
        yield Job("Embedding backends", run.doing, EMBEDDINGS, {}, run.share, left, run.stop)


def _meaning(bench: Workbench) -> Iterator[Job]:
    reading = bench.meaning.reading
    if reading is not None and not bench.meaning.is_stopped:
        line = f"{reading.done:,}/{reading.total:,} texts"
        left = f"waits: {reading.waits_for}" if reading.waits_for else time_left(reading.left_s)
        query = {"view": "trials", "by": "meaning"}
        yield Job("Search by meaning", line, HISTORY, query, reading.done / reading.total, left, bench.meaning.stop)


def _background(bench: Workbench) -> Iterator[Job]:
    for title, page, background in (
        ("In the background", BENCHMARK, bench.bench.background), ("Import", HISTORY, bench.importing)
    ):  # fmt: skip
        task = background.task
        if task is not None:
            left = time_left(task.left_s, is_stopped=task.is_stopped)
            yield Job(title, task.name, page, {}, task.share, left, background.stop)


def bar(background: Background, key: str) -> None:
    """What is done in the background, how long it will still take, and Stop; nothing where nothing is done."""
    task = background.task
    if task is not None:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.progress(task.share, plain(f"{task.name} · {time_left(task.left_s, is_stopped=task.is_stopped)}"))
            st.button("Stop", icon=":material/stop:", type="tertiary", key=key, on_click=background.stop)


def share(progress: Progress) -> float:
    """How much of the run is done, 0 to 1."""
    return min(progress.done / progress.total, 1.0) if progress.total else 0.0


def time_left(seconds: float | None, *, is_stopped: bool = False) -> str:
    """How long something will still take, in words; None or infinite: not known."""
    if is_stopped:
        return "stopping"
    return f"{duration(seconds)} left" if seconds is not None and math.isfinite(seconds) else UNKNOWN
