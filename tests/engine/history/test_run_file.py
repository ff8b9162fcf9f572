"""Run file: complete round trip, and any other file with that name is refused with its reason."""

import csv
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import HistoryError
from engine.history import History, read_run, run_bytes, run_file, run_from_bytes, write_run
from engine.samples import FLAGS, SAMPLE
from tests.engine.history.run_maker import assert_same_run, make_cell, make_run
from tests.engine.history.trial_maker import NASTY, uuid7


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip of these members."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, value in members.items():
            archive.writestr(name, value)
    return content.getvalue()


def unpacked(content: bytes) -> dict[str, bytes]:
    """Return the members of a zip."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("num_samples", [0, 1, 500])
def test_a_run_there_and_back(tmp_path: Path, num_samples: int) -> None:
    run = make_run(
        num_samples, 7, name=NASTY, outcome={"sentence": NASTY, "rows": [1, None], "more": {"a": 0.1, "b": [2]}}
    )
    write_run(tmp_path / "run.zip", run)
    assert [path.name for path in tmp_path.iterdir()] == ["run.zip"]
    assert_same_run(read_run(tmp_path / "run.zip"), run)


def test_other_programs_can_read_it() -> None:
    run = make_run(30)
    members = unpacked(run_bytes(run))
    plain = json.loads(members["run.json"])
    assert (plain["id"], plain["plan"], plain["cells"][1]["label"]) == (run.id, run.plan, "2x2")
    rows = list(csv.DictReader(io.StringIO(members["samples.csv"].decode(), newline="")))
    assert list(rows[0]) == list(SAMPLE.names or ())
    assert [row["flag"] for row in rows] == [FLAGS[flag] for flag in run.samples["flag"]]
    figures = [float(row["ttft_s"] or "nan") for row in rows]
    np.testing.assert_array_equal(figures, run.samples["ttft_s"])


def test_a_fact_that_is_no_number_stays_none() -> None:
    run = make_run(0, cells=(make_cell(0, facts={"load_cold_s": np.nan, "load_warm_s": 2.0}),))
    (cell,) = run_from_bytes(run_bytes(run)).cells
    assert (np.isnan(cell.facts["load_cold_s"]), cell.facts["load_warm_s"]) == (True, 2.0)


def test_a_metric_that_the_writer_did_not_know_is_not_measured() -> None:
    run = make_run(9)
    members = unpacked(run_bytes(run))
    rows = list(csv.reader(io.StringIO(members["samples.csv"].decode())))
    dropped = rows[0].index("mhz")
    members["samples.csv"] = "".join(",".join(row[:dropped]) + "\n" for row in rows).encode()
    samples = run_from_bytes(packed(members)).samples
    np.testing.assert_array_equal(samples["involuntary_switches"], run.samples["involuntary_switches"])
    assert np.isnan(samples["mhz"]).all()


def test_whatever_can_be_read_can_be_kept(history: History) -> None:
    members = unpacked(run_bytes(make_run()))
    plain = json.loads(members["run.json"])
    plain["cells"][0]["settings"] = {"model": NASTY, NASTY: [NASTY, 1 << 53], "of later": {"a": [1.5], "b": True}}
    plain["machine"] = {"hash": NASTY, "of later": [None, 1]}
    plain["outcome"] = {"sentence": "x" * 100_000}
    plain["created_at"] = "9001-01-01T11:59:59+12:00"
    members["run.json"] = json.dumps(plain).encode()
    run = run_from_bytes(packed(members))
    assert history.runs.keep(run)
    assert_same_run(history.runs.run(run.id), run)
    assert history.runs.recent()[0].sentence == "x" * 100_000


Damage = Callable[[dict[str, Any]], object]
RUN_DAMAGE: dict[str, Damage] = {
    "an unknown field": lambda run: run.update(extra=1),
    "an unknown field of a cell": lambda run: run["cells"][0].update(extra=1),
    "a missing field": lambda run: run.pop("machine"),
    "a later format": lambda run: run.update(format=2),
    "an id that is none": lambda run: run.update(id="../../etc/passwd"),
    "a time before all times": lambda run: run.update(created_at="0001-01-01T00:00:00+14:00"),
    "no time zone": lambda run: run.update(created_at="2026-11-20T12:00:00"),
    "an unknown status": lambda run: run.update(status="won"),
    "a name without end": lambda run: run.update(name="x" * 1001),
    "a name of another type": lambda run: run.update(name=5),
    "a plan of another type": lambda run: run.update(plan=[1]),
    "a fact of another type": lambda run: run["cells"][0].update(facts={"a": "b"}),
    "a version of another type": lambda run: run.update(versions={"a": 1}),
    "a cell number below 0": lambda run: run["cells"][0].update(number=-1),
    "a cell twice": lambda run: run["cells"][0].update(number=1),
    "a sample without its cell": lambda run: run["cells"].pop(),
    "a deep nest": lambda run: run.update(outcome=nest(20_000)),
}


def nest(depth: int) -> Any:
    """Return a marker that `damaged` replaces with nested lists, deeper than Python itself can write."""
    return {"nest": depth}


@pytest.mark.parametrize("damage", RUN_DAMAGE)
def test_a_run_with_a_fault_is_refused(damage: str) -> None:
    members = unpacked(run_bytes(make_run()))
    plain = json.loads(members["run.json"])
    RUN_DAMAGE[damage](plain)
    text = json.dumps(plain).replace('"nest": 20000', f'"nest": {"[" * 20_000}{"]" * 20_000}')
    members["run.json"] = text.encode()
    with pytest.raises(HistoryError, match="box.zip cannot be read as a Logitbench run"):
        run_from_bytes(packed(members), "box.zip")


CELL_DAMAGE = {
    "a word for a number": ("ttft_s", "fast", "Row #4"),
    "a whole number beyond its bounds": ("round", str(1 << 40), "Row #4"),
    "a fraction for a whole number": ("position", "1.5", "Row #4"),
    "no cell": ("cell", "", "line 4: cell is missing"),
    "no start": ("started_at", "nan", "line 4: started_at is missing"),
    "no flag": ("flag", "", "line 4: the flag must be one of clean"),
    "an unknown flag": ("flag", "noisy", "line 4: the flag must be one of clean"),
    "an unknown cell": ("cell", "99", "line 4: there is no such configuration"),
    "a round below 0": ("round", "-1", "line 4: round is less than 0"),
    "a duration below 0": ("duration_s", "-0.5", "line 4: duration_s is less than 0"),
    "an infinity": ("tpot_s", "inf", "line 4: tpot_s is infinite"),
    "a start in another age": ("started_at", "1e300", "line 4: started_at is after the year 9999"),
    "a position twice": ("position", "0", "line 4: another sample has this position"),
}


@pytest.mark.parametrize("damage", CELL_DAMAGE)
def test_a_sample_with_a_fault_is_refused_by_its_line(damage: str) -> None:
    column, value, reason = CELL_DAMAGE[damage]

    def change(rows: list[list[str]]) -> None:
        rows[3][rows[0].index(column)] = value

    with pytest.raises(HistoryError, match=reason):
        run_from_bytes(with_rows(change))


def repeat_last(rows: list[list[str]], name: str) -> None:
    """Append a copy of the last column under this name."""
    for row in rows:
        row.append(row[-1])
    rows[0][-1] = name


TABLE_DAMAGE: dict[str, tuple[Callable[[list[list[str]]], object], str]] = {
    "a column of the future": (lambda rows: repeat_last(rows, "joules"), "unknown: joules"),
    "a column twice": (lambda rows: repeat_last(rows, rows[0][-1]), "or a duplicate"),
    "a column too few": (lambda rows: [row.pop(0) for row in rows], "missing: cell"),
    "a short line": (lambda rows: rows[2].pop(), "Row #3"),
    "an empty line": (lambda rows: rows.insert(2, []), "line 3: cell is missing"),
    "nothing at all": (lambda rows: rows.clear(), "missing: cell"),
}


@pytest.mark.parametrize("damage", TABLE_DAMAGE)
def test_a_table_with_a_fault_is_refused(damage: str) -> None:
    change, reason = TABLE_DAMAGE[damage]
    with pytest.raises(HistoryError, match=reason):
        run_from_bytes(with_rows(change))


def with_rows(change: Callable[[list[list[str]]], object]) -> bytes:
    """Return the file of a run whose table was changed."""
    members = unpacked(run_bytes(make_run()))
    rows = list(csv.reader(io.StringIO(members["samples.csv"].decode())))
    change(rows)
    members["samples.csv"] = "".join(",".join(row) + "\n" for row in rows).encode()
    return packed(members)


def test_what_is_no_run_is_refused() -> None:
    good = run_bytes(make_run())
    members = unpacked(good)
    contents = {
        b"": "not a zip",
        b"garbage" * 1000: "not a zip",
        good[: len(good) // 2]: "not a zip",
        good[:60] + bytes(byte ^ 0xFF for byte in good[60:90]) + good[90:]: "box",
        packed({}): "contains nothing",
        packed({"run.json": b"{}"}): "contains run.json",
        packed({**members, "../../evil": b""}): "evil",
        packed({**members, "run.json": members["run.json"][:-9]}): "truncated",
        packed({**members, "run.json": b"\xff\xfe"}): "box",
        packed({**members, "samples.csv": b"\xff\xfe\n"}): "box",
        packed({**members, "samples.csv": b"," * (1 << 20)}): "missing: cell",
        packed(members, zipfile.ZIP_LZMA): "does not support",
        encrypted(good): "encrypted",
    }
    for content, reason in contents.items():
        with pytest.raises(HistoryError, match=reason):
            run_from_bytes(content, "box")


def encrypted(content: bytes) -> bytes:
    """Return the same zip with its members marked as encrypted."""
    changed = bytearray(content)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = changed.find(signature)
        while at >= 0:
            changed[at + offset] |= 1
            at = changed.find(signature, at + 1)
    return bytes(changed)


def test_what_is_too_large_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = unpacked(run_bytes(make_run(50)))
    for name in members:
        with monkeypatch.context() as small:
            small.setitem(run_file.MOST_BYTES, name, len(members[name]) - 1)
            with pytest.raises(HistoryError, match=f"{name} has more than"):
                run_from_bytes(packed(members))
    monkeypatch.setattr(run_file, "MOST_SAMPLES", 49)
    with pytest.raises(HistoryError, match="more than 49 lines"):
        run_from_bytes(packed(members))
    huge = tmp_path / "huge.zip"
    with huge.open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(HistoryError, match="larger than any run file"):
        read_run(huge)


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="could not be read"):
        read_run(tmp_path / "nowhere.zip")
    with pytest.raises(HistoryError, match="could not be read"):
        read_run(tmp_path)
    for path in (tmp_path, tmp_path / "nowhere" / f"{uuid7()}.zip"):
        with pytest.raises(HistoryError, match="could not be written"):
            write_run(path, make_run())
    assert list(tmp_path.iterdir()) == []
