"""Model bar below the navigation: the loaded model, a picker that estimates memory before loading, the machine."""

import math
import os
from pathlib import Path

import streamlit as st

from engine.bench.measurement.machine import fingerprint
from engine.errors import ConfigError, EngineError
from engine.models import ModelFile, embedded_model, estimate, read_model
from engine.models.details import readable
from engine.pool.pool import Pool, WorkerInfo
from engine.specs import PoolSpec
from engine.units import counted, quantity
from engine.workbench import Workbench, current
from engine.workbench.model_manager import ModelState, default_spec
from pages.parts.benchmark.limits_view import machine_limits
from pages.parts.labels import distinct, told_of
from pages.parts.models import place
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import parameters, size

REFRESH_S, WHILE_MEASURING_S = 0.4, 2.0
MEASURED_WITHIN_S = 2.0
FOUND, PATH = "Found here", "Path"
OPENED = "model_dialog"
"""Session state key of the open dialog, picker or machine."""
ANOTHER = "Load another model, or the same with other parameters"
FIELDS = {
    "n_ctx": "Context",
    "parallel": "Sequences",
    "instances": "Instances",
    "threads": "Threads",
    "n_gpu_layers": "GPU layers",
}
DEMONSTRATION = "A demonstration model, trained on old public-domain tales: it writes English sentences, not sense."


def show() -> None:
    """Draw the bar; while a model loads or makes room it refreshes itself, and the whole page at the end."""
    bench = current()
    state = bench.model
    st.caption("Model")
    if state.is_loading:
        _loading(bench)
        return
    if state.path is None and bench.load_order.running is not None:
        _making_room(bench)
        return
    if state.pool is not None and state.file is not None:
        _loaded(state, state.file, state.pool)
    elif state.error is not None:
        notice(state.error)
    else:
        st.caption("Nothing is loaded.")
    with st.container(horizontal=True, gap="small"):
        label, told = ("Change", ANOTHER) if state.pool is not None else ("Choose a model", None)
        st.button(label, key="model_change", help=told, on_click=_open, args=("picker",))
        if state.pool is not None:
            st.button(
                "Eject", key="model_eject", type="tertiary", on_click=bench.model_manager.eject, help="Free its memory"
            )
            st.button(
                "This machine", key="model_machine", type="tertiary", help="Processor, limits, workers",
                on_click=_open, args=("machine",),
            )  # fmt: skip
    match st.session_state.get(OPENED):
        case "picker":
            _picker(bench)
        case "machine" if state.pool is not None:
            _machine(bench, state.pool)


def _open(dialog: str) -> None:
    """Keep a dialog open across reruns, as at the end of a trial; a button alone opens it for one run."""
    st.session_state[OPENED] = dialog


def _close() -> None:
    st.session_state[OPENED] = None


@st.fragment(run_every=REFRESH_S)
def _loading(bench: Workbench) -> None:
    state = bench.model
    if not state.is_loading:
        st.rerun()
    name = state.file.name if state.file else state.path.name if state.path else ""
    st.markdown(f"**{plain(readable(name))}**")
    st.progress(min(state.progress or 0.0, 1.0), text="Loading")
    st.button("Cancel", key="model_cancel", type="tertiary", on_click=bench.model_manager.eject)


@st.fragment(run_every=WHILE_MEASURING_S)
def _making_room(bench: Workbench) -> None:
    if bench.load_order.running is None:
        st.rerun()
    st.caption("No other model is held while loads are being measured.")


def _loaded(state: ModelState, file: ModelFile, pool: Pool) -> None:
    st.markdown(f"**{plain(readable(file.name))}**")
    facts = f"{parameters(file.num_parameters)} parameters · {file.quantisation} · {size(file.size)}"
    st.caption(f"{plain(facts)}  \ncontext {pool.n_ctx:,} · {plain(threads_text(pool))}")
    if state.path == embedded_model():
        st.caption(DEMONSTRATION)


def threads_text(pool: Pool) -> str:
    """Return instances and threads of each, with the threads in use if they are adaptive and fewer."""
    text = f"{pool.spec.instances} × {counted(pool.threads, 'thread')}"
    in_use = {worker.threads for worker in pool.workers()}
    if pool.spec.threads is not None or in_use <= {pool.threads}:
        return text
    return f"{text}, {' to '.join(map(str, sorted({min(in_use), max(in_use)})))} in use"


@st.dialog("Choose a model", width="medium", on_dismiss=_close)
def _picker(bench: Workbench) -> None:
    """Draw the choice of a file and a pool, with their memory estimate before anything loads."""
    state = bench.model
    source = st.segmented_control(
        "Source", (FOUND, PATH), default=FOUND, required=True, key="pick_source", label_visibility="collapsed"
    )
    path = _from_library(state) if source == FOUND else _from_path()
    if path is None:
        return
    try:
        file = read_model(path)
        usual = state.pool.spec if state.pool and state.path == path else default_spec(file)
        spec = _profile(bench, path) or _pool(file, usual)
        needed = estimate(file, spec)
    except EngineError as error:
        notice(error)
        return
    st.markdown(f"**{size(needed.total)}** of the {size(needed.available)} that are free")
    st.progress(min(needed.total / max(needed.available, 1), 1.0))
    st.caption(plain(needed.arithmetic[0].upper() + needed.arithmetic[1:] + "."))
    if not needed.fits:
        notice("It does not fit, so it is not loaded. Fewer instances, fewer sequences or a shorter context need less.")
    if st.button("Load", type="primary", disabled=not needed.fits, key="pick_load"):
        try:
            bench.model_manager.load(path, spec)
        except EngineError as error:
            notice(error)
        else:
            _close()
            st.rerun()


