"""Download: the catalogue with each model's memory need and estimated speed, and any repository of the hub."""

import math
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.machine.limits import Limits
from engine.machine.memory import available_memory
from engine.models.catalogue import READABLE_PER_S, Catalogue, Choice, Entry, choices, read_catalogue
from engine.models.details import readable
from engine.models.hub import Repository, read_repository
from engine.units import NOT_MEASURED, counted, quantity
from engine.workbench import Workbench
from pages.parts import number_columns
from pages.parts.address import bound, put
from pages.parts.benchmark import task_button
from pages.parts.labels import distinct, one_line
from pages.parts.models import file_task, place
from pages.parts.notice import notice
from pages.parts.plain import plain

NAME = "get"
"""Query parameter of the URL: a name of the catalogue, or a repository."""

ROWS, TYPED, LISTED, CHOSEN = "models_get_rows", "models_get_name", "models_get_listed", "models_get_choice"
NAME_WIDTH = 220
NEEDS, SPEED = "needs here", "at most"
HELPS = {
    NEEDS: "weights, KV cache of one sequence of up to 4,096 tokens, buffers and process; for a folder, with torch",
    SPEED: "text model, tokens generated per second: memory bandwidth of this machine / file size; embedding model, "
    "texts of 100 tokens per second: operations per second of this machine / (2 × parameters × tokens)",
}


def show(bench: Workbench) -> None:
    """Draw the catalogue and the selected model."""
    file_task.show(bench)
    catalogue = read_catalogue()
    limits = _limits(bench)
    st.markdown(plain(sentence(catalogue, limits)))
    _table(bench, catalogue.entries, limits)
    st.caption(plain(f"Catalogue of {catalogue.dated}: {catalogue.source}."))
    name = st.query_params.get(NAME, "")
    st.text_input(
        "Model", **bound(NAME, TYPED, name), placeholder="Select a row above, or type owner/name of any repository",
        help="A repository on the Hugging Face hub, owner/name@revision, or the URL of its page",
    )  # fmt: skip
    if name.strip():
        _chosen(bench, catalogue, name.strip())


def sentence(catalogue: Catalogue, limits: Limits | None) -> str:
    """Return how many models of the catalogue fit, the largest of them, and the largest that is fast."""
    free = available_memory()
    num_fitting = sum(entry.needed_bytes() <= free for entry in catalogue.entries)
    said = f"{num_fitting:,} of {counted(len(catalogue.entries), 'model')} fit into the {quantity(free, 'B')} free now."
    bandwidth = limits.bandwidth_bytes_per_s if limits else math.nan
    largest, readable = catalogue.picks(free, bandwidth)
    if largest is not None:
        speed = f", at most {quantity(largest.tokens_per_s(bandwidth), 'tok/s')}" if limits else ""
        said += f" The largest text model: {_named(largest)}{speed}."
    if readable is not None and readable is not largest:
        reaches = quantity(readable.tokens_per_s(bandwidth), "tok/s")
        said += f" The largest that may reach {READABLE_PER_S:g} tok/s: {_named(readable)}, at most {reaches}."
    return said


def _named(entry: Entry) -> str:
    return f"{entry.title} {entry.quantisation}"


def frame(bench: Workbench, entries: Sequence[Entry], limits: Limits | None) -> pd.DataFrame:
    """Return one row per model."""
    free = available_memory()
    reads, multiplies = (limits.bandwidth_bytes_per_s, limits.flops) if limits else (math.nan, math.nan)
    return pd.DataFrame(
        {
            "model": [entry.title for entry in entries],
            "for": [entry.kind for entry in entries],
            **number_columns.scaled("size", "B", [entry.size_bytes for entry in entries]),
            "quantisation": [entry.quantisation or None for entry in entries],
            **number_columns.scaled(NEEDS, "B", [entry.needed_bytes() for entry in entries]),
            "fits": ["fits" if entry.needed_bytes() <= free else "too large" for entry in entries],
            **number_columns.scaled(SPEED, "tok/s", [entry.tokens_per_s(reads) for entry in entries]),
            **number_columns.scaled(SPEED, "texts/s", [entry.texts_per_s(multiplies) for entry in entries]),
            "licence": [entry.license + (", gated" if entry.is_gated else "") for entry in entries],
            "here": ["here" if bench.files.kept(entry) else None for entry in entries],
            "note": [entry.note for entry in entries],
        }
    )


def _limits(bench: Workbench) -> Limits | None:
    try:
        return bench.bench.limits()
    except EngineError as error:
        notice(error)
        return None


