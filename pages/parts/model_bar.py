"""Model bar below the navigation: the loaded model, a picker that estimates memory before loading, the machine."""

from pathlib import Path

import streamlit as st

from engine.backends.managed_programs import ManagedServer
from engine.errors import ConfigError, EngineError
from engine.files import expanded_path
from engine.machine.fingerprint import fingerprint
from engine.models import ModelFile, embedded_model, estimate, read_model
from engine.models.details import readable
from engine.models.folder_specs import folder_dtype, gguf_problem, is_by_transformers
from engine.models.memory import copied_weights
from engine.protocol import Engine, SpreadEngine, WorkerInfo
from engine.specs import DTYPES, DType, PoolSpec
from engine.units import counted, parameters, quantity
from engine.workbench import Workbench, current
from engine.workbench.model_manager import ModelState, default_spec
from pages.parts import cluster_choice, engine_choice, number_columns
from pages.parts.benchmark.limits_view import machine_limits
from pages.parts.labels import error_text
from pages.parts.models import place
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import size

REFRESH_S, WHILE_MEASURING_S = 0.4, 2.0
MEASURED_WITHIN_S = 2.0
FOUND, PATH, CLUSTER, ELSEWHERE = "Library", "Path", "Cluster", "External engine"
OPENED = "model_dialog"
"""Session state key of the open dialog, picker or machine."""
ANOTHER = "Load another model, connect to an external engine, or change the parameters"
FIELDS = {
    "n_ctx": "Context",
    "parallel": "Sequences",
    "instances": "Instances",
    "threads": "Threads",
    "n_gpu_layers": "GPU layers",
}
ADAPTIVE = "adaptive, the fastest number at the moment, up to all cores"
MEMORY = {"memory (PSS)": "pss_bytes", "private memory": "private_bytes"}
LAYOUTS = {None: "automatic", False: "repacked", True: "as in the file"}
DEMONSTRATION = "A demonstration model trained on old public-domain tales: its English sentences make little sense."


def show() -> None:
    """Draw the bar; while a model loads or makes room it refreshes itself, and the whole page at the end."""
    bench = current()
    state = bench.model
    st.caption("Model")
    if state.is_loading:
        _loading(bench)
        return
    if not state.name and bench.load_order.running is not None:
        _making_room(bench)
        return
    if state.engine is not None and state.file is not None:
        _loaded(state, state.file, state.engine)
    elif state.engine is not None:
        engine_choice.connected(state, state.engine)
    elif state.error is not None:
        notice(state.error)
        if state.name and st.button(_again(state), key="model_again"):
            _load_again(bench)
    else:
        st.caption("No model is loaded.")
    with st.container(horizontal=True, gap="small"):
        label, help = ("Change", ANOTHER) if state.engine is not None else ("Choose a model", None)
        st.button(label, key="model_change", help=help, on_click=_open, args=("picker",))
        if state.engine is not None:
            end, does = _ending(state)
            st.button(end, key="model_eject", type="tertiary", help=does, on_click=bench.model_manager.eject)
            about, tells = _about(state)
            st.button(about, key="model_machine", type="tertiary", help=tells, on_click=_open, args=("machine",))
    match st.session_state.get(OPENED):
        case "picker":
            _picker(bench)
        case "machine" if state.cluster is not None and isinstance(state.engine, SpreadEngine):
            _cluster(bench, state.engine)
        case "machine" if state.engine is not None and state.file is not None:
            _machine(bench, state.engine, state.file)
        case "machine" if state.engine is not None:
            _engine(state)


def _again(state: ModelState) -> str:
    """Return the label of the button that tries again what failed."""
    if isinstance(state.server, ManagedServer):
        return "Start again"
    return "Load again" if state.server is None else "Connect again"


def _ending(state: ModelState) -> tuple[str, str]:
    """Return the label of the button that gives the engine up, and what it does."""
    if isinstance(state.server, ManagedServer):
        return "Stop", f"End {state.server.kind}, which runs as long as the workbench"
    return ("Eject", "Unload the model") if state.server is None else ("Disconnect", "Disconnect from this engine")


