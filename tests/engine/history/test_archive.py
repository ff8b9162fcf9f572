"""Runs and trials as one file: there and back, without duplicates, all or nothing, whatever the file is."""

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from engine.errors import HistoryError
from engine.history import History, TrialRecord, export_history, import_archive
from engine.history.archive_parts import MEMBERS
from engine.runs import RunRecord
from tests.engine.history.run_maker import assert_same_run, make_cell, make_run
from tests.engine.history.test_run_file import packed, unpacked
from tests.engine.history.trial_maker import NASTY, make_steps, make_trial, uuid7


@pytest.fixture
def other(tmp_path: Path) -> Any:
    with History.open(tmp_path / "other" / "history.duckdb") as history:
        yield history


def fill(history: History) -> tuple[list[RunRecord], list[TrialRecord]]:
    """Two runs, one of them empty, and two trials, one with a prompt that was scored."""
    runs = [make_run(300, 3, name=NASTY), make_run(0, 1, cells=(make_cell(0, facts={"load_cold_s": np.nan}),))]
    trials = [make_trial(20, 8, prompt=NASTY, label="step"), make_trial(0)]
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
            assert_same_run(found, replace(run, origin="archive.zip"))
    for trial in trials:
        assert_same_trial(other.trial(trial.id), trial)
    assert other.marks.tags() == ["good", "long"]
    ours, theirs = archived_lines((tmp_path / "all.zip").read_bytes()), archived_lines(archived(other))
    assert {name for name in ours if ours[name] != theirs[name]} == {"runs.jsonl"}  # whose origin is another


def archived_lines(content: bytes) -> dict[str, set[bytes]]:
    members = unpacked(content)
    return {name: set(members[name].splitlines()) for name in members if name.endswith(".jsonl")}


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
    assert import_archive(other, archived(history)) == ((), (), 0)


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


# Bad days

Members = dict[str, bytes]


def lines_changed(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Members], None]:
    """Change the first line of a member."""

    def apply(members: Members) -> None:
        lines = [members[name]] if name == "manifest.json" else members[name].splitlines()
        plain = json.loads(lines[0])
        change(plain)
        members[name] = b"\n".join([json.dumps(plain).encode(), *lines[1:], b""])

    return apply


def table_changed(name: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Members], None]:
    """Change a Parquet member."""

    def apply(members: Members) -> None:
        file = io.BytesIO()
        pq.write_table(change(pq.read_table(io.BytesIO(members[name]))), file)
        members[name] = file.getvalue()

    return apply


