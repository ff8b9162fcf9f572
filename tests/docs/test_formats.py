"""docs/formats.md: names every member of an archive and every column that is always present."""

import json
import re
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.exchange import answer_files
from engine.exchange.answer_files import answer_line
from engine.exchange.prompt_files import FilePrompt
from engine.history import export
from engine.history.archives.parts import FORMAT, MEMBERS, VERSION
from engine.history.export import FAMILY_FORMAT, TRIAL_FORMAT, family_to_json
from engine.history.run_file import ALWAYS
from engine.history.step_checks import STEP_COLUMNS
from tests.engine.history.trial_maker import make_trial, with_stages

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


def test_the_json_of_trials_in_the_page_has_every_field() -> None:
    (shown,) = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
    real = json.loads(family_to_json([with_stages(make_trial(1, 2))]))
    assert [name for name in _names(real) if name not in _names(shown)] == []
    assert [name for name in _names(shown) if name not in _names(real)] == []
    assert (shown["format"], shown["version"]) == (FAMILY_FORMAT, export.VERSION)
    assert f'`format` ("{TRIAL_FORMAT}")' in PAGE


def _names(value: Any, *, inside: str = "") -> set[str]:
    """Return the names of all members, each behind that of its object; not those that are parameters or hashes."""
    if isinstance(value, list):
        return {name for each in value for name in _names(each, inside=inside)}
    if not isinstance(value, dict) or inside in ("sampling", "request", "pool", "versions", "names"):
        return set()
    if inside == "tokenizers":
        return {name for each in value.values() for name in _names(each, inside="tokenizer")}
    below = {name for key, each in value.items() for name in _names(each, inside=key)}
    return {f"{inside}.{key}" for key in value} | below