def _from_library(state: ModelState) -> Path | None:
    """Draw the models of all folders, the loaded one preselected; return the chosen path."""
    entries = place.library()
    usable = {entry.file.path: (entry, entry.file) for entry in entries if isinstance(entry.file, ModelFile)}
    labels = distinct(
        {path: f"{entry.name} · {file.quantisation} · {size(file.size)}" for path, (entry, file) in usable.items()}
    )
    chosen = st.selectbox(
        "Model", list(labels), index=list(labels).index(state.path) if state.path in labels else 0,
        format_func=labels.__getitem__, key="pick_file",
    )  # fmt: skip
    if len(usable) < len(entries):
        st.caption(f"{counted(len(entries) - len(usable), 'file')} cannot be used: the Models page says why.")
    return chosen


def _from_path() -> Path | None:
    text = st.text_input("Path of a GGUF file", key="pick_path", placeholder="/models/name.gguf")
    return Path(os.path.expanduser(text.strip())) if text.strip() else None


def _profile(bench: Workbench, path: Path) -> PoolSpec | None:
    """Return the settings that a benchmark found for this file, if the person selects them."""
    kept = bench.bench.profiles(path)
    if not kept:
        return None
    name = st.selectbox(
        "Profile", list(kept), index=None, key="pick_profile", placeholder="chosen below", format_func=plain,
        help="Settings kept from a benchmark of this model",
    )  # fmt: skip
    return kept[name] if name else None


def _pool(file: ModelFile, spec: PoolSpec) -> PoolSpec:
    """Draw and return the pool's parameters. Raises ConfigError for values out of range."""
    helps = {
        "n_ctx": f"Tokens of one sequence; trained with {file.n_ctx_train:,}",
        "parallel": "Trials that run side by side, each",
        "instances": "Processes with this model",
        "threads": "Of each instance; empty: as many as are fastest just now, up to all cores",
        "n_gpu_layers": "Needs a build for the GPU; -1: all layers",
    }
    # No field has bounds: Streamlit would show a value beyond them but keep the previous one, which would be loaded.
    with st.grid(3, min_column_width=120, gap="small"):
        values = {
            name: st.number_input(
                label, value=getattr(spec, name), step=256 if name == "n_ctx" else 1, help=helps[name],
                placeholder="adaptive" if name == "threads" else None,
            )
            for name, label in FIELDS.items()
        }  # fmt: skip
        share_weights = st.toggle(
            "Share weights", spec.share_weights, help="Instances share the file's pages; a single stream is then slower"
        )
    try:
        return PoolSpec.from_dict({**spec.to_dict(), **values, "share_weights": share_weights})
    except ConfigError as error:
        raise ConfigError(told_of(error, FIELDS)) from error


@st.dialog("This machine", width="medium", on_dismiss=_close)
def _machine(bench: Workbench, pool: Pool) -> None:
    """Draw the machine, its measured limits, and the worker processes with their memory."""
    try:
        machine, limits = fingerprint(), bench.bench.limits()
    except EngineError as error:
        notice(error)
        return
    cores = counted(len(machine["allowed_cores"]), "core")
    st.markdown(f"**{plain(machine['cpu'] or machine['architecture'])}**")
    st.caption(plain(f"{cores} of {machine['threads']} may be used · {size(machine['memory_bytes'])} of memory"))
    st.caption(plain(machine_limits(limits) if limits else "Its limits were not measured yet: see Benchmark."))
    st.caption(f"{pool.file.architecture} {pool.file.quantisation} · loaded in {quantity(pool.load_s, 's')}")
    figures: dict[int, dict[str, float]] = {}
    try:
        figures = {int(one["pid"]): one for one in pool.measure(MEASURED_WITHIN_S)}
    except EngineError as error:  # such as a worker in a long computation, the very case this dialog is opened for
        notice(error)
    rows = [
        {
            "process": worker.pid,
            "doing": phase_text(worker),
            "cores": ", ".join(map(str, worker.cpus)) or "any",
            "threads": worker.threads,
            "for prompts": worker.threads_batch,
            "running": worker.num_running,
            "waiting": worker.num_waiting,
            "memory (PSS)": _measured(figures.get(worker.pid, {}).get("pss_bytes")),
            "of it private": _measured(figures.get(worker.pid, {}).get("private_bytes")),
        }
        for worker in pool.workers()
    ]
    st.dataframe(rows, hide_index=True)


def phase_text(worker: WorkerInfo) -> str:
    """Return what a worker is doing, with its duration from one second on."""
    if worker.phase == "idle" or worker.phase_s < 1:
        return worker.phase
    return f"{worker.phase} for {quantity(worker.phase_s, 's')}"


def _measured(num_bytes: float | None) -> str:
    return "not measured here" if num_bytes is None or math.isnan(num_bytes) else size(num_bytes)