def with_value(column: str, value: Any, type: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    """The first row with another value in one column."""

    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[0] = value
        place = table.column_names.index(column)
        return table.set_column(place, column, pa.array(values, type or table.schema.field(column).type))

    return change


DAMAGE: dict[str, tuple[Callable[[Members], object], str]] = {
    "a member that is missing": (lambda members: members.pop("steps.parquet"), "it should hold"),
    "a member that climbs out": (lambda members: members.update({"../../evil": b""}), "it should hold"),
    "another format": (lines_changed("manifest.json", lambda plain: plain.update(format="tar")), "format"),
    "a later version": (lines_changed("manifest.json", lambda plain: plain.update(version=2)), "version 2"),
    "counts that are wrong": (
        lines_changed("manifest.json", lambda plain: plain["counts"].update(samples=7)),
        "speaks of 7",
    ),
    "no manifest at all": (lambda members: members.update({"manifest.json": b"[]"}), "manifest|object"),
    "a run with an unknown field": (lines_changed("runs.jsonl", lambda run: run.update(extra=1)), "runs.jsonl, line 1"),
    "a run without an id": (lines_changed("runs.jsonl", lambda run: run.update(id="../x")), "runs.jsonl, line 1"),
    "a cell twice": (lines_changed("runs.jsonl", lambda run: run["cells"][0].update(number=1)), "same number"),
    "a run twice": (
        lambda members: members.update({"runs.jsonl": members["runs.jsonl"] + members["runs.jsonl"]}),
        "there twice",
    ),
    "half a line": (lambda members: members.update({"runs.jsonl": members["runs.jsonl"][:-40]}), "runs.jsonl, line 2"),
    "a line that is no JSON": (lambda members: members.update({"marks.jsonl": b"mark\n"}), "marks.jsonl, line 1"),
    "a deep nest": (
        lambda members: members.update({"runs.jsonl": b'{"plan":' + b"[" * 50_000 + b"\n"}),
        "runs.jsonl, line 1",
    ),
    "a number without end": (
        lambda members: members.update(
            {"runs.jsonl": members["runs.jsonl"].replace(b'"load_warm_s":0.25', b'"load_warm_s":1e999')}
        ),
        "runs.jsonl, line 1",
    ),
    "a trial of an unknown tokenizer": (
        lines_changed("trials.jsonl", lambda trial: trial.update(tokenizer="ab")),
        "not in tokenizers.jsonl",
    ),
    "a trial with a strange parameter": (
        lines_changed("trials.jsonl", lambda trial: trial["sampling"].update(temperature=-1)),
        "trials.jsonl|temperature",
    ),
    "a prompt outside the vocabulary": (
        lines_changed("trials.jsonl", lambda trial: trial.update(prompt_ids=[1 << 40])),
        "token that its tokenizer",
    ),
    "a trial without a time zone": (
        lines_changed("trials.jsonl", lambda trial: trial.update(created_at="2026-01-01T00:00:00")),
        "time zone",
    ),
    "a tokenizer that was changed": (
        lines_changed("tokenizers.jsonl", lambda tokenizer: tokenizer["pieces"].append("AAAA")),
        "pieces",
    ),
    "a mark of an unknown kind": (
        lambda members: members.update({"marks.jsonl": b'{"kind":"wish","id":"%s"}\n' % uuid7().encode()}),
        "marks.jsonl, line 1",
    ),
    "samples with a column too many": (
        table_changed("samples.parquet", lambda table: table.append_column("extra", table["ttft_s"])),
        "unknown: extra",
    ),
    "samples without their run": (
        table_changed("samples.parquet", lambda table: table.drop_columns(["run_id"])),
        "missing: run_id",
    ),
    "samples of nobody": (table_changed("samples.parquet", with_value("run_id", uuid7())), "none of its runs"),
    "a sample with an infinity": (
        table_changed("samples.parquet", with_value("ttft_s", float("inf"))),
        "row 0: ttft_s is infinite",
    ),
    "a sample in another age": (
        table_changed("samples.parquet", with_value("started_at", 1e300)),
        "after the year 9999",
    ),
    "a sample with a word for a figure": (
        table_changed(
            "samples.parquet",
            lambda table: table.drop_columns(["mhz"]).append_column("mhz", pa.array(["fast"] * len(table))),
        ),
        "fast",
    ),
    "a sample of a cell that is not there": (
        table_changed("samples.parquet", with_value("cell", 99)),
        "cell that its run does not have",
    ),
    "two samples at one position": (table_changed("samples.parquet", with_value("position", 7)), "same position"),
    "an unknown flag": (table_changed("samples.parquet", with_value("flag", "noisy")), "the flag is none of"),
    "steps of nobody": (table_changed("steps.parquet", with_value("trial_id", uuid7())), "none of its trials"),
    "a token outside the vocabulary": (
        table_changed("steps.parquet", with_value("id", 1 << 30)),
        "its tokenizer does not have",
    ),
    "a candidate outside the vocabulary": (
        table_changed("steps.parquet", with_value("top_ids", [1 << 30, *range(7)])),
        "its tokenizer does not have",
    ),
    "a candidate below 0": (table_changed("steps.parquet", with_value("top_ids", [-5, *range(7)])), "top_ids"),
    "more candidates than probabilities": (
        table_changed("steps.parquet", with_value("top_ids", [1])),
        "another number of logprobs",
    ),
    "a step with an infinity": (
        table_changed("steps.parquet", with_value("elapsed_s", float("inf"))),
        "elapsed_s is infinite",
    ),
    "two steps at one position": (table_changed("steps.parquet", with_value("position", 5)), "two steps of one trial"),
    "steps that are no Parquet": (
        lambda members: members.update({"steps.parquet": b"PAR1 nothing PAR1"}),
        "cannot be read",
    ),
    "steps that are cut off": (
        lambda members: members.update({"steps.parquet": members["steps.parquet"][:-9]}),
        "cannot be read",
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive in order."""
    with History.open(tmp_path_factory.mktemp("sound") / "history.duckdb") as history:
        fill(history)
        return archived(history)


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A history that every damaged archive is offered to, and that takes none."""
    with History.open(tmp_path_factory.mktemp("receiver") / "history.duckdb") as history:
        yield history


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_archive_is_refused_whole(sound: bytes, receiver: History, damage: str) -> None:
    change, reason = DAMAGE[damage]
    members = unpacked(sound)
    change(members)
    with pytest.raises(HistoryError, match=reason) as caught:
        import_archive(receiver, packed(members), "box.zip")
    assert "box.zip cannot be read as an archive" in str(caught.value)
    assert "Nothing of it was taken in" in str(caught.value)
    assert_empty(receiver)


def assert_empty(history: History) -> None:
    tables = ("runs", "cells", "samples", "trials", "steps", "tokenizers", "marks", "comparisons")
    with history.file.reading() as cursor:
        assert [cursor.execute(f"SELECT count(*) FROM {table}").fetchall() for table in tables] == [[(0,)]] * len(
            tables
        )


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.5, 0.9, 0.999])
def test_an_archive_that_is_cut_off_is_refused(sound: bytes, receiver: History, share: float) -> None:
    with pytest.raises(HistoryError, match="cannot be read as an archive"):
        import_archive(receiver, sound[: int(share * len(sound))])
    assert_empty(receiver)


@pytest.mark.parametrize("seed", range(20))
def test_an_archive_with_a_flipped_byte_is_refused_or_whole(sound: bytes, tmp_path: Path, seed: int) -> None:
    content = bytearray(sound)
    content[np.random.default_rng(seed).integers(len(content))] ^= 0xFF
    with History.open(tmp_path / "history.duckdb") as history:
        try:
            taken = import_archive(history, bytes(content))
        except HistoryError:
            assert_empty(history)
        else:
            assert (taken.num_runs, taken.num_trials) == (2, 2)


def test_what_unpacks_without_end_is_refused(sound: bytes, receiver: History, monkeypatch: pytest.MonkeyPatch) -> None:
    members = unpacked(sound)
    monkeypatch.setattr("engine.history.archive_members.MOST_LINE_BYTES", 1 << 20)
    with pytest.raises(HistoryError, match=r"runs.jsonl, line 1: it is longer"):
        import_archive(receiver, packed({**members, "runs.jsonl": b" " * (1 << 24)}))
    monkeypatch.setattr(
        "engine.history.archive_members.MOST_BYTES", {"manifest.json": 1 << 20, "samples.parquet": 1000}
    )
    with pytest.raises(HistoryError, match=r"samples.parquet has more than 1,000 bytes"):
        import_archive(receiver, packed(members))
    assert_empty(receiver)


def test_a_table_that_unpacks_without_end_is_refused(
    sound: bytes, receiver: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.history.archive_members.MOST_ROWS", 299)
    with pytest.raises(HistoryError, match=r"samples.parquet unpacks to more"):
        import_archive(receiver, sound)
    assert_empty(receiver)


def test_a_foreign_zip_and_a_missing_file(receiver: History, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"it should hold manifest.json"):
        import_archive(receiver, packed({"readme.txt": b""}))
    with pytest.raises(HistoryError, match="No such file"):
        import_archive(receiver, tmp_path / "nowhere.zip")
    with pytest.raises(HistoryError, match="compressed in a way"):
        import_archive(receiver, packed(dict.fromkeys(MEMBERS, b""), zipfile.ZIP_LZMA))
    assert_empty(receiver)
