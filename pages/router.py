"""The frame of every page: navigation, and under it the model bar."""

from pathlib import Path

import streamlit as st

from pages.parts import model_bar

ICON = Path(__file__).parent / "parts" / "icon.svg"
SECTIONS = {
    "Explore": [st.Page("prompt_lab.py", title="Prompt lab", icon=":material/edit_note:", default=True)],
}

st.set_page_config(page_title="Logitbench", page_icon=str(ICON), layout="wide")
page = st.navigation(SECTIONS, position="hidden")
with st.sidebar:
    # Drawn here because Streamlit's own navigation hides itself while there is one page.
    for section, pages in SECTIONS.items():
        st.caption(section)
        for each in pages:
            st.page_link(each, width="stretch")
    st.space("small")
    model_bar.show()
page.run()
