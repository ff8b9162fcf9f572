"""Plan editor of a benchmark: axes, workload, rounds, and the estimated time and memory beside them."""

from dataclasses import replace
from pathlib import Path

import streamlit as st

from engine.bench.baselines.arms import missing_engines
from engine.bench.planning.axes import axes_of
from engine.bench.planning.candidates import settings_plan
from engine.bench.planning.engines import ENGINES, known_engines
from engine.bench.planning.plan import ARMS, GOALS, Objective, Plan, Question
from engine.bench.planning.plan_names import name_of
from engine.bench.planning.presets import preset
from engine.bench.planning.product import unvaried
from engine.embedding.models import EMBEDDED_NAME
from engine.machine.cores import num_cores
from engine.models import ModelFile, embedded_model, list_models
from engine.workbench import Workbench
from pages.parts.benchmark import (
    axis_rows,
    plan_preview,
    plan_shelf,
    run_state,
    sketch,
    task_button,
    workload_editor,
)
from pages.parts.benchmark.workload_editor import PREFIX, number
from pages.parts.plain import plain

OF, REST, KEPT, GIVEN = "plan_of", "plan_rest", "plan_kept", "plan_given"
"""Session state keys: the question shown, values without a field, and per question the plan as typed and its source."""

OBJECTIVE_WIDTH = 446  # three fields of the usual width, which share what is narrower

OWN = ("rounds", "seed", "timeout_s", "measures_cold", "compares_answers", "goal", "may_change_answers")
PRESETS: dict[Question, str] = {
    "speed": "quick", "settings": "settings", "python": "python", "engines": "engines", "users": "users",
    "embedding": "embedding",
}  # fmt: skip
GOAL_LABELS = {
    "stream": "one stream", "throughput": "total speed", "first-token": "first token", "memory": "least memory",
}  # fmt: skip
PURPOSE: dict[Question, str] = {
    "speed": "Measures every combination of the values below, in shuffled rounds.",
    "settings": "Tries settings against llama.cpp's defaults, keeping the better half, until the time is up.",
    "python": "Runs the same model through each engine and shows where the time goes.",
    "engines": "Sends the same prompts to every engine, from one user to many, in shuffled rounds.",
    "users": "Adds users until time to first token or speed per user misses the objective.",
    "embedding": "Embeds texts in every combination of the values below, and compares the vectors with float32.",
}


def show(bench: Workbench, question: Question) -> None:
    """Draw the plan of a question; what was typed is remembered for each of the six questions."""
    _open(bench, question)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(PURPOSE[question], width="stretch")
        plan_shelf.show(bench, read, fill)
    preview = plan_preview.show(bench, read)
    grid = st.grid(2, min_column_width=400, gap="large")
    with grid.cell():
        if question == "embedding":
            _embedding_model()
        else:
            _model(bench)
        if question == "settings":
            _goal()
        if question == "users":
            _objective()
        axis_rows.show(question)
        if question in ("python", "engines"):
            _missing(bench, question)
        _fixed(question)
        workload_editor.numbers(question)
        _more(question)
    with grid.cell():
        if not any(run.question == question for run in run_state.recent(bench)):
            sketch.show(question)
        if preview is not None:
            plan_preview.cells(preview)


def read() -> Plan:
    """Return the plan on the screen, with the name typed or else a derived one.

    Raises ConfigError naming what cannot be read.
    """
    state = st.session_state
    question: Question = state[OF]
    axes = axis_rows.read(question)
    rest = state[REST]
    objective = {name: state[PREFIX + name] for name in ("ttft_s", "per_s")} | {"share": state[PREFIX + "share"] / 100}
    plan = Plan.from_dict(
        {
            **{name: state[PREFIX + name] for name in OWN},
            "name": state[PREFIX + "name"].strip(),
            "question": question,
            "model": state[PREFIX + "model"] or "",
            "axes": axes,
            "pool": unvaried(rest["pool"], axes),
            "workload": {**unvaried(rest["workload"], axes), **workload_editor.read(question, axes)},
            "objective": objective,
            "budget_s": 60.0 * state[PREFIX + "budget_min"],
        }
    )
    state[KEPT][plan.question] = plan
    return plan if plan.name else replace(plan, name=name_of(plan, state[GIVEN][question]))


def fill(plan: Plan) -> None:
    """Put a plan on the screen; call only before the widgets are drawn, or in a callback.

    The plan keeps its name until it measures something else; then the name is derived from that, unless one is typed.
    """
    st.session_state.setdefault(GIVEN, {})[plan.question] = plan
    _put(replace(plan, name=""))


def _put(plan: Plan) -> None:
    state = st.session_state
    objective = Objective.from_dict(plan.objective)
    axis_rows.fill(plan.question, plan.axes)
    workload_editor.fill(plan)
    for name in OWN:
        state[PREFIX + name] = getattr(plan, name)
    state[PREFIX + "name"], state[PREFIX + "model"] = plan.name, plan.model
    state[PREFIX + "budget_min"] = plan.budget_s / 60
    state[PREFIX + "ttft_s"], state[PREFIX + "per_s"] = float(objective.ttft_s), float(objective.per_s)
    state[PREFIX + "share"] = round(100 * objective.share)
    state[REST] = {
        "pool": dict(plan.pool),
        "workload": {name: value for name, value in plan.workload.items() if name not in workload_editor.EDITED},
    }
    state.setdefault(KEPT, {})[plan.question] = plan
    state[OF] = plan.question


