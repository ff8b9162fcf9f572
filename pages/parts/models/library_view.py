"""Library of the model files found: metadata, memory fit and speed of each; and files that cannot be used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.machine.memory import available_memory
from engine.models import BrokenFile, LibraryEntry, find_places
from engine.models.details import readable
from engine.models.uploaded import MOST_BYTES
from engine.units import NOT_MEASURED, counted, parameters
from engine.workbench import Workbench
from engine.workbench.model_library import LibraryModel, look_at
from pages.parts import address, number_columns
from pages.parts.benchmark import task_button
from pages.parts.labels import one_line
from pages.parts.models import place
from pages.parts.models.alike import distinguishing_ends
from pages.parts.notice import attempt, notice
from pages.parts.plain import plain
from pages.parts.units import size

ROWS, OPENED = "models_rows", "models_opened"
ADDED, REFUSED, PATH = "models_added", "models_add_refused", "models_path"
MOST_MB = MOST_BYTES >> 20
NAME_WIDTH, HASH_DIGITS = 240, 12
NEEDS, IN_MEMORY, SPEED, PARAMETERS = "needs", "in RAM", "one sequence", "parameters"
IN_CACHE = "memory does not limit what fits in the processor's cache; a benchmark measures it."
HELPS = {
    NEEDS: "Weights, KV cache, buffers and process of one instance with 8 sequences of the trained context, up to "
    "2,048 tokens each",
    IN_MEMORY: "Share of the file that is in the page cache now",
    SPEED: "Tokens per second: the best measured here, else an upper limit, memory bandwidth of this machine / bytes "
    "of the weights that a token reads",
}


def show(bench: Workbench) -> None:
    """Draw the library; the name of a model opens it."""
    entries = place.library()
    try:
        limits = bench.bench.limits()
        models = look_at(entries, bench.history, limits)
    except EngineError as error:
        notice(error)
        limits, models = None, look_at(entries)
    st.markdown(plain(sentence(models)))
    _table(models)
    if limits is None:
        st.caption("The memory bandwidth of this machine is not measured yet; only measured speeds are shown.")
        task_button.button(
            bench, "Measure this machine · a few seconds", "straighten", "models_limits", bench.bench.measure_limits
        )
    elif unlimited := [model for model in models if model.speed is None]:
        st.caption(plain(f"{counted(len(unlimited), 'model')} without a speed: {IN_CACHE}"))
    task_button.show(bench)
    _add(bench)
    unusable([entry for entry in entries if isinstance(entry.file, BrokenFile)])
    _places()


def sentence(models: Sequence[LibraryModel]) -> str:
    """Return how many models there are, and how many of them fit."""
    total = sum(model.file.size for model in models)
    num_fitting = sum(model.needed.fits for model in models)
    fitting = "all fit" if num_fitting == len(models) else f"{num_fitting:,} fit"
    if len(models) == 1:
        fitting = "it fits" if num_fitting else "it does not fit"
    return (
        f"{counted(len(models), 'model')}, {size(total)}; {fitting} into the {size(available_memory())} of memory that "
        "is free now."
    )


def _table(models: Sequence[LibraryModel]) -> None:
    table = frame(models)
    config = {
        **number_columns.formats(table, HELPS),
        "name": st.column_config.ButtonColumn(
            type="tertiary",
            alignment="left",
            pinned=True,
            width=NAME_WIDTH,
            key=OPENED,
            on_click=_open,
            args=([model.file.path for model in models],),
        ),
        **number_columns.counts("trained context", "vocabulary"),
    }
    in_words = table.style.format(na_rep=NOT_MEASURED).format(
        parameters, subset=table.columns.intersection([PARAMETERS])
    )
    st.dataframe(
        in_words, hide_index=True, key=ROWS, placeholder=NOT_MEASURED, column_config=config,
        alt="Model files found here",
    )  # fmt: skip


def frame(models: Sequence[LibraryModel]) -> pd.DataFrame:
    """Return one row per model."""
    files = [model.file for model in models]
    speeds = [model.speed for model in models]
    ends = distinguishing_ends({file.path: place.label_of(file) for file in files})
    columns: dict[str, list[Any]] = {
        "name": [one_line(" · ".join(filter(None, (model.entry.name, ends[model.file.path])))) for model in models],
        "quantisation": [file.quantisation for file in files],
        **number_columns.scaled("size", "B", [file.size for file in files]),
        PARAMETERS: [file.num_parameters for file in files],
        **number_columns.scaled(NEEDS, "B", [model.needed.total for model in models]),
        "fits": ["fits" if model.needed.fits else "too large" for model in models],
        **number_columns.scaled(IN_MEMORY, "", [model.resident for model in models]),
        **number_columns.scaled(SPEED, "tok/s", [speed and speed.decode_per_s for speed in speeds]),
        "source of speed": [speed and speed.provenance for speed in speeds],
        "engine": [file.engine for file in files],
        "architecture": [one_line(file.architecture) for file in files],
        "trained context": [file.n_ctx_train for file in files],
        "vocabulary": [file.n_vocab for file in files],
        "chat template": ["yes" if file.chat_template else "no" for file in files],
        "licence": [one_line(file.license) or None for file in files],
        "files": [file.parts for file in files],
        "place": [model.entry.place.name for model in models],
        "file": [one_line(model.entry.label) for model in models],
        "SHA-256": [(model.entry.sha256 or "")[:HASH_DIGITS] or None for model in models],
    }
    return pd.DataFrame(columns).dropna(axis="columns", how="all")


def _open(paths: Sequence[Path]) -> None:
    row = st.session_state[OPENED].row
    if row < len(paths):
        place.go(place.LIBRARY, paths[row])


def _add(bench: Workbench) -> None:
    """Draw the ways to a file that is not listed: dropped into the models folder, or opened where it is."""
    folder = readable(bench.settings.models)
    grid = st.grid(2, min_column_width=320, gap="medium")
    with grid.cell():
        st.file_uploader(
            plain(f"Add a GGUF file of up to {MOST_MB} MB: it is copied to {folder}"), "gguf", key=ADDED,
            max_upload_size=MOST_MB, on_change=_take_file, args=(bench,),
            help="Its header is checked first; memory holds the file until it is copied, hence the limit",
        )  # fmt: skip
        if (error := st.session_state.get(REFUSED)) is not None:
            notice(error)
    with grid.cell():
        st.text_input(
            "Open a larger file by its path: it stays where it is", key=PATH, on_change=_open_path,
            placeholder="/path/of/a/model.gguf",
        )  # fmt: skip


def _take_file(bench: Workbench) -> None:
    """Copy the file that was dropped and open its model; a failure is shown below."""
    file = st.session_state[ADDED]
    st.session_state[REFUSED] = None
    if file is not None:
        attempt(REFUSED, lambda: place.go(place.LIBRARY, bench.files.add(file.name, file)))


def _open_path() -> None:
    if path := st.session_state[PATH].strip():
        address.put("model", path)


def unusable(entries: Sequence[LibraryEntry]) -> None:
    """Draw the files that look like models but cannot be used, with the reason."""
    if not entries:
        return
    st.caption(f"{counted(len(entries), 'file')} cannot be used.")
    rows = [
        {
            "file": one_line(entry.label or entry.name),
            "place": entry.place.name,
            "reason": one_line(_reason(entry.file)),
        }
        for entry in entries
        if isinstance(entry.file, BrokenFile)
    ]
    st.dataframe(rows, hide_index=True, key="models_broken", alt="Files that cannot be used")


def _reason(file: BrokenFile) -> str:
    """Return the reason without the path of the file, which has a column of its own."""
    return file.reason.removeprefix(f"{readable(file.path)}: ")


def _places() -> None:
    """Show the folders that were searched."""
    searched = " · ".join(f"{place.name}: {readable(place.folder)}" for place in find_places())
    st.caption(plain(f"Searched {searched}. Set LOGITBENCH_MODELS to search other folders."))