def _about(state: ModelState) -> tuple[str, str]:
    """Return the label of the button that opens the dialog about where the model runs, and what that tells."""
    if state.cluster is not None:
        return "This cluster", "Nodes, and their workers"
    if state.file is None:
        return "This engine", "What this engine supports, page by page"
    return "This machine", "Processor, limits, workers"


def _load_again(bench: Workbench) -> None:
    try:
        bench.model_manager.load_again()
    except EngineError as error:
        notice(error)
    else:
        st.rerun()


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
    name = state.file.name if state.file else state.name
    st.markdown(f"**{plain(readable(name))}**")
    st.progress(min(state.progress or 0.0, 1.0), text=_loading_text(state))
    st.button("Cancel", key="model_cancel", type="tertiary", on_click=bench.model_manager.eject)


def _loading_text(state: ModelState) -> str:
    if isinstance(state.server, ManagedServer):
        return f"Starting it with {plain(readable(state.server.path.name))}"
    if state.server is not None:
        return "Connecting and checking what the server supports"
    if state.cluster is not None:
        return plain(f"{state.step[:1].upper()}{state.step[1:]}") or "Connecting to the cluster"
    if state.progress:
        return "Loading"
    if state.file is not None and is_by_transformers(state.file, state.spec):
        return "Starting PyTorch and reading the weights"
    return "Opening the file and, once for each quantisation, timing weight layouts"


@st.fragment(run_every=WHILE_MEASURING_S)
def _making_room(bench: Workbench) -> None:
    if bench.load_order.running is None:
        st.rerun()
    st.caption("No model is loaded while load times are measured.")


def _loaded(state: ModelState, file: ModelFile, engine: Engine) -> None:
    st.markdown(f"**{plain(readable(file.name))}**")
    kind = f"{engine.spec.dtype} · transformers" if is_by_transformers(file, engine.spec) else file.quantisation
    facts = f"{parameters(file.num_parameters)} parameters · {kind} · {size(file.size)}"
    where = (
        cluster_choice.describe(engine) if isinstance(engine, SpreadEngine) and state.cluster else threads_text(engine)
    )
    st.caption(f"{plain(facts)}  \ncontext {engine.capabilities.n_ctx:,} · {plain(where)}")
    if state.path == embedded_model():
        st.caption(DEMONSTRATION)


@st.dialog("This engine", width="medium", on_dismiss=_close)
def _engine(state: ModelState) -> None:
    """Draw what the connected engine supports."""
    engine_choice.facts(state)


def threads_text(engine: Engine) -> str:
    """Return instances and threads of each, with the threads in use if they are adaptive and fewer."""
    text = f"{engine.spec.instances} × {counted(engine.threads, 'thread')}"
    in_use = {worker.threads for worker in engine.workers()}
    if engine.spec.threads is not None or in_use <= {engine.threads}:
        return text
    return f"{text}, {' to '.join(map(str, sorted({min(in_use), max(in_use)})))} in use"


@st.dialog("Choose a model", width="medium", on_dismiss=_close)
def _picker(bench: Workbench) -> None:
    """Draw the choice of a file and a pool, with their memory estimate before anything loads."""
    state = bench.model
    source = st.segmented_control(
        "Source", (FOUND, PATH, CLUSTER, ELSEWHERE), default=_source(state), required=True, key="pick_source",
        label_visibility="collapsed",
    )  # fmt: skip
    if source == ELSEWHERE:
        if engine_choice.choose(bench, state):
            _close()
            st.rerun()
        return
    cluster = cluster_choice.choose(bench, state.cluster) if source == CLUSTER else None
    if source == CLUSTER and cluster is None:
        return
    try:
        path = _from_path() if source == PATH else _from_library(state)
        if path is None:
            return
        file = read_model(path)
        usual = state.spec if state.engine and state.path == path else default_spec(file)
        spec = _profile(bench, path) or _pool(file, usual, is_here=cluster is None)
        fits = _fits_here(file, spec) if cluster is None else cluster_choice.fits(bench, file, spec, cluster)
    except EngineError as error:
        notice(error)
        return
    if st.button("Load", type="primary", disabled=not fits, key="pick_load"):
        try:
            bench.load(path, spec, cluster)
        except EngineError as error:
            notice(error)
        else:
            _close()
            st.rerun()


