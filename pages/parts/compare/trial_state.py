"""Session state of prompt comparisons: the one on the screen, its plan, and the buttons' actions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from engine.comparing.arms import Arm, ComparisonPlan, ComparisonRecord
from engine.comparing.templates import variables
from engine.errors import ConfigError, EngineError, quoted
from engine.specs import Sampling
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts import prompt_state
from pages.parts.compare import trial_arms, trial_table
from pages.parts.notice import attempt, of_this

PROMPT, CHAT, BEFORE, REPEATS, APART = "arms_prompt", "arms_chat", "arms_before", "arms_repeats", "arms_apart"
SHOWN, ERROR, DELETED, SETUP = "arms_shown", "arms_error", "arms_deleted", "arms_setup"
NAMED = ("comparison", "trials")
TEMPERATURES = "temperatures"
"""Query parameter: temperatures of the variants of a new comparison, separated by commas."""
MAX_TOKENS = 64
SEED = 144  # at both temperatures the model that ships begins alike before the answers diverge
OPENING = ComparisonPlan(
    prompt=prompt_state.OPENING,
    arms=tuple(Arm(sampling=Sampling(temperature=t, seed=SEED), max_tokens=MAX_TOKENS) for t in (0.0, 1.0)),
)


def open_comparison(bench: Workbench) -> ComparisonRecord | None:
    """Return the comparison in the URL, else the last one of this tab; a newly opened one fills the editor.

    Returns None if there is none, or if it cannot be read; the reason is then in the session state.
    """
    state = st.session_state
    if PROMPT not in state:
        _fill(OPENING)
    if TEMPERATURES in st.query_params:
        _begin_with(st.query_params.pop(TEMPERATURES))
        return None
    asked = {name: value for name in NAMED if (value := st.query_params.get(name))} or state.get(SHOWN)
    if not asked:
        return None
    try:
        record = _found(bench, asked)
    except EngineError as error:
        state[ERROR] = error.bare()
        return None
    if asked != state.get(SHOWN):
        _fill(record.plan, _trials(bench, record))
        state[SHOWN], state[ERROR], state[SETUP] = asked, None, False
    for name, value in asked.items():
        st.query_params[name] = value
    return record


def _begin_with(temperatures: str) -> None:
    """Put a new comparison on the screen, with a variant for each temperature; why it cannot be is shown."""
    state = st.session_state
    show(None)
    try:
        arms = [
            Arm(sampling=Sampling(temperature=float(t), seed=SEED), max_tokens=MAX_TOKENS)
            for t in temperatures.split(",")
        ]
        _fill(replace(OPENING, prompt=state[PROMPT], arms=tuple(arms)))
    except (ValueError, ConfigError) as error:
        state[ERROR] = ConfigError(f"temperatures = {quoted(temperatures)}: {error}")


def _trials(bench: Workbench, record: ComparisonRecord) -> dict[int, Trial]:
    """Return a trial of each variant with a logit bias that has run, by the variant's position."""
    found: dict[int, Trial] = {}
    for answer in record.answers:
        if record.plan.arms[answer.arm].sampling.logit_bias and answer.trial_id and answer.arm not in found:
            trial = bench.trials.watch(answer.trial_id)
            found |= {answer.arm: trial} if trial is not None else {}
    return found


def _found(bench: Workbench, asked: Mapping[str, str]) -> ComparisonRecord:
    if "comparison" in asked:
        return bench.compare.comparison(asked["comparison"])
    return bench.compare.of_trials([id for id in asked["trials"].split(",") if id])


def show(asked: Mapping[str, str] | None) -> None:
    """Store this as the tab's comparison and in its URL, the plan folded; None shows the plan alone.

    The editor remains unchanged.
    """
    st.session_state[SHOWN] = dict(asked) if asked else None
    st.session_state[ERROR] = None
    st.session_state[SETUP] = not asked
    if st.query_params.to_dict() != (asked or {}):
        st.query_params.from_dict(asked or {})


def plan() -> ComparisonPlan:
    """Return the plan in the editor. Raises ConfigError if it cannot be run."""
    state = st.session_state
    if state[REPEATS] is None:
        raise ConfigError("repeats is empty: enter a number")
    names = variables(state[PROMPT])
    return ComparisonPlan(
        prompt=state[PROMPT],
        arms=trial_arms.read(names),
        rows=trial_table.read(names),
        repeats=state[REPEATS],
        is_chat=state[CHAT],
        before=state[BEFORE] if state[CHAT] else (),
        is_apart=state[APART],
    )


def names() -> tuple[str, ...]:
    """Return the variables of the prompt on the screen."""
    return variables(st.session_state[PROMPT])


def is_edited(record: ComparisonRecord) -> bool:
    """Return True if the editor's plan differs from that of the comparison."""
    try:
        return plan() != record.plan
    except EngineError:
        return True


def run(bench: Workbench) -> None:
    """Start the plan in the editor, and fold it to one line; call in a callback."""

    def start() -> None:
        show({"comparison": bench.compare.start(plan())})
        trial_arms.mark_answered()

    act(start)


def begin_anew() -> None:
    """Reset the editor to the two variants of the opening plan; call in a callback."""
    _fill(OPENING)
    show(None)


def act(action: Callable[[], object]) -> None:
    """Run the action of a button; a failure is shown on the page."""
    attempt(ERROR, action)


def failure() -> EngineError | None:
    """Return the last action's error until the plan changes or becomes invalid (which is shown at its field)."""
    try:
        asked: object = plan()
    except EngineError:
        st.session_state[ERROR] = None
        return None
    return of_this(ERROR, (asked, st.query_params.to_dict()))


def _fill(plan: ComparisonPlan, trials: Mapping[int, Trial] | None = None) -> None:
    """Put a plan on the screen; call only before the widgets are drawn, or in a callback. trials: see `_trials`."""
    values: dict[str, Any] = {
        PROMPT: plan.prompt, CHAT: plan.is_chat, BEFORE: plan.before, REPEATS: plan.repeats, APART: plan.is_apart,
    }  # fmt: skip
    st.session_state.update(values)
    trial_table.fill(plan.rows)
    trial_arms.fill(plan.arms, trials or {})
