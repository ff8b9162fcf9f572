"""The embedding slot with the real model: opened by the first texts, let go and opened anew."""

from collections.abc import Iterator

import numpy as np
import pytest

from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, ModelError, PoolClosed
from engine.tasks import Stopped, Task
from engine.workbench.embedding_slot import KEPT, Embedded, EmbeddingSlot
from engine.workbench.machine_lease import MachineLease

pytestmark = pytest.mark.usefixtures("quick_embedding")

TEXTS = ("The cat sleeps in the sun.", "A kitten dozes where it is warm.", "The rent goes up in spring.", "")


@pytest.fixture(scope="module")
def slot() -> Iterator[EmbeddingSlot]:
    opened = EmbeddingSlot()
    yield opened
    opened.close()
    assert not opened.is_open


def ended(task: Task[Embedded]) -> Task[Embedded]:
    assert task.wait(120)
    return task


def found(task: Task[Embedded]) -> Embedded:
    return task.result(120)


def test_texts_become_vectors_in_the_background(slot: EmbeddingSlot) -> None:
    work = slot.embed(TEXTS)
    embedded = found(work)
    assert slot.is_open and work.state == "done" and work.share == 1
    assert embedded.texts == TEXTS and embedded.vectors.shape == (4, 384)
    assert embedded.vectors[0] @ embedded.vectors[1] > embedded.vectors[0] @ embedded.vectors[2]
    assert embedded.projection.points.shape == (4, 2)


def test_the_same_texts_are_the_same_work_until_it_is_forgotten(slot: EmbeddingSlot) -> None:
    work = slot.embed(TEXTS)
    assert slot.embed((*TEXTS[:2], *TEXTS[2:])) is work
    slot.forget(work)
    again = slot.embed(TEXTS)
    assert again is not work
    assert np.array_equal(found(again).vectors, found(work).vectors)


def test_only_the_latest_are_kept(slot: EmbeddingSlot) -> None:
    first = slot.embed(TEXTS[:2])
    found(first)
    for number in range(KEPT):
        found(slot.embed((f"number {number}",)))
    assert slot.embed(TEXTS[:2]) is not first


def test_released_memory_is_taken_again_by_the_next_texts(slot: EmbeddingSlot) -> None:
    before = found(slot.embed(TEXTS))
    slot.release()
    assert not slot.is_open
    assert slot.embed(TEXTS).result() is before
    question = found(slot.embed(("a warm place",), is_query=True))
    assert slot.is_open and question.vectors.shape == (1, 384)


def test_what_was_stopped_has_no_vectors(slot: EmbeddingSlot) -> None:
    work = slot.embed(tuple(f"{number} " + "a longer text " * 60 for number in range(400)))
    assert slot.is_busy and work.name == "An embedding of 400 texts"
    work.stop()
    assert ended(work).state == "stopped" and isinstance(work.error, Stopped)


def test_a_model_that_is_not_here_is_told_and_the_next_one_opens(slot: EmbeddingSlot) -> None:
    found(slot.embed(TEXTS))
    work = ended(slot.embed(TEXTS, EmbedSpec(model="no/such-model")))
    assert isinstance(work.error, ModelError) and work.state == "failed"
    assert slot.is_open and not slot.is_busy
    assert found(slot.embed(("after it",))).model == "all-MiniLM-L6-v2"


def test_nothing_begins_while_a_benchmark_measures() -> None:
    machine = MachineLease()
    slot = EmbeddingSlot(machine)
    with machine.acquire("A benchmark", "benchmark"), pytest.raises(ConfigError, match="benchmark"):
        slot.embed(TEXTS)
    assert not slot.is_open


def test_a_closed_slot_takes_nothing() -> None:
    slot = EmbeddingSlot()
    slot.close()
    with pytest.raises(PoolClosed):
        slot.embed(TEXTS)
