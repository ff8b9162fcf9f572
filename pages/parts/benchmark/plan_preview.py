"""Preview of a plan before launch: time, memory, smallest detectable difference, and refused configurations."""

import math
from collections.abc import Callable
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.bench.planning.plan import Plan
from engine.bench.planning.preview import Offer, Preview, share_of
from engine.errors import EngineError, sentence
from engine.units import HOUR_S, NOT_MEASURED, counted, duration, quantity
from engine.workbench import Workbench
from pages.parts import number_columns
from pages.parts.benchmark import on_nodes, run_state, workload_editor
from pages.parts.benchmark.axis_rows import Unreadable
from pages.parts.labels import calm_sign
from pages.parts.plain import plain

QUIETNESS_S = 3.0
FIGURE_WIDTH, GAP = 140, 16
HELPS = {"memory": "Estimate: weights, caches, buffers and processes", "time": "Estimate: loading and all rounds"}
MARKED = "A value below is not valid; its row says what is allowed."


def show(bench: Workbench, read: Callable[[], Plan]) -> Preview | None:
    """Draw the estimate and the one primary button; return None and show the reason if the plan must be fixed first."""
    try:
        plan = read()
        preview = bench.bench.preview(plan)
    except EngineError as error:
        problem = MARKED if isinstance(error, Unreadable) else sentence(error)
        st.caption(f":orange[{plain(problem)}]")
        st.button("Run", type="primary", icon=":material/play_arrow:", key="plan_run", disabled=True)
        return None
    _figures(plan, preview)
    running = bench.bench.running
    if preview.shortage:
        st.markdown(f":orange[:material/warning: {plain(preview.shortage)}]")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _raise(preview)
        st.button(
            f"{'Run without a verdict' if preview.offers else 'Run'} · about {duration(preview.seconds)}",
            type="secondary" if preview.offers else "primary", icon=":material/play_arrow:", key="plan_run",
            shortcut="Ctrl+Enter", disabled=running is not None or len(preview.refused) == len(preview.cells),
            on_click=run_state.start, args=(bench, read),
        )  # fmt: skip
        with st.container(key="plan_quiet"):
            _quietness(bench)
    on_nodes.offer(bench, read)
    if running is not None:
        st.caption("Another benchmark is running; this one can start when it ends.")
    st.caption(plain(preview.sentence.removesuffix(preview.shortage)))
    return preview


def _raise(preview: Preview) -> None:
    """Draw the button that gives a plan the rounds, or a search the time, of a verdict, where it has too few."""
    if not preview.offers:
        return
    offer, is_search = preview.offers[0], preview.plan.question == "settings"
    time = duration(offer.seconds)
    st.button(
        f"Raise the time to {time}" if is_search else f"Raise to {counted(offer.rounds, 'round')} · about {time}",
        type="primary", icon=":material/add:", key="plan_raise", on_click=_use, args=(offer, is_search),
        help=f"Detects differences of {share_of(offer.smallest_ratio)} or more",
    )  # fmt: skip


def _use(offer: Offer, is_search: bool) -> None:
    name, value = ("budget_min", offer.seconds / 60) if is_search else ("rounds", offer.rounds)
    st.session_state[workload_editor.PREFIX + name] = value


@st.fragment(run_every=QUIETNESS_S)
def _quietness(bench: Workbench) -> None:
    """Show whether the machine is quiet now, so that disturbances are known before the run."""
    now = bench.bench.quietness()
    if bench.bench.running is None:
        said = plain(now.sentence) if now else "Checking whether the machine is quiet…"
        st.caption(f"{calm_sign(None if now is None else now.is_quiet)} {said}")


def _figures(plan: Plan, preview: Preview) -> None:
    num_able = len(preview.cells) - len(preview.refused)
    memory = max((preview.memory_by_cell.get(cell.number, 0) for cell in preview.cells if not cell.refusal), default=0)
    times, needs = _pairs()
    with times:
        st.metric("Time", f"≈ {duration(preview.seconds)}", help="An estimate, refined during the run")
        st.metric(
            "Samples", f"{preview.num_samples:,}",
            help=f"{counted(num_able, 'configuration')} × {counted(plan.rounds, 'round')}, plus the repeated control",
        )  # fmt: skip
    with needs:
        st.metric(
            "Memory", quantity(memory, "B") if memory else NOT_MEASURED, help="Needed by the largest configuration"
        )
        st.metric(
            "Smallest difference", _least(preview.smallest_ratio),
            help="The smallest difference that four in five such runs would detect at this machine's usual noise",
        )  # fmt: skip


def _pairs() -> tuple[DeltaGenerator, DeltaGenerator]:
    """Return two grids for two figures each, which stand beside each other, or in a narrow window one below the other.

    One grid of four figures would break into three and one.
    """
    both = st.grid(2, min_column_width=2 * FIGURE_WIDTH + GAP, gap="small")
    first, second = (both.cell().grid(2, min_column_width=FIGURE_WIDTH, gap="small") for _ in range(2))
    return first, second


def _least(ratio: float) -> str:
    return share_of(ratio) if math.isfinite(ratio) else "no verdict"


def cells(preview: Preview) -> None:
    """Draw one line per configuration, with the reason for a refusal, or a note on what is unusual but allowed."""
    table = frame(preview)
    config = number_columns.formats(table, HELPS) | {"remark": st.column_config.TextColumn(width="large")}
    st.dataframe(
        table, hide_index=True, column_config=config, placeholder=NOT_MEASURED, alt="Configurations of the plan"
    )


def frame(preview: Preview) -> dict[str, list[Any]]:
    """Return the columns of the table; a configuration that is refused has no time."""
    planned, memory, seconds = preview.cells, preview.memory_by_cell, preview.seconds_by_cell
    hours = [None if cell.refusal else seconds.get(cell.number, math.nan) / HOUR_S for cell in planned]
    remarks = [cell.refusal or "; ".join(cell.notes) for cell in planned]
    return {
        "configuration": [cell.label for cell in planned],
        **number_columns.scaled("memory", "B", [memory.get(cell.number) for cell in planned]),
        **number_columns.scaled("time", "h", hours),
        **({"remark": remarks} if any(remarks) else {}),
    }
