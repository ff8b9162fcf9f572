"""Comparisons with the shipped model: variants together, apart and on two models; failures, stopping and saving."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.comparing.arms import Arm, ComparisonPlan, ComparisonRecord
from engine.errors import ConfigError, HistoryError, ModelError
from engine.history import stage_kept
from engine.models import embedded_model
from engine.settings import Settings
from engine.specs import PoolSpec, Request, Sampling
from engine.workbench import Workbench, history_manager
from engine.workbench.comparison_manager import ComparisonManager, figures
from engine.workbench.history_manager import HistoryManager
from engine.workbench.trials import Draft, Trial
from tests.waiting import until

COLD, HOT = (Arm(sampling=Sampling(temperature=t, seed=7), max_tokens=12) for t in (0.0, 1.5))


def plan(*arms: Arm, **changes: Any) -> ComparisonPlan:
    return ComparisonPlan(**{"prompt": "Once upon a time", "arms": arms or (COLD, HOT), **changes})


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path_factory.mktemp("home"))}))
    bench.load_default()
    until(lambda: bench.model.engine)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model: a copy of the shipped one under another name."""
    return Path(shutil.copy(embedded_model(), tmp_path_factory.mktemp("models") / "other.gguf"))


def compared(bench: Workbench, plan: ComparisonPlan) -> ComparisonRecord:
    id = bench.compare.start(plan)
    bench.compare.wait(60)
    assert bench.compare.running is None
    until(lambda: bench.model.engine)
    return bench.compare.comparison(id)


def trial(bench: Workbench, record: ComparisonRecord, arm: int, row: int = 0, repeat: int = 0) -> Trial:
    return bench.trials.trial(record.of(arm, row)[repeat].trial_id)


def test_arms_on_one_model_run_together_and_are_marked(bench: Workbench) -> None:
    record = compared(bench, plan())
    assert all(answer.trial_id and answer.is_shared and not answer.error for answer in record.answers)
    cold, hot = trial(bench, record, 0), trial(bench, record, 1)
    assert len(cold.steps) == 12 and cold.steps.ids != hot.steps.ids
    assert all(step.rank == 1 for step in cold.steps)
    assert cold.seed == hot.seed == 7
    assert cold.timings.num_cached == hot.timings.num_cached == 0


def test_one_at_a_time_each_has_the_machine_to_itself(bench: Workbench) -> None:
    record = compared(bench, plan(is_apart=True))
    assert not any(answer.is_shared for answer in record.answers)
    alone = bench.trials.submit(
        Draft("Once upon a time", sampling=HOT.sampling, request=Request(max_tokens=12, top_k=10, reuse_prefix=False))
    )
    alone.job.result(60)
    assert trial(bench, record, 1).steps.ids == alone.steps.ids


def test_rows_and_repeats_each_have_their_trial(bench: Workbench) -> None:
    asked = plan(
        COLD, replace(HOT, variables={"who": "queen"}), prompt="The {{who}} said", repeats=2,
        rows=({"who": "king"}, {"who": "fox"}),
    )  # fmt: skip
    record = compared(bench, asked)
    assert [[trial(bench, record, arm, row).draft.prompt for row in (0, 1)] for arm in (0, 1)] == [
        ["The king said", "The fox said"],
        ["The queen said", "The queen said"],
    ]
    first, second = (trial(bench, record, 1, 0, repeat) for repeat in (0, 1))
    assert (first.seed, second.seed) == (7, 8)
    outcomes = bench.compare.outcomes(record)
    assert set(outcomes) == {answer.trial_id for answer in record.answers}
    assert first.completion is not None and outcomes[first.id].text == first.completion.text
    found = figures(outcomes.values())
    for figure in (found.decode_per_s, found.ttft_s, found.mean_surprise_bits):
        assert figure is not None and figure > 0


def test_arms_on_two_models_run_one_after_the_other_and_the_first_comes_back(bench: Workbench, other: Path) -> None:
    before = bench.model
    record = compared(bench, plan(COLD, replace(COLD, model=str(other)), HOT))
    assert [Path(trial(bench, record, arm).model.path).name for arm in range(3)] == [
        "story.gguf", "other.gguf", "story.gguf",
    ]  # fmt: skip
    assert [record.of(arm, 0)[0].is_shared for arm in range(3)] == [True, False, True]
    assert trial(bench, record, 0).steps.ids == trial(bench, record, 1).steps.ids
    assert bench.model.path == before.path and bench.model.spec == before.spec
    assert trial(bench, record, 1).pool.parallel == before.spec.parallel


