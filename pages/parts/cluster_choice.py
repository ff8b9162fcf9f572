"""Clusters in the model bar: the address, the nodes with their workers, and changes of these while a model runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import streamlit as st

from engine.cluster.specs import ClusterSpec
from engine.errors import EngineError
from engine.models import MemoryEstimate, ModelFile, estimate
from engine.protocol import NodeInfo, SpreadEngine
from engine.specs import PoolSpec
from engine.units import counted
from engine.workbench import Workbench
from pages.parts import number_columns, task_progress
from pages.parts.labels import error_text
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import size

ABOUT = "Runs the model in worker processes on the nodes of a Ray cluster, which may be other machines."
ADDRESS_HELP = "HOST:PORT, as `ray start --head` prints it, or auto for the cluster of this machine"
MIXED_HELP = (
    "Otherwise nodes are refused whose Logitbench or libraries (llama.cpp, or torch, transformers and tokenizers for "
    "folders) differ from those of the first node: the same request may give other digits there"
)
ADDRESS, REFUSED = "cluster_address", "cluster_refused"
"""Session state keys: the address of the form, and why it was refused."""
FIELDS = {"cluster": "Address", "address": "Address", "workers": "Workers"}
"""Labels of the parameters that errors name."""
_COMMIT = 16


def choose(bench: Workbench, now: ClusterSpec | None) -> ClusterSpec | None:
    """Draw address and nodes; return where the workers shall run, None until a cluster is connected and has some.

    now: of the loaded model.
    """
    clusters = bench.clusters
    if clusters.missing:
        st.caption(plain(clusters.missing))
        return None
    task = clusters.task
    if task is not None and task.is_running:
        task_progress.with_stop(task, "cluster_stop")
        return None
    if not clusters.address:
        _ask(bench, now)
        return None
    return _workers(bench, now)


def _ask(bench: Workbench, now: ClusterSpec | None) -> None:
    """Draw the form for an address, below why the last one was refused or could not be joined."""
    task = bench.clusters.task
    if st.session_state.get(REFUSED):
        notice(st.session_state[REFUSED])
    elif task is not None and task.error is not None and not task.is_stopped:
        notice(error_text(task.error, FIELDS))
    before = task.address if task is not None else now.address if now else "auto"
    st.caption(ABOUT)
    with st.form("cluster_form", border=False):
        st.text_input("Address", value=before, key=ADDRESS, help=ADDRESS_HELP)
        st.form_submit_button("Connect", key="cluster_connect", on_click=_connect, args=(bench,))


def _connect(bench: Workbench) -> None:
    """Connect to the address of the form."""
    st.session_state[REFUSED] = ""
    try:
        bench.clusters.connect(st.session_state[ADDRESS])
    except EngineError as error:
        st.session_state[REFUSED] = error_text(error, FIELDS)


def _workers(bench: Workbench, now: ClusterSpec | None) -> ClusterSpec | None:
    """Draw the nodes of the connected cluster, and how many workers each shall have."""
    nodes = bench.clusters.nodes
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"**{plain(bench.clusters.address)}** · {counted(len(nodes), 'node')}")
        st.button("Disconnect", key="cluster_disconnect", type="tertiary", on_click=bench.clusters.disconnect)
    if not nodes:
        st.caption("No node is there at the moment.")
        return None
    _table(nodes, is_used=False)
    for name, reason in bench.clusters.failures.items():
        st.caption(plain(f"{name} cannot be used: {reason}."))
    before = now.workers if now else {}
    counts = inputs("cluster", nodes, {node.name: before.get(node.name, 1) for node in nodes})
    mixed = st.checkbox("Allow nodes with other versions", value=bool(now and now.mixed), key="cluster_mixed",
                        help=MIXED_HELP)  # fmt: skip
    try:
        return ClusterSpec(address=bench.clusters.address, workers=counts, mixed=mixed)
    except EngineError as error:
        notice(error_text(error, FIELDS))
        return None


def fits(bench: Workbench, file: ModelFile, spec: PoolSpec, cluster: ClusterSpec) -> bool:
    """Draw the memory that the workers need on the machine where it is scarcest; return whether it fits everywhere."""
    needs = sorted(
        _needs(file, spec, cluster, bench.clusters.nodes), key=lambda need: need[1].total / need[1].available
    )
    if not needs:
        notice("None of the nodes that were given workers is there any more.")
        return False
    for name, needed in needs:
        if not needed.fits:
            notice(f"{name} has too little memory: {needed.arithmetic}. Use fewer workers there, or a shorter context.")
    name, needed = needs[-1]
    st.markdown(f"Needs **{size(needed.total)}** of {size(needed.available)} free memory on {plain(name)}")
    st.progress(min(needed.total / needed.available, 1.0))
    st.caption("A node without the file gets it from this machine first, and keeps it.")
    return all(needed.fits for _name, needed in needs)


def _needs(
    file: ModelFile, spec: PoolSpec, cluster: ClusterSpec, nodes: Sequence[NodeInfo]
) -> Iterator[tuple[str, MemoryEstimate]]:
    """Yield for each machine that gets workers its name and what they need; nodes of one address share its memory."""
    for address in sorted({node.address for node in nodes}):
        here = [node for node in nodes if node.address == address]
        num = sum(cluster.workers.get(node.name, 0) for node in here)
        if num:
            needed = estimate(file, replace(spec, instances=num))
            yield here[0].name, replace(needed, available=max(1, min(node.free_bytes for node in here)))


def inputs(prefix: str, nodes: Sequence[NodeInfo], counts: Mapping[str, int]) -> dict[str, int]:
    """Draw a number of workers for each node, with these counts before; return the numbers by name."""
    with st.grid(3, min_column_width=150, gap="small"):
        return {
            node.name: st.number_input(
                f"Workers on {plain(node.name)}", value=counts.get(node.name, 0), step=1, key=f"{prefix}_{node.name}"
            )
            for node in nodes
        }


def _table(nodes: Sequence[NodeInfo], *, is_used: bool) -> None:
    """Draw the nodes: what each has, its build of llama.cpp and, where the model runs there, its workers."""
    memory = {"memory": [node.memory_bytes for node in nodes], "free": [node.free_bytes for node in nodes]}
    table = {
        "node": [node.name for node in nodes],
        "cores": [node.cores for node in nodes],
        **number_columns.alike("B", memory),
        "llama.cpp": [build(node.llama) for node in nodes],
        **({"workers": [node.num_workers for node in nodes]} if is_used else {}),
        "processor": [node.cpu for node in nodes],
    }
    st.dataframe(
        table, hide_index=True, height="content", alt="Nodes of the cluster",
        column_config=number_columns.formats(table, {}) | {"processor": st.column_config.TextColumn(width="medium")},
    )  # fmt: skip


def change(bench: Workbench, engine: SpreadEngine) -> None:
    """Draw the nodes of the loaded model, and change their workers while it runs."""
    task = bench.clusters.changing
    nodes = engine.nodes()
    _table(nodes, is_used=True)
    for node in nodes:
        if node.reason:
            st.caption(plain(f"{node.name} is not used: it {node.reason}."))
    if task is not None and task.is_running:
        task_progress.with_stop(task, "workers_stop")
        return
    if task is not None and task.error is not None and not task.is_stopped:
        notice(task.error)
    now = {node.name: node.num_workers for node in nodes}
    counts = inputs("workers", [node for node in nodes if not node.reason], now)
    if st.button("Change workers", key="workers_change", disabled=all(now[name] == counts[name] for name in counts)):
        try:
            bench.clusters.change(engine, counts)
        except EngineError as error:
            notice(error_text(error, FIELDS))
        else:
            st.rerun()


def describe(engine: SpreadEngine) -> str:
    """Return how many workers run on how many nodes."""
    counts = [node.num_workers for node in engine.nodes() if node.num_workers]
    return f"{counted(sum(counts), 'worker')} on {counted(len(counts), 'node')}"


def build(llama: Mapping[str, str]) -> str:
    """Return version and commit of a node's llama.cpp, or why it cannot be used."""
    if "error" in llama:
        return f"cannot be loaded: {llama['error']}"
    return " ".join(filter(None, (llama.get("llama", ""), llama.get("commit", "")[:_COMMIT]))) or "not reported"