def _table(bench: Workbench, entries: Sequence[Entry], limits: Limits | None) -> None:
    table = frame(bench, entries, limits)
    config = number_columns.formats(table, HELPS) | {
        "model": st.column_config.TextColumn(pinned=True, width=NAME_WIDTH)
    }
    st.dataframe(
        table, hide_index=True, key=ROWS, on_select=_take_row, selection_mode="single-row", placeholder=NOT_MEASURED,
        column_config=config, alt="Model catalogue",
    )  # fmt: skip
    if limits is None:
        task_button.button(
            bench, "Estimate speeds: measure this machine · a few seconds", "straighten", "models_get_limits",
            bench.bench.measure_limits,
        )  # fmt: skip
    task_button.show(bench)


def _take_row() -> None:
    rows = st.session_state[ROWS].selection.rows
    if rows:
        put(NAME, read_catalogue().entries[rows[0]].name)


def _chosen(bench: Workbench, catalogue: Catalogue, name: str) -> None:
    """Draw the download of a catalogue entry, or of a repository's files once they are listed."""
    entry = next((one for one in catalogue.entries if one.name == name), None)
    if entry is None and "/" not in name:
        st.caption(f":orange[{plain(f'{name} is not in the catalogue. Type owner/name for a repository on the hub.')}]")
        return
    kept = bench.files.kept(entry) if entry is not None else None
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if entry is not None and kept is None:
            _get(bench, f"Get {entry.title} · about {quantity(entry.size_bytes, 'B')}", name)
        if kept is not None and kept.is_file():
            st.button(
                "Open", icon=":material/open_in_new:", key="models_get_open", on_click=place.go,
                args=(place.LIBRARY, kept),
            )  # fmt: skip
        if st.button("List files", icon=":material/list:", key="models_get_list"):
            _list(entry.repository if entry else name)
    if entry is not None:
        st.caption(_needs(entry) + (plain(f" Already here: {readable(kept)}") if kept else ""))
    address, listed = st.session_state.get(LISTED, ("", None))
    if address == (entry.repository if entry else name):
        _of_repository(bench, address, listed, is_primary=entry is None or kept is not None)


def _get(bench: Workbench, label: str, name: str, wanted: str = "", *, is_primary: bool = True) -> None:
    st.button(
        plain(label), type="primary" if is_primary else "secondary", icon=":material/download:",
        key="models_get" if is_primary else "models_get_other", disabled=not file_task.is_free(bench),
        on_click=file_task.act, args=(lambda: bench.files.get(name, wanted),),
    )  # fmt: skip


def _needs(entry: Entry) -> str:
    needed, free = entry.needed_bytes(), available_memory()
    verdict = "it fits" if needed <= free else "it does not fit now"
    gated = " Gated: request access on its page, then log in with `hf auth login`." if entry.is_gated else ""
    said = (
        f"{entry.repository}, licence {entry.license}. Needs {quantity(needed, 'B')} of the {quantity(free, 'B')} of "
        f"memory that is free: {verdict}."
    )
    return plain(said) + gated


def _list(address: str) -> None:
    """List the repository on the hub, once; the result stays on the page."""
    with st.spinner("Querying the hub"):
        try:
            st.session_state[LISTED] = address, read_repository(address)
        except EngineError as error:
            st.session_state[LISTED] = address, error.bare()


def _of_repository(bench: Workbench, address: str, listed: Repository | EngineError, *, is_primary: bool) -> None:
    """Draw the models of a repository, and the button that downloads one."""
    if isinstance(listed, EngineError):
        notice(listed)
        return
    offered = choices(listed)
    licence = one_line(listed.license) or "not given"
    st.caption(plain(f"{listed.name} · licence {licence}{' · gated' if listed.is_gated else ''}"))
    if not offered:
        st.caption("It has no GGUF file and no sentence-transformers folder with safetensors.")
        return
    labels = distinct({number: _label(choice) for number, choice in enumerate(offered)})
    number = st.selectbox("File", list(labels), format_func=labels.__getitem__, key=CHOSEN)
    choice = offered[number]
    _get(bench, f"Get {quantity(choice.num_bytes, 'B')}", address, choice.name, is_primary=is_primary)


def _label(choice: Choice) -> str:
    parts = f" in {counted(len(choice.files), 'file')}" if len(choice.files) > 1 else ""
    return f"{choice.name} · {quantity(choice.num_bytes, 'B')}{parts}"