def test_a_folder_and_a_file_are_compared_whatever_options_the_loaded_one_has(
    bench: Workbench, story_folder: Path
) -> None:
    before, file = bench.model, embedded_model()
    options = {
        file: PoolSpec(n_ctx=256, type_k="q8_0", flash_attn=True, load="none"),
        story_folder: PoolSpec(n_ctx=256, dtype="float32"),
    }
    try:
        for one, other in ((file, story_folder), (story_folder, file)):
            bench.model_manager.load(one, options[one])
            until(lambda: bench.model.engine)
            record = compared(bench, plan(COLD, replace(COLD, model=str(other))))
            assert [record.of(arm, 0)[0].error for arm in (0, 1)] == ["", ""]
            pools = [trial(bench, record, arm).pool for arm in (0, 1)]
            assert [pool.dtype for pool in pools] == [None if path == file else "float32" for path in (one, other)]
            assert pools[0].n_ctx == pools[1].n_ctx == 256
    finally:
        bench.model_manager.load(file, before.spec)
        until(lambda: bench.model.engine)


def test_a_model_named_twice_is_one_model(bench: Workbench) -> None:
    pool = bench.model.engine
    record = compared(bench, plan(COLD, replace(COLD, model=str(embedded_model()))))
    assert all(answer.trial_id for answer in record.answers)
    assert bench.model.engine is pool


def test_an_arm_that_fails_says_why_and_the_others_go_on(bench: Workbench, tmp_path: Path) -> None:
    missing = replace(COLD, model=str(tmp_path / "missing.gguf"))
    long = replace(COLD, variables={"text": "word " * 4000})
    record = compared(bench, plan(missing, long, COLD, prompt="{{text}}", rows=({"text": "Once"},)))
    errors = [record.of(arm, 0)[0].error for arm in range(3)]
    assert "missing.gguf" in errors[0] and "context" in errors[1] and errors[2] == ""
    assert len(trial(bench, record, 2).steps) == 12
    assert bench.model.path == embedded_model()


def test_a_chat_needs_a_template_and_says_so(bench: Workbench) -> None:
    record = compared(bench, plan(COLD, is_chat=True))
    (answer,) = record.answers
    assert not answer.trial_id and "template" in answer.error


@pytest.mark.slow
def test_a_chat_answers_in_the_template_of_each_model_behind_what_was_said_before(
    bench: Workbench, tmp_path: Path
) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant]"
    path = tmp_path / "chat.gguf"
    program = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--chat-template", template]
    subprocess.run([*program, embedded_model(), path], check=True, capture_output=True, timeout=120)
    before = {"role": "system", "content": "Be brief."}
    record = compared(bench, plan(replace(COLD, model=str(path)), is_chat=True, before=(before,)))
    asked = trial(bench, record, 0).draft
    assert asked.prompt == "<s>[system] Be brief.\n[user] Once upon a time\n[assistant]"
    again = bench.compare.of_trials([record.answers[0].trial_id]).plan
    assert (again.is_chat, again.before, again.prompt) == (True, (before,), "Once upon a time")


def test_stop_keeps_what_is_there_and_begins_nothing_more(bench: Workbench) -> None:
    long = replace(HOT, max_tokens=400)
    id = bench.compare.start(plan(long, long, repeats=20, is_apart=True))
    with pytest.raises(ConfigError, match="A comparison is still running"):
        bench.compare.start(plan())
    with pytest.raises(ConfigError, match="still running"):
        bench.compare.delete(id)
    until(lambda: bench.compare.comparison(id).answers[0].trial_id)
    run = bench.compare.running
    assert run is not None and run.record.id == id and run.doing.endswith(" of 40 trials")
    bench.compare.stop()
    bench.compare.wait(60)
    assert run.state == "stopped"
    record = bench.compare.comparison(id)
    begun = [answer for answer in record.answers if answer.trial_id]
    assert 1 <= len(begun) < 40
    assert bench.trials.trial(begun[-1].trial_id).ending()["sentence"] == "You stopped it."
    assert not any(answer.error for answer in record.answers)


def test_another_model_waits_for_the_benchmark_to_end(bench: Workbench, other: Path) -> None:
    manager = bench.compare
    with bench.machine.acquire("A benchmark", "benchmark"):
        id = manager.start(plan(COLD, replace(COLD, model=str(other))))
        until(lambda: manager.running is not None and manager.running.waits_for == "A benchmark")
        assert manager.running is not None and manager.running.state == "waiting"
        assert bench.model.path == embedded_model()
        assert manager.comparison(id).answers[0].trial_id and not manager.comparison(id).answers[1].trial_id
    manager.wait(60)
    assert all(answer.trial_id for answer in manager.comparison(id).answers)
    until(lambda: bench.model.engine)


