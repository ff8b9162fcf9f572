"""docs/formats.md: names every member of an archive and every column that is always present."""

import json
import re
from pathlib import Path

from engine.errors import EngineError
from engine.exchange import answer_files
from engine.exchange.answer_files import answer_line
from engine.exchange.prompt_files import FilePrompt
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


def test_every_member_of_an_answer_is_named() -> None:
    prompt = FilePrompt(0, None, "0" * 16, 0)
    assert [name for name in json.loads(answer_line(prompt, EngineError("x"))) if f"`{name}`" not in PAGE] == []
    assert f'`format` "{answer_files.FORMAT}", `version` {answer_files.VERSION}' in PAGE
