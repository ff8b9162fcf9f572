"""Memory fit of any model before loading: one here, of the catalogue, or described in words; with its likely speed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.machine.limits import Limits
from engine.models import LibraryEntry, ModelFile, embedded_model
from engine.models.catalogue import Entry, read_catalogue
from engine.models.described import EXAMPLES, Described, described, smaller_that_fits
from engine.models.details import readable
from engine.models.experts import active_parameters, experts_of, weights_read
from engine.models.fit import (
    SEQUENCES,
    FitRow,
    MachineMemory,
    cache_arithmetic,
    contexts_for,
    fit_row,
    grid,
    longest_context,
    machine_memory,
    notes_example,
)
from engine.specs import KV_TYPES, PoolSpec
from engine.units import NOT_MEASURED, digits, parameters, quantity
from engine.workbench import Workbench
from engine.workbench.model_library import Speed, speed_of
from engine.workbench.model_manager import default_spec
from pages.parts import address, number_columns
from pages.parts.benchmark import task_button
from pages.parts.benchmark.charts import draw
from pages.parts.labels import distinct
from pages.parts.models import fit_charts, place
from pages.parts.notice import notice
from pages.parts.plain import plain

ASK = "ask"
"""Query parameter of the URL: a model described in words, instead of the path of one."""

CHOSEN = "fit_model"
EXAMPLE_LABEL = "Example from the notes: 540 B parameters"
MOST_INSTANCES = 64
USUAL_CONTEXT = 4096
HELPS = {
    "context": "tokens per sequence",
    "KV cache": "keys and values of every layer, for all tokens of all sequences",
    "buffers": "llama.cpp's compute buffers and the logits",
    "processes": "the interpreter and libraries of each instance",
    "total": "estimated before loading",
}
ABOUT_WINDOWS = (
    "Some layers of this model attend only to a sliding window. The pool stores their whole context so that prefixes "
    "can be reused; the column “KV, windows only” shows what the windows alone need."
)


class Subject(NamedTuple):
    """The model in question. title: as the answer names it; basis: where the dimensions come from.

    words: what was understood of a model in words, None for a file and for the example.
    """

    model: ModelFile
    title: str
    basis: str = "dimensions of its file"
    words: Described | None = None

    @property
    def is_example(self) -> bool:
        """True for the model of the notes."""
        return not self.basis


class Asked(NamedTuple):
    """The planned pool of a model: `sequences` of `n_ctx` tokens each, over all instances."""

    model: ModelFile
    spec: PoolSpec
    n_ctx: int
    sequences: int
    all_sequences: tuple[int, ...]


def show(bench: Workbench) -> None:
    """Draw the view for the model in the URL, else the one that is loaded."""
    entries = [entry for entry in place.library() if isinstance(entry.file, ModelFile)]
    given = st.query_params.get(ASK, "").strip() or place.model() or _usual(bench)
    _choose(entries, given)
    try:
        subject = _subject(entries, given)
        asked = _asked(subject)
        _shown(bench, subject, asked)
    except EngineError as error:
        notice(error)


def _usual(bench: Workbench) -> str:
    loaded = bench.model.path
    return readable(loaded if loaded is not None and loaded.exists() else embedded_model())


def _choose(entries: Sequence[LibraryEntry], given: str) -> None:
    """Draw the choice among the models here and of the catalogue, which also takes a model in words."""
    here = {readable(entry.file.path): _label(entry) for entry in entries}
    offered = {
        f"{entry.title} {entry.quantisation}": f"{entry.title} · {entry.quantisation} · catalogue"
        for entry in read_catalogue().entries
        if entry.kind == "text"
    }
    shown = distinct({given: given, **place.distinct_by_file(here), **offered, place.EXAMPLE: EXAMPLE_LABEL})
    st.session_state[CHOSEN] = given
    st.selectbox(
        "Model", list(shown), format_func=lambda value: shown.get(value, value), key=CHOSEN, accept_new_options=True,
        on_change=_take, args=(frozenset({*here, place.EXAMPLE}),),
        help=f"One of the list, or any other as you would write it, such as {EXAMPLES}",
    )  # fmt: skip


def _label(entry: LibraryEntry) -> str:
    quantisation = entry.file.quantisation if isinstance(entry.file, ModelFile) else ""
    return f"{entry.name} · {quantisation} · here"


def _take(paths: frozenset[str]) -> None:
    """Write the chosen or typed model to the URL."""
    value = (st.session_state[CHOSEN] or "").strip()
    for name in (ASK, "model"):
        address.put(name, value if (name == "model") is (value in paths) else "")


def _subject(entries: Sequence[LibraryEntry], given: str) -> Subject:
    """Return the model that the URL means: a file by its path or name, else one in words. Raises EngineError."""
    if given == place.EXAMPLE:
        return Subject(notes_example().model, "The example", basis="")
    named = {given.casefold()}
    file = next((entry.file for entry in entries if named & {entry.name.casefold(), entry.label.casefold()}), None)
    if os.sep in given or given == place.model():
        file = place.find(given)
    if isinstance(file, ModelFile):
        return Subject(file, f"{readable(file.name)} at {file.quantisation}")
    found = described(given)
    return Subject(found.model, found.title, found.basis, found)


def _asked(subject: Subject) -> Asked:
    """Return the values of the controls, which are bound to the URL. Raises ConfigError for an impossible pool."""
    model, is_example = subject.model, subject.is_example
    usual = PoolSpec(share_weights=True) if is_example else default_spec(model)
    example_sequences = (*SEQUENCES, 128, 256, 512) if is_example else SEQUENCES
    lengths = contexts_for(model)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        n_ctx = _select("n_ctx", "Context", lengths, min(lengths, key=lambda each: abs(each - USUAL_CONTEXT)))
        sequences = _select("sequences", "Sequences", example_sequences, 512 if is_example else 1)
        with st.popover("Advanced", icon=":material/tune:", key="fit_advanced"):
            instances = _select("instances", "Instances", tuple(range(1, MOST_INSTANCES + 1)), 1)
            type_k = _select("type_k", "Keys", KV_TYPES, usual.type_k)
            type_v = _select("type_v", "Values", KV_TYPES, usual.type_v)
            shares = st.toggle(
                "Share weights",
                help="Instances share the file's pages; otherwise each repacks the weights for this processor",
                **address.bound("shared", "fit_shared",
                                st.query_params.get("shared", str(usual.share_weights)) == "True"),
            )  # fmt: skip
    spec = replace(usual, instances=instances, type_k=type_k, type_v=type_v, share_weights=shares)
    return Asked(model, spec, n_ctx, sequences, example_sequences)


def _select(name: str, label: str, offered: Sequence[Any], usual: Any) -> Any:
    """Draw a choice bound to the URL; a value in the URL that is not offered is ignored."""
    by_text = {str(value): value for value in offered}
    value = by_text.get(st.query_params.get(name, ""), usual)
    return st.selectbox(
        label, list(offered), format_func=lambda one: f"{one:,}" if isinstance(one, int) else one, width=160,
        **address.bound(name, f"fit_{name}", value),
    )  # fmt: skip


def _shown(bench: Workbench, subject: Subject, asked: Asked) -> None:
    """Draw the answer as a sentence, the speed, the two charts and the table."""
    row = fit_row(asked.model, asked.n_ctx, asked.sequences, asked.spec)
    longest = longest_context(asked.model, asked.sequences, asked.spec)
    memory = machine_memory()
    st.subheader(plain(sentence(subject, row, longest)), anchor=False)
    if experts := experts_text(subject.model):
        st.markdown(plain(experts))
    has_speed = not longest or _speed(bench, subject)
    st.caption(plain(_estimated(subject, asked, row, memory)))
    with st.container(horizontal=True, gap="small"):
        if not has_speed:
            task_button.button(
                bench, "Measure its speed limit · a few seconds", "straighten", "fit_limits", bench.bench.measure_limits
            )
        if subject.words is not None:
            _get(bench, subject.words.entry)
        if subject.words is not None and not row.fits:
            _smaller(subject.words, asked)
    task_button.show(bench)
    rows = grid(asked.model, (), asked.all_sequences, asked.spec)
    by_context = [one for one in rows if one.sequences == asked.sequences]
    by_sequences = [one for one in rows if one.n_ctx == asked.n_ctx]
    columns = st.grid(2, min_column_width=420, gap="large")
    with columns.cell():
        draw(fit_charts.over_context(by_context, memory), "fit_contexts")
    with columns.cell():
        draw(fit_charts.over_sequences(by_sequences, memory), "fit_sequences_chart")
    with st.expander("All context lengths and sequences", key="fit_all"):
        _table(rows)
        if any(one.kv_windowed < one.kv for one in rows):
            st.caption(ABOUT_WINDOWS)


def sentence(subject: Subject, row: FitRow, longest: int) -> str:
    """Return whether it fits, and the longest context that does."""
    about = "about " if subject.words is not None and subject.words.is_scaled else ""
    each = " each" * (row.sequences > 1)
    load = f"{row.n_ctx:,} tokens" if row.sequences == 1 else f"{row.sequences:,} sequences of {row.n_ctx:,} tokens"
    takes = f"{subject.title} takes {about}{quantity(row.total, 'B')} with {load}"
    if row.fits:
        more = f"; up to {longest:,} tokens{each} would" if longest > row.n_ctx else ""
        return f"{takes} and fits here{more}."
    if not longest:
        return f"{takes}, too much here at any context length."
    return f"{takes}, too much here; up to {longest:,} tokens{each} would fit."


def _estimated(subject: Subject, asked: Asked, row: FitRow, memory: MachineMemory) -> str:
    """Return what the answer is based on: dimensions, the cache's arithmetic, and the memory of this machine."""
    if subject.is_example:
        return f"{notes_example().says}. {_memory(memory)}"
    return f"Estimated from the {subject.basis}. {cache_arithmetic(asked.model, row, asked.spec)}. {_memory(memory)}"


