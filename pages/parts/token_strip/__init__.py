"""Token strip with its inspector, as one component: Python names the trial, the browser does the rest."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NotRequired, TypedDict

import streamlit as st

from engine import palette
from pages.parts.component import component
from pages.parts.live import SOCKET_PATH

Mode = Literal["surprise", "uncertainty", "time", "change"]
Unit = Literal["p", "bits", "nats"]
Event = Literal["asked", "acted", "chosen", "followed", "watched"]
NO_LISTENERS: Mapping[Event, Callable[[object], None]] = MappingProxyType({})


class RowToken(TypedDict):
    """Token of a row: its text, and what is said of it where it is pointed at."""

    text: str
    title: str


class BranchRow(TypedDict):
    """Row of the tree. key: identifies it in what is asked, and its fold; parent: index of its parent row, None at the
    top; cells: its figures; is_open: the trial on the screen ends with it; is_passed: it goes through it; ends: a trial
    ends with it, which can be named and starred; tokens: of the text, where each has something to say."""

    key: str
    parent: int | None
    depth: int
    text: str
    cells: tuple[str, ...]
    name: str
    is_starred: bool
    is_forced: bool
    is_running: bool
    is_open: bool
    is_passed: bool
    ends: bool
    num_trials: int
    tokens: NotRequired[list[RowToken]]


class ChangeRow(TypedDict):
    """One of the most changed tokens: its index among those compared, and the most probable token of each model."""

    index: int
    best: str
    other_best: str


class Change(TypedDict):
    """What another model makes of the same tokens. key: identifies the comparison; other: name of the other model.

    logprob, other_logprob, kl: in nats, of each generated token, or of a scored prompt from its second token on; None
    is infinite. first_flip: index of the first token before which the most probable one differs. rows: the most changed
    tokens, in order.
    """

    key: str
    other: str
    is_prompt: bool
    logprob: list[float | None]
    other_logprob: list[float | None]
    kl: list[float | None]
    first_flip: int | None
    rows: list[ChangeRow]


class Branches(TypedDict):
    """Tree below the text. heads: class ("label", "number", "number extra" for what a narrow tree leaves out) and title
    of each column, of which rows have the cells from the second on. can_mark: rows have stars, names and Delete. kind:
    of a beam search, its sequences with their whole text or its tree."""

    title: str
    note: str
    help: str
    heads: tuple[tuple[str, str], ...]
    rows: list[BranchRow]
    can_mark: bool
    kind: NotRequired[Literal["sequences", "beams"]]


# A component has a single script, so its parts are joined into one module in order of use.
_SCRIPTS = (
    "format", "theme", "element", "text", "flow", "socket", "trial", "bands", "memory", "tokens", "pin", "tooltip",
    "hover", "xray", "asking", "inspector", "head", "sparkline", "scrub", "chips", "slider", "what_if", "tree", "lines",
    "words", "watch", "changes", "keys", "latency", "input", "fold", "reveal", "shared", "strip", "mount",
)  # fmt: skip
OfflineFile = Literal["opened", "several"]
"""Last script of an offline file: it shows one of its trials, with their branches, or each in a place of its own."""

_HERE = Path(__file__).parent


def scripts(names: Iterable[str]) -> str:
    """Return these scripts of this folder as one text."""
    return "\n".join((_HERE / f"{name}.js").read_text("utf-8") for name in names)


def module(names: Iterable[str], own: Path, view: str) -> str:
    """Return the module of a component of the page: scripts of this folder by name, then its own script, whose class
    `view` has the methods update and unmount."""
    return f"{scripts(names)}\n{own.read_text('utf-8')}\n{scripts(['mount'])}\nconst Component = {view};"


def script() -> str:
    """Return the component's module, including the thresholds of the palette."""
    return f"{_thresholds()}\n{scripts(_SCRIPTS)}\nconst Component = Strip;"


def offline_script(last: OfflineFile) -> str:
    """Return the script of an offline file, which shows trials that the file holds."""
    instead = {"socket": "embedded", "mount": last}  # of those that need the workbench
    return f"{_thresholds()}\n{scripts(instead.get(name, name) for name in _SCRIPTS)}"


def _thresholds() -> str:
    thresholds = {
        "surprise": palette.SURPRISE_P,
        "entropy": palette.ENTROPY_BITS,
        "time": palette.TIME_RATIO,
        "change": palette.CHANGE_NATS,
    }
    return f"const PALETTE = {json.dumps(thresholds)};"


