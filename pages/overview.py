"""Overview page: this machine's card, the latest trials and runs, the API's traffic, and what changed in a week."""

import streamlit as st

from engine.api.openai.server import server_of
from engine.workbench import current
from pages.parts.overview import heading, latest, machine_view, week_view

COLUMN = 420  # least width of a column, in pixels

bench = current()
heading.show()
machine_view.show(bench)
with st.container(key="overview_lists"):
    columns = st.grid(2, min_column_width=COLUMN, gap="large")
    with columns.cell():
        latest.trials(bench)
    with columns.cell():
        latest.runs(bench)
    with columns.cell():
        week_view.show(bench)
    with columns.cell():
        week_view.traffic(server_of(bench))
