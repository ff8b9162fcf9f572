"""The pages as AppTest runs them: opened through the router, buttons pressed, nothing raised."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

ROUTER = Path(__file__).parents[2] / "pages" / "router.py"


def open_page(script: str, title: str, **query: str) -> AppTest:
    """The page of a script at an address; its title says that it was drawn."""
    at = AppTest.from_file(str(ROUTER), default_timeout=60)
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
