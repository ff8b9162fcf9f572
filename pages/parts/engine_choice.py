"""External engines in the model bar: the choice of a known one, a form for another, servers that are started here, and
what a connected one supports."""

from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from engine.backends.address import checked_address
from engine.backends.connecting import ExternalEngine
from engine.backends.known import MOST_NAME, KnownEngine, add_known, read_known, remove_known
from engine.backends.managed_programs import (
    MANAGED,
    ManagedKind,
    ManagedServer,
    default_parallel,
    managed_estimate,
    managed_missing,
)
from engine.backends.report import Fact, found_facts, page_facts
from engine.errors import ConfigError, EngineError
from engine.models import ModelFile
from engine.models.details import readable
from engine.protocol import Engine
from engine.specs import PoolSpec
from engine.units import counted, parameters
from engine.workbench import Workbench
from engine.workbench.model_manager import ModelState, default_spec
from pages.parts.labels import error_text
from pages.parts.models import place
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import size

ADDRESS_HELP = (
    "Base URL of llama-server, vLLM, Ollama, LM Studio, another Logitbench or any OpenAI-compatible server; /v1 is "
    "optional"
)
KEY_HELP = "Environment variable that holds the API key, set before Logitbench starts. The key itself is never stored."
FIELDS = {"name": "Name", "url": "Address", "model": "Model", "api_key_env": "Key variable"}
"""Labels of a known engine's fields."""
STARTED_FIELDS = {"n_ctx": "Context", "parallel": "Sequences", "threads": "Threads"}
"""Labels of the parameters of a server that is started here."""


def choose(bench: Workbench, state: ModelState) -> bool:
    """Draw the known engines and a form for another one; return whether a connection was begun."""
    home = bench.settings.home
    try:
        known = {one.name: one for one in read_known(home)}
    except EngineError as error:
        notice(error)
        return False
    if known:
        now = state.server.name if state.server is not None else None
        name = st.selectbox(
            "Engine", list(known), index=list(known).index(now) if now in known else 0, key="pick_engine",
            format_func=lambda one: f"{one} · {known[one].url}",
        )  # fmt: skip
        with st.container(horizontal=True, gap="small"):
            is_used = st.button("Connect", type="primary", key="pick_connect")
            is_removed = st.button(
                "Remove", type="tertiary", key="pick_remove", help="Forget this engine; its trials stay in the history"
            )
        if is_used:
            return _begin(bench, known[name])
        if is_removed:
            _remove(home, name)
    managed = state.server if isinstance(state.server, ManagedServer) else None
    with st.expander("Start one here", expanded=managed is not None):
        is_begun = _started(bench, managed)
    with st.expander("Add an engine", expanded=not known and managed is None):
        return _added(bench, known) or is_begun


def _remove(home: Path, name: str) -> None:
    try:
        remove_known(home, name)
    except EngineError as error:
        notice(error)
    else:
        st.rerun(scope="fragment")


def _added(bench: Workbench, known: Mapping[str, KnownEngine]) -> bool:
    """Draw the form for another engine; return whether one is being connected. The same form sent again connects."""
    with st.form("engine_form", border=False):
        address = st.text_input("Address", key="engine_url", placeholder="http://localhost:8080", help=ADDRESS_HELP)
        name = st.text_input("Name", key="engine_name", placeholder="optional")
        with st.grid(2, min_column_width=160, gap="small"):
            model = st.text_input("Model", key="engine_model", placeholder="first model of the server")
            variable = st.text_input("Key variable", key="engine_key", placeholder="e.g. OPENAI_API_KEY", help=KEY_HELP)
        is_sent = st.form_submit_button("Add and connect", key="engine_add")
    if not is_sent:
        return False
    try:
        root = checked_address(address.strip()).root
        engine = KnownEngine(
            name=name.strip() or root.partition("://")[2][:MOST_NAME], url=root, model=model.strip(),
            api_key_env=variable.strip(),
        )  # fmt: skip
        if known.get(engine.name) != engine:
            add_known(bench.settings.home, engine)
    except ConfigError as error:
        notice(error_text(error, FIELDS))
        return False
    return _begin(bench, engine)