def _source(state: ModelState) -> str:
    """Return the source of the model that is loaded."""
    return ELSEWHERE if state.server else CLUSTER if state.cluster else FOUND


def _fits_here(file: ModelFile, spec: PoolSpec) -> bool:
    """Draw the memory that a pool needs on this machine; return whether it fits."""
    needed = estimate(file, spec)
    st.markdown(f"Needs **{size(needed.total)}** of {size(needed.available)} free memory")
    st.progress(min(needed.total / max(needed.available, 1), 1.0))
    st.caption(plain(needed.arithmetic[0].upper() + needed.arithmetic[1:] + "."))
    if not needed.fits:
        notice("The model does not fit in memory. Use fewer instances, fewer sequences or a shorter context.")
    return needed.fits


def _from_library(state: ModelState) -> Path | None:
    """Draw the models of all folders, the loaded one preselected; return the chosen path."""
    entries = place.library()
    usable = {entry.file.path: (entry, entry.file) for entry in entries if isinstance(entry.file, ModelFile)}
    labels = place.distinct_by_file(
        {path: f"{entry.name} · {place.facts_of(file)}" for path, (entry, file) in usable.items()}
    )
    chosen = st.selectbox(
        "Model", list(labels), index=list(labels).index(state.path) if state.path in labels else 0,
        format_func=labels.__getitem__, key="pick_file",
    )  # fmt: skip
    if len(usable) < len(entries):
        st.caption(f"{counted(len(entries) - len(usable), 'file')} cannot be used; the Models page shows why.")
    return chosen


def _from_path() -> Path | None:
    text = st.text_input(
        "Path of a GGUF file, or of a folder of safetensors", key="pick_path", placeholder="/models/name.gguf"
    )
    return expanded_path(text.strip()) if text.strip() else None


def _profile(bench: Workbench, path: Path) -> PoolSpec | None:
    """Return the settings that a benchmark found for this file, if the person selects them."""
    kept = bench.bench.profiles(path)
    if not kept:
        return None
    name = st.selectbox(
        "Profile", list(kept), index=None, key="pick_profile", placeholder="none: set below", format_func=plain,
        help="Settings saved from a benchmark of this model",
    )  # fmt: skip
    return kept[name] if name else None


def _pool(file: ModelFile, spec: PoolSpec, *, is_here: bool) -> PoolSpec:
    """Draw and return the pool's parameters. Raises ConfigError for values out of range.

    is_here: on this machine; else the cluster says how many instances there are.
    """
    dtype = _dtype(file, spec)
    is_torch = dtype is not None
    helps = {
        "n_ctx": f"Tokens per sequence; the model was trained with {file.n_ctx_train:,}",
        "parallel": "Trials that run in parallel in each instance",
        "instances": "Worker processes with this model",
        "threads": f"Per instance; empty: {'all cores' if is_torch else ADAPTIVE}",
        "n_gpu_layers": "Needs a GPU build; -1: all layers",
    }
    if is_torch != is_by_transformers(file, spec):  # the other one's parameters mean nothing there
        spec = PoolSpec(n_ctx=spec.n_ctx, parallel=spec.parallel, instances=spec.instances)
    # No field has bounds: Streamlit would show a value beyond them but keep the previous one, which would be loaded.
    with st.grid(3, min_column_width=120, gap="small"):
        values = {
            name: st.number_input(
                label, value=getattr(spec, name), step=256 if name == "n_ctx" else 1, help=helps[name],
                placeholder=("all cores" if is_torch else "adaptive") if name == "threads" else None,
            )
            for name, label in FIELDS.items()
            if not (is_torch and name == "n_gpu_layers") and (is_here or name != "instances")
        }  # fmt: skip
        if is_torch:
            values["dtype"] = dtype
        else:
            values["share_weights"] = st.selectbox(
                "Weights", list(LAYOUTS), index=list(LAYOUTS).index(spec.share_weights),
                format_func=LAYOUTS.__getitem__,
                help="Automatic: the layout that this machine computes faster, measured once for each quantisation. "
                "Repacked: each instance has its own copy. As in the file: all instances share one",
            )  # fmt: skip
    try:
        return PoolSpec.from_dict({**spec.to_dict(), "dtype": None, **values})
    except ConfigError as error:
        raise ConfigError(error_text(error, FIELDS)) from error