def _open(bench: Workbench, question: Question) -> None:
    if st.session_state.get(OF) != question:
        kept = st.session_state.get(KEPT, {}).get(question)
        model = EMBEDDED_NAME if question == "embedding" else _default_model(bench)
        _put(kept) if kept else fill(preset(PRESETS[question], model, num_cores()))


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
        accept_new_options=True,
        help="A model found on this machine, or the path of any GGUF file or folder of safetensors",
    )  # fmt: skip


def _embedding_model() -> None:
    if "model" not in st.session_state[axis_rows.SHOWN]:
        st.selectbox(
            "Embedding model", list(dict.fromkeys([st.session_state[PREFIX + "model"], EMBEDDED_NAME])),
            key=PREFIX + "model", persist_state="session", accept_new_options=True,
            help="A sentence-transformers folder, a GGUF file, or the name of an installed model",
        )  # fmt: skip


def _file_name(path: str, file: ModelFile | None) -> str:
    return Path(path).name + (" · synthetic" if file is not None and file.is_synthetic else "")


def _missing(bench: Workbench, question: Question) -> None:
    """Say which engines are missing on this machine and how to get them, or draw the button that builds one."""
    names = ARMS if question == "python" else ENGINES
    for name, missing in missing_engines(st.session_state[PREFIX + "model"] or "", names).items():
        if missing.can_be_built:
            st.caption(f"{name} is not installed and is left out.")
            task_button.button(bench, missing.remedy, "build", f"plan_build_{name}", bench.bench.build_llama_bench)
        else:
            st.caption(plain(f"{name} is left out: {missing.remedy.removesuffix('.')}."))
    if question == "engines" and not known_engines():
        st.caption("Ollama, vLLM and other servers: add one in the model bar, as an external engine.")
    task_button.show(bench)


def _goal() -> None:
    st.segmented_control(
        "Goal", GOALS, key=PREFIX + "goal", required=True, format_func=GOAL_LABELS.__getitem__, persist_state="session",
        on_change=_aim, help="Least memory: among the settings with at least 95 % of the best total speed",
    )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        number("budget_min", "Time, min", 0.5, 1440.0, 1.0, "The search ends after this time")
        st.toggle(
            "Allow different answers", key=PREFIX + "may_change_answers", persist_state="session", on_change=_aim,
            help="Also tries settings that may change the model's answers, and reports by how much",
        )  # fmt: skip


def _aim() -> None:
    """Fill the screen with the axes that matter for the goal."""
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
    st.caption("Objective")
    with st.container(width=OBJECTIVE_WIDTH):
        columns = st.columns(3, gap="small", vertical_alignment="bottom")
        with columns[0]:
            number("ttft_s", "First token within, s", 0.001, 3600.0, 0.5, "Longest acceptable wait")
        with columns[1]:
            number("per_s", "At least, tok/s", 0.01, 100_000.0, 1.0, "Speed of each stream after its first token")
        with columns[2]:
            number("share", "For, % of requests", 50, 100, 1, "Share of requests that must meet both")


def _fixed(question: Question) -> None:
    """Show the values that the plan fixes and no row shows; adding the axis makes one editable."""
    axes, known = dict.fromkeys(st.session_state[axis_rows.SHOWN]), axes_of(question)
    fixed = {name: value for part in st.session_state[REST].values() for name, value in unvaried(part, axes).items()}
    fixed_values = [known[name].show(value) for name, value in fixed.items() if name in known]
    processes = fixed.get("instances") or fixed.get("workers")
    if processes:
        fixed_values.insert(0, f"{processes} × {fixed.get('threads', 'auto')}")
    if fixed_values:
        st.caption(plain(f"Fixed by this plan: {', '.join(fixed_values)}. Vary a setting to change its value."))


def _more(question: Question) -> None:
    kept, given = (st.session_state[which][question] for which in (KEPT, GIVEN))
    with st.expander("More", key=PREFIX + "more"):
        st.text_input(
            "Name", key=PREFIX + "name", placeholder=name_of(kept, given), help="Name of the run in the history",
            persist_state="session",
        )  # fmt: skip
        workload_editor.which(question)
        if question not in ("users", "embedding"):
            _objective()
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            number("seed", "Seed", 0, 1 << 31, 1, "Sets the order of configurations and their prompts")
            number(
                "timeout_s",
                "Sample timeout, s",
                1.0,
                86_400.0,
                10.0,
                "A longer sample fails its configuration",
            )
            if "rate_per_s" in st.session_state[axis_rows.SHOWN]:
                number("duration_s", "Arrival window, s", 0.1, 3600.0, 1.0, "How long requests arrive in a sample")
            if question == "embedding":
                number("spread", "Spread of lengths", 0.0, 2.0, 0.1, "Sigma of the log-normal length; 0: all equal")
        if question != "embedding":
            _also()


def _also() -> None:
    """Draw the switches for what is measured or compared besides speed."""
    st.toggle(
        "Measure loading from disk", key=PREFIX + "measures_cold", persist_state="session",
        help="Loads each configuration once with its file evicted from the page cache",
    )  # fmt: skip
    st.toggle(
        "Compare the answers", key=PREFIX + "compares_answers", persist_state="session",
        help="Also runs fixed prompts and reports how far the answers differ from the first configuration's",
    )  # fmt: skip
