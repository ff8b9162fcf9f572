"""Log limit: a flood from one place is cut short, other places are heard."""

import logging
from contextlib import suppress

import pytest
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from engine.api import log_limit
from engine.api.log_limit import LogLimit


@pytest.fixture
def logger() -> logging.Logger:
    """A logger that takes everything."""
    logger = logging.Logger("flooded", logging.DEBUG)
    logger.propagate = False
    return logger


def logged(logger: logging.Logger) -> list[str]:
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger.addHandler(Keep())
    return messages


def test_a_flood_is_cut_short_and_says_so(logger: logging.Logger) -> None:
    logger.addFilter(LogLimit(most=3, period_s=3600))
    messages = logged(logger)
    for number in range(1000):
        logger.warning("invalid request %d", number)
    logger.error("another place")
    assert messages[:2] == ["invalid request 0", "invalid request 1"]
    assert messages[2].startswith("invalid request 2 (more like this are left out")
    assert messages[3:] == ["another place"]


def test_the_next_period_is_heard_again(logger: logging.Logger) -> None:
    logger.addFilter(LogLimit(most=1, period_s=0))
    messages = logged(logger)
    for number in range(3):
        logger.warning("invalid request %d", number)
    assert len(messages) == 3


def test_malformed_forms_are_logged_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in log_limit.LOGGERS:
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    log_limit.install()
    messages = logged(logging.getLogger("python_multipart.multipart"))
    for _ in range(100):
        with suppress(FormParserError):
            MultipartParser(b"boundary", {}).write(b"no boundary")
    assert 0 < len(messages) <= 10
