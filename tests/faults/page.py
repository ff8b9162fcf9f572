"""A page of the workbench without a browser: Streamlit's own protocol over its web socket.

It opens an address, fills fields, presses buttons and sees every element that the script drew, in a tenth of the time
that Chromium takes. It knows nothing of how the pages are made but the keys of their widgets.
"""

import re
import secrets
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Self
from urllib.parse import urlsplit

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from tests.faults.failure import MOST_S, Failure

XSRF = "_streamlit_xsrf"
SCRIPT_ENDS = (ForwardMsg.FINISHED_SUCCESSFULLY, ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY)


STAYS = "stays=1"
"""A query with which the address opens the Prompt lab, also where something was run before."""


class Page:
    """One tab. Every method returns once the script has ended; each raises Failure where that takes longer than it may.

    `query` is the address's query string as the page last set it, `elements` what is drawn, by place.
    """

    def __init__(self, url: str, name: str = "", query: str = "", *, most_s: float = MOST_S) -> None:
        self.url, self.name, self.query, self.most_s = url, name, query or ("" if name else STAYS), most_s
        self.elements: dict[tuple[int, ...], Element] = {}
        self._fragments: dict[str, str] = {}
        self._states: dict[str, WidgetState] = {}
        self._script_hash = self._session = ""
        self._xsrf = secrets.token_hex(16)
        self._open = ExitStack()
        self._socket = self._connect()
        try:
            self._rerun()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the page as a closed tab does."""
        self._open.close()

    def reopen(self) -> None:
        """Open the same address in a new tab."""
        self.close()
        self._socket, self._script_hash = self._connect(), ""
        self._states.clear()
        self._rerun()

    # what is drawn

    def of_type(self, kind: str) -> Iterator[Any]:
        """The elements of one type of Streamlit's protocol, such as "button", in the order of the page."""
        for path in sorted(self.elements):
            if self.elements[path].WhichOneof("type") == kind:
                yield getattr(self.elements[path], kind)

    def widget(self, key: str) -> Any:
        """The widget with this key; raises Failure where it is not on the page."""
        found = self.find(key)
        if found is None:
            raise Failure(f"{self.place}: there is no widget {key}; it shows {self.words()[:300]!r}")
        return found

    def find(self, key: str) -> Any:
        """The widget with this key, None where it is not on the page."""
        for element in self.elements.values():
            kind = element.WhichOneof("type")
            widget = getattr(element, kind) if kind else None
            if getattr(widget, "id", "").endswith(f"-{key}"):
                return widget
        return None

    def words(self) -> str:
        """The text on the page: titles, captions, notices."""
        bodies = (getattr(element, kind) for element in self.elements.values() if (kind := element.WhichOneof("type")))
        texts = (getattr(one, "body", "") for one in bodies)
        return " ".join(text for text in texts if text and not text.startswith("<style>"))

    def errors(self) -> list[str]:
        """The notices of failures."""
        return [alert.body for alert in self.of_type("alert")]

    @property
    def place(self) -> str:
        """The address without the server, as far as it helps to know it."""
        return (f"/{self.name}" + (f"?{self.query}" if self.query else ""))[:160]

    @property
    def trial(self) -> str:
        """The trial that the address names, "" where it names none."""
        found = re.search(r"(?:^|&)trial=([0-9a-f-]{36})", self.query)
        return found[1] if found else ""

    # what a person does

    def press(self, key: str) -> None:
        """Press a button; raises Failure where it is not there or cannot be pressed."""
        button = self.widget(key)
        if button.disabled:
            raise Failure(f"{self.place}: the button {key} cannot be pressed; the page says {self.words()[:300]!r}")
        self._rerun(WidgetState(id=button.id, trigger_value=True))

    def fill(self, **values: str | float | bool) -> None:
        """Give fields, by their keys, other values, as after Enter or a click elsewhere; the script runs once.

        A text is cut to what its field takes, as a browser does.
        """
        changed = []
        for key, value in values.items():
            widget = self.widget(key)
            given = value[: getattr(widget, "max_chars", 0) or None] if isinstance(value, str) else value
            kind = {bool: "bool_value", str: "string_value"}.get(type(value), "double_value")
            state = WidgetState(id=widget.id)
            setattr(state, kind, given)
            self._states[state.id] = state
            changed.append(state)
        self._rerun(*changed)

    def choose(self, key: str, option: str) -> None:
        """Choose one option of a list or of a row of buttons, by its label, whether or not the page still offers it."""
        widget = self.widget(key)
        state = WidgetState(id=widget.id)
        if widget.DESCRIPTOR.name == "Selectbox":
            state.string_value = option
        else:
            state.string_array_value.data.append(option)
        self._states[state.id] = state
        self._rerun(state)

    def press_again(self, key: str) -> None:
        """Press a button as often as an impatient person does on a slow connection: before the page has changed."""
        button = WidgetState(id=self.widget(key).id, trigger_value=True)
        for _ in range(2):
            self._ask(button)
        self._rerun(button)

    def upload(self, key: str, name: str, content: bytes) -> None:
        """Choose a file in an uploader, as the browser does: it is sent first, then the page is told."""
        id, asked = self.widget(key).id, BackMsg()
        asked.file_urls_request.request_id = secrets.token_hex(8)
        asked.file_urls_request.file_names.append(name)
        asked.file_urls_request.session_id = self._session
        self._send(asked)
        end = time.monotonic() + self.most_s
        while (message := self._receive(end)).WhichOneof("type") != "file_urls_response":
            self._take(message)
        urls = message.file_urls_response.file_urls[0]
        self._put(urls.upload_url, name, content)
        state = WidgetState(id=id)
        state.file_uploader_state_value.uploaded_file_info.add(
            file_id=urls.file_id, name=name, size=len(content)
        ).file_urls.CopyFrom(urls)
        self._states[id] = state
        self._rerun(state)

    def go_to(self, name: str, query: str = "") -> None:
        """Open another page, or the same with another query string, in this tab."""
        self.name, self.query, self._script_hash = name, query, ""
        self._rerun()

    def rerun(self) -> None:
        """Run the script again with nothing changed, as a page that refreshes itself does."""
        self._rerun()

    def ask_without_reading(self, times: int) -> None:
        """Ask for the page again and again, and leave what comes where it is; only `close` may follow."""
        for _ in range(times):
            asked = BackMsg()
            asked.rerun_script.query_string, asked.rerun_script.page_script_hash = self.query, self._script_hash
            self._send(asked)

    # the protocol

    @property
    def _origin(self) -> str:
        return self.url

    def _connect(self) -> ClientConnection:
        address = f"ws://{urlsplit(self.url).netloc}/_stcore/stream"
        try:
            return self._open.enter_context(connect(
                address, origin=Origin(self._origin), max_size=None,
                subprotocols=[Subprotocol("streamlit"), Subprotocol(self._xsrf)],
                additional_headers={"Cookie": f"{XSRF}={self._xsrf}"}, open_timeout=self.most_s, close_timeout=1,
            ))  # fmt: skip
        except (OSError, WebSocketException) as error:
            raise Failure(f"{self.place}: the page could not be opened: {error!r}") from error

    def _send(self, message: BackMsg) -> None:
        try:
            self._socket.send(message.SerializeToString())
        except (OSError, WebSocketException) as error:
            raise Failure(f"{self.place}: the page lost its server: {error!r}") from error

    def _receive(self, end: float) -> ForwardMsg:
        try:
            raw = self._socket.recv(timeout=max(end - time.monotonic(), 0.001), decode=False)
        except TimeoutError:
            raise Failure(f"{self.place}: the script had not ended after {self.most_s:g} s") from None
        except (OSError, WebSocketException) as error:
            raise Failure(f"{self.place}: the page lost its server: {error!r}") from error
        message = ForwardMsg()
        message.ParseFromString(raw)
        return message

    def _rerun(self, *changed: WidgetState) -> None:
        """Run the script, or the fragment alone that the changed widgets lie in; returns when it has ended."""
        self._ask(*changed)
        self._until_drawn()

    def _ask(self, *changed: WidgetState) -> None:
        asked = BackMsg()
        client = asked.rerun_script
        client.query_string, client.page_script_hash = self.query, self._script_hash
        client.page_name = "" if self._script_hash else self.name
        client.fragment_id = self._fragments.get(changed[0].id, "") if changed else ""
        new = {state.id for state in changed}
        others = [state for id, state in self._states.items() if id not in new]
        client.widget_states.widgets.extend([*others, *changed])
        self._send(asked)

    def _until_drawn(self) -> None:
        end = time.monotonic() + self.most_s
        while True:
            message = self._receive(end)
            self._take(message)
            if message.WhichOneof("type") == "script_finished":
                if message.script_finished in SCRIPT_ENDS:
                    break
                if message.script_finished == ForwardMsg.FINISHED_WITH_COMPILE_ERROR:
                    raise Failure(f"{self.place}: the script could not be compiled")
        self._look()

    def _take(self, message: ForwardMsg) -> None:
        """Change what is drawn by one message."""
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self._session = message.new_session.initialize.session_id or self._session
            if not message.metadata.run.fragment_ids:
                self.elements.clear()
        elif kind == "navigation":
            self._script_hash = message.navigation.page_script_hash
        elif kind == "page_info_changed":
            self.query = message.page_info_changed.query_string
        elif kind == "delta" and message.delta.WhichOneof("type") == "new_element":
            element = message.delta.new_element
            self.elements[tuple(message.metadata.delta_path)] = element
            type_of = element.WhichOneof("type")
            id = getattr(getattr(element, type_of), "id", "") if type_of else ""
            if id and message.delta.fragment_id:
                self._fragments[id] = message.delta.fragment_id

    def _look(self) -> None:
        """Raise Failure for a traceback on the page."""
        for found in self.of_type("exception"):
            trace = " | ".join(found.stack_trace)[-600:]
            raise Failure(f"{self.place}: traceback: {found.type}: {found.message[:300]} {trace}")

    def _put(self, path: str, name: str, content: bytes) -> None:
        edge = secrets.token_hex(16)
        head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
        request = urllib.request.Request(
            self.url + path, data=head + content + f"\r\n--{edge}--\r\n".encode(), method="PUT",
            headers={
                "Content-Type": f"multipart/form-data; boundary={edge}", "Origin": self._origin,
                "X-Xsrftoken": self._xsrf, "Cookie": f"{XSRF}={self._xsrf}",
            },
        )  # fmt: skip
        try:
            with closing(urllib.request.urlopen(request, timeout=self.most_s)) as answer:
                answer.read()
        except OSError as error:
            raise Failure(f"{self.place}: {name} could not be uploaded: {error!r}") from error
