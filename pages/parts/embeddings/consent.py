"""Consent to send texts to an external engine on another machine, asked once in a tab for each address."""

import streamlit as st

from engine.bench.planning.engines import is_remote, known_engine, label_of
from engine.bench.planning.remote import hosts_of
from engine.embedding.specs import EmbedSpec
from engine.units import counted
from pages.parts.plain import plain

CONFIRMED = "embed_confirmed"


def given(spec: EmbedSpec, num_texts: int) -> bool:
    """Return whether texts may be sent; until then ask, where the engine is on another machine."""
    if not is_remote(spec.backend):
        return True
    address = known_engine(spec.backend).url
    confirmed: frozenset[str] = st.session_state.get(CONFIRMED, frozenset())
    if address in confirmed:
        return True
    name, host = label_of(spec.backend), hosts_of((address,))
    st.markdown(
        plain(
            f"{name} is on another machine. This sends {counted(num_texts, 'text')} to {host}, and each question "
            "that you ask below. Its owner may read, count or charge them."
        )
    )
    st.button("Send them", type="primary", icon=":material/send:", key="embed_send", on_click=_confirm, args=(address,))
    return False


def _confirm(address: str) -> None:
    st.session_state[CONFIRMED] = st.session_state.get(CONFIRMED, frozenset()) | {address}
