"""Sessions of pages: what one holds of the server is given back after it ends."""

import time

import psutil
import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from tests.e2e.conftest import Server
from tests.waiting import until

pytestmark = pytest.mark.slow

KEPT_S = 5  # disconnectedSessionTTL of .streamlit/config.toml
PAGES = ("", "benchmark", "history", "compare", "cost", "models", "embeddings")


def visit(server: Server, page: str) -> None:
    """Open a page as its script in the browser does, and close it when it is drawn."""
    address = f"ws://127.0.0.1:{server.port}/_stcore/stream"
    with connect(address, origin=Origin(server.url), subprotocols=[Subprotocol("streamlit")], max_size=None) as socket:
        message = BackMsg()
        message.rerun_script.page_name = page
        socket.send(message.SerializeToString())
        kinds = []
        while "script_finished" not in kinds:
            drawn = ForwardMsg()
            received = socket.recv(60)
            assert isinstance(received, bytes)
            drawn.ParseFromString(received)
            kinds.append(drawn.WhichOneof("type"))
    assert "delta" in kinds


def descriptors(server: Server) -> int:
    """How many the server has open, when the sessions that ended are over: the next one to end clears them away."""
    time.sleep(KEPT_S + 1)
    visit(server, "")
    return psutil.Process(server.process.pid).num_fds()


def test_a_hundred_pages_leave_no_descriptor(shipped: Server) -> None:
    for page in PAGES:
        visit(shipped, page)
    before = descriptors(shipped)
    for number in range(100):
        visit(shipped, PAGES[number % len(PAGES)])
    until(lambda: descriptors(shipped) <= before + 5, "descriptors stay")
