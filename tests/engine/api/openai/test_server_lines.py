"""The lines that point a program at the server, for any key that a person may choose."""

import re
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.server import ApiServer, checked_key
from engine.errors import ConfigError
from engine.workbench import Workbench

HOSTILE = [
    "a b$c",
    "'",
    '"',
    "\\",
    "`id`",
    "$(id)",
    "a' 'b",
    '"; id; "',
    "!!",
    "~",
    "#x",
    "*",
    "{a,b}",
    "a=b;c&d|e",
    "x\\",
]
KEYS = st.from_regex(re.compile(r"[!-~]([ -~]{0,30}[!-~])?"), fullmatch=True)


def lines_of(bench: Workbench, key: str) -> tuple[str, str, str]:
    server = ApiServer(bench)
    server.key = checked_key(key)
    return server.lines


@given(KEYS)
def test_every_line_has_the_key_as_it_is(key: str) -> None:
    in_shell, in_python, in_curl = lines_of(Workbench.__new__(Workbench), key)
    assert shlex.split(in_shell)[-1] == f"OPENAI_API_KEY={key}"
    assert shlex.split(in_curl)[-1] == f"Authorization: Bearer {key}"
    given: dict[str, str] = {}
    exec(in_python.partition("; ")[2], {"OpenAI": lambda **words: given.update(words)})
    assert given["api_key"] == key


@pytest.mark.parametrize("key", [*HOSTILE, ""])
def test_a_real_shell_gives_the_key_to_programs(key: str) -> None:
    in_shell, _, in_curl = lines_of(Workbench.__new__(Workbench), key)
    program = f"{shlex.quote(sys.executable)} -c 'import os; print(os.environ[\"OPENAI_API_KEY\"])'"
    script = f"{in_shell}\n{program}\ncurl() {{ printf '%s\\n' \"$3\"; }}\n{in_curl}\n"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ([key, f"Authorization: Bearer {key}"] if key else ["none", ""])


@pytest.mark.parametrize("key", ["é", " a", "a ", "a\nb", "\x7f", "a" * 513])
def test_what_is_no_header_is_no_key(key: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        checked_key(key)
