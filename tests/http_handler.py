"""The handler of HTTP requests that the servers of tests have."""

from contextlib import suppress
from http.server import BaseHTTPRequestHandler


class QuietHandler(BaseHTTPRequestHandler):
    """Handler that logs nothing; a client may hang up at any time, in the middle of an answer too."""

    def handle(self) -> None:
        """Answer until the client hangs up."""
        with suppress(ConnectionError):
            super().handle()

    def finish(self) -> None:
        """Send what is left, if somebody is there to take it."""
        with suppress(ConnectionError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""