def _dtype(file: ModelFile, spec: PoolSpec) -> DType | None:
    """Draw and return the type of weights in transformers; None for llama.cpp, which only a GGUF file can be run by."""
    if not file.is_folder:
        if gguf_problem(file):
            return None
        ways: tuple[DType | None, ...] = (None, *DTYPES)
        return st.selectbox(
            "Run by", ways, index=ways.index(spec.dtype), key=f"pick_run_by_{file.path}",
            format_func=lambda dtype: f"transformers, {dtype}" if dtype else "llama.cpp",
            help="transformers turns the weights into floats, which takes more memory and time: a second opinion on "
            "what llama.cpp computes",
        )  # fmt: skip
    return st.selectbox(
        "Weights", DTYPES, index=DTYPES.index(folder_dtype(file, spec)), key=f"pick_dtype_{file.path}",
        help=f"Type of weights, keys, values and arithmetic; the folder has {file.quantisation}. bfloat16 halves "
        "the memory, with 8 bits of precision",
    )  # fmt: skip


@st.dialog("This cluster", width="large", on_dismiss=_close)
def _cluster(bench: Workbench, engine: SpreadEngine) -> None:
    """Draw the nodes, to change their workers, and the worker processes."""
    cluster_choice.change(bench, engine)
    st.caption("Worker processes")
    st.dataframe([{"node": worker.node, **_row(worker)} for worker in engine.workers()], hide_index=True)


def _row(worker: WorkerInfo) -> dict[str, str | int]:
    """Return what a worker says of itself."""
    return {
        "process": worker.pid,
        "phase": phase_text(worker),
        "cores": ", ".join(map(str, worker.cpus)) or "any",
        "threads": worker.threads,
        "prefill threads": worker.threads_batch,
        "running": worker.num_running,
        "waiting": worker.num_waiting,
    }


@st.dialog("This machine", width="medium", on_dismiss=_close)
def _machine(bench: Workbench, engine: Engine, file: ModelFile) -> None:
    """Draw the machine, its measured limits, and the worker processes with their memory."""
    try:
        machine, limits = fingerprint(), bench.bench.limits()
    except EngineError as error:
        notice(error)
        return
    cores = counted(len(machine["allowed_cores"]), "core")
    st.markdown(f"**{plain(machine['cpu'] or machine['architecture'])}**")
    st.caption(plain(f"{cores} of {machine['threads']} available · {size(machine['memory_bytes'])} of memory"))
    st.caption(plain(machine_limits(limits) if limits else "Machine limits not measured yet: see Benchmark."))
    layout = f"weights {LAYOUTS[bool(engine.spec.share_weights) or not copied_weights(file)]}"
    if is_by_transformers(file, engine.spec):
        layout = f"{engine.spec.dtype} · transformers"
    st.caption(f"{file.architecture} {file.quantisation} · {layout} · loaded in {quantity(engine.startup.load_s, 's')}")
    figures: dict[int, dict[str, float]] = {}
    try:
        figures = {int(one["pid"]): one for one in engine.measure(MEASURED_WITHIN_S)}
    except EngineError as error:  # such as a worker in a long computation, the very case this dialog is opened for
        notice(error)
    workers = engine.workers()
    read = {name: [figures.get(worker.pid, {}).get(of) for worker in workers] for name, of in MEMORY.items()}
    memory = number_columns.alike("B", read)
    rows = [
        {**_row(worker), **{name: values[place] for name, values in memory.items()}}
        for place, worker in enumerate(workers)
    ]
    st.dataframe(
        rows, hide_index=True, placeholder="not measured", column_config=number_columns.formats(memory, {}),
        alt="Worker processes",
    )  # fmt: skip


def phase_text(worker: WorkerInfo) -> str:
    """Return what a worker is doing, with its duration from one second on."""
    if worker.phase == "idle" or worker.phase_s < 1:
        return worker.phase
    return f"{worker.phase} for {quantity(worker.phase_s, 's')}"
