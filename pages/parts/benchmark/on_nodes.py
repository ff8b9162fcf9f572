"""Benchmarks over the nodes of a cluster: how one is started and watched, and its machines beside each other."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
import streamlit as st

from engine.bench.analysis.comparison import compare_runs
from engine.bench.analysis.summary import summarise
from engine.bench.planning.plan import Plan
from engine.over_nodes.node_of_run import node_of
from engine.protocol import NodeInfo
from engine.runs import CLUSTER, NODE, RunRecord
from engine.samples import METRICS_BY_NAME
from engine.units import counted
from engine.workbench import Workbench
from engine.workbench.bench_manager import CONNECTING
from engine.workbench.nodes_bench_manager import MOST_TOGETHER, NodesBench, plan_of
from pages.parts import number_columns, task_progress
from pages.parts.benchmark import run_state, task_button
from pages.parts.labels import distinct
from pages.parts.notice import notice
from pages.parts.plain import plain

REFRESH_S = 2.0
CONFIGURATION = "configuration"


def offer(bench: Workbench, read: Callable[[], Plan]) -> None:
    """Draw the button that measures the plan on each node of the cluster; nothing where none is connected."""
    joining = bench.clusters.task
    if joining is not None and joining.is_running:
        task_progress.follow(joining, joining.name)
    address, nodes = bench.cluster
    if nodes:
        _buttons(bench, read, address, nodes)
    if st.session_state[run_state.QUESTION] == "users":
        task_button.show(bench, CONNECTING)


def _buttons(bench: Workbench, read: Callable[[], Plan], address: str, nodes: Sequence[NodeInfo]) -> None:
    is_free = bench.nodes_bench.running is None and bench.bench.running is None
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(
            "Run on each node", icon=":material/lan:", key="plan_run_nodes", disabled=not is_free,
            on_click=run_state.act, args=(lambda: _start(bench, read(), address),),
            help="Each node measures the whole plan with its own cores, and has a run of its own",
        )  # fmt: skip
        if st.session_state[run_state.QUESTION] == "users":
            st.button(
                "Run on all nodes together", icon=":material/hub:", key="plan_run_together",
                disabled=not is_free or bench.bench.background.running is not None,
                on_click=run_state.act, args=(lambda: bench.bench.start_together(read(), address),),
                help="One pool with a worker on each node, and users in proportion to the nodes",
            )  # fmt: skip
        names = ", ".join(node.name for node in nodes)
        st.caption(plain(f"{counted(len(nodes), 'node')} of {address}: {names}. The estimates are for this machine."))


def _start(bench: Workbench, plan: Plan, address: str) -> None:
    bench.nodes_bench.start(plan, address)
    run_state.show_plan(plan.question)


class Again(NamedTuple):
    """Repetition of a run. help: what the button does, in words, empty where that needs none; press: its callback.

    is_free: whether nothing is under way that would refuse it, besides a benchmark of this machine.
    """

    help: str
    press: Callable[[], None]
    is_free: bool = True


def again(bench: Workbench, run: RunRecord) -> Again:
    """Return how a run is measured again: by the nodes that measured it, where they are connected, else here."""
    here = partial(run_state.start, bench, lambda: plan_of(run))
    if not run.origin.startswith((NODE, CLUSTER)):
        return Again("", here)
    address, nodes = bench.cluster
    is_free = bench.nodes_bench.running is None and bench.bench.background.running is None
    if nodes and run.origin.startswith(NODE):
        node, reason = node_of(run, nodes)
        if node is None:
            return Again(f"Measures on this machine: {reason}", here)
        press = partial(_again_on_node, bench, run, address, node)
        return Again(f"Measures the same plan on {NODE}{node.name} again", press, is_free)
    if nodes and run.origin.startswith(CLUSTER):
        help = f"Measures the same plan on all nodes of {address} together again"
        return Again(help, partial(_again_together, bench, run, address), is_free)
    help = f"Measures on this machine: connect the cluster in the model bar to measure on the {run.origin} again"
    return Again(help, here)


def _again_on_node(bench: Workbench, run: RunRecord, address: str, node: NodeInfo) -> None:
    def start() -> None:
        bench.nodes_bench.start_again(run, address, node)
        run_state.show_plan(run.question)

    run_state.act(start)


def _again_together(bench: Workbench, run: RunRecord, address: str) -> None:
    run_state.act(lambda: bench.bench.start_together(Plan.from_dict(run.plan), address))


def watch(bench: Workbench, task: NodesBench) -> None:
    """Draw a running benchmark over nodes and follow it; at its end one of its runs is opened."""
    st.caption(plain(" · ".join(part for part in (task.plan.name, task.address) if part)))
    with st.container(horizontal=True, vertical_alignment="top", gap="medium"):
        with st.container():
            _follow(bench, task)
        st.button(
            "Stop", type="primary", icon=":material/stop:", key="nodes_stop", on_click=task.stop,
            help="Ends the run of each node at once; what was measured is kept",
        )  # fmt: skip
    st.caption("Each node stores a run of its own. Nothing else uses this machine meanwhile: it may be one of them.")


@st.fragment(run_every=REFRESH_S)
def _follow(bench: Workbench, task: NodesBench) -> None:
    if not task.is_running:
        if task.run_ids and st.session_state[run_state.RUN] not in task.run_ids:
            run_state.show_run(task.run_ids[0])
        st.rerun()
    st.progress(task.share, plain(f"{task.name} · {task_progress.left(task)}"))
    benches = task.benches
    if not benches:
        st.caption(plain(task.doing) or "Starting")
    for one in benches:
        task_progress.part(one.node.name, one.progress)


def ended(bench: Workbench, run: RunRecord | None) -> None:
    """Say why nodes of the last benchmark have no whole run, above the plan and above the runs of the others."""
    task = bench.nodes_bench.last
    if task is None or task.is_running or (run is not None and run.id not in task.run_ids):
        return
    if task.error is not None and not task.is_stopped:
        notice(task.error)
    for failure in task.failures:
        notice(failure[:1].upper() + failure[1:])


def beside(bench: Workbench, run: RunRecord, metric: str) -> None:
    """Draw the figures of all nodes of a run's group beside each other; nothing where it has no other run."""
    group = bench.nodes_bench.group(run)
    if len(group) < 2:
        return
    shown = group[:MOST_TOGETHER]
    table, sentence = _table((tuple(map(tuple, shown)), metric), lambda: bench.nodes_bench.read(shown), metric)
    st.subheader("Nodes", anchor=False)
    if len(shown) < len(group):
        st.caption(
            f"The first {len(shown)} of {counted(len(group), 'node')}, by name. Recent runs and History have all."
        )
    if sentence:
        st.markdown(plain(sentence))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for one in shown:
            st.button(
                plain(one.node), key=f"nodes_open_{one.id}", type="secondary" if one.id == run.id else "tertiary",
                on_click=run_state.show_run, args=(one.id,), help=plain(one.machine),
            )  # fmt: skip
        query = {"runs": ",".join(one.id for one in shown), "cells": "all"}
        st.page_link("compare.py", label="Compare nodes", icon=":material/compare_arrows:", query_params=query)
    st.dataframe(
        table, hide_index=True, height="content", alt="Configurations on each node",
        column_config=number_columns.formats(table, {}) | {CONFIGURATION: st.column_config.TextColumn(pinned=True)},
    )  # fmt: skip
    st.caption(f"{METRICS_BY_NAME[metric].label} of each node: medians over rounds.")


@st.cache_resource(max_entries=16, show_spinner=False)
def _table(key: tuple[object, ...], _read: Callable[[], Sequence[RunRecord]], metric: str) -> tuple[pd.DataFrame, str]:
    """Return one row for each configuration and one column for each node, and how the nodes differ, in a sentence."""
    group = _read()
    labels = list(dict.fromkeys(cell.label for one in group for cell in one.cells))
    names = distinct({one.id: one.origin.removeprefix(NODE) for one in group})
    columns = {}
    for one in group:
        found = {cell.label: cell.metrics.get(metric) for cell in summarise(one, main_metric=metric).cells}
        figures = [found.get(label) for label in labels]
        columns[names[one.id]] = [None if figure is None else figure.value for figure in figures]
    named = {CONFIGURATION: [label or "the only one" for label in labels]}
    table = pd.DataFrame(named | number_columns.alike(METRICS_BY_NAME[metric].unit, columns))
    return table, compare_runs(group, metrics=[metric]).between_runs
