"""Traffic page: the calls of other programs to the API, live, and how to point a program there."""

import streamlit as st

from engine.api.openai.server import server_of
from engine.workbench import current
from pages.parts.traffic import call_filter, call_table, call_view, clients_view, server_bar

bench = current()
api = server_of(bench)
st.title("Traffic", anchor=False)
server_bar.show(api, has_model=bench.model.engine is not None)
if api.traffic.num_calls:
    call_table.show(api.traffic, call_filter.show(api.traffic))
    call_view.show(bench, api)
    clients_view.show(api.traffic)
elif api.port is not None:
    call_table.show(api.traffic, call_filter.Wanted())
    server_bar.first_call(api)