def _started(bench: Workbench, now: ManagedServer | None) -> bool:
    """Draw the servers that can be started here, with their model and parameters; return whether one is being started.

    now: the one that runs.
    """
    kind: ManagedKind = st.segmented_control(
        "Server", MANAGED, default=now.kind if now else MANAGED[0], required=True, key="start_kind"
    )
    try:
        missing = managed_missing(kind)
        if missing:
            st.caption(missing)
            return False
        files = {path: file for path, file in place.models().items() if not file.is_folder}
        path = _model_to_start(bench, files, now)
        if path is None:
            return False
        spec = _parameters(kind, files[path], now)
        needed = managed_estimate(kind, files[path], spec)
    except EngineError as error:
        notice(error_text(error, STARTED_FIELDS))
        return False
    st.caption(f"Needs {size(needed.total)} of {size(needed.available)} free memory. It ends with the workbench.")
    if not needed.fits:
        notice("The model does not fit in memory. Use fewer sequences or a shorter context.")
    is_asked = st.button("Start", type="primary", disabled=not needed.fits, key="start_server")
    return is_asked and _begin(bench, ManagedServer(kind, files[path].path, spec))


def _model_to_start(bench: Workbench, files: Mapping[str, ModelFile], now: ManagedServer | None) -> str | None:
    """Draw the GGUF files of the library, that of the model bar preselected; return the chosen one."""
    labels = place.labels(files)
    shown = now.path if now else bench.model.path
    used = readable(shown) if shown else ""
    return st.selectbox(
        "Model", list(labels), index=list(labels).index(used) if used in labels else 0, key="start_model",
        format_func=labels.__getitem__,
    )  # fmt: skip


def _parameters(kind: ManagedKind, file: ModelFile, now: ManagedServer | None) -> PoolSpec:
    """Draw and return the parameters that a server is started with. Raises ConfigError for values out of range."""
    usual = now.spec if now and now.path == file.path else default_spec(file)
    helps = {
        "n_ctx": f"Tokens per sequence; the model was trained with {file.n_ctx_train:,}",
        "parallel": "Requests that the server answers at once",
        "threads": "Empty: all cores",
    }
    names = [name for name in STARTED_FIELDS if name != "parallel" or kind == "llama-server"]
    with st.grid(3, min_column_width=120, gap="small"):
        values = {
            name: st.number_input(
                STARTED_FIELDS[name], value=getattr(usual, name), step=256 if name == "n_ctx" else 1, help=helps[name],
                placeholder="all cores" if name == "threads" else None, key=f"start_{name}",
            )
            for name in names
        }  # fmt: skip
    return PoolSpec.from_dict({**usual.to_dict(), "parallel": default_parallel(kind), **values})


def _begin(bench: Workbench, engine: ExternalEngine) -> bool:
    try:
        bench.model_manager.connect(engine)
    except EngineError as error:
        notice(error)
        return False
    return True


def connected(state: ModelState, engine: Engine) -> None:
    """Draw the model that an external engine runs."""
    if state.identity is None or state.found is None:
        return
    st.markdown(f"**{plain(readable(state.identity.name))}**")
    known = [
        state.found.dialect.label,
        f"{parameters(state.identity.num_parameters)} parameters" if state.identity.num_parameters else "",
        state.identity.quantisation,
    ]
    context = f"context {engine.capabilities.n_ctx:,}" if engine.capabilities.n_ctx else "context not reported"
    is_ours = isinstance(state.server, ManagedServer)
    where = f"started here, {counted(engine.threads, 'thread')}" if is_ours else plain(engine.model)
    st.caption(f"{plain(' · '.join(filter(None, known)))}  \n{where}  \n{context}")


def facts(state: ModelState) -> None:
    """Draw what the connected engine supports, and what each page can do with it."""
    if state.found is None or state.engine is None:
        return
    _table(("about the server", "what it reports"), found_facts(state.found))
    _table(("page", "what it can do with this engine"), page_facts(state.engine.capabilities))


def _table(heads: tuple[str, str], rows: list[Fact]) -> None:
    st.dataframe(
        [dict(zip(heads, row, strict=True)) for row in rows], hide_index=True, height="content",
        column_config={heads[0]: st.column_config.TextColumn(width="medium")},
    )  # fmt: skip
