"""Branches of a trial: other tokens from any step on, samples, and the family that they make, with the real model."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import ConfigError, PromptTooLong
from engine.history import TrialLabel
from engine.protocol import continuation_ids
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.branching import MOST_SAMPLES, first_other_token
from engine.workbench.trials import Draft, LiveTrial
from tests.engine.workbench.conftest import ended
from tests.waiting import until

SEEDED = Sampling(seed=11)
DRAFT = Draft("Once upon a time", sampling=SEEDED, request=Request(max_tokens=16, top_k=20, stages=True))


@pytest.fixture(scope="module")
def trial(bench: Workbench) -> LiveTrial:
    return ended(bench.trials.submit(DRAFT))


def test_the_token_that_was_drawn_gives_the_same_text_again(bench: Workbench, trial: LiveTrial) -> None:
    branch = ended(bench.trials.branch(trial, 5, trial.steps.ids[5:6]))
    assert branch.steps.ids == trial.steps.ids and branch.seed == trial.seed
    assert (branch.parent, branch.label, branch.prompt_ids) == (trial.id, TrialLabel.BRANCH, trial.prompt_ids)
    assert [step.is_forced for step in branch.steps] == [index == 5 for index in range(16)]


def test_another_candidate_is_followed_by_what_the_model_adds(bench: Workbench, trial: LiveTrial) -> None:
    other = next(one.id for one in trial.steps[5].top if one.id != trial.steps.ids[5])
    branch = ended(bench.trials.branch(trial, 5, [other]))
    assert branch.steps.ids[:6] == [*trial.steps.ids[:5], other] and len(branch.steps) == 16
    assert branch.steps.stages == trial.steps.stages and branch.steps[5].stages[0].kept > 0
    engine, _ = bench.model.loaded()
    given = [*trial.prompt_ids, *branch.steps.ids[:6]]
    assert branch.steps.ids[6:] == engine.submit(given, SEEDED, generated=6, max_tokens=10).result(60).ids


def test_other_parameters_hold_from_the_branch_on(bench: Workbench, trial: LiveTrial) -> None:
    greedy = Sampling(temperature=0.0, seed=11)
    branch = ended(bench.trials.branch(trial, 4, (), sampling=greedy))
    assert branch.steps.ids[:4] == trial.steps.ids[:4] and branch.draft.sampling == greedy
    assert all(step.rank == 1 for step in branch.steps[4:]) and not any(step.is_forced for step in branch.steps)


def test_only_the_given_tokens_and_a_number_after_them(bench: Workbench, trial: LiveTrial) -> None:
    only = ended(bench.trials.branch(trial, 16, [5], num_tokens=0))
    assert only.steps.ids == [*trial.steps.ids, 5]
    assert len(ended(bench.trials.branch(trial, 3, [5], num_tokens=4)).steps) == 8


@pytest.mark.parametrize("text", [" a cat", "cat", "\n\nThe end.", " ", "é🙂", "1234", "<|x|>"])
def test_typed_text_stands_at_the_branch_as_it_was_typed(bench: Workbench, trial: LiveTrial, text: str) -> None:
    branch = ended(bench.branching.with_text(trial, 6, text))
    vocabulary = branch.steps.vocabulary
    forced = [step.id for step in branch.steps if step.is_forced]
    assert vocabulary.join(forced) == text.encode()
    assert branch.steps.ids[: 6 + len(forced)] == [*trial.steps.ids[:6], *forced]


def test_the_first_new_token_of_a_branch_takes_two_decodes_after_a_long_cached_prefix(bench: Workbench) -> None:
    engine, _ = bench.model.loaded()
    ids = engine.tokenize("Once upon a time there was a king who had a daughter. " * 40)[:400]
    long = ended(bench.trials.submit_ids(replace(DRAFT, prompt="long"), ids))
    until(lambda: engine.num_open == 0, "a job is left")
    before = engine.measure()[0]
    branch = ended(bench.trials.branch(long, 8, [7], num_tokens=1))
    after = engine.measure()[0]
    assert branch.timings.num_cached == 400 + 8 - 1
    assert after["num_decodes"] - before["num_decodes"] == 2
    assert after["num_tokens"] - before["num_tokens"] == 2


def test_what_cannot_be_a_branch(bench: Workbench, trial: LiveTrial) -> None:
    with pytest.raises(ConfigError, match="The text is empty"):
        bench.branching.with_text(trial, 6, "")
    for step in (-1, 17):
        with pytest.raises(ConfigError, match="there is no token"):
            bench.trials.branch(trial, step, [5])
    for num in (0, MOST_SAMPLES + 1):
        with pytest.raises(ConfigError, match="samples"):
            bench.branching.sample(trial, 4, num)
    engine, _ = bench.model.loaded()
    deep = bench.trials.branch(trial, 4, [5] * engine.capabilities.n_ctx)
    with pytest.raises(PromptTooLong):
        deep.job.result(60)


def test_samples_have_seeds_of_their_own_and_are_not_listed_as_recent(bench: Workbench, trial: LiveTrial) -> None:
    samples = [ended(one) for one in bench.branching.sample(trial, 4, 6)]
    assert len({one.seed for one in samples}) == 6 and {one.label for one in samples} == {TrialLabel.SAMPLE}
    assert all(one.steps.ids[:4] == trial.steps.ids[:4] for one in samples)
    until(lambda: all(one.is_stored for one in samples), "the samples are not stored")
    assert not {one.id for one in samples} & {one.id for one in bench.trials.recent(100)}


def test_a_family_holds_what_runs_what_is_unsaved_and_what_is_stored(bench: Workbench, tmp_path: Path) -> None:
    root = ended(bench.trials.submit(DRAFT))
    child = ended(bench.trials.branch(root, 3, [7]))
    grandchild = ended(bench.trials.branch(child, 8, [9]))
    until(lambda: grandchild.is_stored and child.is_stored and root.is_stored, "they are not stored")
    assert bench.history is not None
    bench.history.marks.note("trial", child.id, "seven")
    running = bench.trials.branch(grandchild, 9, [5], num_tokens=200)
    for one in (root, grandchild, running):
        family = {each.id: each for each in bench.branching.family(one)}
        assert family.keys() == {root.id, child.id, grandchild.id, running.id}
        assert family[child.id].name == "seven" and family[root.id].path.ids.tolist() == root.steps.ids
    running.job.cancel()
    alone = ended(bench.trials.submit(DRAFT))
    assert [one.id for one in bench.branching.family(alone)] == [alone.id]


def test_a_continuation_has_no_begin_token_and_no_added_space(bench: Workbench) -> None:
    engine, _ = bench.model.loaded()
    for text in (" the old king", "king", "'s", "\n", ".", "0", "a", "aa"):
        ids = continuation_ids(engine, text)
        assert engine.vocabulary.join(ids) == text.encode() and engine.vocabulary.bos not in ids


def test_the_first_token_that_the_tokenizer_would_not_choose(bench: Workbench, trial: LiveTrial) -> None:
    engine, _ = bench.model.loaded()
    vocabulary = engine.vocabulary
    whole = next(
        id for id in range(300, len(vocabulary)) if vocabulary.pieces[id].isalpha() and len(vocabulary.pieces[id]) == 4
    )
    letters = [vocabulary.pieces.index(bytes([byte])) for byte in vocabulary.pieces[whole]]
    split = ended(bench.trials.branch(trial, 6, letters, num_tokens=0))
    assert first_other_token(engine, split) in (5, 6)
    fresh = ended(bench.trials.submit(DRAFT))
    text = engine.tokenize("Once upon a time" + fresh.steps.text)
    expected = None if text == [*fresh.prompt_ids, *fresh.steps.ids] else pytest.approx(0, abs=16)
    assert first_other_token(engine, fresh) == expected
