"""Variants of a comparison: a compact head for each, whose popover edits its model and parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from engine.comparing.arms import MAX_ARMS, Arm, differences, labels
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

ARMS, ANSWERED = "arms_numbers", "arms_answered"
LOADED = "The loaded model"
EDITOR_WIDTH, CHIP_CHARACTERS = 640, 40


class Head(NamedTuple):
    """A variant on the screen. answered: its position in the comparison that is shown, None if it was added since.

    default: the label that it has without one of its own. chips: what differs from the first variant.
    """

    number: int
    answered: int | None
    name: str
    default: str
    chips: list[str]


def heads(variables: Sequence[str]) -> list[Head]:
    """Return the variants on the screen, in order."""
    numbers, answered = st.session_state[ARMS], st.session_state.get(ANSWERED, {})
    names = [st.session_state[_key(number, "label")].strip() for number in numbers]
    try:
        arms = read(variables)
        chips, default = differences(arms), labels([replace(arm, label="") for arm in arms])
    except EngineError:
        chips, default = [[] for _ in numbers], [f"variant {position}" for position, _ in enumerate(numbers, 1)]
    return [
        Head(number, answered.get(number), name or f"Variant {position}", label, differing)
        for position, (number, name, label, differing) in enumerate(zip(numbers, names, default, chips, strict=True), 1)
    ]


def show(bench: Workbench, head: Head, variables: Sequence[str]) -> None:
    """Draw the head of a variant: its name, what differs from the first, and the button that edits it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall", wrap=False):
        chips = " ".join(f":gray-badge[{plain(text, CHIP_CHARACTERS)}]" for text in head.chips)
        st.markdown(f"**{plain(head.name)}** {chips}")
        with (
            st.popover("Edit", key=_key(head.number, "edit"), type="tertiary", help="Edit this variant"),
            st.container(width=EDITOR_WIDTH),
        ):
            _editor(bench, head, variables)
    error = problem(head.number, variables)
    if error is not None:
        notice(error)


def add_button(variables: Sequence[str]) -> None:
    """Draw the button that adds a variant; call inside a row."""
    st.button(
        "Add a variant", icon=":material/add:", type="tertiary", key="arms_add", on_click=_add,
        args=(variables,), disabled=len(st.session_state[ARMS]) >= MAX_ARMS,
    )  # fmt: skip


def _editor(bench: Workbench, head: Head, variables: Sequence[str]) -> None:
    number = head.number
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.text_input("Name", key=_key(number, "label"), placeholder=head.default, persist_state="session")
        _model(bench, number)
        st.button(
            "Remove", icon=":material/close:", type="tertiary", key=_key(number, "remove"), help="Remove this variant",
            disabled=len(st.session_state[ARMS]) == 1, on_click=_remove, args=(number,),
        )  # fmt: skip
    if variables:
        with st.grid(3, min_column_width=160, gap="small"):
            for name in variables:
                st.text_input(
                    plain(f"{{{{{name}}}}}"), key=_key(number, f"value_{name}"), placeholder="as in the table",
                    persist_state="session",
                )  # fmt: skip
    sampling_editor.parameter_panel(key_prefix(number))


def _model(bench: Workbench, number: int) -> None:
    models = _models(str(bench.settings.models))
    chosen = st.session_state[_key(number, "model")] or ""
    known = distinct({"": LOADED, **models} | ({} if chosen in models else {chosen: Path(chosen).name or LOADED}))
    st.selectbox(
        "Model", list(known), key=_key(number, "model"), format_func=lambda path: known.get(path, path),
        accept_new_options=True, persist_state="session",
        help="Or enter the path of a GGUF file or a folder of safetensors. Other models are loaded one at a time.",
    )  # fmt: skip


def problem(number: int, variables: Sequence[str]) -> EngineError | None:
    """Return why a variant on the screen cannot be run; None if it can."""
    try:
        _read(number, variables)
    except EngineError as error:
        return error
    return None


@st.cache_data(ttl=30, show_spinner=False)
def _models(folder: str) -> dict[str, str]:
    """Return the labels of the models that can be chosen, by path."""
    files = [one for one in list_models(folder) if isinstance(one, ModelFile)]
    found = {str(one.path): f"{one.name} · {one.quantisation} · {size(one.size)}" for one in files}
    return {str(embedded_model()): f"{embedded_model().stem} · embedded"} | found


def fill(arms: Sequence[Arm], trials: Mapping[int, Trial]) -> None:
    """Put the variants of a comparison on the screen; call only before the widgets are drawn, or in a callback.

    trials: a trial of each variant that has run, by its position; the token ids of its logit bias are of that model.
    """
    first = max(st.session_state.get(ARMS, [0])) + 1
    st.session_state[ARMS] = list(range(first, first + len(arms)))
    for position, (number, arm) in enumerate(zip(st.session_state[ARMS], arms, strict=True)):
        _fill(number, arm, trials.get(position))
    mark_answered()


def mark_answered() -> None:
    """Note that the comparison on the screen is that of the variants on the screen; call in a callback."""
    st.session_state[ANSWERED] = {number: position for position, number in enumerate(st.session_state[ARMS])}


def read(variables: Sequence[str]) -> tuple[Arm, ...]:
    """Return the variants on the screen. Raises SettingError for values out of range."""
    return tuple(_read(number, variables) for number in st.session_state[ARMS])


def is_edited(head: Head, arm: Arm, variables: Sequence[str]) -> bool:
    """Return True if a variant on the screen differs from `arm`, which gave the answers below it."""
    try:
        return replace(_read(head.number, variables), label="") != replace(arm, label="")
    except EngineError:
        return True


def _fill(number: int, arm: Arm, trial: Trial | None = None) -> None:
    state = st.session_state
    state[_key(number, "label")], state[_key(number, "model")] = arm.label, arm.model
    for name, value in arm.variables.items():
        state[_key(number, f"value_{name}")] = value
    request = Request(max_tokens=arm.max_tokens, stop=arm.stop)
    vocabulary, model = (trial.steps.vocabulary, trial.model.name) if trial else (None, "")
    sampling_editor.fill(arm.sampling, request, key_prefix(number), vocabulary, model)


def _read(number: int, variables: Sequence[str]) -> Arm:
    state, prefix = st.session_state, key_prefix(number)
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


def key_prefix(number: int) -> str:
    """Return the prefix of the keys of a variant's sampling editor."""
    return _key(number, "")


def _key(number: int, name: str) -> str:
    return f"arm_{number}_{name}"
