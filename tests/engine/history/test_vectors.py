"""Vectors of prompts and outputs: which are missing, saved and nearest, and what is purged with its trial."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.history import History, TrialRecord, export_history, import_archive
from engine.history.filters import Filter
from engine.history.vectors import DIM, READ_CHARACTERS, Model, Unread
from engine.step_parts import Floats
from tests.engine.history.trial_maker import NASTY, make_trial

MODEL = Model("ab" * 32, "small")
OTHER = Model("cd" * 32, "other")
UP_TO = 1_000


def keep(history: History, output: str = "what it said", **changes: Any) -> TrialRecord:
    trial = make_trial(2, **changes)
    trial = replace(trial, completion=replace(trial.completion, text=output))
    history.record(trial).result(60)
    return trial


def axis(number: int, lean: float = 0.0) -> Floats:
    """Return a vector along one axis, leaning towards the next one."""
    vector = np.zeros(DIM, np.float32)
    vector[number], vector[number + 1] = 1.0, lean
    return vector


def read(history: History, **by_text: Floats) -> None:
    """Save a vector for every unread text: the one in `by_text`, which has "_" for spaces, or else a distant one."""
    history.vectors.begin(MODEL)
    while unread := history.vectors.unread(MODEL.hash, 100):
        vectors = np.stack([by_text.get(one.text.replace(" ", "_"), axis(300)) for one in unread])
        history.vectors.keep(MODEL.hash, unread, vectors, np.array([one.is_longer for one in unread]))


def found(history: History, vector: Floats, wanted: Filter | None = None, **more: Any) -> list[str]:
    return [row["id"] for row in history.vectors.nearest(vector, wanted or Filter(), **more).rows]


def test_every_prompt_and_output_is_unread_once(history: History) -> None:
    older, newer = keep(history, "one"), keep(history, NASTY, prompt="two")
    assert history.vectors.model is None
    history.vectors.begin(MODEL)
    assert history.vectors.model == MODEL
    unread = history.vectors.unread(MODEL.hash, 10)
    assert set(unread) == {
        Unread(newer.id, "output", NASTY, False), Unread(newer.id, "prompt", "two", False),
        Unread(older.id, "output", "one", False), Unread(older.id, "prompt", older.prompt, False),
    }  # fmt: skip
    assert [one.trial_id for one in unread] == [newer.id] * 2 + [older.id] * 2
    num_bytes = sum(len(one.text.encode()) for one in unread)
    assert history.vectors.num_unread(MODEL.hash, UP_TO) == (4, num_bytes)
    assert history.vectors.num_unread(MODEL.hash, 3) == (4, 12)
    history.vectors.keep(MODEL.hash, unread[:3], np.stack([axis(0)] * 3), np.array([True, False, False]))
    assert history.vectors.unread(MODEL.hash, 10) == unread[3:]
    assert history.vectors.num_read(MODEL.hash) == (3, 1)
    assert len(history.vectors.unread(OTHER.hash, 10)) == 4


def test_of_a_chat_the_last_message_counts(history: History) -> None:
    messages = ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why is it late?"})
    keep(history, messages=messages, prompt="<s>Be kind. Why is it late?")
    texts = {one.part: one.text for one in history.vectors.unread(MODEL.hash, 10)}
    assert texts["prompt"] == "Why is it late?"


def test_a_blank_text_is_read_but_never_found(history: History) -> None:
    trial = keep(history, "")
    history.vectors.begin(MODEL)
    assert history.vectors.num_unread(MODEL.hash, UP_TO).num_texts == 1
    unread = history.vectors.unread(MODEL.hash, 10)
    vectors = np.stack([axis(0) if one.text else np.full(DIM, np.nan, np.float32) for one in unread])
    history.vectors.keep(MODEL.hash, unread, vectors, np.zeros(2, np.bool_))
    assert history.vectors.unread(MODEL.hash, 10) == []
    assert history.vectors.num_read(MODEL.hash) == (1, 0)
    assert history.vectors.of_outputs([trial.id]) == {}
    assert found(history, axis(0), part="output") == []
    assert found(history, axis(0)) == [trial.id]


def test_an_endless_text_is_read_to_a_limit(history: History) -> None:
    keep(history, "é" * (READ_CHARACTERS + 1))
    output = next(one for one in history.vectors.unread(MODEL.hash, 10) if one.part == "output")
    assert (len(output.text), output.is_longer) == (READ_CHARACTERS, True)


def test_the_nearest_come_first_with_their_cosine_and_the_part_that_matched(history: History) -> None:
    cat, dog = keep(history, "cat", prompt="pets"), keep(history, "dog", prompt="late train")
    read(history, cat=axis(0), dog=axis(0, 1.0), late_train=axis(2), pets=axis(5))
    rows = history.vectors.nearest(axis(0)).rows
    assert [row["id"] for row in rows] == [cat.id, dog.id]
    assert rows[0]["similarity"] == pytest.approx(1, abs=1e-6) and rows[1]["similarity"] == pytest.approx(2**-0.5)
    assert {row["matched"] for row in rows} == {"output"} and rows[0]["output_start"] == "cat"
    best = history.vectors.nearest(axis(2)).rows[0]
    assert (best["id"], best["matched"]) == (dog.id, "prompt")
    assert history.vectors.nearest(axis(2), part="output").rows[0]["similarity"] == pytest.approx(0, abs=1e-6)
    assert np.array_equal(history.vectors.of_outputs([dog.id, "no id"])[dog.id], axis(0, 1.0))


def test_pages_and_filters(history: History) -> None:
    trials = [keep(history, f"text {number}") for number in range(5)]
    read(history, **{f"text_{number}": axis(0, number / 10) for number in range(5)})
    history.marks.star("trial", [trials[3].id, trials[4].id], True)
    assert found(history, axis(0)) == [trial.id for trial in trials]
    page = history.vectors.nearest(axis(0), limit=2, offset=1)
    assert [row["id"] for row in page.rows] == [trials[1].id, trials[2].id] and page.total == 5
    assert found(history, axis(0), Filter(is_starred=True)) == [trials[3].id, trials[4].id]
    assert found(history, axis(0), Filter(text="text 2")) == [trials[2].id]


def test_a_deleted_trial_is_neither_found_nor_read_and_its_vectors_go_with_it(history: History, path: Path) -> None:
    gone, stays = keep(history, "gone"), keep(history, "stays")
    read(history, gone=axis(0), stays=axis(0))
    assert history.delete(gone.id)
    assert found(history, axis(0)) == [stays.id]
    assert history.vectors.of_outputs([gone.id]) == {} and history.vectors.num_read(MODEL.hash) == (2, 0)
    assert history.restore(gone.id) and found(history, axis(0), limit=1) and len(found(history, axis(0))) == 2
    history.delete(gone.id)
    history.gc()
    left = history.console.run("SELECT DISTINCT trial_id::VARCHAR AS id FROM vectors").table
    assert left["id"].to_pylist() == [stays.id]


def test_another_model_starts_anew(history: History) -> None:
    trial = keep(history, "cat")
    read(history, cat=axis(0))
    history.vectors.begin(OTHER)
    assert history.vectors.model == OTHER and found(history, axis(0)) == []
    assert history.vectors.num_read(MODEL.hash) == (0, 0)
    history.vectors.begin(MODEL)
    assert len(history.vectors.unread(MODEL.hash, 10)) == 2
    read(history, cat=axis(0))
    history.vectors.forget()
    assert history.vectors.model is None and found(history, axis(0)) == []
    unread = history.vectors.unread(MODEL.hash, 10)
    history.vectors.keep(MODEL.hash, unread, np.stack([axis(0)] * 2), np.zeros(2, np.bool_))
    assert history.vectors.num_read(MODEL.hash) == (0, 0), "what arrives after forget is not kept"
    assert history.trial(trial.id) is not None


def test_an_archive_leaves_vectors_out_and_they_are_unread_where_it_arrives(history: History, tmp_path: Path) -> None:
    trial = keep(history, "cat")
    read(history, cat=axis(0))
    archive = tmp_path / "archive.zip"
    export_history(history, archive)
    with History.open(tmp_path / "second" / "history.duckdb") as second:
        import_archive(second, archive)
        assert second.vectors.model is None
        assert {one.trial_id for one in second.vectors.unread(MODEL.hash, 10)} == {trial.id}


@pytest.mark.parametrize(
    "vector", [np.zeros(DIM), np.full(DIM, np.nan), np.full(DIM, np.inf), np.ones(DIM - 1), np.ones((1, DIM))]
)
def test_what_is_no_vector_is_refused(history: History, vector: Floats) -> None:
    with pytest.raises(ConfigError, match="384"):
        history.vectors.nearest(vector.astype(np.float32))


def test_vectors_of_another_shape_are_refused(history: History) -> None:
    keep(history)
    with pytest.raises(ConfigError, match="384"):
        history.vectors.keep(
            MODEL.hash, history.vectors.unread(MODEL.hash, 1), np.ones((1, 8), np.float32), np.zeros(1, np.bool_)
        )
