"""View of one model: header metadata, size by tensor, tokenizer and chat template."""

import math
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.models import ModelFile, by_size, by_type, details, estimate, model_hash
from engine.models.details import readable
from engine.models.identity import known_hashes
from engine.units import NOT_MEASURED, counted, parameters, quantity
from engine.workbench import Workbench
from engine.workbench.model_library import in_memory
from engine.workbench.model_manager import default_spec
from pages.parts import number_columns
from pages.parts.benchmark.charts import draw
from pages.parts.labels import one_line
from pages.parts.models import place, playground, tensor_charts
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import size

LONGEST_VALUE = 300
TEMPLATE_KEY = "tokenizer.chat_template"


def show(bench: Workbench) -> None:
    """Draw the model in the URL; if it cannot be read, the reason."""
    st.button(
        "Library", icon=":material/arrow_back:", type="tertiary", key="model_back", on_click=place.go,
        args=(place.LIBRARY,),
    )  # fmt: skip
    try:
        file = place.find(place.model())
        _head(bench, file)
    except EngineError as error:
        notice(error)
        return
    grid = st.grid(2, min_column_width=420, gap="large")
    with grid.cell():
        draw(tensor_charts.types(by_type(file)), "model_types")
    with grid.cell():
        draw(tensor_charts.largest(by_size(file)), "model_tensors")
    above = st.container()
    _metadata(file)
    _tensors(file)
    with above:
        playground.show(bench, file)


def _head(bench: Workbench, file: ModelFile) -> None:
    """Draw name, facts, memory, and the actions on the model."""
    needed = estimate(file, default_spec(file))
    st.subheader(plain(readable(file.name)), anchor=False)
    st.caption("  \n".join(plain(line) for line in _facts(file)))
    fits = "Fits" if needed.fits else "Does not fit"
    st.caption(plain(f"{fits}: {needed.arithmetic}."))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(
            "Load", type="primary", key="model_load", disabled=not needed.fits or bench.model.has_loaded(file.path),
            on_click=bench.model_manager.load, args=(file.path,), help="Replaces the model in the model bar",
        )  # fmt: skip
        for view in (place.FIT,) if file.is_folder else (place.FIT, place.QUANTISE):
            st.button(place.VIEWS[view], key=f"model_{view}", on_click=partial(place.go, view, file.path))
        _hash(file)


def _hash(file: ModelFile) -> None:
    """Draw the SHA-256 of the file if it is known, else a button that computes it; of a folder, that of all its
    files."""
    paths = file.files if file.is_folder else (file.path,)
    known = model_hash(file.path) if len(known_hashes(paths)) == len(paths) else None  # reads no file then
    help = f"Reads the whole {'folder' if file.is_folder else 'file'}: a few seconds per gigabyte"
    if known is None and st.button("SHA-256", type="tertiary", key="model_hash", help=help):
        with st.spinner(f"Reading the {'folder' if file.is_folder else 'file'}"):
            known = model_hash(file.path)
    if known is not None:
        st.caption(f"SHA-256 {known}")


def _facts(file: ModelFile) -> list[str]:
    split = f" in {file.parts:,} files" if file.parts > 1 else ""
    heads = sorted(set(file.n_head_kv))
    window = f" · sliding window {file.sliding_window:,}" if file.sliding_window else ""
    return [
        f"{file.architecture} · {parameters(file.num_parameters)} parameters · {file.quantisation} · "
        f"{size(file.size)}{split} · {file.license or 'no licence given'}",
        f"{counted(file.n_layer, 'layer')} of {file.n_embd:,} · {file.n_head:,} heads, "
        f"{'–'.join(f'{number:,}' for number in (heads[:1] + heads[1:][-1:]))} KV heads · vocabulary "
        f"{file.n_vocab:,} · trained context {file.n_ctx_train:,}{window}",
        f"{readable(file.path)} · {_resident(file)}",
    ]


def _resident(file: ModelFile) -> str:
    share = in_memory(file)
    return "in RAM: not measured here" if math.isnan(share) else f"{quantity(share, '')} in RAM"


def _metadata(file: ModelFile) -> None:
    """Draw all keys of the header, except the chat template, which is shown separately."""
    values = details(file)["metadata"]
    rows = [
        {"key": one_line(key), "value": one_line(_text(value), LONGEST_VALUE)}
        for key, value in values.items()
        if key != TEMPLATE_KEY
    ]
    with st.expander(f"Metadata · {counted(len(rows), 'key')}", key="model_metadata"):
        st.dataframe(rows, hide_index=True, alt="Metadata of the model")


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _tensors(file: ModelFile) -> None:
    """Draw the figures of the tensor groups."""
    groups = by_size(file)
    table = pd.DataFrame(
        {
            "tensor": [one_line(group.name) for group in groups],
            "stored as": [", ".join(group.types) for group in groups],
            "tensors": [group.num_tensors for group in groups],
            "values": [group.num_values for group in groups],
            **number_columns.scaled("size", "B", [group.num_bytes for group in groups]),
            "bits per value": [group.bits_per_value for group in groups],
        }
    )
    config = number_columns.formats(table, {}) | number_columns.counts("tensors", "values")
    with st.expander(f"Tensors · {len(file.tensors):,}", key="model_tensors_table"):
        st.dataframe(table, hide_index=True, column_config=config, placeholder=NOT_MEASURED, alt="Tensors of the model")
