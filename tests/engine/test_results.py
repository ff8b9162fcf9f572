"""Steps as text: bytes that are not whole characters, whatever the tokens are."""

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError, EngineError
from engine.history import History
from engine.history.trial_file import trial_bytes, trial_from_bytes
from engine.results import Completion, Timings
from engine.stages import FORBIDDEN
from engine.step_parts import StageColumns, step_dtype
from engine.steps import StepTable
from engine.vocabulary import TextDecoder, Vocabulary
from tests.engine.history.trial_maker import make_trial, with_stages

PIECES = (b"\xff", b"a", b" ", b"\xe4\xbd", b"\xa0", b"\xf0", b"\x9f\x90", b"\x88", "\ufffd".encode(), b"", b" once")


def vocabulary(add_space_prefix: bool) -> Vocabulary:
    return Vocabulary(PIECES, bytes(len(PIECES)), {}, None, False, add_space_prefix)


def table_of(ids: list[int], *, is_prompt: bool, add_space_prefix: bool) -> StepTable:
    table = StepTable(vocabulary(add_space_prefix), 0, is_prompt=is_prompt)
    rows = np.zeros(len(ids), step_dtype(0))
    rows["record"]["id"] = ids
    table.append_bytes(rows.tobytes())
    return table


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=12), st.booleans(), st.booleans(), st.integers(0, 12))
def test_the_text_is_that_of_the_steps_and_what_is_left(
    ids: list[int], is_prompt: bool, add_space_prefix: bool, read: int
) -> None:
    table = table_of(ids, is_prompt=is_prompt, add_space_prefix=add_space_prefix)
    for index in range(min(read, len(ids))):
        table.texts_of(range(index, index + 1))
    decoder = TextDecoder(vocabulary(add_space_prefix), strip_first_space=is_prompt)
    assert table.text == "".join(map(decoder.step, ids)) + decoder.finish()


@pytest.mark.parametrize(("ids", "text"), [([0, 1], "\ufffda"), ([3], "\ufffd"), ([3, 4], "你"), ([8], "\ufffd")])
def test_an_unfinished_character_reads_as_one_replacement(ids: list[int], text: str) -> None:
    assert table_of(ids, is_prompt=False, add_space_prefix=True).text == text


def completion_of(num_vocab: int, k: int, ids: list[int], *, is_full: bool = False) -> Completion:
    """Return a completion with meaningless figures, NaN among them, in a vocabulary of words."""
    words = Vocabulary(
        tuple(f" word{token}".encode() for token in range(num_vocab)), bytes(num_vocab), {1: "<s>"}, 1, True, True
    )
    random = np.random.default_rng(num_vocab + k)
    rows = np.zeros(len(ids), step_dtype(k))
    rows["record"]["id"], rows["record"]["draw"] = ids, np.nan
    rows["top_ids"] = random.integers(-1, num_vocab, (len(ids), k))
    rows["top_logprobs"] = -random.random((len(ids), k))
    steps, prompt = StepTable(words, k), StepTable(words, k, is_prompt=True)
    steps.append_bytes(rows.tobytes())
    prompt.append_bytes(rows[:1].tobytes())
    timings = Timings(0.0, 0.1, 0.2, 0.3, 0.4, 1, 0, len(ids))
    return Completion(steps.text, steps, prompt, (1,), "length", timings, 7, "id", is_full)


COPIES = [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy]


@pytest.mark.parametrize("make", COPIES)
@settings(deadline=None)
@given(k=st.integers(0, 5), ids=st.lists(st.integers(0, 49), min_size=1, max_size=8), is_full=st.booleans())
def test_copies_are_equal_and_read_the_same(make: Any, k: int, ids: list[int], is_full: bool) -> None:
    one = completion_of(50, k, ids, is_full=is_full)
    other = make(one)
    assert other == one
    assert hash(other) == hash(one)
    assert list(other.steps) == list(one.steps)
    assert [step.text for step in other.steps] == [step.text for step in one.steps]
    assert [step.top for step in other.steps] == [step.top for step in one.steps]
    for step in one.steps:
        assert step.top_logprobs == [(candidate.id, candidate.logprob) for candidate in step.top]
    assert other.steps.vocabulary.hash == one.steps.vocabulary.hash
    assert (other.prompt_steps.text, len(other.steps.vocabulary)) == (one.prompt_steps.text, 50)
    assert make(other) == one


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 49), min_size=1, max_size=8), place=st.integers(0, 7), change=st.integers(1, 49))
def test_other_steps_are_not_equal(ids: list[int], place: int, change: int) -> None:
    others = list(ids)
    others[place % len(ids)] = (others[place % len(ids)] + change) % 50
    one = completion_of(50, 2, ids)
    assert one != completion_of(50, 2, others)
    assert one != completion_of(51, 2, ids)
    assert one != completion_of(50, 3, ids)
    assert one.steps != completion_of(50, 2, [*ids, 0]).steps


def test_a_pickle_is_as_large_as_its_steps_not_as_its_vocabulary() -> None:
    small, large = (len(pickle.dumps(completion_of(size, 0, list(range(8))))) for size in (50, 152_000))
    assert large < small + 100 < 5_000


def test_a_completion_that_was_pickled_is_not_kept(tmp_path: Path) -> None:
    trial = make_trial()
    pickled = replace(trial, completion=pickle.loads(pickle.dumps(trial.completion)))
    with pytest.raises(ConfigError, match="pickled completion"):
        trial_bytes(pickled)
    with History.open(tmp_path / "history.duckdb") as history, pytest.raises(EngineError, match="pickled completion"):
        history.record(pickled).result()


def test_stages_are_part_of_a_trial_in_every_form() -> None:
    trial = with_stages(make_trial(6, 3))
    steps = trial.completion.steps
    assert trial_from_bytes(trial_bytes(trial)).completion.steps == steps
    assert pickle.loads(pickle.dumps(steps)) == steps == copy.copy(steps)
    assert steps != make_trial(6, 3).completion.steps
    values = trial.completion.to_dict()["steps"]
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    for step, value in zip(steps, values, strict=True):
        assert [one["stage"] for one in value["stages"]] == list(steps.stages) == [one.name for one in step.stages]
        assert [(one["kept"], one["mass"], tuple(one["cut"])) for one in value["stages"]] == [
            (one.kept, one.mass, one.cut) for one in step.stages
        ]
        columns, at = columns_of(steps), step._index
        assert {id for one in step.stages for id in one.cut} == set(steps.top_ids[at][columns.cut_by[at] > 0].tolist())
        assert step.forbidden == tuple(steps.top_ids[at][columns.cut[at] & FORBIDDEN > 0].tolist())
        assert tuple(value.get("forbidden", ())) == step.forbidden
    assert any(step.forbidden for step in steps)


def columns_of(steps: StepTable) -> StageColumns:
    assert steps.stage_columns is not None
    return steps.stage_columns


def test_a_completion_is_plain_values_and_a_data_frame() -> None:
    done = make_trial(6, 3).completion
    values = done.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert [step["id"] for step in values["steps"]] == list(done.ids)
    assert [len(step["top"]) for step in values["steps"]] == [3] * 6
    frame = done.to_pandas()
    assert list(frame["id"]) == [step.id for step in (*done.prompt_steps, *done.steps)]
    assert list(frame["part"]) == ["prompt"] * len(done.prompt_steps) + ["output"] * 6
    assert list(frame["position"]) == [*range(len(done.prompt_steps)), *range(6)]
    assert frame["logprob"].dropna().lt(0).all() and frame["bytes"].map(type).eq(bytes).all()
