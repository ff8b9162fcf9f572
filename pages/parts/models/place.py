"""Where a person is on the Models page: the view and the model, which stand in the address."""

import os
from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from engine.models import LibraryEntry, ModelFile, find_model, read_library
from engine.models.details import readable
from engine.units import quantity
from engine.workbench import Workbench
from pages.parts import address
from pages.parts.labels import distinct

CONTROL = "models_view"
LIBRARY, FIT, GET, QUANTISE, ORDER = "library", "fit", "get", "quantise", "order"
EXAMPLE = "notes"
"""In place of a path: the model of the notes, of which there is no file."""

VIEWS = {LIBRARY: "Library", FIT: "Does it fit", GET: "Get", QUANTISE: "Quantise", ORDER: "Load order"}


def view_control() -> str:
    """The views; gives the one that is open, the library by default."""
    asked = st.query_params.get("view", "")
    view = asked if asked in VIEWS else LIBRARY
    st.session_state[CONTROL] = view
    st.segmented_control(
        "View", list(VIEWS), format_func=VIEWS.__getitem__, key=CONTROL, required=True, on_change=_choose,
        label_visibility="collapsed",
    )  # fmt: skip
    return view


def model() -> str:
    """The path of the model that the address names; empty where it names none."""
    return st.query_params.get("model", "")


def go(view: str, path: Path | None = None) -> None:
    """Open a view, of a model or of none; in a callback."""
    asked = {} if view == LIBRARY else {"view": view}
    st.query_params.from_dict({**asked, **({"model": readable(path)} if path else {})})


def _choose() -> None:
    """Open the chosen view: the library as a list, the others for the model that was looked at."""
    view, kept = st.session_state[CONTROL], model()
    go(view)
    if view != LIBRARY and kept != EXAMPLE:
        address.put("model", kept)


def library() -> list[LibraryEntry]:
    """All model files found here; a word about it where that takes long."""
    with st.spinner("Reading the model files"):
        return read_library()


def models() -> dict[str, ModelFile]:
    """Those of the library that can be used, by the path that stands in an address."""
    return {readable(entry.file.path): entry.file for entry in library() if isinstance(entry.file, ModelFile)}


def labels(files: Mapping[str, ModelFile]) -> dict[str, str]:
    """What models are called where one is chosen."""
    return distinct(
        {path: f"{file.name} · {file.quantisation} · {quantity(file.size, 'B')}" for path, file in files.items()}
    )


def at_first(bench: Workbench, files: Mapping[str, ModelFile]) -> str | None:
    """Which of them is shown: that of the address, else the one that is loaded, else the first; None of none."""
    loaded = readable(bench.model.path) if bench.model.path else ""
    return next((path for path in (model(), loaded, *files) if path in files), None)


def find(path: str) -> ModelFile:
    """The model that an address means. Raises EngineError where there is none that can be used."""
    if not os.path.exists(path):
        listed = models()
        if path in listed:
            return listed[path]
    return find_model(path)
