"""Command-line parser: unknown flags, closed output, and errors that do not steer the terminal."""

import argparse
import contextlib
import difflib
import random
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from engine import __main__ as shell
from engine.commands.parser import Parser

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


Refused = Callable[[list[str]], str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command line that is refused, and return what it says."""

    def said(words: list[str]) -> str:
        with pytest.raises(SystemExit) as ended:
            shell.main(words)
        assert ended.value.code == 2
        return capsys.readouterr().err

    return said


@pytest.fixture
def flags_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The flags of every command and subcommand, by its words, taken from the parsers that the commands make."""
    made: list[argparse.ArgumentParser] = []
    begin = Parser.__init__

    def recorded(self: Parser, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(Parser, "__init__", recorded)
        for command in ("generate", *shell.COMMANDS):
            with contextlib.suppress(SystemExit):
                shell.main([command, "--help"])
    capsys.readouterr()
    commands = {parser.prog.removeprefix("python -m engine").strip(): parser for parser in made}
    listed = {words: [flag for flag in one._option_string_actions if flag[1] == "-"] for words, one in commands.items()}
    return {words: flags for words, flags in listed.items() if len(flags) > 1 or " " in words}


def misspelt(flag: str, draw: random.Random) -> str:
    """The flag with a letter left out, doubled, or another in its place."""
    place = draw.randrange(2, len(flag))
    letter = draw.choice(["", 2 * flag[place], "z"])
    return flag[:place] + letter + flag[place + 1 :]


def test_an_unknown_flag_is_named_first_with_the_nearest_one(refused: Refused, flags_of: dict[str, list[str]]) -> None:
    assert {"generate", "bench", "bench resume", "limits", "history list", "models synth", "embed"} <= set(flags_of)
    draw = random.Random(7)
    for command, flags in flags_of.items():
        for flag in draw.sample(flags, min(3, len(flags))):
            unknown = misspelt(flag, draw)
            if unknown in flags:
                continue
            near = difflib.get_close_matches(unknown, flags, n=1)
            words = draw.choice([[unknown], [unknown, "3"], [f"{unknown}=3"], [f"{unknown}=two words"]])
            error = refused([*command.split(), *words, *draw.choice([[], ["--json"], ["x", "y"]])])
            assert error.startswith(f"usage: python -m engine {command}"), error
            assert f"unknown flag {unknown}: " in error.splitlines()[-1]
            assert not near or f"did you mean {near[0]}?" in error, error


@pytest.mark.parametrize(
    "command", ["history", "models", "generate", "bench --name resume", "embed", "models get -- x"]
)
def test_an_unknown_flag_is_named_before_what_is_missing(refused: Refused, command: str) -> None:
    words = command.split()
    place = words.index("--") if "--" in words else len(words)
    error = refused([*words[:place], "--foo", *words[place:]]).splitlines()[-1]
    assert "unknown flag --foo: " in error


@pytest.mark.parametrize(
    ("words", "home"), [("history --limit 3 list", "list or sql"), ("models --imatrix x", "quantize")]
)
def test_a_flag_before_its_subcommand_is_refused_with_where_it_belongs(refused: Refused, words: str, home: str) -> None:
    assert f"it belongs after {home}" in refused(words.split())


@pytest.mark.parametrize("value", ["-1", "-.5", "--prompt me", "-- --foo", "a--foo", "-", "--x y=z", ""])
def test_a_value_is_no_flag(value: str) -> None:
    parser = Parser(allow_abbrev=False)
    parser.add_argument("--prompt")
    parser.add_argument("--again", action="store_true")
    assert parser.parse_args(["--prompt", value, "--again"]).prompt == value
    assert parser.parse_args([f"--prompt={value}", "--again"]).prompt == value


def test_what_follows_two_dashes_is_no_flag() -> None:
    parser = Parser(allow_abbrev=False)
    parser.add_argument("texts", nargs="*")
    assert parser.parse_args(["--", "--foo", "-x"]).texts == ["--foo", "-x"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("unknown", ["--no-such-flag", "--limt"])
def test_an_unknown_flag_ends_with_the_usage_of_its_own_command(
    capsys: pytest.CaptureFixture[str], command: str, unknown: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        shell.main([*command.split(), unknown])
    error = capsys.readouterr().err
    names = [word for word in command.split() if word.isalpha() and word.islower() and word != "x"]
    assert ended.value.code == 2
    assert error.startswith(f"usage: python -m engine {' '.join(names)}"), error
    assert unknown in error.splitlines()[-1]


def texts_of_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The help of a command and of all its subcommands, by their words."""
    with pytest.raises(SystemExit):
        shell.main([*words, "--help"])
    text = capsys.readouterr().out
    names = re.search(r"^  ([a-z]+(?:\|[a-z]+)+)$", text, re.MULTILINE)
    found = {" ".join(words): text}
    for name in names[1].split("|") if names else ():
        found |= texts_of_help([*words, name], capsys)
    return found


def test_the_help_of_every_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    texts: dict[str, str] = {}
    for command in ("generate", *shell.COMMANDS):
        texts |= texts_of_help([command], capsys)
    assert {"history gc", "models synth", "trials replay", "limits"} <= set(texts)
    for words, text in texts.items():
        _usage, says, *_rest = text.split("\n\n")
        assert re.match(r"[A-Z]", says) and says[-1] in ".?", words


@pytest.mark.parametrize("name", ["logitbench", "__main__.py"])
def test_the_usage_names_the_program_as_it_was_started(name: str) -> None:
    code = "import sys; sys.argv = sys.argv[1:]; from engine.__main__ import main; main()"
    words = [sys.executable, "-c", code, f"/bin/{name}", "history", "gc", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    program = "python -m engine" if name == "__main__.py" else name
    assert done.stdout.startswith(f"usage: {program} history gc "), done.stderr


def test_an_unknown_flag_before_the_command_is_the_outer_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shell.main(["history", "--no-such-flag", "list"])
    assert "--no-such-flag" in capsys.readouterr().err


def test_embed_says_that_its_choice_may_be_of_less_precision(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shell.main(["embed", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert "bfloat16 included, whose vectors all have a cosine of at least 0.9999 to those of float32" in help_text


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