def experts_text(model: ModelFile) -> str:
    """Return how much of a mixture of experts a token uses, in words; empty for other models."""
    experts = experts_of(model)
    if experts is None:
        return ""
    used = f"{parameters(active_parameters(model))} of its {parameters(model.num_parameters)} parameters"
    return f"Each token uses {used}: {experts.used} of {experts.total} experts of each layer."


def _speed(bench: Workbench, subject: Subject) -> bool:
    """Draw how fast one sequence is or may be; return False where the bandwidth of this machine is not measured."""
    try:
        limits = bench.bench.limits()
        speed = speed_of(subject.model, bench.history if subject.words is None else None, limits)
    except EngineError as error:
        notice(error)
        return True
    if speed is not None:
        st.markdown(plain(speed_text(subject.model, speed, limits)))
    elif limits is not None:
        st.markdown(
            plain(
                f"Its {quantity(subject.model.weights_bytes, 'B')} of weights fit in the processor's cache, so memory "
                "does not limit its speed; a benchmark measures it."
            )
        )
    else:
        st.markdown("How fast it would be depends on the memory bandwidth of this machine, which is not measured yet.")
    return speed is not None or limits is not None


def speed_text(model: ModelFile, speed: Speed, limits: Limits | None) -> str:
    """Return the speed of one sequence in words, with what it is based on."""
    if limits is None or speed.provenance == "measured here":
        return f"{digits(speed.decode_per_s)} tok/s with one sequence, the best measured here."
    return (
        f"At most {digits(speed.decode_per_s)} tok/s with one sequence, estimated: each token reads "
        f"{quantity(weights_read(model, 1), 'B')} of weights, and this machine reads "
        f"{quantity(limits.bandwidth_bytes_per_s, 'B')} per second."
    )


