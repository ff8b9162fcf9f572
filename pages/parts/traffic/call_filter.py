"""Filter of calls: what it lets through, and its bar, which stands in the URL."""

from typing import Annotated, Literal

import msgspec
import streamlit as st

from engine.api.openai.traffic import LONGEST_BODY, LONGEST_CLIENT, CallRow, Traffic
from pages.parts import address
from pages.parts.labels import distinct

States = Literal["", "running", "done", "failed"]
STATES: dict[str, str] = {"": "All", "running": "Running", "done": "Done", "failed": "Failed"}
LIVE, ENDED = ("waiting", "running"), ("done", "stopped")
LONGEST_TEXT = 200
MOST_CLIENTS = 200
"""Clients to choose from, those of the latest calls."""
NAMES = ("state", "client", "endpoint", "text")
KEY = "traffic_filter_"
SEARCHED = f"Searches errors, clients, models and the first {LONGEST_BODY:,} bytes of each request"

_ESCAPES = {r"\"": '"', r"\/": "/", r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\b": "\b", r"\f": "\f", "\0": "\\"}

Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filter of calls; an empty field asks for all.

    text: part of a request, as it was sent or as its JSON reads, or of an error, a client or a model.
    """

    state: States = ""
    client: Annotated[str, msgspec.Meta(max_length=LONGEST_CLIENT)] = ""
    endpoint: Text = ""
    text: Text = ""

    def matches(self, row: CallRow) -> bool:
        """Return True for a call that is let through."""
        states = {"running": LIVE, "done": ENDED}.get(self.state, (self.state,))
        if (self.state and row.state not in states) or (self.client and row.client != self.client):
            return False
        if self.endpoint and row.endpoint != self.endpoint:
            return False
        text = self.text.casefold()
        if not text or any(text in each.casefold() for each in (row.client, row.model, row.error, row.body)):
            return True
        is_never_escaped = text.isascii() and text.replace(" ", "").isalnum()
        return not is_never_escaped and "\\" in row.body and text in unescaped(row.body).casefold()


def unescaped(json_text: str) -> str:
    """Return a text with the escapes of JSON decoded; incomplete ones are replaced. 16 KB take 0.1 ms."""
    text = json_text.replace(r"\\", "\0").encode("latin-1", "backslashreplace").decode("raw_unicode_escape", "replace")
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins the halves of pairs


def asked() -> Wanted:
    """Return the filter in the URL; fields that cannot be read count as empty."""
    given = {name: st.query_params.get(name, "") for name in NAMES}
    given["state"] = given["state"] if given["state"] in STATES else ""
    longest = {"client": LONGEST_CLIENT}
    return msgspec.convert({name: text[: longest.get(name, LONGEST_TEXT)] for name, text in given.items()}, Wanted)


def show(traffic: Traffic) -> Wanted:
    """Draw the bar and return the filter."""
    wanted, rows = asked(), traffic.rows()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.segmented_control(
            "State", list(STATES), format_func=STATES.__getitem__, required=True, label_visibility="collapsed",
            **address.bound("state", KEY + "state", wanted.state),
        )  # fmt: skip
        st.text_input(
            "Search", placeholder="Search", icon=":material/search:", label_visibility="collapsed", width=200,
            max_chars=LONGEST_TEXT, help=SEARCHED, **address.bound("text", KEY + "text", wanted.text),
        )  # fmt: skip
        _choice("client", wanted.client, [row.client for row in rows], 240)
        _choice("endpoint", wanted.endpoint, [row.endpoint for row in rows], 200)
        if wanted != Wanted():
            st.button("Clear", type="tertiary", key="traffic_clear", on_click=_clear)
    return wanted


def _choice(name: str, chosen: str, found: list[str], width: int) -> None:
    """Draw a choice; skipped where there is nothing to choose between."""
    known = list(dict.fromkeys([*([chosen] if chosen else []), *found]))[:MOST_CLIENTS]
    if len(known) < 2 and not chosen:
        return
    labels = distinct({each: each for each in known})
    st.selectbox(
        name.capitalize(), known, format_func=labels.__getitem__, placeholder=f"Every {name}", width=width,
        label_visibility="collapsed", **address.bound(name, KEY + name, chosen or None),
    )  # fmt: skip


def _clear() -> None:
    for name in NAMES:
        address.put(name, "")