def test_a_person_who_takes_the_model_away_is_obeyed(bench: Workbench, other: Path) -> None:
    id = bench.compare.start(plan(COLD, replace(COLD, model=str(other))))
    until(lambda: bench.model.path == other)
    bench.model_manager.eject()
    bench.compare.wait(60)
    assert "was unloaded before" in bench.compare.comparison(id).answers[1].error
    assert bench.model.path is None
    with pytest.raises(ModelError, match="No model is loaded"):
        bench.compare.start(plan())
    bench.load_default()
    until(lambda: bench.model.engine)


def test_comparisons_are_kept_named_deleted_and_restored(bench: Workbench) -> None:
    record = compared(bench, plan())
    assert bench.compare.recent(1)[0].id == record.id
    bench.compare.rename(record.id, "Warm or cold")
    assert bench.compare.comparison(record.id).name == "Warm or cold"
    bench.compare.delete(record.id)
    with pytest.raises(ConfigError, match="does not exist"):
        bench.compare.comparison(record.id)
    assert all(bench.trials.watch(answer.trial_id) for answer in record.answers)
    bench.compare.restore(record.id)
    assert bench.compare.comparison(record.id) == replace(record, name="Warm or cold")
    with pytest.raises(ConfigError, match="does not exist"):
        bench.compare.rename("nonsense", "x")


def test_arms_stay_out_of_the_recent_trials(bench: Workbench) -> None:
    alone = bench.trials.submit(Draft("Alone", request=Request(max_tokens=2)))
    alone.job.result(60)
    record = compared(bench, plan())
    history = bench.history
    assert history is not None
    until(lambda: all(history.trial(answer.trial_id) for answer in record.answers))
    ids = [line.id for line in bench.trials.recent(100)]
    assert alone.id in ids and not {answer.trial_id for answer in record.answers} & set(ids)
    assert bench.trials.newest_id() == alone.id


def test_trials_become_arms_that_can_be_run_again(bench: Workbench) -> None:
    record = compared(bench, plan(is_apart=True))
    ids = [answer.trial_id for answer in record.answers]
    beside = bench.compare.of_trials(ids)
    assert beside.id == "" and [answer.trial_id for answer in beside.answers] == ids
    assert beside.plan.prompt == "Once upon a time"
    assert [arm.sampling.temperature for arm in beside.plan.arms] == [0.0, 1.5]
    again = compared(bench, replace(beside.plan, is_apart=True))
    assert [trial(bench, again, arm).steps.ids for arm in (0, 1)] == [
        trial(bench, record, arm).steps.ids for arm in (0, 1)
    ]
    kept = bench.compare.comparison(bench.compare.keep_trials(ids, "kept"))
    assert (kept.name, kept.answers) == ("kept", beside.answers)


def test_trials_with_different_prompts_keep_theirs(bench: Workbench) -> None:
    prompts = ["One {{hand}}", "Two"]
    trials = [bench.trials.submit(Draft(text, request=Request(max_tokens=2))) for text in prompts]
    for one in trials:
        one.job.result(60)
    for chosen in (trials, trials[:1]):
        asked = bench.compare.of_trials([one.id for one in chosen]).plan
        assert [asked.text(arm, asked.rows[0]) for arm in asked.arms] == prompts[: len(chosen)]


def test_addresses_that_lead_nowhere_say_so(bench: Workbench) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        bench.compare.of_trials(["nonsense"])
    with pytest.raises(ConfigError, match="0 trials"):
        bench.compare.of_trials([])


def test_without_a_history_comparisons_run_all_the_same(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "history.duckdb").mkdir()
    monkeypatch.setenv("LOGITBENCH_HISTORY", str(tmp_path / "history.duckdb"))
    kept = HistoryManager(Settings.from_environment(), on_opened=lambda: None, stage=stage_kept)
    manager = ComparisonManager(
        bench.settings,
        bench.model_manager,
        kept,
        submit=bench.trials.submit,
        watch=bench.trials.watch,
        machine=bench.machine,
    )
    id = manager.start(plan())
    manager.wait(60)
    record = manager.comparison(id)
    assert all(answer.trial_id for answer in record.answers)
    assert set(manager.outcomes(record)) == {answer.trial_id for answer in record.answers}
    assert manager.recent() == []


def test_a_comparison_that_could_not_be_kept_is_kept_later(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_record: object) -> None:
        raise HistoryError("the disk is full")

    monkeypatch.setattr(history_manager, "LOOK_S", 0.1)
    assert bench.history is not None
    with monkeypatch.context() as patched:
        patched.setattr(bench.history.comparisons, "save", full)
        id = bench.compare.start(plan())
        bench.compare.wait(60)
        until(lambda: bench.history_error is not None)
        record = bench.compare.comparison(id)
        assert bench.history.comparisons.comparison(id) is None
    until(lambda: bench.history.comparisons.comparison(id) is not None)  # type: ignore[union-attr]
    until(lambda: bench.history_error is None)
    assert bench.compare.comparison(id) == record
