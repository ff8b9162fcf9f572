"""Archive of runs and trials in one file: round trip, no duplicates, all or nothing, whatever the file is."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from engine.errors import HistoryError
from engine.history import History, TrialRecord, export_history, import_archive
from engine.history.archives.parts import MEMBERS
from engine.runs import RunRecord
from tests.engine.history.run_maker import assert_same_run, make_cell, make_run
from tests.engine.history.test_run_file import packed, unpacked
from tests.engine.history.trial_maker import NASTY, make_steps, make_trial, with_beams, with_stages


@pytest.fixture
def other(tmp_path: Path) -> Iterator[History]:
    with History.open(tmp_path / "other" / "history.duckdb") as history:
        yield history


def fill(history: History) -> tuple[list[RunRecord], list[TrialRecord]]:
    """Save two runs, one of them empty, and two trials, one with a scored prompt, and return them."""
    runs = [make_run(300, 3, name=NASTY), make_run(0, 1, cells=(make_cell(0, facts={"load_cold_s": np.nan}),))]
    trials = [with_stages(make_trial(20, 8, prompt=NASTY, label="step")), make_trial(0)]
    completion = replace(trials[1].completion, prompt_steps=make_steps(3, 8, is_prompt=True), text="")
    trials[1] = replace(trials[1], completion=completion, parent=trials[0].id)
    for run in runs:
        history.runs.keep(run)
    for trial in trials:
        history.record(trial).result()
    return runs, trials


def archived(history: History, **chosen: Any) -> bytes:
    file = io.BytesIO()
    export_history(history, file, **chosen)
    return file.getvalue()


def assert_same_trial(found: TrialRecord | None, expected: TrialRecord) -> None:
    assert found is not None
    assert {**vars(found), "completion": None} == {**vars(expected), "completion": None}
    for part in ("prompt_steps", "steps"):
        ours, theirs = getattr(found.completion, part), getattr(expected.completion, part)
        assert len(ours) == len(theirs)
        for column in ("records", "top_ids", "top_logprobs", "top_p_final") if len(theirs) else ():
            np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column))
    assert [step.stages for step in found.completion.steps] == [step.stages for step in expected.completion.steps]
    assert found.completion.steps.vocabulary == expected.completion.steps.vocabulary
    assert found.completion.timings == expected.completion.timings


def test_everything_there_and_back(history: History, other: History, tmp_path: Path) -> None:
    runs, trials = fill(history)
    history.marks.star("run", [runs[0].id], True)
    history.marks.tag("trial", [trials[0].id], add=["good", "long"])
    counts = export_history(history, tmp_path / "all.zip").counts
    assert sorted(path.name for path in tmp_path.glob("all*")) == ["all.zip"]
    assert {name: counts[name] for name in ("runs", "samples", "trials", "steps", "tokenizers", "marks")} == {
        "runs": 2, "samples": 300, "trials": 2, "steps": 23, "tokenizers": 1, "marks": 2,
    }  # fmt: skip

    taken = import_archive(other, tmp_path / "all.zip")
    assert (set(taken.run_ids), set(taken.trial_ids)) == ({run.id for run in runs}, {trial.id for trial in trials})
    assert (taken.num_runs, taken.num_trials, taken.num_known) == (2, 2, 0)
    for run in runs:
        found = other.runs.run(run.id)
        assert found is not None
        if run.samples.size:
            assert_same_run(found, replace(run, origin="all.zip"))
    for trial in trials:
        assert_same_trial(other.trial(trial.id), trial)
    assert other.marks.tags() == ["good", "long"]
    ours, theirs = archived_lines((tmp_path / "all.zip").read_bytes()), archived_lines(archived(other))
    assert {name for name in ours if ours[name] != theirs[name]} == {"runs.jsonl"}  # its runs have another origin


def archived_lines(content: bytes) -> dict[str, set[bytes]]:
    members = unpacked(content)
    return {name: set(members[name].splitlines()) for name in members if name.endswith(".jsonl")}


def test_a_beam_search_there_and_back(history: History, other: History) -> None:
    trial = with_beams(make_trial(6))
    history.record(trial).result()
    content = archived(history)
    assert import_archive(other, content).trial_ids == (trial.id,)
    assert_same_trial(other.trial(trial.id), trial)
    assert import_archive(other, content).num_known == 1 and archived_lines(archived(other)) == archived_lines(content)


@pytest.mark.parametrize(("token", "error"), [(100_000, "outside the tokenizer"), (7, "not the best sequence")])
def test_a_beam_search_of_other_tokens_than_its_trial_is_refused(
    history: History, other: History, token: int, error: str
) -> None:
    history.record(with_beams(make_trial(6))).result()
    members = unpacked(archived(history))
    line = json.loads(members["trials.jsonl"])
    line["beams"]["ids"][line["beams"]["ends"][0]["node"]] = token
    with pytest.raises(HistoryError, match=error):
        import_archive(other, packed({**members, "trials.jsonl": json.dumps(line).encode() + b"\n"}))
    assert not other.recent(10)


def test_versions_that_know_no_nodes_read_the_trials_without_one(history: History, other: History) -> None:
    here, there = make_trial(), make_trial(node="node 2")
    for trial in (here, there):
        history.record(trial).result()
    content = archived(history)
    lines = [json.loads(line) for line in archived_lines(content)["trials.jsonl"]]
    assert {line["id"]: line.get("node", "left out") for line in lines} == {
        here.id: "left out", there.id: "node 2",
    }  # fmt: skip
    import_archive(other, content)
    for trial in (here, there):
        assert_same_trial(other.trial(trial.id), trial)


def test_an_archive_that_knows_no_stages_is_taken_in(history: History, other: History) -> None:
    _, trials = fill(history)
    members = unpacked(archived(history))
    steps = pq.read_table(io.BytesIO(members["steps.parquet"])).drop_columns(["stage_kept", "stage_mass", "top_cut"])
    pq.write_table(steps, older := io.BytesIO())
    taken = import_archive(other, packed({**members, "steps.parquet": older.getvalue()}))
    found = other.trial(trials[0].id)
    assert taken.num_trials == 2 and found is not None
    assert found.completion.steps.ids == trials[0].completion.steps.ids and not found.completion.steps.stages


def test_nothing_comes_twice_and_nothing_is_overwritten(history: History, other: History) -> None:
    runs, _ = fill(history)
    content = archived(history)
    import_archive(other, content)
    other.runs.rename(runs[0].id, "mine")
    other.marks.note("run", runs[0].id, "mine too")
    fill(history)
    taken = import_archive(other, archived(history))
    assert (taken.num_runs, taken.num_trials, taken.num_known) == (2, 2, 4)
    names = {run.id: (run.name, run.num_samples) for run in other.runs.recent()}
    assert names[runs[0].id] == ("mine", 300)
    assert len(names) == 4
    again = import_archive(other, content)
    assert (again.run_ids, again.trial_ids, again.num_known) == ((), (), 4)


def test_what_was_deleted_here_is_restored(history: History, other: History) -> None:
    runs, trials = fill(history)
    content = archived(history)
    import_archive(other, content)
    other.runs.delete(runs[0].id)
    other.delete(trials[0].id)
    taken = import_archive(other, content)
    assert (taken.run_ids, taken.trial_ids, taken.num_known) == ((runs[0].id,), (trials[0].id,), 2)
    assert_same_run(other.runs.run(runs[0].id), replace(runs[0], origin="archive.zip"))


def test_only_what_was_chosen(history: History, other: History) -> None:
    runs, trials = fill(history)
    taken = import_archive(other, archived(history, run_ids=[runs[0].id]))
    assert (taken.run_ids, taken.trial_ids) == ((runs[0].id,), ())
    taken = import_archive(other, archived(history, trial_ids=[trials[1].id]))
    assert (taken.run_ids, taken.trial_ids) == ((), (trials[1].id,))
    assert_same_trial(other.trial(trials[1].id), trials[1])


def test_what_is_deleted_does_not_go_out(history: History) -> None:
    runs, trials = fill(history)
    history.runs.delete(runs[0].id)
    history.delete(trials[0].id)
    lines = archived_lines(archived(history))
    assert (len(lines["runs.jsonl"]), len(lines["trials.jsonl"])) == (1, 1)
    with pytest.raises(HistoryError, match="There is no run"):
        archived(history, run_ids=[runs[0].id])
    with pytest.raises(HistoryError, match="There is no trial 'nonsense'"):
        archived(history, trial_ids=["nonsense"])


def test_an_empty_history_there_and_back(history: History, other: History) -> None:
    assert import_archive(other, archived(history)) == ((), (), 0, {})


def test_a_run_that_was_being_measured_is_interrupted_elsewhere(history: History, other: History) -> None:
    history.runs.begin(make_run(5, status="running"))
    history.runs.keep(make_run(5, origin="llama-bench"))
    import_archive(other, archived(history), "friend.zip")
    found = {(run.status, run.origin) for run in other.runs.recent()}
    assert found == {("interrupted", "friend.zip"), ("done", "llama-bench")}
    assert other.runs.interrupted() == []


def test_a_place_that_cannot_be_written(history: History, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="could not be written"):
        export_history(history, tmp_path / "nowhere" / "all.zip")
    assert history.recent() == []


def test_other_programs_can_read_it(history: History) -> None:
    runs, trials = fill(history)
    members = unpacked(archived(history))
    assert sorted(members) == sorted(MEMBERS)
    manifest = json.loads(members["manifest.json"])
    assert (manifest["format"], manifest["version"]) == ("logitbench-archive", 1)
    samples = pq.read_table(io.BytesIO(members["samples.parquet"]))
    assert samples["run_id"].unique().to_pylist() == [runs[0].id]
    np.testing.assert_array_equal(np.sort(samples["position"].to_numpy()), np.arange(300))
    steps = pq.read_table(io.BytesIO(members["steps.parquet"]))
    assert set(steps["trial_id"].to_pylist()) == {trial.id for trial in trials}


def test_progress_is_reported_and_what_a_listener_raises_ends_it_with_nothing_kept(
    history: History, other: History
) -> None:
    fill(history)
    archive, shares = archived(history), list[float]()

    def stop_within_the_samples(share: float) -> None:
        shares.append(share)
        if len(shares) == 3:
            raise HistoryError("a person has had enough")

    with pytest.raises(HistoryError, match="had enough"):
        import_archive(other, archive, on_progress=stop_within_the_samples)
    assert other.find.runs().rows == [] and other.find.trials().rows == []
    shares.clear()
    taken = import_archive(other, archive, on_progress=shares.append)
    assert (taken.num_runs, taken.num_trials) == (2, 2)
    assert len(shares) > 3 and shares == sorted(shares)
    assert 0 < shares[0] < shares[-2] <= 0.9 < shares[-1] == 1
