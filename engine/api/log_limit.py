"""Log limit: what anyone's connections make the server log, at most so many lines a minute."""

import logging
import time

LOGGERS = ("asyncio", "uvicorn.error", "python_multipart.multipart")


class LogLimit(logging.Filter):
    """Logging filter that passes `most` records a minute of each place in the code, and says that it leaves out more.

    Connections and requests of any user make the server log a line (an invalid request, a refused web socket) or a
    traceback (no file descriptor for the next connection), as often as they like.
    """

    def __init__(self, most: int = 10, period_s: float = 60.0) -> None:
        super().__init__()
        self._most, self._period_s = most, period_s
        self._counts: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        place, now = (record.pathname, record.lineno), time.monotonic()
        since, count = self._counts.get(place, (now, 0))
        if now - since >= self._period_s:
            since, count = now, 0
        self._counts[place] = since, count + 1
        if count + 1 == self._most:
            record.msg, record.args = f"{record.getMessage()} (more like this are left out for a minute)", ()
        return count < self._most


def install() -> None:
    """Limit the loggers of the server, of its event loop and of its form parser."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(LogLimit())
