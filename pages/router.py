"""Frame of every page: navigation, and below it the model bar and the job tray."""

from pathlib import Path

import streamlit as st

from engine.errors import EngineError
from pages.parts import job_tray, model_bar
from pages.parts.notice import notice

PARTS = Path(__file__).parent / "parts"
ICON, LOOK = PARTS / "icon.svg", PARTS / "look.css"
LAB = st.Page("prompt_lab.py", title="Prompt lab", icon=":material/edit_note:", default=True)
BENCHMARK = st.Page("benchmark.py", title="Benchmark", icon=":material/speed:")
COMPARE = st.Page("compare.py", title="Compare", icon=":material/compare_arrows:")
HISTORY = st.Page("history.py", title="History", icon=":material/history:")
MODELS = st.Page("models.py", title="Models", icon=":material/deployed_code:")
EMBEDDINGS = st.Page("embeddings.py", title="Embeddings", icon=":material/scatter_plot:")
SECTIONS = {
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
    job_tray.LAB: LAB,
    job_tray.BENCHMARK: BENCHMARK,
    job_tray.COMPARE: COMPARE,
    job_tray.HISTORY: HISTORY,
    job_tray.MODELS: MODELS,
    job_tray.EMBEDDINGS: EMBEDDINGS,
}

st.set_page_config(page_title="Logitbench", page_icon=str(ICON), layout="wide")
st.html(LOOK)
page = st.navigation(SECTIONS)
with st.sidebar:
    model_bar.show()
    job_tray.show(WATCHED)
try:
    page.run()
except EngineError as error:  # errors that the page does not handle, such as a history closed by a disk failure
    notice(error)
