"""Failures of the model manager: loads that hang, and models that are removed while they are loaded."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.errors import ModelError, PoolClosed
from engine.workbench import model_manager
from engine.workbench.model_manager import ModelManager
from tests.processes import children, children_with
from tests.waiting import until

WITHIN_S = 60.0


@pytest.fixture
def manager() -> Iterator[ModelManager]:
    made = ModelManager()
    yield made
    made.close()


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Make every program that is started in place of Python hang forever; `undo` ends that."""
    program = tmp_path / "hanging"
    program.write_text("#!/bin/sh\nexec sleep 3600\n")
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", str(program))
        yield patch


def sleeping() -> list[psutil.Process]:
    return children_with("sleep 3600")


def reload(manager: ModelManager) -> None:
    assert manager.state.path is not None
    manager.load(manager.state.path)


def test_a_load_that_hangs_ends_when_it_is_ejected(
    manager: ModelManager, hangs: pytest.MonkeyPatch, story_model: Path
) -> None:
    manager.load(story_model)
    until(sleeping, within_s=WITHIN_S)
    manager.eject()
    assert manager.state.path is None
    until(lambda: not sleeping(), within_s=WITHIN_S)
    hangs.undo()
    manager.load(story_model)
    until(lambda: manager.state.engine, within_s=WITHIN_S)


def test_another_model_takes_the_place_of_one_that_hangs(
    manager: ModelManager, hangs: pytest.MonkeyPatch, story_model: Path, tmp_path: Path
) -> None:
    manager.load(story_model)
    until(sleeping, within_s=WITHIN_S)
    hangs.undo()
    other = tmp_path / "other.gguf"
    shutil.copy(story_model, other)
    manager.load(other)
    until(lambda: manager.state.engine, within_s=WITHIN_S)
    assert manager.state.path == other and not sleeping()


def test_a_hash_that_hangs_keeps_no_memory_and_nobody_waiting(
    manager: ModelManager, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, is_over = children(), threading.Event()
    monkeypatch.setattr(model_manager, "model_hash", lambda _path: is_over.wait(WITHIN_S))
    manager.load(story_model)
    until(lambda: manager.state.progress == 1, within_s=WITHIN_S)
    manager.eject()
    monkeypatch.undo()
    manager.load(story_model)
    until(lambda: manager.state.engine, within_s=WITHIN_S)
    until(lambda: len(children() - before) == manager.state.spec.instances, "the worker of the first load stays")
    is_over.set()


def test_a_model_that_is_removed_while_loaded_answers_until_it_is_ejected(
    manager: ModelManager, story_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "leaving.gguf"
    shutil.copy(story_model, path)
    manager.load(path)
    until(lambda: manager.state.engine, within_s=WITHIN_S)
    path.unlink()
    pool, _identity = manager.state.loaded()
    assert len(pool.submit("Once", max_tokens=4).result(WITHIN_S).ids) == 4
    manager.eject()
    manager.load(path)
    until(lambda: manager.state.error, within_s=WITHIN_S)
    with pytest.raises(ModelError, match=r"leaving\.gguf"):
        manager.state.loaded()


def test_a_model_whose_workers_cannot_be_replaced_is_said_and_loaded_again(
    manager: ModelManager, story_model: Path, tmp_path: Path
) -> None:
    path, away = tmp_path / "broken.gguf", tmp_path / "away"
    shutil.copy(story_model, path)
    manager.load(path)
    until(lambda: manager.state.engine, within_s=WITHIN_S)
    pool, _identity = manager.state.loaded()
    path.rename(away)
    path.write_bytes(b"GGUF")
    psutil.Process(pool.workers()[0].pid).kill()
    until(lambda: manager.state.error, within_s=WITHIN_S)
    with pytest.raises(ModelError, match=r"broken\.gguf is no longer loaded: .*could not be replaced"):
        manager.state.loaded()
    assert "\n" not in str(manager.state.error)
    away.replace(path)
    manager.load_again()
    until(lambda: manager.state.engine, within_s=WITHIN_S)
    pool, _identity = manager.state.loaded()
    assert len(pool.submit("Once", max_tokens=4).result(WITHIN_S).ids) == 4


@pytest.mark.parametrize(
    ("leave", "reason"),
    [
        (ModelManager.eject, model_manager.EJECTED),
        (reload, model_manager.REPLACED),
        (ModelManager.close, model_manager.CLOSED),
    ],
)
def test_what_runs_learns_what_became_of_its_model(
    manager: ModelManager, story_model: Path, leave: Callable[[ModelManager], None], reason: str
) -> None:
    manager.load(story_model)
    until(lambda: manager.state.engine, within_s=WITHIN_S)
    pool, _identity = manager.state.loaded()
    with pool.held():
        job = pool.submit("Once", max_tokens=1)
        leave(manager)
        with pytest.raises(PoolClosed, match=reason):
            job.result(WITHIN_S)
