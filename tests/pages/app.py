"""The pages as AppTest runs them: opened through the router, buttons pressed, nothing raised."""

from pathlib import Path

import pandas as pd
from streamlit.testing.v1 import AppTest

ROUTER = Path(__file__).parents[2] / "pages" / "router.py"
HOSTILE = "<script>alert(1)</script> **bold** $x$ :red[no] \u202egnp"


def frame() -> AppTest:
    """The router in a session that has begun: a new one may open on the Overview, see `pages/router.py`."""
    at = AppTest.from_file(str(ROUTER), default_timeout=60)
    at.session_state["router_opened"] = True
    return at


def open_page(script: str, title: str, **query: str) -> AppTest:
    """The page of a script at an address; its title says that it was drawn."""
    at = frame()
    for name, value in query.items():
        at.query_params[name] = value
    at = at.switch_page(script).run()
    assert not at.exception, at.exception
    assert [element.value for element in at.title] == [title]
    return at


def press(at: AppTest, key: str) -> AppTest:
    """The page after a button."""
    at.button(key=key).click().run()
    assert not at.exception, at.exception
    return at


def address(at: AppTest) -> dict[str, str]:
    """What the address says, a value a name."""
    return {name: value if isinstance(value, str) else value[0] for name, value in at.query_params.items()}


def said(at: AppTest) -> str:
    """The texts of the page: captions, Markdown and subheaders."""
    return "\n".join(element.value for element in [*at.main.caption, *at.main.markdown, *at.main.subheader])


def primary(at: AppTest) -> list[str]:
    """Labels of the primary buttons."""
    return [button.label for button in at.main.button if button.proto.type == "primary"]


def table(at: AppTest) -> pd.DataFrame:
    """The first table that rows can be chosen in."""
    return next(frame.value for frame in at.main.dataframe if frame.key)


def choose(at: AppTest, *rows: int) -> AppTest:
    """Choose rows of the first table."""
    key = next(frame.key for frame in at.main.dataframe if frame.key)
    at.session_state[key] = {"selection": {"rows": list(rows), "columns": [], "cells": []}}
    at.run()
    assert not at.exception, at.exception
    return at
