"""Editor of a comparison's variants: model, temperature, length, seed and all other parameters of each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import streamlit as st

from engine.comparing.arms import MAX_ARMS, Arm, labels
from engine.errors import EngineError
from engine.models import ModelFile, embedded_model, list_models
from engine.specs import Request
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts import sampling_editor
from pages.parts.labels import distinct
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import size

ARMS = "arms_numbers"
COLUMNS, COLUMN_WIDTH = 3, 300
LOADED = "The loaded model"


def show(bench: Workbench, variables: Sequence[str]) -> None:
    """Draw the variants side by side, three to a row, and the button that adds one."""
    numbers = st.session_state[ARMS]
    models = _models(str(bench.settings.models))
    with st.grid(COLUMNS, min_column_width=COLUMN_WIDTH, gap="small"):
        for number, label in zip(numbers, _labels(variables), strict=True):
            with st.container(border=True, gap="small"):
                _arm(number, label, models, variables, is_only=len(numbers) == 1)
    st.button(
        "Add a variant", icon=":material/add:", type="tertiary", key="arms_add", on_click=_add,
        args=(variables,), disabled=len(numbers) >= MAX_ARMS,
    )  # fmt: skip


def _labels(variables: Sequence[str]) -> list[str]:
    """Return the default label of each variant."""
    try:
        return labels([replace(arm, label="") for arm in read(variables)])
    except EngineError:
        return [f"variant {position}" for position, _ in enumerate(st.session_state[ARMS], 1)]


def _arm(number: int, label: str, models: dict[str, str], variables: Sequence[str], *, is_only: bool) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall"):
        st.text_input(
            "Name", key=_key(number, "label"), placeholder=label, label_visibility="collapsed", persist_state="session"
        )
        if not is_only:
            st.button(
                ":material/close:", type="tertiary", key=_key(number, "remove"), help="Remove this variant",
                on_click=_remove, args=(number,),
            )  # fmt: skip
    chosen = st.session_state[_key(number, "model")] or ""
    known = distinct({"": LOADED, **models} | ({} if chosen in models else {chosen: Path(chosen).name or LOADED}))
    st.selectbox(
        "Model", list(known), key=_key(number, "model"), format_func=lambda path: known.get(path, path),
        label_visibility="collapsed", accept_new_options=True, persist_state="session",
        help="Or enter the path of a GGUF file. Other models are loaded one at a time.",
    )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="bottom", gap="xsmall"):
        sampling_editor.parameter_row(None, _key(number, ""))
        if variables:
            _variables(number, variables)
    error = problem(number, variables)
    if error is not None:
        notice(error)


def problem(number: int, variables: Sequence[str]) -> EngineError | None:
    """Return why a variant on the screen cannot be run; None if it can."""
    try:
        _read(number, variables)
    except EngineError as error:
        return error
    return None


def _variables(number: int, names: Sequence[str]) -> None:
    """Draw the fields for variable values specific to this variant."""
    own = _own(number, names)
    with st.popover(f"Variables · {len(own)} set" if own else "Variables", key=_key(number, "variables")):
        for name in names:
            st.text_input(
                plain(name), key=_key(number, f"value_{name}"), placeholder="as in the table", persist_state="session"
            )


@st.cache_data(ttl=30, show_spinner=False)
def _models(folder: str) -> dict[str, str]:
    """Return the labels of the models that can be chosen, by path."""
    files = [one for one in list_models(folder) if isinstance(one, ModelFile)]
    found = {str(one.path): f"{one.name} · {one.quantisation} · {size(one.size)}" for one in files}
    return {str(embedded_model()): f"{embedded_model().stem} · embedded"} | found


def fill(arms: Sequence[Arm], trials: Mapping[int, Trial]) -> None:
    """Put variants on the screen; call only before the widgets are drawn, or in a callback.

    trials: a trial of each variant that has run, by its position; the token ids of its logit bias are of that model.
    """
    first = max(st.session_state.get(ARMS, [0])) + 1
    st.session_state[ARMS] = list(range(first, first + len(arms)))
    for position, (number, arm) in enumerate(zip(st.session_state[ARMS], arms, strict=True)):
        _fill(number, arm, trials.get(position))


def read(variables: Sequence[str]) -> tuple[Arm, ...]:
    """Return the variants on the screen. Raises SettingError for values out of range."""
    return tuple(_read(number, variables) for number in st.session_state[ARMS])


def _fill(number: int, arm: Arm, trial: Trial | None = None) -> None:
    state = st.session_state
    state[_key(number, "label")], state[_key(number, "model")] = arm.label, arm.model
    for name, value in arm.variables.items():
        state[_key(number, f"value_{name}")] = value
    request = Request(max_tokens=arm.max_tokens, stop=arm.stop)
    vocabulary, model = (trial.steps.vocabulary, trial.model.name) if trial else (None, "")
    sampling_editor.fill(arm.sampling, request, _key(number, ""), vocabulary, model)


def _read(number: int, variables: Sequence[str]) -> Arm:
    state, prefix = st.session_state, _key(number, "")
    sampling, request = sampling_editor.read_sampling(prefix), sampling_editor.read_request(prefix)
    with sampling_editor.in_labels({"label": "Name", **sampling_editor.REQUEST_LABELS}):
        return Arm(
            label=state[_key(number, "label")].strip(),
            model=(state[_key(number, "model")] or "").strip(),
            sampling=sampling,
            max_tokens=request.max_tokens,
            stop=request.stop,
            variables=_own(number, variables),
        )


def _own(number: int, variables: Sequence[str]) -> dict[str, str]:
    values = {name: st.session_state.get(_key(number, f"value_{name}"), "") for name in variables}
    return {name: value for name, value in values.items() if value}


def _add(variables: Sequence[str]) -> None:
    """Add a variant, a copy of the last one."""
    numbers = st.session_state[ARMS]
    if len(numbers) >= MAX_ARMS:
        return
    try:
        last = replace(_read(numbers[-1], variables), label="")
    except EngineError:
        last = Arm()
    numbers.append(max(numbers) + 1)
    _fill(numbers[-1], last)


def _remove(number: int) -> None:
    """Remove a variant, unless it is the last one: a button may be pressed twice before the page is redrawn."""
    st.session_state[ARMS] = [each for each in st.session_state[ARMS] if each != number] or [number]


def _key(number: int, name: str) -> str:
    return f"arm_{number}_{name}"
