"""API server on the page: started and stopped, and the lines that point a program to it."""

import streamlit as st

from engine.api.openai.server import PORT, ApiServer
from engine.errors import EngineError
from pages.parts.notice import notice
from pages.parts.plain import plain

PORT_KEY, FAILURE = "traffic_port", "traffic_failure"
POINT = "Point a program here"
NO_MODEL = "no model is loaded, so completions are refused until one is"


def show(api: ApiServer, *, has_model: bool) -> None:
    """Draw the server's state with its one button."""
    if api.port is None:
        _stopped(api)
    else:
        _running(api, has_model=has_model)
    failure = st.session_state.pop(FAILURE, None)
    if failure is not None:
        notice(failure)


def _stopped(api: ApiServer) -> None:
    st.markdown(
        "Other programs can use the loaded model through an OpenAI-compatible API. Each of their calls becomes a "
        "trial with exact probabilities, and appears here while it runs."
    )
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.number_input(
            "Port", 1, 65_535, PORT, key=PORT_KEY, width=140, help="on 127.0.0.1, for the programs of this machine"
        )
        st.button("Start the API", type="primary", icon=":material/play_arrow:", key="traffic_start", on_click=_start,
                  args=(api,))  # fmt: skip


def _running(api: ApiServer, *, has_model: bool) -> None:
    refusing = "" if has_model else f" · {NO_MODEL}"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(plain(f"Answers at http://127.0.0.1:{api.port}/v1{refusing}"), width="stretch")
        if api.traffic.num_calls:
            with st.popover(POINT, icon=":material/link:", key="traffic_lines"):
                _lines(api)
        st.button("Stop", icon=":material/stop:", type="tertiary", key="traffic_stop", on_click=api.stop,
                  help="End the calls in progress and close the port")  # fmt: skip


def first_call(api: ApiServer) -> None:
    """Draw the lines that point a program here, open: until the first call they are what is needed."""
    st.subheader(POINT, anchor=False)
    _lines(api)


def _lines(api: ApiServer) -> None:
    variables, in_python, in_shell = api.lines
    st.caption("Environment variables, which most programs read")
    st.code(variables, language="bash", wrap_lines=True)
    st.caption("OpenAI's Python client")
    st.code(in_python, language="python", wrap_lines=True)
    st.caption("curl")
    st.code(in_shell, language="bash", wrap_lines=True)


def _start(api: ApiServer) -> None:
    try:
        api.start(int(st.session_state[PORT_KEY]))
    except EngineError as error:
        st.session_state[FAILURE] = error.bare()
