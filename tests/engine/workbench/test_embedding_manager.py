"""Embedding manager with the real model: opened by the first texts, released and opened again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from engine.backends.embedding_server import PATH
from engine.backends.known import KnownEngine, add_known, remove_known
from engine.embedding.specs import EmbedSpec
from engine.errors import BenchTimeout, ConfigError, ModelError, PoolClosed
from engine.tasks import Stopped, Task
from engine.workbench import embedding_manager
from engine.workbench.embedding_manager import KEPT, Embedded, EmbeddingManager
from engine.workbench.machine_lease import MachineLease
from tests.engine.backends.embedding_answers import answer
from tests.engine.backends.fake_server import Request, fake_server

pytestmark = pytest.mark.usefixtures("quick_embedding")

TEXTS = ("The cat sleeps in the sun.", "A kitten dozes where it is warm.", "The rent goes up in spring.", "")


@pytest.fixture(scope="module")
def manager() -> Iterator[EmbeddingManager]:
    opened = EmbeddingManager()
    yield opened
    opened.close()
    assert not opened.is_open


def ended(task: Task[Embedded]) -> Task[Embedded]:
    assert task.wait(120)
    return task


def found(task: Task[Embedded]) -> Embedded:
    return task.result(120)


def test_texts_become_vectors_in_the_background(manager: EmbeddingManager) -> None:
    work = manager.embed(TEXTS)
    embedded = found(work)
    assert manager.is_open and work.state == "done" and work.share == 1
    assert embedded.texts == TEXTS and embedded.vectors.shape == (4, 384)
    assert embedded.vectors[0] @ embedded.vectors[1] > embedded.vectors[0] @ embedded.vectors[2]
    assert embedded.projection.points.shape == (4, 2)


def test_the_same_texts_are_the_same_work_until_it_is_forgotten(manager: EmbeddingManager) -> None:
    work = manager.embed(TEXTS)
    assert manager.embed((*TEXTS[:2], *TEXTS[2:])) is work
    manager.forget(work)
    again = manager.embed(TEXTS)
    assert again is not work
    assert np.array_equal(found(again).vectors, found(work).vectors)


def test_only_the_latest_are_kept(manager: EmbeddingManager) -> None:
    first = manager.embed(TEXTS[:2])
    found(first)
    for number in range(KEPT):
        found(manager.embed((f"number {number}",)))
    assert manager.embed(TEXTS[:2]) is not first


def test_released_memory_is_taken_again_by_the_next_texts(manager: EmbeddingManager) -> None:
    before = found(manager.embed(TEXTS))
    manager.release()
    assert not manager.is_open
    assert manager.embed(TEXTS).result() is before
    question = found(manager.embed(("a warm place",), is_query=True))
    assert manager.is_open and question.vectors.shape == (1, 384)


def test_what_was_stopped_has_no_vectors(manager: EmbeddingManager) -> None:
    work = manager.embed(tuple(f"{number} " + "a longer text " * 60 for number in range(400)))
    assert manager.is_busy and work.name == "An embedding of 400 texts"
    work.stop()
    assert ended(work).state == "stopped" and isinstance(work.error, Stopped)


@pytest.mark.slow
def test_a_model_that_is_not_here_is_reported_and_the_next_one_opens(manager: EmbeddingManager) -> None:
    found(manager.embed(TEXTS))
    work = ended(manager.embed(TEXTS, EmbedSpec(model="no/such-model")))
    assert isinstance(work.error, ModelError) and work.state == "failed"
    assert manager.is_open and not manager.is_busy
    assert found(manager.embed(("after it",))).model == "all-MiniLM-L6-v2"


def test_nothing_begins_while_a_benchmark_measures() -> None:
    machine = MachineLease()
    manager = EmbeddingManager(machine)
    with machine.acquire("A benchmark", "benchmark"), pytest.raises(ConfigError, match="benchmark"):
        manager.embed(TEXTS)
    assert not manager.is_open


@pytest.fixture
def silent_engine(home: Path) -> Iterator[threading.Event]:
    """A known engine that never answers a request for vectors; gives the event of the first of them."""
    is_asked, may_go = threading.Event(), threading.Event()

    def silent(_request: Request) -> None:
        is_asked.set()
        may_go.wait(120)

    with fake_server({PATH: silent}) as (address, _):
        add_known(home, KnownEngine(name="desk", url=address))
        yield is_asked
        may_go.set()


@pytest.mark.parametrize("way", ["stop", "release", "close"])
def test_a_silent_engine_is_given_up(way: str, silent_engine: threading.Event) -> None:
    manager = EmbeddingManager()
    work = manager.embed(("a",), EmbedSpec(backend="external:desk"))
    assert silent_engine.wait(60)
    if way == "stop":
        work.stop()
    else:
        ending = threading.Thread(target=getattr(manager, way), daemon=True)
        ending.start()
        ending.join(60)
        assert not ending.is_alive()
    assert work.wait(60) and isinstance(work.error, Stopped if way == "stop" else PoolClosed)
    if way != "close":
        assert found(manager.embed(("a",))).vectors.shape == (1, 384)
    manager.close()


def test_an_older_request_does_not_end_the_connection_of_a_newer_one(
    silent_engine: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, older_waits, may_ask = EmbeddingManager(), threading.Event(), threading.Event()
    asked, held = threading.Semaphore(0), EmbeddingManager._alone

    def counted(check: Callable[[], object]) -> Callable[[], object]:
        def checked() -> None:
            check()
            asked.release()

        return checked

    def late(self: EmbeddingManager, check: Callable[[], object]) -> AbstractContextManager[None]:
        if not older_waits.is_set():
            older_waits.set()
            assert may_ask.wait(60)
            return held(self, counted(check))
        return held(self, check)

    monkeypatch.setattr(EmbeddingManager, "_alone", late)
    older = manager.embed(("a",))
    assert older_waits.wait(60)
    newer = manager.embed(("a",), EmbedSpec(backend="external:desk"))
    assert silent_engine.wait(60)
    may_ask.set()
    for _ in range(3):
        assert asked.acquire(timeout=60)
    assert newer.is_running and older.is_running
    older.stop()
    assert older.wait(60) and isinstance(older.error, Stopped) and newer.is_running
    manager.close()
    assert newer.wait(60) and isinstance(newer.error, PoolClosed)


def test_nobody_waits_for_a_silent_engine_of_others(silent_engine: threading.Event) -> None:
    manager, here = EmbeddingManager(), EmbedSpec()
    before = manager.embed(tuple(f"{number} " + "a longer text " * 60 for number in range(400)))
    while not manager.is_open:
        assert not before.wait(0.01)
    silent = manager.embed(("a",), EmbedSpec(backend="external:desk"))
    assert silent_engine.wait(60)
    assert before.wait(60) and isinstance(before.error, PoolClosed) and silent.is_running
    assert not manager.is_free_for(here) and manager.is_free_for(EmbedSpec(backend="external:desk"))
    unwanted = iter([False])
    assert manager.read(("a",), here, lambda: next(unwanted, True)) is None and silent.is_running
    assert found(manager.embed(("a",), here)).vectors.shape == (1, 384)
    assert silent.wait(60) and isinstance(silent.error, PoolClosed) and "another embedding model" in str(silent.error)
    manager.close()


def test_a_silent_engine_that_is_named_anew_is_given_up(silent_engine: threading.Event, home: Path) -> None:
    manager, spec = EmbeddingManager(), EmbedSpec(backend="external:desk")
    silent = manager.embed(("a",), spec)
    assert silent_engine.wait(60)
    remove_known(home, "desk")
    with fake_server({PATH: answer}) as (address, _):
        add_known(home, KnownEngine(name="desk", url=address))
        found(manager.embed(("a",), spec))
        assert silent.wait(60) and isinstance(silent.error, PoolClosed)
        manager.close()


def test_a_silent_engine_has_so_long_to_answer(silent_engine: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_manager, "CONNECTS_WITHIN_S", 0.05)
    manager = EmbeddingManager()
    work = manager.embed(("a",), EmbedSpec(backend="external:desk"))
    assert work.wait(60) and isinstance(work.error, BenchTimeout) and "too slowly" in str(work.error)
    manager.close()


def test_texts_go_to_the_engine_that_has_the_name_now(home: Path) -> None:
    spec, manager = EmbedSpec(backend="external:desk"), EmbeddingManager()
    with fake_server({PATH: answer}) as (first, of_first), fake_server({PATH: answer}) as (second, of_second):
        add_known(home, KnownEngine(name="desk", url=first))
        before = manager.embed(("a",), spec)
        found(before)
        num_asked = len(of_first)
        remove_known(home, "desk")
        add_known(home, KnownEngine(name="desk", url=second))
        after = manager.embed(("a",), spec)
        found(after)
        assert after is not before and of_second and len(of_first) == num_asked
        remove_known(home, "desk")
        assert isinstance(ended(manager.embed(("a",), spec)).error, ConfigError)
        manager.close()


def test_a_closed_manager_takes_nothing() -> None:
    manager = EmbeddingManager()
    manager.close()
    with pytest.raises(PoolClosed):
        manager.embed(TEXTS)
