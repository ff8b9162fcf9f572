"""Models page: model files found on this machine, their metadata, memory fit, download, quantisation and load order.

The load order view measures how loading one model affects another.
"""

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
