"""Position on the Models page: the view and the model, both in the URL."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import streamlit as st

from engine.models import LibraryEntry, ModelFile, find_model, read_library
from engine.models.details import readable
from engine.units import quantity
from engine.workbench import Workbench
from pages.parts import address
from pages.parts.labels import distinct
from pages.parts.models.alike import distinguishing_ends

K = TypeVar("K", str, Path)
CONTROL = "models_view"
LIBRARY, FIT, GET, QUANTISE, ORDER = "library", "fit", "get", "quantise", "order"
EXAMPLE = "notes"
"""Used instead of a path: the model of the notes, of which there is no file."""

VIEWS = {LIBRARY: "Library", FIT: "Memory fit", GET: "Get", QUANTISE: "Quantise", ORDER: "Load order"}


def view_control() -> str:
    """Draw the views; return the open one, the library by default."""
    asked = st.query_params.get("view", "")
    view = asked if asked in VIEWS else LIBRARY
    st.session_state[CONTROL] = view
    st.segmented_control(
        "View", list(VIEWS), format_func=VIEWS.__getitem__, key=CONTROL, required=True, on_change=_choose,
        label_visibility="collapsed",
    )  # fmt: skip
    return view


def model() -> str:
    """Return the path of the model in the URL; empty if there is none."""
    return st.query_params.get("model", "")


def go(view: str, path: Path | None = None) -> None:
    """Open a view, of a model or of none; call in a callback."""
    asked = {} if view == LIBRARY else {"view": view}
    st.query_params.from_dict({**asked, **({"model": readable(path)} if path else {})})


def _choose() -> None:
    """Open the chosen view: the library as a list, the others for the current model."""
    view, kept = st.session_state[CONTROL], model()
    go(view)
    if view != LIBRARY and kept != EXAMPLE:
        address.put("model", kept)


def library() -> list[LibraryEntry]:
    """Return all model files found, with a spinner if that takes long."""
    with st.spinner("Reading the model files"):
        return read_library()


def models() -> dict[str, ModelFile]:
    """Return the usable models of the library, by their path in a URL."""
    return {readable(entry.file.path): entry.file for entry in library() if isinstance(entry.file, ModelFile)}


def labels(files: Mapping[str, ModelFile]) -> dict[str, str]:
    """Return the labels of models in a list of choices."""
    return distinct_by_file({path: label_of(file) for path, file in files.items()})


def distinct_by_file(labels: Mapping[K, str]) -> dict[K, str]:
    """Return the labels of models, by their paths, on one line each; where they are the same, with what differs."""
    ends = distinguishing_ends(labels)
    return distinct({path: " · ".join(filter(None, (label, ends[path]))) for path, label in labels.items()})


def label_of(file: ModelFile) -> str:
    """Return name and facts of a model."""
    return f"{readable(file.name)} · {facts_of(file)}"


def facts_of(file: ModelFile) -> str:
    """Return quantisation and size of a model, and that it is a folder, as in a list of choices."""
    return f"{file.quantisation} · {quantity(file.size, 'B')}{' · folder' if file.is_folder else ''}"


def at_first(bench: Workbench, files: Mapping[str, ModelFile]) -> str | None:
    """Return the model to show: that in the URL, else the loaded one, else the first; None if there are none."""
    loaded = readable(bench.model.path) if bench.model.path else ""
    return next((path for path in (model(), loaded, *files) if path in files), None)


def find(path: str) -> ModelFile:
    """Return the model that a path in the URL means. Raises EngineError if there is none that can be used."""
    if not os.path.exists(path):
        listed = models()
        if path in listed:
            return listed[path]
    return find_model(path)
