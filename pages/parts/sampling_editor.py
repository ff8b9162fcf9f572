"""Parameter row: the three most used parameters, and all others, grouped, behind More."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.errors import ConfigError
from engine.protocol import Engine
from engine.specs import DEFAULT_SAMPLERS, Request, Sampling
from engine.vocabulary import Vocabulary
from pages.parts import constraints_editor
from pages.parts.labels import error_text

PREFIX = "lab_"
UNKEPT = "lab_unkept"
MAX_TOKENS = 128
SEED_WIDTH, WIDTH, MORE_WIDTH = 132, 104, 640
REPETITION = "Repetition"


@dataclass(frozen=True)
class Field:
    """One number of Sampling on the screen; its type is that of the default."""

    name: str
    label: str
    help: str
    step: float = 1


GROUPS: tuple[tuple[str, tuple[Field, ...]], ...] = (
    (
        "Sampling filters",
        (
            Field("top_k", "Top-k", "Keep the k most probable tokens; 0 keeps all."),
            Field(
                "top_p", "Top-p", "Keep the most probable tokens that together reach this probability; 1 is off.", 0.05
            ),
            Field("min_p", "Min-p", "Cut tokens below this share of the most probable one; 0 is off.", 0.01),
            Field("typical_p", "Typical-p", "Keep tokens whose surprise is close to the entropy; 1 is off.", 0.05),
            Field("top_n_sigma", "Top-nσ", "Keep logits within n standard deviations of the highest; -1 is off.", 0.5),
            Field("xtc_probability", "XTC probability", "How often the most probable tokens are cut; 0 is off.", 0.05),
            Field("xtc_threshold", "XTC threshold", "XTC cuts only tokens above this probability.", 0.05),
        ),
    ),
    (
        REPETITION,
        (
            Field("repeat_penalty", "Repeat", "Divides the logits of tokens that occurred; 1 is off.", 0.05),
            Field("frequency_penalty", "Frequency", "Subtracted from the logit for each occurrence; 0 is off.", 0.1),
            Field("presence_penalty", "Presence", "Subtracted from the logit of a token that occurred; 0 is off.", 0.1),
            Field("penalty_last_n", "Penalty window", "Last tokens the penalties consider; -1: the whole context."),
            Field("dry_multiplier", "DRY", "Strength of the penalty on repeated sequences; 0 is off.", 0.1),
            Field("dry_base", "DRY base", "How fast the DRY penalty grows with the length of the repetition.", 0.05),
            Field("dry_allowed_length", "DRY allowed", "Repetitions up to this many tokens are not penalised."),
            Field("dry_penalty_last_n", "DRY window", "Last tokens that DRY considers; -1: the whole context."),
        ),
    ),
    (
        "Mirostat and order",
        (
            Field(
                "mirostat", "Mirostat", "Version 1 or 2 steers the surprise and replaces the other stages; 0 is off."
            ),
            Field("mirostat_tau", "Target", "Target surprise, in bits.", 0.5),
            Field("mirostat_eta", "Rate", "How fast Mirostat corrects towards the target.", 0.05),
        ),
    ),
)


class Preset(NamedTuple):
    """Sampling parameters to begin with; `help` says what they do."""

    sampling: Sampling
    help: str


PRESETS = {
    "Greedy": Preset(Sampling(temperature=0), "Always the most probable token."),
    "Precise": Preset(Sampling(temperature=0.3, top_p=0.9), "Close to the most probable tokens."),
    "Creative": Preset(
        Sampling(temperature=1.2, top_k=0, top_p=1, min_p=0.05), "A flatter distribution; min-p alone cuts."
    ),
    "Unfiltered": Preset(Sampling(temperature=1, top_k=0, top_p=1, min_p=0), "The model's own distribution."),
    "Reset": Preset(Sampling(), "The default of every sampling parameter; the seed, the length and constraints stay."),
}
NUMBERS = ("temperature", *(field.name for _, group in GROUPS for field in group))
SAMPLING_LABELS = {
    "temperature": "Temperature",
    "seed": "Seed",
    "samplers": "Order of the stages",
    "dry_sequence_breakers": "DRY breakers",
    **{field.name: field.label for _, group in GROUPS for field in group},
    **constraints_editor.LABELS,
}
REQUEST_LABELS = {"max_tokens": "Max tokens", "stop": "Stop strings", "top_k": "Candidates recorded"}


class SettingError(ConfigError):
    """The value of a field cannot be run; the text begins with the label of that field."""

    def __init__(self, text: str, label: str) -> None:
        super().__init__(text)
        self.label = label


@contextmanager
def in_labels(labels: Mapping[str, str]) -> Iterator[None]:
    """Raise a ConfigError as a SettingError, with the label of the parameter that it begins with."""
    try:
        yield
    except ConfigError as error:
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        raise SettingError(error_text(error, labels), labels.get(name, name)) from error


def parameter_row(recorded_top_k: int, prefix: str = PREFIX) -> None:
    """Draw temperature, max tokens, seed and More; typed values are in the session state under `prefix`.

    `recorded_top_k` is the default number of recorded candidates.
    """
    _most_used(prefix)
    num_changed = _num_changed(recorded_top_k, prefix)
    label = f"More · {num_changed} changed" if num_changed else "More"
    with st.popover(label, key=prefix + "more"), st.container(width=MORE_WIDTH):
        _more(prefix, has_recording=True)


def parameter_panel(prefix: str) -> None:
    """Draw all parameters of a panel that has no recording options, the most used first."""
    with st.container(horizontal=True, gap="small"):
        _most_used(prefix)
    _more(prefix, has_recording=False)


def _most_used(prefix: str) -> None:
    """Draw temperature, max tokens and seed.

    No field has bounds: Streamlit would show a value beyond them but keep the previous one, which would then be run.
    """
    st.number_input(
        SAMPLING_LABELS["temperature"], step=0.1, key=prefix + "temperature", width=WIDTH, persist_state="session",
        help="0 takes the most probable token; higher flattens the distribution before the draw.",
    )  # fmt: skip
    st.number_input(
        REQUEST_LABELS["max_tokens"], step=16, key=prefix + "max_tokens", width=WIDTH, persist_state="session",
        help="At most this many new tokens; 0 only scores the prompt.",
    )  # fmt: skip
    st.number_input(
        SAMPLING_LABELS["seed"], value=None, step=1, key=prefix + "seed", width=SEED_WIDTH, persist_state="session",
        placeholder="random", help="Empty: a new seed for each run; the result shows the seed used.",
    )  # fmt: skip


def _more(prefix: str, *, has_recording: bool) -> None:
    """Draw presets and all other parameters, in tabs, so that none needs scrolling."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption("Presets", width="content")
        for name, preset in PRESETS.items():
            st.button(
                name, type="tertiary", key=f"{prefix}preset_{name}", help=preset.help, on_click=_use,
                args=(preset.sampling, prefix),
            )  # fmt: skip
    first = "Stopping and recording" if has_recording else "Stopping"
    keeping, *sampling, constraints = st.tabs([first, *(title for title, _ in GROUPS), "Constraints"])
    with keeping:
        left, right = st.columns(2, gap="medium")
        with left:
            _stop(prefix)
        if has_recording:
            _record(left, right, prefix)
    for tab, (title, group) in zip(sampling, GROUPS, strict=True):
        with tab:
            _numbers(group, prefix)
            if title == REPETITION:
                st.text_area(
                    SAMPLING_LABELS["dry_sequence_breakers"], key=prefix + "breakers", height=110,
                    persist_state="session",
                    help="One per line; \\n is a line break, \\t a tab. A repetition ends at any of these.",
                )  # fmt: skip
    with sampling[-1]:
        st.multiselect(
            SAMPLING_LABELS["samplers"], DEFAULT_SAMPLERS, key=prefix + "samplers", persist_state="session",
            help="Stages run from left to right; a stage not listed is off.",
        )  # fmt: skip
    with constraints:
        constraints_editor.show(prefix)


