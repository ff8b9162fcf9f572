"""Quantisation: the size of each type, making a file of one of them, and measuring all files of a model."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import streamlit as st

from engine.bench.planning.quantisations import SEQUENCES, quantisations_plan
from engine.errors import EngineError
from engine.models import ModelFile
from engine.models.details import readable
from engine.models.quantisations import FLOATS, Offer, offers, variants
from engine.models.shapes import SHAPES, shape_named
from engine.models.synthetic import QUANTISATIONS, weights_bytes
from engine.units import NOT_MEASURED, quantity
from engine.workbench import Workbench
from engine.workbench.model_files import quantisation_path
from pages.parts import number_columns
from pages.parts.address import bound, put
from pages.parts.benchmark import plan_editor
from pages.parts.models import file_task, place
from pages.parts.notice import notice
from pages.parts.plain import plain

MODEL, TYPE = "model", "type"
"""Query parameters of the URL."""

KEY = "models_quantise_"
ROWS, IMATRIX, AGAIN = f"{KEY}rows", f"{KEY}imatrix", f"{KEY}again"
USUAL = "Q4_K_M"
HELPS = {
    "size": "file size with the types that llama.cpp chooses for the tensors",
    "of the source": "size of the file / size of the model's file",
    "bits per weight": "over all tensors",
}


def show(bench: Workbench) -> None:
    """Draw the model, the types, and the actions on them."""
    file_task.show(bench)
    files = {path: file for path, file in place.models().items() if not file.is_folder}
    source = _source(bench, files)
    if source is not None:
        _types(bench, source)
        _measured(source, list(files.values()))
    _synthetic(bench)


def frame(source: ModelFile, offered: Sequence[Offer]) -> pd.DataFrame:
    """Return one row per type; a reason against most of them is said once above the table, not in each row."""
    shared = _shared_refusal(offered)
    sizes = [offer.num_bytes or None for offer in offered]
    return pd.DataFrame(
        {
            "type": [offer.name for offer in offered],
            **number_columns.scaled("size", "B", sizes),
            **number_columns.scaled("of the source", "", [size and size / source.size for size in sizes]),
            "bits per weight": [offer.bits_per_weight or math.nan for offer in offered],
            "can be made": ["no" if offer.refusal else "yes" for offer in offered],
            "remark": [offer.remark if offer.refusal == shared else _remark(offer) for offer in offered],
        }
    )


def _remark(offer: Offer) -> str:
    return "; ".join(filter(None, (offer.refusal, offer.remark)))


def _source(bench: Workbench, files: Mapping[str, ModelFile]) -> ModelFile | None:
    """Draw the choice among the listed models and the one in the URL; return the selected model."""
    found = dict(files)
    asked = place.model()
    if asked and asked not in found:
        try:
            found[asked] = place.find(asked)
        except EngineError as error:
            notice(error)
    labels, shown = place.labels(found), place.at_first(bench, found)
    chosen = st.selectbox("Model", list(found), format_func=labels.__getitem__, **bound(MODEL, f"{KEY}model", shown))
    return found.get(chosen)


def _types(bench: Workbench, source: ModelFile) -> None:
    """Draw the button that makes the recommended type; the other types and the options under Advanced."""
    if bench.bench.running is not None:
        st.caption("A benchmark is running; the types are listed when it ends.")
        return
    is_quantised = source.quantisation not in FLOATS
    imatrix = st.session_state.get(IMATRIX, "").strip()
    may_requantise = is_quantised and st.session_state.get(AGAIN, False)
    try:
        offered = _offers(str(source.path), _state(source), imatrix, may_requantise)
    except EngineError as error:
        offered = ()
        notice(error)
    able = {offer.name: offer for offer in offered if not offer.refusal}
    if able:
        _make(bench, source, able, imatrix, may_requantise)
    if offered:
        _caption_of_chosen(offered)
    if is_quantised:
        st.toggle("Allow quantising again", key=AGAIN, help="The result is worse than from the original")
    with st.expander("Advanced: all types, importance matrix", key=f"{KEY}advanced"):
        st.text_input(
            "Importance matrix", key=IMATRIX, placeholder="path of a file written by llama-imatrix",
            help="How much each column of a tensor matters; types below 3 bits need one",
        )  # fmt: skip
        _table(source, offered)


def _table(source: ModelFile, offered: Sequence[Offer]) -> None:
    """Draw the types; choosing a row chooses its type."""
    if not offered:
        return
    table = frame(source, offered)
    st.space("small")  # space for the table's own buttons, which would cover the controls above
    st.dataframe(
        table, hide_index=True, key=ROWS, on_select=partial(_take_row, offered), selection_mode="single-row",
        placeholder=NOT_MEASURED,
        column_config=number_columns.formats(table, HELPS) | {"remark": st.column_config.TextColumn(width="large")},
        alt="Types that the model may be quantised to",
    )  # fmt: skip


def _caption_of_chosen(offered: Sequence[Offer]) -> None:
    """Draw the remark on the type in the URL, else the reason against most types, if there is one."""
    chosen = next((offer for offer in offered if offer.name == st.query_params.get(TYPE, "")), None)
    if chosen is not None and _remark(chosen):
        st.caption(plain(f"{chosen.name}: {_remark(chosen)}."))
    elif shared := _shared_refusal(offered):
        st.caption(plain(f"{shared[:1].upper()}{shared[1:]}."))


def _shared_refusal(offered: Sequence[Offer]) -> str:
    """Return the reason against more than half of the types; empty where there is none."""
    (refusal, count), *_others = Counter(offer.refusal for offer in offered).most_common()
    return refusal if 2 * count > len(offered) else ""


def _make(bench: Workbench, source: ModelFile, able: dict[str, Offer], imatrix: str, may_requantise: bool) -> None:
    """Draw the choice of a type, the recommended one at first, and the button that makes it."""
    asked = st.query_params.get(TYPE, "")
    shown = next(name for name in (asked, USUAL, *able) if name in able)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = st.selectbox("Type", list(able), **bound(TYPE, f"{KEY}type", shown), width=160)
        target = quantisation_path(source, name, bench.settings)
        is_here = target.exists()
        st.button(
            plain(f"Make {name} · {quantity(able[name].num_bytes, 'B')}"), type="primary", icon=":material/compress:",
            key=f"{KEY}make", disabled=is_here or not file_task.is_free(bench), on_click=file_task.act,
            args=(
                lambda: bench.files.quantise(
                    source.path, name, imatrix=Path(imatrix) if imatrix else None, may_requantise=may_requantise
                ),
            ),
        )  # fmt: skip
    share = quantity(able[name].num_bytes / source.size, "")
    usual = " and the usual choice" if name == USUAL else ""
    where = f"{readable(target)} already exists." if is_here else f"Written to {readable(target)}"
    st.caption(plain(f"{share} of the size of this file{usual}. {where}"))


def _take_row(offered: Sequence[Offer]) -> None:
    rows = st.session_state[ROWS].selection.rows
    if rows and rows[0] < len(offered):
        put(TYPE, offered[rows[0]].name)


def _state(source: ModelFile) -> tuple[int, int]:
    """Return size and mtime, which change with the file; zeros if it is gone, which is reported when it is read."""
    try:
        status = source.path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


@st.cache_data(max_entries=8, show_spinner="Computing the size of each type")
def _offers(path: str, state: tuple[int, int], imatrix: str, may_requantise: bool) -> tuple[Offer, ...]:
    return offers(place.find(path), imatrix=imatrix or None, may_requantise=may_requantise)


def _measured(source: ModelFile, files: Sequence[ModelFile]) -> None:
    """Draw a button to the plan that measures all files of this model, the largest as the original."""
    family = sorted(variants(source, files), key=lambda file: -file.size)
    formats = ", ".join(file.quantisation for file in family)
    counts = f"{', '.join(map(str, SEQUENCES[:-1]))} and {SEQUENCES[-1]}"
    if len(family) < 2:
        st.caption(f"With a second file of this model, you can compare them at {counts} sequences.")
        return
    st.caption(
        plain(
            f"Files here: {formats}. Measures speed at {counts} sequences, and how far the answers differ from "
            f"{family[0].quantisation}."
        )
    )
    if st.button(f"Measure all {len(family)} files", icon=":material/speed:", key=f"{KEY}measure"):
        plan_editor.fill(quantisations_plan([file.path for file in family]))
        st.switch_page("benchmark.py", query_params={"question": "speed"})


def _synthetic(bench: Workbench) -> None:
    """Draw the form for a model of random weights.

    It is as fast and as large as a real one of its shape, for machines that may not download one.
    """
    with st.popover("Make a synthetic model", icon=":material/casino:", key=f"{KEY}synthetic"):
        st.caption("Random weights in the shape of a known model: same speed and size, meaningless output.")
        shape = st.selectbox("Shape", list(SHAPES), key=f"{KEY}shape")
        quantisation = st.selectbox("Quantisation", QUANTISATIONS, key=f"{KEY}quantisation")
        st.button(
            plain(f"Write {quantity(weights_bytes(shape_named(shape), quantisation), 'B')}"), key=f"{KEY}write",
            disabled=not file_task.is_free(bench), on_click=file_task.act,
            args=(lambda: bench.files.synthesise(shape, quantisation),),
        )  # fmt: skip
