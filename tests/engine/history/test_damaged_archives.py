"""Damaged, foreign and hostile archives: each is refused as a whole, with the reason."""

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.errors import HistoryError
from engine.history import History, import_archive
from engine.history.archives.parts import MEMBERS
from tests.engine.history.test_run_file import packed, unpacked
from tests.engine.history.trial_maker import uuid7

Members = dict[str, bytes]


def lines_changed(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Members], None]:
    """Return a function that changes the first line of a member."""

    def apply(members: Members) -> None:
        lines = [members[name]] if name == "manifest.json" else members[name].splitlines()
        plain = json.loads(lines[0])
        change(plain)
        members[name] = b"\n".join([json.dumps(plain).encode(), *lines[1:], b""])

    return apply


def table_changed(name: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Members], None]:
    """Return a function that changes a Parquet member."""

    def apply(members: Members) -> None:
        file = io.BytesIO()
        pq.write_table(change(pq.read_table(io.BytesIO(members[name]))), file)
        members[name] = file.getvalue()

    return apply


def with_value(column: str, value: Any, type: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    """Return a function that replaces the first row's value in one column."""

    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[0] = value
        place = table.column_names.index(column)
        return table.set_column(place, column, pa.array(values, type or table.schema.field(column).type))

    return change


DAMAGE: dict[str, tuple[Callable[[Members], object], str]] = {
    "a member that is missing": (lambda members: members.pop("steps.parquet"), "it should contain"),
    "a member that climbs out": (lambda members: members.update({"../../evil": b""}), "it should contain"),
    "another format": (lines_changed("manifest.json", lambda plain: plain.update(format="tar")), "format"),
    "a later version": (lines_changed("manifest.json", lambda plain: plain.update(version=2)), "version 2"),
    "counts that are wrong": (
        lines_changed("manifest.json", lambda plain: plain["counts"].update(samples=7)),
        "lists 7",
    ),
    "no manifest at all": (lambda members: members.update({"manifest.json": b"[]"}), "manifest|object"),
    "a run with an unknown field": (lines_changed("runs.jsonl", lambda run: run.update(extra=1)), "runs.jsonl, line 1"),
    "a run without an id": (lines_changed("runs.jsonl", lambda run: run.update(id="../x")), "runs.jsonl, line 1"),
    "a cell twice": (lines_changed("runs.jsonl", lambda run: run["cells"][0].update(number=1)), "same number"),
    "a run twice": (
        lambda members: members.update({"runs.jsonl": members["runs.jsonl"] + members["runs.jsonl"]}),
        "4 entries",
    ),
    "half a line": (lambda members: members.update({"runs.jsonl": members["runs.jsonl"][:-40]}), "runs.jsonl, line 2"),
    "a line that is no JSON": (lambda members: members.update({"marks.jsonl": b"mark\n"}), "marks.jsonl, line 1"),
    "a deep nest": (
        lambda members: members.update(
            {"runs.jsonl": b'{"plan":' + b"".join(random.Random(1).choices((b"[", b'{"a":'), k=50_000)) + b"\n"}
        ),
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
        "token that is not in its tokenizer",
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
    "samples of nobody": (table_changed("samples.parquet", with_value("run_id", uuid7())), "the archive's runs"),
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
        "configuration that its run does not have",
    ),
    "two samples at one position": (table_changed("samples.parquet", with_value("position", 7)), "same position"),
    "an unknown flag": (table_changed("samples.parquet", with_value("flag", "noisy")), "the flag must be one of"),
    "steps of nobody": (table_changed("steps.parquet", with_value("trial_id", uuid7())), "the archive's trials"),
    "a token outside the vocabulary": (
        table_changed("steps.parquet", with_value("id", 1 << 30)),
        "token that is not in its tokenizer",
    ),
    "a candidate outside the vocabulary": (
        table_changed("steps.parquet", with_value("top_ids", [1 << 30, *range(7)])),
        "token that is not in its tokenizer",
    ),
    "a candidate below 0": (table_changed("steps.parquet", with_value("top_ids", [-5, *range(7)])), "top_ids"),
    "more candidates than probabilities": (
        table_changed("steps.parquet", with_value("top_ids", [1])),
        "the numbers of candidates and logprobs differ",
    ),
    "a step with an infinity": (
        table_changed("steps.parquet", with_value("elapsed_s", float("inf"))),
        "elapsed_s is infinite",
    ),
    "stages of a step in part": (
        table_changed("steps.parquet", with_value("stage_mass", None)),
        "the numbers of stages differ",
    ),
    "stages without candidates": (
        table_changed("steps.parquet", with_value("top_cut", [0])),
        "the numbers of candidates and of their stages differ",
    ),
    "a stage that leaves fewer than none": (
        table_changed("steps.parquet", with_value("stage_kept", [-1, 0, 0, 0])),
        "stage_kept has an invalid value",
    ),
    "a stage of an impossible probability": (
        table_changed("steps.parquet", with_value("stage_mass", [1.5, 1, 1, 1])),
        "stage_mass is no probability",
    ),
    "a candidate cut by no stage that exists": (
        table_changed("steps.parquet", with_value("top_cut", [0] * 7 + [5])),
        "top_cut names no stage",
    ),
    "a forbidden candidate cut by no stage that exists": (
        table_changed("steps.parquet", with_value("top_cut", [0] * 7 + [128 + 5])),
        "top_cut names no stage",
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


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_archive_is_refused_whole(sound: bytes, receiver: History, damage: str) -> None:
    change, reason = DAMAGE[damage]
    members = unpacked(sound)
    change(members)
    with pytest.raises(HistoryError, match=reason) as caught:
        import_archive(receiver, packed(members), "box.zip")
    assert "box.zip cannot be read as a Logitbench archive" in str(caught.value)
    assert "Nothing was imported" in str(caught.value)
    assert_empty(receiver)


def assert_empty(history: History) -> None:
    tables = ("runs", "cells", "samples", "trials", "steps", "tokenizers", "marks", "comparisons")
    with history.file.reading() as cursor:
        assert [cursor.execute(f"SELECT count(*) FROM {table}").fetchall() for table in tables] == [[(0,)]] * len(
            tables
        )


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.5, 0.9, 0.999])
def test_an_archive_that_is_cut_off_is_refused(sound: bytes, receiver: History, share: float) -> None:
    with pytest.raises(HistoryError, match="cannot be read as a Logitbench archive"):
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


def test_a_line_without_end_is_refused(sound: bytes, receiver: History, monkeypatch: pytest.MonkeyPatch) -> None:
    members = unpacked(sound)
    monkeypatch.setattr("engine.history.archives.members.MOST_LINE_BYTES", 1 << 20)
    with pytest.raises(HistoryError, match=r"runs.jsonl, line 1: it is larger"):
        import_archive(receiver, packed({**members, "runs.jsonl": b" " * (1 << 24)}, zipfile.ZIP_STORED))
    assert_empty(receiver)


def test_a_table_that_unpacks_without_end_is_refused(
    sound: bytes, receiver: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.history.archives.members.MOST_ROWS", 299)
    with pytest.raises(HistoryError, match=r"samples.parquet: it has 300 rows; the limit is 299"):
        import_archive(receiver, sound)
    assert_empty(receiver)


def test_a_foreign_zip_and_a_missing_file(receiver: History, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"it should contain manifest.json"):
        import_archive(receiver, packed({"readme.txt": b""}))
    with pytest.raises(HistoryError, match="there is no such file"):
        import_archive(receiver, tmp_path / "nowhere.zip")
    with pytest.raises(HistoryError, match="uses a compression method"):
        import_archive(receiver, packed(dict.fromkeys(MEMBERS, b""), zipfile.ZIP_LZMA))
    assert_empty(receiver)