def inspector_script() -> str:
    """Return the module of the inspector that strips share."""
    return f"{scripts(('theme', 'element', 'text', 'shared', 'mount'))}\nconst Component = SharedInspector;"


def token_style() -> str:
    """Return the style sheet of tokens, including both colour ramps."""
    themes = [f'.root[data-theme="{theme}"] {{ {palette.variables(theme)} }}' for theme in ("light", "dark")]
    return "\n".join([*themes, (_HERE / "tokens.css").read_text("utf-8")])


def style() -> str:
    """Return the component's style sheet."""
    return "\n".join([token_style(), *((_HERE / f"{name}.css").read_text("utf-8") for name in ("strip", "words"))])


COMPONENT = "logitbench_token_strip"
_component = component(COMPONENT, js=script(), css=style())
_shared_inspector = component("logitbench_shared_inspector", js=inspector_script(), css=style())


def token_strip(
    trial: str | None,
    *,
    key: str,
    height: int | None = None,
    k: int = 10,
    mode: Mode = "surprise",
    unit: Unit = "p",
    inspector: bool | Literal["shared"] = True,
    name: str = "",
    controls: bool = True,
    num_shared: int | None = None,
    pins_last: bool = False,
    is_answer_only: bool = False,
    folded: str | None = None,
    is_revealed: bool = False,
    is_addressed: bool = False,
    branches: Branches | None = None,
    probable: Branches | None = None,
    beams: tuple[Branches, Branches] | None = None,
    words: Sequence[str] | None = None,
    change: Change | None = None,
    on: Mapping[Event, Callable[[object], None]] = NO_LISTENERS,
) -> Any:
    """Show a trial's tokens, live while it runs; None shows an empty strip.

    `k`, `mode` and `unit` are initial values; a reader's choice then stays in their browser. `height` limits the text,
    in pixels. `controls=False` leaves out the choice of colour and unit: it follows that of another strip of the page.
    `num_shared` is the number of generated tokens that this trial has in common with those beside it; the point of
    divergence is marked and pinned. `pins_last` pins the latest token, until the reader pins one. `branches` and
    `probable`, the most probable continuations, are trees below the text; `beams` are the sequences of a beam search
    and its tree. `words` are watched, as they were typed, with a line each below the text; None: nothing can be
    watched. `change`: a comparison with another model, which adds a colour mode and a list. The result's `ended` is the
    trial's id in the one rerun after it ended while being shown.

    `inspector="shared"` shows pinned tokens in the page's `shared_inspector`, under this strip's `name`.
    `is_answer_only` leaves out the prompt's tokens. `folded` is shown in place of the tokens until a reader asks for
    them. `is_revealed` scrolls the page so that the end of the answer is seen. `is_addressed` keeps the parameters of
    What if in the page's address: of one strip of a page.

    `on` has functions that are called with plain JSON values: asked, with what a reader asks for at a token (without
    it the strip has no such buttons); acted, with what a reader does with a row of `branches` (`action`: open, star,
    name or delete; the row's `key`; `is_starred` or `name`); chosen and followed, the same for `probable` and `beams`,
    whose rows only open; watched, with the words as a reader has changed them.
    """

    def tell(event: Event) -> None:
        value = st.session_state[key].get(event)
        if value is not None:  # None: a trigger is over
            on[event](value)

    listeners: dict[str, Any] = {f"on_{event}_change": partial(tell, event) for event in on}
    return _component(
        key=key,
        data={
            "trial": trial,
            "socket": SOCKET_PATH,
            "height": height,
            "k": k,
            "mode": mode,
            "unit": unit,
            "inspector": inspector,
            "name": name,
            "controls": controls,
            "shared": num_shared,
            "last": pins_last,
            "answer": is_answer_only,
            "folded": folded,
            "reveals": is_revealed,
            "addressed": is_addressed,
            "asks": "asked" in on,
            "branches": branches,
            "probable": probable,
            "beams": beams,
            "words": words,
            "change": change,
        },
        on_ended_change=_nothing,
        **listeners,
    )


def shared_inspector(*, key: str) -> None:
    """Show the inspector that strips share: of the strip under the pointer, else of the one pinned last."""
    _shared_inspector(key=key)


def _nothing() -> None:
    """Trigger callback: registering it makes Streamlit rerun the page, which reads the ended trial itself."""