def _numbers(group: tuple[Field, ...], prefix: str) -> None:
    with st.grid(4, min_column_width=130, gap="small"):
        for field in group:
            st.number_input(
                field.label, step=type(getattr(Sampling, field.name))(field.step), key=prefix + field.name,
                help=field.help, persist_state="session",
            )  # fmt: skip


def _stop(prefix: str) -> None:
    st.text_area(
        REQUEST_LABELS["stop"], key=prefix + "stop", height=110, persist_state="session", placeholder="One per line",
        help="The text ends before the first match; \\n is a line break, \\t a tab.",
    )  # fmt: skip


def _record(left: DeltaGenerator, right: DeltaGenerator, prefix: str) -> None:
    with left:
        st.number_input(
            REQUEST_LABELS["top_k"], step=1, key=prefix + "recorded", persist_state="session",
            help="Most probable tokens saved with each step; the inspector sets how many are shown.",
        )  # fmt: skip
    with right:
        st.toggle(
            "Repeatable", key=prefix + "repeatable", persist_state="session",
            help="Recomputes the prompt: on an idle pool the same seed and parameters then give the same tokens.",
        )  # fmt: skip
        st.toggle(
            "Score the prompt", key=prefix + "scored", persist_state="session",
            help="Also computes the probabilities and the perplexity of the prompt's own tokens.",
        )  # fmt: skip
        st.toggle(
            "Don't save", key=prefix + "unkept", persist_state="session",
            help="New trials are not saved to the history; they can be viewed and downloaded for ten minutes.",
        )  # fmt: skip


