"""Semantic index with the real model: once switched on, embeds the history's texts in the background, and yields."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.embedding.specs import EmbedSpec
from engine.errors import HistoryError
from engine.history import History, TrialRecord
from engine.history.vectors import Model
from engine.workbench.embedding_manager import EmbeddingManager
from engine.workbench.machine_lease import Kind, MachineLease
from engine.workbench.semantic_index import SemanticIndex
from tests.engine.history.trial_maker import make_trial
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_embedding")

TEXTS = ("A kitten dozes where it is warm.", "The rent goes up in spring.", "Our train has not come yet.")


@pytest.fixture(scope="module")
def embedding() -> Iterator[EmbeddingManager]:
    """One model for all tests here, because loading it takes seconds."""
    manager = EmbeddingManager()
    yield manager
    manager.close()


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History.open(tmp_path / "history.duckdb") as history:
        yield history


@pytest.fixture
def machine() -> MachineLease:
    return MachineLease()


@pytest.fixture
def meaning(history: History, embedding: EmbeddingManager, machine: MachineLease) -> Iterator[SemanticIndex]:
    manager = SemanticIndex(lambda: history, embedding, machine)
    yield manager
    manager.close()


def keep(history: History, *outputs: str, prompt: str = "Once upon a time") -> list[TrialRecord]:
    trials = [make_trial(2, prompt=prompt) for _ in outputs]
    trials = [
        replace(trial, completion=replace(trial.completion, text=text))
        for trial, text in zip(trials, outputs, strict=True)
    ]
    for trial in trials:
        history.record(trial).result(60)
    return trials


def num_read(history: History) -> int:
    model = history.vectors.model
    return history.vectors.num_read(model.hash).num_texts if model else 0


def test_nothing_is_read_until_it_is_switched_on_then_all_and_what_follows(
    history: History, meaning: SemanticIndex, embedding: EmbeddingManager
) -> None:
    cat, rent, late = keep(history, *TEXTS)
    meaning.wake()
    time.sleep(0.2)
    assert not meaning.is_on and num_read(history) == 0 and meaning.reading is None
    cost = meaning.cost()
    assert cost.num_texts == 6 and cost.seconds > 0 and cost.num_bytes > 6 * 4 * 384

    meaning.turn_on()
    assert meaning.is_on
    until(lambda: num_read(history) == 6 and meaning.reading is None, "all six texts")
    question = embedding.embed(("a cat asleep in the sun",), is_query=True)
    assert question.wait(60)
    rows = history.vectors.nearest(question.result().vectors[0]).rows
    assert rows[0]["id"] == cat.id and rows[0]["matched"] == "output"
    kept = history.vectors.of_outputs([rent.id, late.id])
    again = embedding.embed((TEXTS[1],))
    assert again.wait(60)
    assert np.allclose(kept[rent.id], again.result().vectors[0], atol=1e-6) and late.id in kept

    (new,) = keep(history, "The bus never came.")
    meaning.wake()
    until(lambda: num_read(history) == 8, "the trial that followed")
    assert new.id in history.vectors.of_outputs([new.id])
    assert meaning.cost() == (0, 0.0, 0) and meaning.error is None


def test_blank_and_long_texts(history: History, meaning: SemanticIndex) -> None:
    keep(history, " \n\u00a0", "word " * 600, "short")
    assert meaning.cost().num_texts == 5
    meaning.turn_on()
    until(lambda: num_read(history) == 5 and meaning.reading is None, "three prompts and two outputs")
    model = history.vectors.model
    assert model is not None and history.vectors.num_read(model.hash).num_cut == 1
    assert history.vectors.unread(model.hash, 10) == []


def test_it_is_reading_from_the_moment_it_is_switched_on(
    history: History, meaning: SemanticIndex, machine: MachineLease
) -> None:
    keep(history, " ", *TEXTS)
    with machine.acquire("A benchmark", "benchmark"):
        for _ in range(20):
            meaning.turn_on()
            assert meaning.reading is not None and meaning.reading.doing == "0 of 7 texts"
            assert (meaning.reading.state, meaning.reading.waits_for) == ("waiting", "A benchmark")
            meaning.stop()
            until(lambda: meaning.reading is None, "it stops")
            meaning.turn_off()


@pytest.mark.parametrize("by", ["the manager", "the task"])
def test_stopped_it_reads_no_more_until_it_is_switched_on(
    by: str, history: History, meaning: SemanticIndex, machine: MachineLease
) -> None:
    keep(history, *TEXTS)
    with machine.acquire("A benchmark", "benchmark"):
        meaning.turn_on()
        assert meaning.reading is not None
        (meaning if by == "the manager" else meaning.reading).stop()
        until(lambda: meaning.reading is None, "it stops")
        assert meaning.is_stopped and meaning.error is None
    meaning.wake()
    time.sleep(0.2)
    assert meaning.reading is None and num_read(history) == 0
    meaning.turn_on()
    until(lambda: num_read(history) == 6, "it goes on")


def test_a_benchmark_goes_first(history: History, meaning: SemanticIndex, machine: MachineLease) -> None:
    keep(history, *TEXTS)
    with machine.acquire("A benchmark", "benchmark"):
        meaning.turn_on()
        until(lambda: meaning.reading is not None and meaning.reading.waits_for == "A benchmark", "it does not wait")
        assert num_read(history) == 0
    meaning.wake()
    until(lambda: num_read(history) == 6, "it goes on")


@pytest.mark.parametrize("kind", ["shared", "interactive"])
def test_so_does_what_a_person_waits_for(
    kind: Kind, history: History, meaning: SemanticIndex, machine: MachineLease
) -> None:
    keep(history, *TEXTS)
    with machine.acquire("A comparison", kind):
        meaning.turn_on()
        until(lambda: meaning.reading is not None and meaning.reading.waits_for == "A comparison", "it waits")
        assert meaning.reading is not None and (meaning.reading.share, meaning.reading.doing) == (0.0, "0 of 6 texts")
        assert meaning.is_on and num_read(history) == 0
    meaning.wake()
    until(lambda: num_read(history) == 6, "it goes on")


def test_turned_off_it_forgets(history: History, meaning: SemanticIndex) -> None:
    keep(history, *TEXTS)
    meaning.turn_on()
    until(lambda: num_read(history) == 6, "all texts")
    meaning.turn_off()
    assert not meaning.is_on and num_read(history) == 0 and meaning.cost().num_texts == 6


def test_a_model_that_was_replaced_is_read_anew(history: History, embedding: EmbeddingManager) -> None:
    keep(history, TEXTS[0])
    history.vectors.begin(Model("ab" * 32, "the one before"))
    manager = SemanticIndex(lambda: history, embedding, MachineLease())
    try:
        until(lambda: num_read(history) == 2, "the model of now")
        assert history.vectors.model is not None and history.vectors.model.name == "all-MiniLM-L6-v2"
    finally:
        manager.close()


def test_equal_texts_are_computed_once(
    history: History, meaning: SemanticIndex, embedding: EmbeddingManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    read = embedding.read

    def counted(texts: tuple[str, ...], spec: EmbedSpec, is_unwanted: Callable[[], bool]) -> object:
        computed.extend(texts)
        return read(texts, spec, is_unwanted)

    monkeypatch.setattr(embedding, "read", counted)
    keep(history, *TEXTS[:1] * 4)
    meaning.turn_on()
    until(lambda: num_read(history) == 8, "four prompts and four outputs")
    assert sorted(computed) == sorted({"Once upon a time", TEXTS[0]})


def test_without_a_history_it_says_so(embedding: EmbeddingManager) -> None:
    manager = SemanticIndex(lambda: None, embedding, MachineLease())
    try:
        assert not manager.is_on
        with pytest.raises(HistoryError):
            manager.turn_on()
    finally:
        manager.close()


@pytest.mark.slow
def test_it_makes_way_at_once_for_what_is_about_to_be_measured(
    history: History, meaning: SemanticIndex, embedding: EmbeddingManager, machine: MachineLease
) -> None:
    keep(history, *(f"number {number} " + "of very many words " * 60 for number in range(200)))
    meaning.turn_on()
    until(lambda: num_read(history) > 0, "the first texts")
    with machine.acquire("A benchmark", "benchmark"):
        so_far = num_read(history)
        assert so_far < 400
        until(lambda: meaning.reading is not None and meaning.reading.waits_for == "A benchmark", "it does not wait")
        time.sleep(0.5)
        assert num_read(history) == so_far and not embedding.is_open
        meaning.stop()
