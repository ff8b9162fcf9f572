"""Traffic page: the calls of other programs to the API, live, and how to point a program there."""

import streamlit as st

from engine.api.openai.server import server_of
from engine.workbench import current
from pages.parts.traffic import call_table, clients_view, server_bar

bench = current()
api = server_of(bench)
st.title("Traffic", anchor=False)
server_bar.show(api)
if api.traffic.num_calls:
    call_table.show(bench, api.traffic)
    clients_view.show(api.traffic)
elif api.port is not None:
    st.caption("No calls yet. This page shows each one from its first token on.")
