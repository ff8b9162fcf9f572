"""Permissions of written files: those in the home folder are private whatever the umask, a user's own files are not."""

import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import __main__ as shell
from engine import private_files
from engine.commands import embed_corpus
from engine.errors import WorkerDied
from engine.history import History
from engine.models.identity import model_hash
from engine.models.library import embedded_model, read_library
from engine.models.places import find_places
from engine.over_nodes.corpus import SETTINGS
from engine.settings import Settings, shipped_folder
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial

drawn = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
ROOT = Path(__file__).parents[2]
UMASKS = [0o000, 0o002, 0o022, 0o077]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def loose(folder: Path) -> dict[str, str]:
    """Return what others may reach in a folder, with its mode."""
    return {str(path): oct(mode(path)) for path in [folder, *folder.rglob("*")] if mode(path) & private_files.OTHERS}


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Umask of the user."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_commands_keep_everything_to_themselves(umask: int, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands create database, inbox and caches of headers and hashes, also while the history is open elsewhere."""
    assert shell.main(["generate", "--prompt", "Once", "--max-tokens", "2"]) == 0
    with History.open(Settings.from_environment().history):
        assert shell.main(["generate", "--prompt", "Twice", "--max-tokens", "2"]) == 0
    assert shell.main(["models", "list"]) == 0
    names = {path.relative_to(home).parts[0] for path in home.rglob("*")}
    assert {"history.duckdb", "inbox"} <= names
    assert loose(home) == {}
    assert os.umask(umask) == umask


def test_the_write_ahead_log_and_backups_are_private(umask: int, tmp_path: Path) -> None:
    path = tmp_path / "home" / "history.duckdb"
    private_files.begin()
    try:
        with History.open(path) as history:
            history.record(make_trial(3, 2)).result()
            assert Path(f"{path}.wal").exists()
            assert loose(path.parent) == {}
    finally:
        private_files.end()


def test_a_history_that_was_loose_is_tightened(tmp_path: Path) -> None:
    path = tmp_path / "history.duckdb"
    with History.open(path):
        pass
    path.chmod(0o664)
    with History.open(path):
        assert mode(path) == 0o600


def test_caches_are_private_without_any_umask_of_ours(umask: int, home: Path) -> None:
    model_hash(embedded_model())
    read_library(find_places(Settings.from_environment()))
    assert len([path for path in home.rglob("*") if path.is_file()]) == 2
    assert {oct(mode(path)) for path in home.rglob("*") if path.is_file()} == {"0o600"}


def test_what_a_person_names_follows_their_umask(umask: int, home: Path, tmp_path: Path) -> None:
    with History.open(Settings.from_environment().history) as history:
        history.runs.keep(make_run(4, 1))
    made = tmp_path / "all.zip", tmp_path / "random.gguf"
    assert shell.main(["history", "export", str(made[0])]) == 0
    shape = ["--layers", "1", "--width", "64", "--heads", "2", "--vocab", "512"]
    assert shell.main(["models", "synth", str(made[1]), *shape]) == 0
    assert {mode(path) for path in made} == {0o666 & ~umask}


def test_the_folder_of_a_corpus_follows_it_too(
    umask: int, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")

    def fail(_task: object) -> None:
        raise WorkerDied("no node embeds it")

    monkeypatch.setattr(embed_corpus, "watch", fail)
    pq.write_table(pa.table({"text": ["one"]}), tmp_path / "corpus.parquet")
    words = ["embed", str(tmp_path / "corpus.parquet"), "--cluster", "auto", "--backend", "torch"]
    out = tmp_path / "vectors"
    assert shell.main([*words, "--out", str(out)]) != 0
    assert (mode(out), mode(out / SETTINGS)) == (0o777 & ~umask, 0o666 & ~umask)


@drawn
@given(
    modes=st.tuples(*[st.integers(0, 0o777)] * 3), folder_mode=st.integers(0, 0o77).map(lambda others: 0o700 | others)
)
def test_tightening_takes_what_others_have_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, modes: tuple[int, int, int], folder_mode: int
) -> None:
    home = tmp_path_factory.mktemp("home")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "file"
    inner = home / "a" / "b"
    inner.mkdir(parents=True)
    files = [home / "x", inner / "y", inner / "named twice"]
    for file, bits in zip(files, modes, strict=True):
        file.write_bytes(b"")
        file.chmod(bits)
    elsewhere.write_bytes(b"")
    elsewhere.chmod(0o666)
    (home / "link").symlink_to(elsewhere)
    os.link(files[2], inner / "again")
    inner.chmod(folder_mode)
    private_files.tighten(home)
    assert [mode(file) for file in files] == [modes[0] & 0o700, modes[1] & 0o700, modes[2]]
    assert mode(inner) == folder_mode & 0o700
    assert mode(elsewhere) == 0o666


def test_what_ships_in_a_checkout_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_files, "shipped_folder", lambda: tmp_path)
    for name in ("demo", "models"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name / "x.gguf").write_bytes(b"")
        (tmp_path / name / "x.gguf").chmod(0o644)
    before = mode(tmp_path)
    private_files.tighten(tmp_path)
    assert mode(tmp_path) == before
    assert (mode(tmp_path / "demo"), mode(tmp_path / "demo" / "x.gguf")) == (0o755, 0o644)
    assert (mode(tmp_path / "models"), mode(tmp_path / "models" / "x.gguf")) == (0o700, 0o600)


def test_the_list_of_what_ships_is_whole() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shipped = {Path(name).name for name in build["only-include"] if name.startswith("data/")}
    assert shipped == private_files.SHIPPED
    assert all((shipped_folder() / name).is_dir() for name in shipped)


def test_without_a_private_umask_the_persons_is_the_process_own(umask: int, tmp_path: Path) -> None:
    with private_files.persons_umask():
        (tmp_path / "x").write_bytes(b"")
    assert mode(tmp_path / "x") == 0o666 & ~umask
