"""External engines in the model bar: the choice of a known one, a form for another, and what a connected one tells."""

import pandas as pd
import streamlit as st

from engine.backends.known import KnownEngine, add_known, read_known, remove_known
from engine.backends.report import Fact, found_facts, page_facts
from engine.errors import EngineError
from engine.models.details import readable
from engine.protocol import Engine
from engine.units import parameters
from engine.workbench import Workbench
from engine.workbench.model_manager import ModelState
from pages.parts.notice import notice
from pages.parts.plain import plain

ADDRESS_HELP = (
    "Of llama-server, vLLM, Ollama, LM Studio, another Logitbench or any server with an OpenAI-compatible API, with or "
    "without /v1"
)
KEY_HELP = "Name of the environment variable that has the key. The key itself is not stored; set it before the start."


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
            remove_known(home, name)
            st.rerun(scope="fragment")
    with st.expander("Add an engine", expanded=not known):
        return _added(bench)


def _added(bench: Workbench) -> bool:
    """Draw the form for another engine; return whether one was added and is being connected."""
    with st.form("engine_form", border=False):
        address = st.text_input("Address", key="engine_url", placeholder="http://localhost:8080", help=ADDRESS_HELP)
        name = st.text_input("Name", key="engine_name", placeholder="what to call it")
        with st.grid(2, min_column_width=160, gap="small"):
            model = st.text_input("Model", key="engine_model", placeholder="its first")
            variable = st.text_input("Key variable", key="engine_key", placeholder="none", help=KEY_HELP)
        is_sent = st.form_submit_button("Add and connect", key="engine_add")
    if not is_sent:
        return False
    try:
        engine = KnownEngine(
            name=name.strip() or address.strip().partition("://")[2][:60], url=address.strip(), model=model.strip(),
            api_key_env=variable.strip(),
        )  # fmt: skip
        add_known(bench.settings.home, engine)
    except EngineError as error:
        notice(error)
        return False
    return _begin(bench, engine)


def _begin(bench: Workbench, engine: KnownEngine) -> bool:
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
    context = f"context {engine.capabilities.n_ctx:,}" if engine.capabilities.n_ctx else "context not told"
    st.caption(f"{plain(' · '.join(filter(None, known)))}  \n{plain(engine.model)}  \n{context}")


def facts(state: ModelState) -> None:
    """Draw what the connected engine tells, and what each page can do with it."""
    if state.found is None or state.engine is None:
        return
    _table(("About the server", "What it tells"), found_facts(state.found))
    _table(("Page", "What it can do with this engine"), page_facts(state.engine.capabilities))


def _table(heads: tuple[str, str], rows: list[Fact]) -> None:
    st.dataframe(
        pd.DataFrame(rows, columns=list(heads)), hide_index=True, height="content",
        column_config={heads[0]: st.column_config.TextColumn(width="medium")},
    )  # fmt: skip
