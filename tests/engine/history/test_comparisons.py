"""Comparisons in the history: saved, changed, hidden, purged."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.comparing.arms import Answer, Arm, ComparisonPlan, ComparisonRecord, planned_answers
from engine.errors import ConfigError, HistoryError
from engine.history import History, import_archive
from engine.history.comparisons import purge
from tests.engine.history.test_archive import archived
from tests.engine.history.test_run_file import packed, unpacked
from tests.engine.history.trial_maker import NASTY, make_trial, uuid7

PLAN = ComparisonPlan(prompt=f"{{{{x}}}} {NASTY}", arms=(Arm(), Arm(label=NASTY[:40])), rows=({"x": NASTY},))


def made(**changes: Any) -> ComparisonRecord:
    record = ComparisonRecord(
        id=uuid7(), created_at=datetime.now(UTC), name="", plan=PLAN, answers=tuple(planned_answers(PLAN))
    )
    return replace(record, **changes)


def test_what_is_kept_is_read_back_the_same(history: History) -> None:
    record = made(name=NASTY)
    history.comparisons.save(record)
    assert history.comparisons.comparison(record.id) == record
    (line,) = history.comparisons.recent()
    assert (line.id, line.name, line.num_arms, line.num_trials) == (record.id, NASTY, 2, 2)


def test_answers_are_entered_as_they_come_and_leave_the_name_alone(history: History) -> None:
    record = made()
    history.comparisons.save(record)
    assert history.comparisons.rename(record.id, "  Warm or cold ")
    first, second = record.answers
    later = replace(record, answers=(first._replace(trial_id=uuid7(), is_shared=True), second._replace(error="no")))
    history.comparisons.save(later)
    assert history.comparisons.comparison(record.id) == replace(later, name="Warm or cold")


def test_delete_restore_and_purge(path: Path) -> None:
    record = made()
    with History.open(path) as history:
        history.comparisons.save(record)
        assert history.comparisons.delete(record.id)
        history.comparisons.save(record)
        assert history.comparisons.comparison(record.id) is None and history.comparisons.recent() == []
        assert history.comparisons.restore(record.id)
        assert history.comparisons.comparison(record.id) == record
        history.comparisons.delete(record.id)
    with History.open(path) as history:
        assert not history.comparisons.restore(record.id)


def test_the_newest_comes_first_and_the_list_ends(history: History) -> None:
    now = datetime.now(UTC)
    for days in range(5):
        history.comparisons.save(made(name=str(days), created_at=now - timedelta(days=days)))
    assert [one.name for one in history.comparisons.recent(3)] == ["0", "1", "2"]


@pytest.mark.parametrize("id", ["", "nonsense", "01a1fab9-91c7-7816-819a-8fcdffdfbaff"])
def test_what_is_not_there_is_not_found(history: History, id: str) -> None:
    assert history.comparisons.comparison(id) is None
    assert not history.comparisons.rename(id, "x") and not history.comparisons.delete(id)


def test_a_name_too_long_and_an_id_that_is_none_are_refused(history: History) -> None:
    record = made()
    with pytest.raises(ConfigError, match="name"):
        history.comparisons.save(replace(record, name="x" * 201))
    with pytest.raises(ConfigError, match="UUID"):
        history.comparisons.save(replace(record, id=""))
    assert history.comparisons.recent() == []


def test_outcomes_are_read_without_steps(history: History) -> None:
    trials = [make_trial(4, seed=seed) for seed in range(3)]
    for trial in trials:
        history.record(trial).result()
    history.delete(trials[2].id)
    found = {one.trial_id: one for one in history.comparisons.outcomes([trial.id for trial in trials] + ["nonsense"])}
    assert set(found) == {trials[0].id, trials[1].id}
    for trial in trials[:2]:
        outcome, completion = found[trial.id], trial.completion
        assert (outcome.text, outcome.seed) == (completion.text, completion.seed)
        assert outcome.decode_per_s == pytest.approx(completion.timings.decode_per_s)
        assert outcome.mean_surprise_bits == pytest.approx(trial.mean_surprise_bits)
        assert (outcome.model_name, outcome.quantisation) == (trial.model.name, trial.model.quantisation)


def drawn(seed: int) -> tuple[ComparisonPlan, list[Answer], bool]:
    """Return a plan, answers of which some may be missing, given twice or outside it, and whether any is in the way."""
    draw = random.Random(seed)
    variants, rows, repeats = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 3)
    plan = ComparisonPlan(
        prompt="{{x}}", arms=(Arm(),) * variants, rows=tuple({"x": str(row)} for row in range(rows)), repeats=repeats
    )
    good = [one for one in planned_answers(plan) if draw.random() < 0.7]
    outside = Answer(variants, 0, 0), Answer(0, rows, 0), Answer(0, 0, repeats), Answer(7, 99, 99)
    twice = draw.choices(good, k=draw.randint(0, 2)) if good else []
    wrong = [*twice, *draw.sample(outside, draw.randint(0, 2))]
    answers = [one._replace(trial_id=uuid7()) for one in (*good, *wrong)]
    draw.shuffle(answers)
    return plan, answers, bool(wrong)


def line_of(plan: ComparisonPlan, answers: Sequence[Answer], id: str) -> bytes:
    """Return a line of an archive's comparisons."""
    trials = [answer._asdict() for answer in answers]
    values = {"id": id, "created_at": datetime.now(UTC), "name": "", "spec": plan.to_dict(), "trials": trials}
    return msgspec.json.encode(values)


def box(history: History, line: bytes) -> bytes:
    """Return an archive with this comparison and nothing else."""
    members = unpacked(archived(history, run_ids=()))
    manifest = msgspec.json.decode(members["manifest.json"])
    manifest["counts"]["comparisons"] = 1
    return packed({**members, "comparisons.jsonl": line + b"\n", "manifest.json": msgspec.json.encode(manifest)})


@pytest.mark.parametrize("seed", range(20))
def test_answers_from_an_archive_belong_to_its_plan_each_once(history: History, seed: int) -> None:
    plan, answers, is_wrong = drawn(seed)
    id = uuid7()
    archive = box(history, line_of(plan, answers, id))
    if is_wrong:
        with pytest.raises(HistoryError, match=r"line 1: answer \d+ .* is (outside the plan|the second of its trial)"):
            import_archive(history, archive)
        assert history.comparisons.recent() == []
        return
    import_archive(history, archive)
    assert_each_once(history.comparisons.comparison(id), plan, answers)


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_an_earlier_version_kept_are_read_by_their_plan(history: History, seed: int) -> None:
    plan, answers, _ = drawn(seed)
    id = uuid7()
    history.comparisons.save(made(id=id, plan=plan, answers=tuple(answers)))
    assert_each_once(history.comparisons.comparison(id), plan, answers)
    assert history.comparisons.recent()[0].num_trials == plan.num_trials
    archive = archived(history)
    history.comparisons.delete(id)
    history.file.write(purge).result()
    import_archive(history, archive)
    assert_each_once(history.comparisons.comparison(id), plan, answers)


def assert_each_once(record: ComparisonRecord | None, plan: ComparisonPlan, answers: Sequence[Answer]) -> None:
    """Check that each trial of the plan has one answer: the first that was given, or a blank one."""
    assert record is not None
    assert [answer[:3] for answer in record.answers] == [answer[:3] for answer in planned_answers(plan)]
    for answer in record.answers:
        given = [one for one in answers if one[:3] == answer[:3]]
        assert answer == (given[0] if given else Answer(*answer[:3]))
