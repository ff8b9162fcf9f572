"""What changed since last week, and the calls of other programs to the API."""

import streamlit as st

from engine.api.openai.client_totals import by_client
from engine.api.openai.server import ApiServer
from engine.errors import EngineError
from engine.history.activity import Week
from engine.units import counted, quantity
from engine.workbench import Workbench
from engine.workbench.overview import weeks
from pages.parts.notice import notice
from pages.parts.plain import plain

MOST_CLIENTS = 3


def show(bench: Workbench) -> None:
    """Draw the last seven days beside the seven before."""
    st.subheader("Since last week", anchor=False)
    try:
        found = weeks(bench)
    except EngineError as error:
        notice(error)
        return
    if found is None:
        notice(bench.history_error or "The history is being opened.")
        return
    st.markdown(_table(found.latest, found.before))
    for change in found.changes:
        st.markdown(f"- {plain(change)}")


def traffic(api: ApiServer) -> None:
    """Draw the state of the API and its latest clients; without a call, what to do."""
    st.subheader("Traffic", anchor=False)
    calls = api.traffic
    if not calls.num_calls:
        st.caption("No program has called the API since the workbench started. Calls become trials.")
        st.page_link("traffic.py", label="Point a program here", icon=":material/link:")
        return
    where = f"at {api.address}" if api.port is not None else "while the API was on; it is stopped now"
    now = calls.tokens_per_s()
    rate = f", {quantity(now, 'tok/s')} now" if now else ""
    st.markdown(plain(f"{counted(calls.num_calls, 'call')} {where}{rate}."))
    for client in by_client(calls)[:MOST_CLIENTS]:
        failed = f", {client.num_failed:,} failed" if client.num_failed else ""
        said = f"{counted(client.num_calls, 'call')}{failed}, {counted(client.num_tokens, 'token')}"
        st.caption(plain(f"{client.client}: {said}"))
    st.page_link("traffic.py", label="All calls", icon=":material/swap_vert:")


def _table(latest: Week, before: Week) -> str:
    """Return the amounts of two weeks as a Markdown table."""
    names = {"trials": "num_trials", "calls": "num_calls", "tokens generated": "num_tokens", "runs": "num_runs"}
    rows = (f"| {label} | {getattr(latest, name):,} | {getattr(before, name):,} |" for label, name in names.items())
    return "\n".join(["| | last 7 days | 7 days before |", "|---|---:|---:|", *rows])
