"""Standard streams of commands: closed ones, and outputs that cannot encode what is printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NARROW = [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, C_LOCALE]


def run(command: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    shell_line = f"exec {sys.executable} -m engine {command}"
    return subprocess.run(
        ["sh", "-c", shell_line], env=os.environ | environment, capture_output=True, check=False, timeout=120
    )


@pytest.mark.parametrize("command", ["generate --prompt -", "embed -"])
@pytest.mark.parametrize(
    ("redirection", "said"), [("<&-", "standard input is closed"), ("0>/dev/null", "standard input cannot be read")]
)
def test_a_standard_input_that_gives_nothing_is_an_error(command: str, redirection: str, said: str) -> None:
    done = run(f"{command} {redirection}")
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"error: {said}")


@pytest.mark.parametrize("environment", [{}, C_LOCALE], ids=["UTF-8", "C"])
def test_a_standard_input_that_is_not_text_is_an_error(tmp_path: Path, environment: dict[str, str]) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"Once \xff\xfe upon")
    done = run(f"generate --prompt - <{path}", **environment)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("error: standard input is not text in ")


@pytest.mark.parametrize("environment", NARROW, ids=["ascii", "latin-1", "C"])
def test_text_is_printed_with_escapes_where_it_cannot_be_encoded(environment: dict[str, str]) -> None:
    done = run("""history sql "SELECT chr(8364) || chr(128512) AS mark" """, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"mark\n\\u20ac\\U0001f600\n"
    assert run("history list", **environment).returncode == 0


@pytest.mark.parametrize("environment", NARROW, ids=["ascii", "latin-1", "C"])
@pytest.mark.parametrize(
    "command",
    [
        "history list --json",
        "bench --dry-run --json",
        "generate --prompt Once --max-tokens 2 --seed 1 --top-k 300 --json --no-keep",
        "cost --documents 10 --words 100 --json",
    ],
)
def test_json_is_the_same_whatever_the_output_can_encode(command: str, environment: dict[str, str]) -> None:
    done = run(command, **environment)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    narrow, wide = json.loads(done.stdout), json.loads(run(command, PYTHONIOENCODING="utf-8").stdout)
    assert narrow.keys() == wide.keys()
    if command.startswith("history"):
        assert narrow == wide
        assert not json.dumps(wide, ensure_ascii=False).isascii()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_json_holds_bytes_of_a_path_that_are_no_text_as_escapes(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "\udcff.zip"
    done = run(f"history export {path} --json", PYTHONIOENCODING=encoding)
    assert json.loads(done.stdout)["path"] == str(path)
