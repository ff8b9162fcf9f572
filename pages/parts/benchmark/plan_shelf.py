"""Saved plans by name: save the plan on the screen, open another, write one to a file or read one from a file."""

from collections.abc import Callable

import streamlit as st

from engine.bench.planning.plan import Plan
from engine.bench.planning.plan_file import plan_from_json, plan_to_json
from engine.errors import EngineError
from engine.workbench import Workbench
from pages.parts.benchmark import run_state
from pages.parts.notice import notice
from pages.parts.plain import plain

FILE = "shelf_file"
Fill = Callable[[Plan], None]
Read = Callable[[], Plan]


def show(bench: Workbench, read: Read, fill: Fill) -> None:
    """Draw a popover with the saved plans."""
    with st.popover("Plans", icon=":material/bookmarks:", key="shelf"):
        try:
            kept = bench.bench.plans()
        except EngineError as error:
            notice(error)
            kept = {}
        if not kept:
            st.caption("No saved plans yet. Name this plan under More, then save it.")
        for name, values in kept.items():
            _line(bench, name, values, fill)
        _this_one(bench, read)
        st.file_uploader("Plan file", "json", key=FILE, max_upload_size=4)
        st.button(
            "Open file",
            key="shelf_read",
            disabled=st.session_state.get(FILE) is None,
            on_click=_open_file,
            args=(fill,),
        )


def _line(bench: Workbench, name: str, values: dict[str, object], fill: Fill) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall"):
        st.button(
            plain(name, 40), key=f"shelf_open_{name}", type="tertiary", width="stretch", on_click=_open,
            args=(values, fill),
        )  # fmt: skip
        st.button(
            ":material/delete:", key=f"shelf_delete_{name}", type="tertiary", help="Delete this plan",
            on_click=run_state.act, args=(lambda: bench.bench.delete_plan(name),),
        )  # fmt: skip


def _this_one(bench: Workbench, read: Read) -> None:
    try:
        plan = read()
    except EngineError:
        return
    with st.container(horizontal=True, gap="small"):
        st.button(
            "Save this plan", icon=":material/bookmark_add:", key="shelf_keep", disabled=not plan.name,
            on_click=run_state.act, args=(lambda: bench.bench.save_plan(plan.name, plan),),
        )  # fmt: skip
        st.download_button(
            "Download", plan_to_json(plan), f"{plan.name or plan.question}.plan.json",
            "application/json", key="shelf_write", icon=":material/download:", on_click="ignore",
        )  # fmt: skip


def _open(values: dict[str, object], fill: Fill) -> None:
    run_state.act(lambda: _put(Plan.from_dict(values), fill))


def _open_file(fill: Fill) -> None:
    uploaded = st.session_state[FILE]
    text = uploaded.getvalue().decode("utf-8", "replace")
    run_state.act(lambda: _put(plan_from_json(text, uploaded.name), fill))


def _put(plan: Plan, fill: Fill) -> None:
    fill(plan)
    run_state.show_plan(plan.question)
