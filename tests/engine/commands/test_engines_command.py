"""`engines` on the command line: added, listed, checked and removed, on a real server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import __main__ as shell
from engine.backends.embedding_server import PATH
from engine.backends.known import KnownEngine, add_known
from engine.models import llama_programs
from tests.engine.backends.embedding_answers import answer
from tests.engine.backends.fake_server import fake_server
from tests.processes import free_port
from tests.servers import our_server

KEY = "sk-test-1234"


@pytest.fixture(scope="module")
def address(story_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with our_server(story_model, tmp_path_factory.mktemp("served"), "--n-ctx", "256", key=KEY) as address:
        yield address


def output(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert shell.main(["engines", *words]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def test_an_engine_is_added_listed_checked_and_removed(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORY_KEY", KEY)
    assert "No engines are known" in output(capsys, "list")
    added = output(capsys, "add", "story", f"{address}/v1", "--model", "story", "--key-env", "STORY_KEY")
    assert "Logitbench" in added and "256 tokens" in added and KEY not in added
    listed = json.loads(output(capsys, "list", "--json"))
    known = {"name": "story", "url": address, "model": "story", "api_key_env": "STORY_KEY"}
    assert listed["engines"] == [known]
    assert output(capsys, "list").split()[:3] == ["story", address, "story"]
    found = json.loads(output(capsys, "check", "story", "--json"))
    assert found["found"]["Candidates"] == "up to 20"
    assert found["found"]["Log-probabilities"] == "of the model itself"
    assert found["found"]["Quantisation"] == "not reported by this server"
    assert found["pages"]["Prompt lab: score a prompt"] == "yes"
    assert "forgotten" in output(capsys, "remove", "story")
    assert json.loads(output(capsys, "list", "--json"))["engines"] == []


def test_servers_that_can_be_started_here_are_listed_or_what_they_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llama_programs, "build_folder", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    managed = json.loads(output(capsys, "list", "--json"))["managed"]
    assert [one["name"] for one in managed] == ["llama-server", "llama_cpp.server"]
    assert "make peers" in managed[0]["missing"] and managed[1]["missing"] == ""
    lines = output(capsys, "list").splitlines()
    assert "make peers" in lines[1] and "serve --upstream llama_cpp.server" in lines[2]


def test_what_cannot_be_used_is_reported_and_not_kept(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "refuses the key" in output(capsys, "add", "story", address, status=2)
    monkeypatch.setenv("STORY_KEY", KEY)
    wrong = ("--model", "other", "--key-env", "STORY_KEY")
    assert "has no model 'other'" in output(capsys, "add", "story", address, *wrong, status=2)
    assert "cannot be reached" in output(capsys, "add", "story", f"http://127.0.0.1:{free_port()}", status=2)
    assert "no engine 'story'" in output(capsys, "check", "story", status=2)
    assert "No engines are known" in output(capsys, "list")


def test_a_name_that_is_taken_is_refused_before_the_server_is_asked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_known(home, KnownEngine(name="story", url="http://localhost"))
    with fake_server({}) as (address, seen):
        assert "There is an engine 'story' already" in output(capsys, "add", "story", address, status=2)
    assert seen == []


def test_a_server_that_only_embeds_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server({PATH: answer}) as (address, _seen):
        assert "does not generate" in output(capsys, "add", "desk", address, status=2)
        added = json.loads(output(capsys, "add", "desk", address, "--embeds", "--json"))
        assert added["found"] == {"Model": "m", "Numbers of a vector": "6"}
        assert "m" in output(capsys, "check", "desk", "--embeds")