def fill(
    sampling: Sampling,
    request: Request,
    prefix: str = PREFIX,
    vocabulary: Vocabulary | None = None,
    model: str = "",
) -> None:
    """Put parameters on the screen; call only before the widgets are drawn, or in a callback.

    vocabulary: the one that the ids of a logit bias belong to, None for that of the editor's model; model: its name.
    """
    state = st.session_state
    _use(sampling, prefix)
    constraints_editor.fill(sampling, prefix, vocabulary, model)
    state[prefix + "seed"] = sampling.seed
    state[prefix + "stop"] = _lines(request.stop)
    state[prefix + "max_tokens"] = request.max_tokens
    state[prefix + "scored"] = request.prompt_logprobs
    state[prefix + "repeatable"] = not request.reuse_prefix
    state[prefix + "recorded"] = max(request.top_k, 1)
    state.setdefault(prefix + "unkept", False)


def _use(sampling: Sampling, prefix: str) -> None:
    """Put the numbers and the stages of a preset on the screen; call in a callback."""
    state = st.session_state
    for name in NUMBERS:
        state[prefix + name] = type(getattr(Sampling, name))(getattr(sampling, name))
    state[prefix + "samplers"] = list(sampling.samplers)
    state[prefix + "breakers"] = _lines(sampling.dry_sequence_breakers)


def keep_seed(seed: int | None, prefix: str = PREFIX) -> None:
    """Put a seed on the screen unless one was entered; call in a callback."""
    if st.session_state[prefix + "seed"] is None:
        st.session_state[prefix + "seed"] = seed


def on_screen(prefix: str = PREFIX) -> tuple[object, ...]:
    """Return the values of all fields, valid or not, for comparison."""
    names = (*NUMBERS, "seed", "samplers", "breakers", "stop", "max_tokens", "scored", "repeatable", "recorded")
    return *(repr(st.session_state.get(prefix + name)) for name in names), *constraints_editor.on_screen(prefix)


def length_and_scoring(prefix: str = PREFIX) -> dict[str, object]:
    """Return the session state of max tokens and of scoring the prompt, by key."""
    return {key: st.session_state[key] for key in (prefix + "max_tokens", prefix + "scored")}


def read_sampling(prefix: str = PREFIX) -> Sampling:
    """Return the sampling on the screen. Raises SettingError for values out of range."""
    state = st.session_state
    values = {name: state[prefix + name] for name in NUMBERS}
    with in_labels(SAMPLING_LABELS):
        _check_given(values)
        return Sampling(
            **values,
            **constraints_editor.read(prefix),
            seed=state[prefix + "seed"],
            samplers=tuple(state[prefix + "samplers"]),
            dry_sequence_breakers=_strings(state[prefix + "breakers"]),
        )


def check_taken(sampling: Sampling, engine: Engine) -> None:
    """Raise SettingError for a parameter that an engine does not take; constraints are checked in their own tab."""
    with in_labels(SAMPLING_LABELS):
        engine.check_sampling(replace(sampling, grammar="", json_schema=""))


def read_request(prefix: str = PREFIX) -> Request:
    """Return the request on the screen. Raises SettingError for values out of range."""
    state = st.session_state
    values = {"max_tokens": state[prefix + "max_tokens"], "top_k": state[prefix + "recorded"]}
    with in_labels(REQUEST_LABELS):
        _check_given(values)
        if values["top_k"] == 0:
            raise ConfigError("top_k = 0: enter at least 1 to see what else the model considered")
        return Request(
            **values,
            stop=_strings(state[prefix + "stop"]),
            prompt_logprobs=state[prefix + "scored"],
            reuse_prefix=not state[prefix + "repeatable"],
            stages=True,
        )


def _check_given(values: Mapping[str, object]) -> None:
    """Raise ConfigError for an empty field."""
    for name, value in values.items():
        if value is None:
            raise ConfigError(f"{name} is empty: enter a number")


def _num_changed(recorded_top_k: int, prefix: str) -> int:
    """Return how many parameters behind More differ from their defaults."""
    state, defaults = st.session_state, Sampling()
    changed: list[bool] = [state[prefix + name] != getattr(defaults, name) for name in NUMBERS[1:]]
    changed += [tuple(state[prefix + "samplers"]) != DEFAULT_SAMPLERS]
    changed += [_strings(state[prefix + "breakers"]) != defaults.dry_sequence_breakers]
    changed += [bool(state[prefix + name]) for name in ("stop", "scored", "repeatable", "unkept")]
    changed += [recorded_top_k != state[prefix + "recorded"]]
    return sum(changed) + constraints_editor.num_changed(prefix)


def _lines(strings: tuple[str, ...]) -> str:
    """Return strings one per line, as they are typed."""
    return "\n".join(
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") for text in strings
    )


def _strings(lines: str) -> tuple[str, ...]:
    """Parse the output of `_lines`; empty lines are ignored."""
    marks = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    strings = []
    for line in lines.splitlines():
        parts = line.replace("\\\\", "\0").split("\\")
        text = parts[0] + "".join(marks.get(part[:1], "\\" + part[:1]) + part[1:] for part in parts[1:])
        strings.append(text.replace("\0", "\\"))
    return tuple(text for text in strings if text)
