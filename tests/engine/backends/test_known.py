"""Known engines: their file, which has no keys, and who may be asked."""

import json
import threading
from pathlib import Path

import pytest

from engine.backends.known import FILE, KnownEngine, add_known, find_known, read_known, remove_known
from engine.backends.managed_programs import MANAGED
from engine.errors import ConfigError
from engine.opening import open_engine
from engine.specs import PoolSpec
from tests.engine.backends.fake_server import chunk, columns, fake_server

LOCAL = KnownEngine(name="local", url="http://localhost:8080/v1/")
HOSTED = KnownEngine(name="hosted", url="https://api.example.com", model="big", api_key_env="EXAMPLE_KEY")


def test_engines_are_kept_without_their_keys(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_KEY", "sk-1234")
    assert read_known(home) == ()
    add_known(home, LOCAL)
    add_known(home, HOSTED)
    assert read_known(home) == (LOCAL, HOSTED)
    assert find_known(home, "local").url == "http://localhost:8080"
    content = (home / FILE).read_text()
    assert "sk-1234" not in content and "EXAMPLE_KEY" in content
    assert (home / FILE).stat().st_mode & 0o777 == 0o600
    remove_known(home, "local")
    assert read_known(home) == (HOSTED,)
    with pytest.raises(ConfigError, match="no engine 'local'; known: 'hosted'"):
        remove_known(home, "local")


def test_a_name_is_taken_once(home: Path) -> None:
    add_known(home, LOCAL)
    with pytest.raises(ConfigError, match="already"):
        add_known(home, KnownEngine(name="local", url="http://other"))
    assert read_known(home) == (LOCAL,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": " a"},
        {"name": "a\nb"},
        {"name": "x" * 61},
        {"name": "http://a"},
        {"url": "ftp://a"},
        {"url": "http://a:b@c"},
        {"model": "a\tb"},
        {"api_key_env": "sk-1234"},
        {"key": "sk-1234"},
    ],
)
def test_what_is_no_engine_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        KnownEngine.from_dict({"name": "a", "url": "http://a", **wrong})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"engines": 5}',
        '{"engines": [{"name": "a"}]}',
        '{"other": []}',
        json.dumps({"engines": [{"name": "a", "url": "http://a:b@c"}]}),
        '{"engines": [{"name": "a", "url": "http://a", "key": "sk-1"}]}',
    ],
)
def test_a_damaged_file_is_named_and_left_as_it_is(home: Path, content: str) -> None:
    (home / FILE).write_text(content)
    with pytest.raises(ConfigError, match=FILE):
        read_known(home)
    with pytest.raises(ConfigError, match=FILE):
        add_known(home, LOCAL)
    assert (home / FILE).read_text() == content


def test_an_address_is_opened_only_where_a_person_has_added_it(home: Path) -> None:
    def answer(request: object) -> None:
        request.events(chunk(" a", finish="length", logprobs=columns(" a", -0.5)))  # type: ignore[attr-defined]

    with fake_server({"/v1/completions": answer}) as (address, seen):
        with pytest.raises(ConfigError, match="is not one of your engines"):
            open_engine(address, PoolSpec())
        assert seen == []
        add_known(home, KnownEngine(name="fake", url=address))
        with open_engine(f"{address}/v1", PoolSpec(parallel=3)) as engine:
            assert (engine.model, engine.capabilities.num_sequences) == (address, 3)


def test_engines_that_are_added_and_removed_at_the_same_time_are_all_kept(home: Path) -> None:
    for n in range(8):
        add_known(home, KnownEngine(name=f"old {n}", url="http://localhost"))
    begin = threading.Barrier(8)

    def change(n: int) -> None:
        begin.wait()
        add_known(home, KnownEngine(name=f"new {n}", url="http://localhost"))
        remove_known(home, f"old {n}")

    threads = [threading.Thread(target=change, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.name for one in read_known(home)) == [f"new {n}" for n in range(8)]


@pytest.mark.parametrize("name", MANAGED)
def test_the_name_of_a_server_that_is_started_here_is_taken(home: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="started here"):
        add_known(home, KnownEngine(name=name, url="http://other"))
    assert read_known(home) == ()
