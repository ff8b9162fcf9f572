"""The plan above a benchmark: what varies, what is asked, how often; what it will take stands beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from engine.bench.peers.arms import missing_arms
from engine.bench.planning.axes import AXES_BY_NAME
from engine.bench.planning.candidates import settings_plan
from engine.bench.planning.plan import GOALS, Objective, Plan, Question, Workload
from engine.bench.planning.presets import preset
from engine.bench.planning.prompts import read_prompts, sample_prompts
from engine.models import ModelFile, embedded_model, list_models
from engine.pool.placement import num_cores
from engine.workbench import Workbench
from pages.parts.benchmark import axis_rows, doing, plan_preview, plan_shelf
from pages.parts.plain import plain

PREFIX = "plan_"
OF, REST, KEPT = "plan_of", "plan_rest", "plan_kept"
WORKLOAD = ("num_prompt", "num_generated", "duration_s")
OWN = ("rounds", "seed", "timeout_s", "measures_cold", "compares_answers", "goal", "may_change_answers")
PRESETS: dict[Question, str] = {"speed": "quick", "settings": "settings", "python": "python", "users": "users"}
GOAL_LABELS = {
    "stream": "one stream", "throughput": "total speed", "first-token": "first token", "memory": "least memory",
}  # fmt: skip
PURPOSE: dict[Question, str] = {
    "speed": "Measures every combination of the values below, in shuffled rounds.",
    "settings": "Tries settings against llama.cpp's defaults and keeps the better half, until the time is used up.",
    "python": "Runs the same model through each way of calling llama.cpp, and shows where the time goes.",
    "users": "Raises the number of users until the first token or the speed of each is no longer good enough.",
}


def show(bench: Workbench, question: Question) -> None:
    """Draw the plan of a question; what was typed is kept for each of the four."""
    _open(bench, question)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(PURPOSE[question], width="stretch")
        plan_shelf.show(bench, read, fill)
    preview = plan_preview.show(bench, read)
    grid = st.grid(2, min_column_width=400, gap="large")
    with grid.cell():
        _model(bench)
        if question == "settings":
            _goal()
        if question == "users":
            _objective()
        axis_rows.show()
        if question == "python":
            _arms(bench)
        _fixed()
        _numbers(question)
        _more(question)
    with grid.cell():
        if preview is not None:
            plan_preview.cells(preview)


def read() -> Plan:
    """The plan on the screen; raises ConfigError naming what cannot be read."""
    state = st.session_state
    axes = axis_rows.read()
    rest = state[REST]
    workload = {name: state[PREFIX + name] for name in WORKLOAD if name not in axes}
    if state[PREFIX + "asked"] == "prompts":
        workload |= {"asked": "prompts", "prompts": read_prompts(state[PREFIX + "prompts"])}
    objective = {name: state[PREFIX + name] for name in ("ttft_s", "per_s")} | {"share": state[PREFIX + "share"] / 100}
    plan = Plan.from_dict(
        {
            **{name: state[PREFIX + name] for name in OWN},
            "name": state[PREFIX + "name"].strip(),
            "question": state[OF],
            "model": state[PREFIX + "model"] or "",
            "axes": axes,
            "pool": _unvaried(rest["pool"], axes),
            "workload": {**_unvaried(rest["workload"], axes), **workload},
            "objective": objective,
            "budget_s": 60.0 * state[PREFIX + "budget_min"],
        }
    )
    state[KEPT][plan.question] = plan
    return plan


def fill(plan: Plan) -> None:
    """Put a plan on the screen; only before the widgets are drawn, or in a callback."""
    state = st.session_state
    workload, objective = Workload.from_dict(plan.workload), Objective.from_dict(plan.objective)
    axis_rows.fill(plan.axes)
    for name in OWN:
        state[PREFIX + name] = getattr(plan, name)
    for name in WORKLOAD:
        state[PREFIX + name] = getattr(workload, name)
    state[PREFIX + "name"], state[PREFIX + "model"] = plan.name, plan.model
    state[PREFIX + "budget_min"] = plan.budget_s / 60
    state[PREFIX + "ttft_s"], state[PREFIX + "per_s"] = float(objective.ttft_s), float(objective.per_s)
    state[PREFIX + "share"] = round(100 * objective.share)
    state[PREFIX + "asked"], state[PREFIX + "prompts"] = workload.asked, _as_lines(workload.prompts)
    edited = (*WORKLOAD, "asked", "prompts")
    state[REST] = {
        "pool": dict(plan.pool),
        "workload": {name: value for name, value in plan.workload.items() if name not in edited},
    }
    state.setdefault(KEPT, {})[plan.question] = plan
    state[OF] = plan.question


def _unvaried(fixed: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan fixes, without what an axis varies; a layout is instances and threads at once."""
    taken = {*axes, "instances", "threads"} if "layout" in axes else set(axes)
    return {name: value for name, value in fixed.items() if name not in taken}


def _as_lines(prompts: tuple[str, ...]) -> str:
    """Prompts as they are typed: one a line, as JSON lines where one of them has several lines itself."""
    if any("\n" in prompt or prompt.startswith("{") for prompt in prompts):
        return "\n".join(json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts)
    return "\n".join(prompts)


def _open(bench: Workbench, question: Question) -> None:
    if st.session_state.get(OF) != question:
        kept = st.session_state.get(KEPT, {}).get(question)
        fill(kept or preset(PRESETS[question], _default_model(bench), num_cores()))


def _default_model(bench: Workbench) -> str:
    return str(bench.model.path or embedded_model())