def _get(bench: Workbench, entry: Entry | None) -> None:
    """Draw the way to the file of a catalogue entry."""
    if entry is None:
        return
    kept = bench.files.kept(entry)
    if kept is not None:
        st.button("Open", icon=":material/open_in_new:", key="fit_open", on_click=place.go, args=(place.LIBRARY, kept))
        return
    st.button(
        plain(f"Get {entry.title} · {quantity(entry.size_bytes, 'B')}"), icon=":material/download:", key="fit_get",
        on_click=partial(st.query_params.from_dict, {"view": place.GET, "get": entry.name}),
    )  # fmt: skip


def _smaller(found: Described, asked: Asked) -> None:
    """Draw the way to the most precise smaller quantisation that fits."""
    smaller = smaller_that_fits(found, asked.n_ctx, asked.sequences, asked.spec)
    if smaller is not None:
        st.button(
            plain(f"{smaller.model.quantisation} fits: {quantity(smaller.model.size, 'B')} of weights"),
            icon=":material/compress:", key="fit_smaller", on_click=address.put, args=(ASK, smaller.title),
        )  # fmt: skip


def _memory(memory: MachineMemory) -> str:
    """Return the machine's memory, in words."""
    limit = "" if memory.limit is None else f", {quantity(memory.limit, 'B')} of it allowed by the cgroup"
    return f"Of {quantity(memory.total, 'B')} of memory{limit}, {quantity(memory.available, 'B')} is free now."


def _table(rows: Sequence[FitRow]) -> None:
    table = frame(rows)
    st.dataframe(
        table, hide_index=True, key="fit_table", placeholder=NOT_MEASURED, alt="Memory by sequences and context",
        column_config={
            **number_columns.formats(table, HELPS),
            **{column: st.column_config.NumberColumn(format="%,.2f", help=HELPS.get(column[:-4]))
               for column in table if column.endswith(", GB")},
            "context": st.column_config.NumberColumn(format="localized", help=HELPS["context"]),
        },
    )  # fmt: skip


def frame(rows: Sequence[FitRow]) -> pd.DataFrame:
    """Return one row per pool; bytes in the most readable unit."""
    parts: Mapping[str, list[int]] = {
        "weights": [row.weights for row in rows],
        "KV cache": [row.kv for row in rows],
        "buffers": [row.buffers for row in rows],
        "processes": [row.process for row in rows],
        "total": [row.total for row in rows],
    }
    if any(row.kv_windowed < row.kv for row in rows):
        parts = {**parts, "KV, windows only": [row.kv_windowed for row in rows]}
    figures = [number_columns.scaled(label, "B", values) for label, values in parts.items()]
    return pd.DataFrame(
        {
            "sequences": [row.sequences for row in rows],
            "context": [row.n_ctx for row in rows],
            "fits": ["fits" if row.fits else "too large" for row in rows],
            **{name: values for part in figures for name, values in part.items()},
        }
    )
