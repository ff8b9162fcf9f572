"""docs/formats.md: names every member of an archive and every column that is always present."""

import re
from pathlib import Path

from engine.history.archives.parts import FORMAT, MEMBERS, VERSION
from engine.history.run_file import ALWAYS
from engine.history.step_checks import STEP_COLUMNS

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text("utf-8")


def test_every_member_of_an_archive_is_described() -> None:
    assert re.findall(r"^\| `([a-z]+\.[a-z]+)` \|", PAGE, re.MULTILINE) != []
    assert [name for name in MEMBERS if f"| `{name}` |" not in PAGE] == []
    assert f'`format` ("{FORMAT}"), `version` ({VERSION})' in PAGE


def test_every_column_that_is_always_there_is_named() -> None:
    assert [name for name in (*ALWAYS, *STEP_COLUMNS) if f"`{name}`" not in PAGE] == []
