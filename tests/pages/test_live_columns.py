"""Messages of live tokens: the columns of steps that a page gets, and that each step is sent once."""

import json
import math
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.pool.pool import Pool
from engine.specs import Sampling
from engine.steps import StepTable
from pages.parts import live
from pages.parts.wire import MAX_CANDIDATES, Words, columns
from tests.engine.history.trial_maker import make_trial, with_stages
from tests.pages.harness import END, ScriptedTrial, append_tokens


def test_figures_are_those_of_the_table() -> None:
    trial = ScriptedTrial(k=60)
    trial.go_on()
    sent = columns(trial.steps, 3, 40)
    steps = trial.steps[3:40]
    assert sent["rank"] == [step.rank for step in steps]
    assert sent["logprob"] == pytest.approx([step.logprob for step in steps], abs=1e-6)
    assert sent["entropy"] == pytest.approx([step.entropy for step in steps], abs=1e-5)
    assert sent["ms"] == pytest.approx([step.elapsed_s * 1e3 for step in steps], abs=1e-3)
    for step, ids, logprobs, p_final in zip(steps, sent["top_id"], sent["top_logprob"], sent["top_p"], strict=True):
        shown = step.top[:MAX_CANDIDATES]
        assert ids == [candidate.id for candidate in shown]
        assert logprobs == pytest.approx([candidate.logprob for candidate in shown], abs=1e-6)
        padded = p_final + [0.0] * (len(shown) - len(p_final))
        assert padded == pytest.approx([candidate.p_final for candidate in shown], abs=1e-7)
        assert [p > 0 for p in padded] == [candidate.p_final > 0 for candidate in shown]


def test_watched_words_are_sent_with_their_ids_and_only_where_they_were_watched(pool: Pool) -> None:
    words = ((40,), (41, 42))
    biased = Sampling(seed=1)
    done = pool.submit("Once upon a time", biased, max_tokens=5, watched=words, prompt_logprobs=True).result(60)
    sent = columns(done.steps, 1, 4)
    assert sent["watched"] == [[40], [41, 42]]
    for step, logprobs, ranks in zip(done.steps[1:4], sent["watched_logprob"], sent["watched_rank"], strict=True):
        assert logprobs == pytest.approx([word.logprob for word in step.watched], abs=1e-6)
        assert ranks == [word.rank for word in step.watched]
    first, *rest = columns(done.prompt_steps, 0, 3)["watched_logprob"]
    assert np.isnan(first).all() and np.isfinite(rest).all()
    assert "watched" not in columns(make_trial(2, 4).completion.steps, 0, 2)


def test_stages_are_sent_with_their_names_and_only_where_they_were_recorded() -> None:
    steps = with_stages(make_trial(9, 60)).completion.steps
    sent = json.loads(live._encode(columns(steps, 2, 7)))
    assert tuple(sent["stages"]) == steps.stages
    for step, kept, mass, cut in zip(steps[2:7], sent["stage_kept"], sent["stage_mass"], sent["top_cut"], strict=True):
        assert kept == [stage.kept for stage in step.stages]
        assert mass == pytest.approx([stage.mass for stage in step.stages], abs=1e-7)
        removed = {token: number for number, stage in enumerate(step.stages, 1) for token in stage.cut}
        assert cut == [removed.get(candidate.id, 0) for candidate in step.top[:MAX_CANDIDATES]]
    assert not {"stages", "stage_kept", "top_cut"} & set(columns(make_trial(2, 4).completion.steps, 0, 2))


def test_which_candidates_the_grammar_forbids_is_sent_only_with_a_grammar() -> None:
    steps = with_stages(make_trial(9, 60, sampling=Sampling(grammar='root ::= "a"'))).completion.steps
    sent = json.loads(live._encode(columns(steps, 2, 7)))
    for step, is_forbidden in zip(steps[2:7], sent["top_forbidden"], strict=True):
        shown = [candidate.id in step.forbidden for candidate in step.top[:MAX_CANDIDATES]]
        assert is_forbidden == shown and any(shown) and not all(shown)
    assert "top_forbidden" not in columns(with_stages(make_trial(9, 60)).completion.steps, 2, 7)


def test_what_is_not_finite_becomes_null_and_what_was_not_recorded_stays_away() -> None:
    trial = ScriptedTrial()
    trial.go_on(4)
    trial.steps.records["draw"][1] = np.nan
    trial.steps.top_logprobs[2, 5:] = -np.inf
    trial.steps.records["flags"][3] = 0
    sent = json.loads(live._encode(columns(trial.steps, 0, 4)))
    assert sent["draw"][1] is None
    assert sent["top_logprob"][2][5:] == [None] * 45
    assert sent["logprob"][3] is None
    bare = StepTable(trial.vocabulary, 0)
    append_tokens(bare, [END], is_inspected=False)
    assert set(columns(bare, 0, 1)) == {"id", "ms", "flags", "kept"}


def test_a_logit_bias_comes_once_with_the_first_message() -> None:
    trial = ScriptedTrial()
    trial.logit_bias = ((5, -math.inf), (6, 1.5))
    feed = live.Feed("t", cast(live.Watched, trial), Words(), 0, latency=False)
    first = json.loads(live._encode(feed.message()))
    assert first["bias"] == [[5, "-inf"], [6, 1.5]]
    trial.go_on(2)
    assert "bias" not in (feed.message() or {})


@settings(deadline=None)
@given(data=st.data())
def test_a_prompt_that_is_computed_twice_goes_out_once(data: st.DataObject) -> None:
    trial = ScriptedTrial(scored=True)
    tokens, vocabulary = trial.prompt_steps.ids * 5, trial.vocabulary
    feed = live.Feed("t", cast(live.Watched, trial), Words(), 0, latency=False)
    prompt, steps = list[int](), list[int]()

    def relay() -> None:
        while True:
            message = feed.message() or {}
            for sent, name in ((prompt, "prompt"), (steps, "steps")):
                if name in message:
                    assert message[name]["first"] == len(sent)
                    assert message[name]["id"]
                    sent += message[name]["id"]
            if not feed.has_more:
                return

    for num_computed in data.draw(st.lists(st.integers(0, len(tokens)), max_size=3)):
        trial.prompt_steps = StepTable(vocabulary, 50, is_prompt=True)
        append_tokens(trial.prompt_steps, tokens[:num_computed])
        relay()
    trial.prompt_steps = StepTable(vocabulary, 50, is_prompt=True)
    while len(trial.prompt_steps) < len(tokens):
        count = data.draw(st.integers(1, len(tokens)))
        append_tokens(trial.prompt_steps, tokens[len(trial.prompt_steps) :][:count])
        relay()
    trial.go_on(9)
    trial.finish()
    relay()
    assert (prompt, steps) == (tokens, trial.steps.ids)
