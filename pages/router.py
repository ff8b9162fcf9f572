"""Frame of every page: navigation, and below it the model bar and the job tray.

The address without a path or a query opens the Prompt lab at the first visit, and the Overview once somebody has run
something: that is then what a person comes back to.
"""

from pathlib import Path

import streamlit as st
from streamlit.navigation.page import Page

from engine.errors import EngineError
from engine.workbench import current
from pages.parts import job_tray, model_bar, palette
from pages.parts.notice import notice

PARTS = Path(__file__).parent / "parts"
ICON, LOOK = PARTS / "icon.svg", PARTS / "look.css"
OPENED = "router_opened"  # in the session state once the session has run
OVERVIEW = st.Page("overview.py", title="Overview", icon=":material/dashboard:")
LAB = st.Page("prompt_lab.py", title="Prompt lab", icon=":material/edit_note:", default=True)
BENCHMARK = st.Page("benchmark.py", title="Benchmark", icon=":material/speed:")
COMPARE = st.Page("compare.py", title="Compare", icon=":material/compare_arrows:")
HISTORY = st.Page("history.py", title="History", icon=":material/history:")
MODELS = st.Page("models.py", title="Models", icon=":material/deployed_code:")
EMBEDDINGS = st.Page("embeddings.py", title="Embeddings", icon=":material/scatter_plot:")
SECTIONS = {
    "": [OVERVIEW],
    "Explore": [
        LAB,
        COMPARE,
        st.Page("traffic.py", title="Traffic", icon=":material/swap_vert:"),
    ],
    "Measure": [
        BENCHMARK,
        HISTORY,
        st.Page("cost.py", title="Cost", icon=":material/payments:"),
    ],
    "Library": [MODELS, EMBEDDINGS],
}
WATCHED = {
    job_tray.OVERVIEW: OVERVIEW,
    job_tray.LAB: LAB,
    job_tray.BENCHMARK: BENCHMARK,
    job_tray.COMPARE: COMPARE,
    job_tray.HISTORY: HISTORY,
    job_tray.MODELS: MODELS,
    job_tray.EMBEDDINGS: EMBEDDINGS,
}


def is_coming_back(page: Page) -> bool:
    """Return True for the first run of a session at the address without a query, where something was run before."""
    is_first = not st.session_state.get(OPENED, False)
    st.session_state[OPENED] = True
    history = current().history
    if not is_first or page is not LAB or st.query_params or history is None:
        return False
    try:
        return history.activity.is_used()
    except EngineError:  # the page shows it
        return False


st.set_page_config(page_title="Logitbench", page_icon=str(ICON), layout="wide")
st.html(LOOK)
page = st.navigation(SECTIONS)
if is_coming_back(page):
    st.switch_page(OVERVIEW)
palette.follow()
with st.sidebar:
    palette.show()
    model_bar.show()
    job_tray.show(WATCHED)
try:
    page.run()
except EngineError as error:  # errors that the page does not handle, such as a history closed by a disk failure
    notice(error)
