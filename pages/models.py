"""Models: the files found here, what each says of itself, whether it fits, how to get or make others, and what loading
one does to another."""

import streamlit as st

from engine.workbench import current
from pages.parts.models import fit_view, get_view, library_view, model_view, order_view, place, quantise_view

bench = current()
st.title("Models", anchor=False)
view = place.view_control()
if view == place.FIT:
    fit_view.show(bench)
elif view == place.GET:
    get_view.show(bench)
elif view == place.QUANTISE:
    quantise_view.show(bench)
elif view == place.ORDER:
    order_view.show(bench)
elif place.model():
    model_view.show(bench)
else:
    library_view.show(bench)
