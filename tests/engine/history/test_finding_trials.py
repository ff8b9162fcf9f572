"""Search for trials and their tokens: by words, figures and sampling."""

import math
from dataclasses import replace

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.history import History
from engine.history.filters import Filter
from engine.history.search import Found
from engine.specs import Sampling
from tests.engine.history.trial_maker import NASTY, make_steps, make_trial


def ids(found: Found) -> list[str]:
    """Return the ids of the rows, in order."""
    return [row["id"] for row in found.rows]


def test_a_row_of_a_trial_says_what_came_of_it(history: History) -> None:
    trial = make_trial(12, sampling=Sampling(temperature=0.25))
    history.record(trial).result(60)
    (row,) = history.find.trials().rows
    records, timings = trial.completion.steps.records, trial.completion.timings
    assert row["lowest_p"] == pytest.approx(math.exp(records["logprob"].min()))
    assert row["slowest_s"] == records["elapsed_s"][1:].max()
    assert row["mean_surprise_bits"] == pytest.approx(trial.mean_surprise_bits)
    expected = {
        "id": trial.id,
        "created_at": trial.created_at,
        "title": "Once upon a time",
        "output_start": "what it said",
        "model_name": "story",
        "quantisation": "Q8_0",
        "temperature": 0.25,
        "seed": trial.completion.seed,
        "num_generated": 12,
        "ttft_s": timings.ttft_s,
        "decode_per_s": timings.decode_per_s,
        "prefill_per_s": timings.prefill_per_s,
        "label": "",
    }
    assert {name: row[name] for name in expected} == expected


def test_a_trial_that_goes_on_from_another_has_the_tokens_of_its_whole_answer(history: History) -> None:
    stepped = make_trial(5, label="step")
    timings = stepped.completion.timings._replace(num_generated=1)
    stepped = replace(stepped, completion=replace(stepped.completion, timings=timings))
    history.record(stepped).result(60)
    history.record(make_trial(3)).result(60)
    found = history.find.trials(order="num_generated")
    assert [row["num_generated"] for row in found.rows] == [5, 3]
    assert found.rows[0]["decode_per_s"] is None, "the one token that was its own"
    assert ids(history.find.trials(Filter(ranges={"num_generated": (4, None)}))) == [stepped.id]
    assert [one.num_generated for one in history.recent()] == [3, 5]


def test_what_a_trial_did_not_measure_is_none(history: History) -> None:
    history.record(make_trial(1, 0)).result(60)
    history.record(make_trial(0)).result(60)
    for row in history.find.trials().rows:
        assert row["decode_per_s"] is row["lowest_p"] is row["slowest_s"] is None


def test_trials_are_found_by_words_figures_and_sampling(history: History) -> None:
    chat = ({"role": "system", "content": 'Be "brief".'}, {"role": "user", "content": "Why is\nthe sky blue?"})
    base = make_trial()
    named = replace(base.model, name="other-Q4_0", quantisation="Q4_0")
    chat_trial = make_trial(20, messages=chat, prompt="", label="again", sampling=Sampling(temperature=0.1, top_k=7))
    other = replace(make_trial(2, model=named), completion=replace(base.completion, text="An Ocean of\0 words"))
    other = replace(other, completion=replace(other.completion, id=other.id, finish_reason="stop"))
    for trial in (chat_trial, other):
        history.record(trial).result(60)
    history.marks.note("trial", chat_trial.id, "keep")
    for wanted, expected in (
        (Filter(text="SKY blue"), chat_trial),
        (Filter(text='"brief"'), chat_trial),
        (Filter(text="content"), None),
        (Filter(text="ocean"), other),
        (Filter(text="keep sky"), chat_trial),
        (Filter(text=NASTY), None),
        (Filter(models=("other-Q4_0",)), other),
        (Filter(quantisations=("Q8_0",)), chat_trial),
        (Filter(origins=("again",)), chat_trial),
        (Filter(statuses=("stop",)), other),
        (Filter(ranges={"temperature": (None, 0.5)}), chat_trial),
        (Filter(ranges={"temperature": (0.5, None)}), other),
        (Filter(ranges={"top_k": (7, 7), "num_generated": (20, None)}), chat_trial),
        (Filter(ranges={"n_ctx": (0, None)}), None),
        (Filter(ranges={"lowest_p": (2, None)}), None),
        (Filter(machines=("ab",), questions=("speed",), text="ocean"), other),
    ):
        found = history.find.trials(wanted)
        assert (ids(found), found.total) == ([expected.id] if expected else [], int(expected is not None)), wanted
    assert history.find.trials(Filter(ranges={"lowest_p": (0, 1), "slowest_s": (0, None)})).total == 2


def test_the_least_confident_and_the_slowest_tokens(history: History) -> None:
    steps = make_steps(10)
    steps.records["elapsed_s"] = [9.0, *np.linspace(0.01, 0.09, 9)]
    base = make_trial(10)
    trial = replace(base, completion=replace(base.completion, steps=steps))
    for each in (trial, make_trial(1, 0)):
        history.record(each).result(60)
    unsure = history.find.unsure_tokens(limit=4)
    order = np.argsort(steps.records["logprob"], kind="stable")[:4]
    assert [row["position"] for row in unsure] == order.tolist()
    assert [row["p"] for row in unsure] == pytest.approx(np.exp(steps.records["logprob"][order]).tolist())
    assert [row["text"] for row in unsure] == [steps.vocabulary.text(int(steps.records["id"][n])) for n in order]
    assert {(row["trial_id"], row["title"]) for row in unsure} == {(trial.id, "Once upon a time")}
    slow = history.find.slow_tokens(limit=3)
    assert [row["position"] for row in slow] == [9, 8, 7]
    assert [row["elapsed_s"] for row in slow] == pytest.approx([0.09, 0.08, 0.07])
    assert history.find.slow_tokens(Filter(text="nowhere")) == []
    with pytest.raises(ConfigError, match="limit"):
        history.find.unsure_tokens(limit=0)
