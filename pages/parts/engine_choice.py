"""External engines in the model bar: the choice of a known one, a form for another, what a connected one supports."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import streamlit as st

from engine.backends.address import checked_address
from engine.backends.known import MOST_NAME, KnownEngine, add_known, read_known, remove_known
from engine.backends.report import Fact, found_facts, page_facts
from engine.errors import ConfigError, EngineError
from engine.models.details import readable
from engine.protocol import Engine
from engine.units import parameters
from engine.workbench import Workbench
from engine.workbench.model_manager import ModelState
from pages.parts.labels import told_of
from pages.parts.notice import notice
from pages.parts.plain import plain

ADDRESS_HELP = (
    "Base URL of llama-server, vLLM, Ollama, LM Studio, another Logitbench or any OpenAI-compatible server; /v1 is "
    "optional"
)
KEY_HELP = "Environment variable that holds the API key, set before Logitbench starts. The key itself is never stored."
FIELDS = {"name": "Name", "url": "Address", "model": "Model", "api_key_env": "Key variable"}
"""Labels of a known engine's fields."""


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
    with st.expander("Add an engine", expanded=not known):
        return _added(bench, known)


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
        notice(told_of(error, FIELDS))
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
    context = f"context {engine.capabilities.n_ctx:,}" if engine.capabilities.n_ctx else "context not reported"
    st.caption(f"{plain(' · '.join(filter(None, known)))}  \n{plain(engine.model)}  \n{context}")


def facts(state: ModelState) -> None:
    """Draw what the connected engine supports, and what each page can do with it."""
    if state.found is None or state.engine is None:
        return
    _table(("About the server", "What it reports"), found_facts(state.found))
    _table(("Page", "What it can do with this engine"), page_facts(state.engine.capabilities))


def _table(heads: tuple[str, str], rows: list[Fact]) -> None:
    st.dataframe(
        pd.DataFrame(rows, columns=list(heads)), hide_index=True, height="content",
        column_config={heads[0]: st.column_config.TextColumn(width="medium")},
    )  # fmt: skip
