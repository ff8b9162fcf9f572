"""Command-line parser: unknown flags, closed output, and errors that do not steer the terminal."""

import subprocess
import sys

import pytest

from engine import __main__ as shell

COMMANDS = (
    "generate --prompt x",
    "bench",
    "bench resume RUN",
    "tune",
    "reconcile",
    "limits",
    "cost",
    "embed texts.txt",
    "history list",
    "history show ID",
    "history sql SELECT",
    "history snapshot x.duckdb",
    "history gc",
    "models list",
    "models show x",
    "models get",
    "models quantize x Q4_0",
    "models fit x",
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("unknown", ["--no-such-flag", "--limt"])
def test_an_unknown_flag_ends_with_the_usage_of_its_own_command(
    capsys: pytest.CaptureFixture[str], command: str, unknown: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main([*command.split(), unknown])
    told = capsys.readouterr().err
    names = [word for word in command.split() if word.isalpha() and word.islower() and word != "x"]
    assert ended.value.code == 2
    assert told.startswith(f"usage: python -m engine {' '.join(names)}"), told
    assert unknown in told.splitlines()[-1]


def test_an_unknown_flag_before_the_command_is_the_outer_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shell.main(["history", "--no-such-flag", "list"])
    assert "--no-such-flag" in capsys.readouterr().err


def test_embed_says_that_its_choice_may_be_of_less_precision(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shell.main(["embed", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "bfloat16 included, whose vectors all have a cosine of at least 0.9999 to those of float32" in told


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_command_whose_output_is_closed_ends_well(closed: str) -> None:
    command = f"exec {sys.executable} -m engine models list {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_steers_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["models", "show", "\x1b]0;owned\x07\x1b[31m.gguf"]) == 2
    said = capfd.readouterr().err
    assert r"\x1b]0;owned\x07" in said
    assert "\x1b" not in said