def _model(bench: Workbench) -> None:
    if "model" in st.session_state[axis_rows.SHOWN]:
        return
    found = {str(one.path): one for one in list_models(bench.settings.models) if isinstance(one, ModelFile)}
    paths = dict.fromkeys([st.session_state[PREFIX + "model"], _default_model(bench), str(embedded_model()), *found])
    st.selectbox(
        "Model", [path for path in paths if path], key=PREFIX + "model", persist_state="session",
        format_func=lambda path: _file_name(path, found.get(path)),
        accept_new_options=True, help="A file found here, or the path of any GGUF file",
    )  # fmt: skip


def _file_name(path: str, file: ModelFile | None) -> str:
    return Path(path).name + (" · synthetic" if file is not None and file.is_synthetic else "")


def _arms(bench: Workbench) -> None:
    """What would bring the ways of calling that cannot run here."""
    for arm, told in missing_arms().items():
        st.caption(f"{arm} is not here, so it is left out.")
        doing.button(bench, told, "build", f"plan_build_{arm}", bench.bench.build_llama_bench)
    doing.show(bench)


def _goal() -> None:
    st.segmented_control(
        "Goal", GOALS, key=PREFIX + "goal", required=True, format_func=GOAL_LABELS.__getitem__, persist_state="session",
        on_change=_aim, help="Least memory: among the settings with at least 95 % of the best total speed",
    )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        _number("budget_min", "Time, min", 0.5, 1440.0, 1.0, "The search ends when this is used up")
        st.toggle(
            "May change the answers", key=PREFIX + "may_change_answers", persist_state="session", on_change=_aim,
            help="Also tries settings after which the model may answer differently, and says by how much",
        )  # fmt: skip


def _aim() -> None:
    """Put the axes that matter for the goal on the screen."""
    state = st.session_state
    fill(
        settings_plan(
            state[PREFIX + "model"],
            state[PREFIX + "goal"],
            60.0 * state[PREFIX + "budget_min"],
            may_change_answers=state[PREFIX + "may_change_answers"],
            seed=state[PREFIX + "seed"],
        )
    )


def _objective() -> None:
    st.caption("Good enough for a user")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        _number("ttft_s", "First token within, s", 0.001, 3600.0, 0.5, Objective.__doc__ or "")
        _number("per_s", "At least, tok/s", 0.01, 100_000.0, 1.0, "Speed of each stream after its first token")
        _number("share", "For, % of requests", 50, 100, 1, "How many requests must meet both")


def _numbers(question: Question) -> None:
    """What is asked of each cell and how often, without what an axis varies."""
    is_text = st.session_state[PREFIX + "asked"] == "prompts"
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if not is_text and "num_prompt" not in st.session_state[axis_rows.SHOWN]:
            _number("num_prompt", "Prompt, tokens", 0, 1 << 20, 16, "Random tokens of each prompt, as llama-bench does")
        if "num_generated" not in st.session_state[axis_rows.SHOWN]:
            _number("num_generated", "Generated, tokens", 0, 1 << 20, 16, "Tokens generated for each prompt")
        if question != "settings":
            _number("rounds", "Rounds", 1, 10_000, 1, "Samples of each cell; below 6 no verdict is given")


def _fixed() -> None:
    """What the plan fixes and no row shows; an axis of that name changes it."""
    axes = dict.fromkeys(st.session_state[axis_rows.SHOWN])
    fixed = {name: value for part in st.session_state[REST].values() for name, value in _unvaried(part, axes).items()}
    told = [AXES_BY_NAME[name].show(value) for name, value in fixed.items() if name in AXES_BY_NAME]
    if "instances" in fixed:
        told.insert(0, f"{fixed['instances']} × {fixed.get('threads', 'auto')}")
    if told:
        st.caption(plain(f"Fixed by this plan: {', '.join(told)}. Add the axis to change one."))


def _more(question: Question) -> None:
    with st.expander("More", key=PREFIX + "more"):
        st.text_input("Name", key=PREFIX + "name", placeholder="Found again under this name", persist_state="session")
        st.segmented_control(
            "Prompts", ("tokens", "prompts"), key=PREFIX + "asked", required=True, persist_state="session",
            format_func={"tokens": "random tokens", "prompts": "texts"}.__getitem__,
            help="Random tokens compare with llama-bench; texts are what people really ask",
        )  # fmt: skip
        if st.session_state[PREFIX + "asked"] == "prompts":
            _prompts()
        if question != "users":
            _objective()
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            _number("seed", "Seed", 0, 1 << 31, 1, "Of the order of cells and of the random tokens")
            _number("timeout_s", "Longest sample, s", 1.0, 86_400.0, 10.0, "A sample that takes longer fails its cell")
            if "rate_per_s" in st.session_state[axis_rows.SHOWN]:
                _number("duration_s", "Requests arrive for, s", 0.1, 3600.0, 1.0, "Seconds of arrivals in a sample")
        st.toggle(
            "Measure loading from disk", key=PREFIX + "measures_cold", persist_state="session",
            help="Loads every cell once with its file out of the page cache",
        )  # fmt: skip
        st.toggle(
            "Compare the answers", key=PREFIX + "compares_answers", persist_state="session",
            help="Also asks fixed prompts and says how far the answers differ from those of the first cell",
        )  # fmt: skip


def _prompts() -> None:
    st.text_area(
        "Texts", key=PREFIX + "prompts", height=120, persist_state="session", placeholder="One prompt a line, or JSONL",
        help="One a line, or JSON lines with a field prompt or text",
    )  # fmt: skip
    st.button("Sample prompts", type="tertiary", key="plan_samples", on_click=_sample_prompts)


def _sample_prompts() -> None:
    st.session_state[PREFIX + "prompts"] = _as_lines(sample_prompts())


def _number(name: str, label: str, low: Any, high: Any, step: Any, help: str) -> None:
    st.number_input(label, low, high, step=step, key=PREFIX + name, help=help, width=138, persist_state="session")
