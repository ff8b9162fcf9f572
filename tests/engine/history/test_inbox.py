"""Inbox: trials handed over as files."""

import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.errors import EngineError, HistoryError, LimitExceeded, WorkerDied
from engine.history import History, Inbox, refusals, stage_kept, write_inbox
from engine.history.archives.parts import TRIALS
from engine.history.inbox import REASON, TRIES
from engine.history.trial_file import read_trial
from engine.specs import Sampling
from engine.step_parts import RECORD
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import NASTY, make_steps, make_trial, uuid7, with_beams


def test_a_trial_is_handed_over_whole(history: History, inbox: Path) -> None:
    trial = make_trial(5, 16, prompt=NASTY, sampling=Sampling(logit_bias=((1, -np.inf),)), parent=uuid7())
    trial = replace(trial, completion=replace(trial.completion, prompt_steps=make_steps(3, 16, is_prompt=True)))
    path = write_inbox(inbox, trial)
    assert list(inbox.iterdir()) == [path]
    assert Inbox(inbox).take(history) == [trial.id]
    assert list(inbox.iterdir()) == []
    found = history.trial(trial.id)
    assert found is not None
    for name in ("prompt", "sampling", "request", "pool", "model", "versions", "parent", "created_at", "label"):
        assert getattr(found, name) == getattr(trial, name)
    for part in ("prompt_steps", "steps"):
        for column in ("records", "top_ids", "top_logprobs", "top_p_final"):
            given, kept = (getattr(getattr(each.completion, part), column) for each in (trial, found))
            np.testing.assert_array_equal(kept, given)
    assert found.completion.timings == trial.completion.timings


@pytest.mark.parametrize("has_beams", [False, True])
def test_nothing_is_taken_twice(history: History, inbox: Path, *, has_beams: bool) -> None:
    trial = with_beams(make_trial()) if has_beams else make_trial()
    history.record(trial).result(60)
    for _ in range(2):
        write_inbox(inbox, trial)
        assert Inbox(inbox).take(history) == [trial.id]
    assert len(history.recent()) == 1


def test_an_inbox_that_is_empty_or_missing(history: History, inbox: Path) -> None:
    assert Inbox(inbox).take(history) == []
    inbox.mkdir()
    assert Inbox(inbox).take(history) == []


def _plain(path: Path) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.msgpack.decode(path.read_bytes())
    return plain


def _cut(values: dict[str, Any]) -> None:
    values["steps"]["top_ids"] = values["steps"]["top_ids"][:-4]


def _infinite(records: bytes) -> bytes:
    changed = np.frombuffer(records, RECORD).copy()
    changed["entropy"] = np.inf
    return changed.tobytes()


def _nested(depth: int, *, of_maps: bool = False) -> bytes:
    """Return the start of a trial's file whose request is nested `depth` levels deep, in lists or maps."""
    inner = b"\x81\xa1a" * depth if of_maps else b"\x91" * depth
    return b"\xde\x00\x17\xa7request\x81\xa1x" + inner + b"\xc0"


def _outside(values: dict[str, Any]) -> None:
    values["prompt_ids"] = [1 << 20]


def _candidate_outside(values: dict[str, Any]) -> None:
    values["steps"]["top_ids"] = b"\x00\x00\x00\x70" + values["steps"]["top_ids"][4:]


DAMAGE: dict[str, Any] = {
    "an unknown field": lambda values: values.update(extra=1),
    "an unknown field inside": lambda values: values["model"].update(extra=1),
    "a missing field": lambda values: values.pop("steps"),
    "another format": lambda values: values.update(format=2),
    "an unknown parameter": lambda values: values["sampling"].update(temprature=1),
    "a parameter out of range": lambda values: values["sampling"].update(temperature=-1),
    "a parameter of another type": lambda values: values["sampling"].update(samplers=5),
    "an id that is none": lambda values: values.update(id="../../etc/passwd"),
    "the id of another": lambda values: values.update(id=uuid7()),
    "no time zone": lambda values: values.update(created_at="2026-11-20T12:00:00"),
    "a count beyond all bounds": lambda values: values["timings"].update(num_prompt=1 << 40),
    "steps cut short": _cut,
    "a token outside the tokenizer": _outside,
    "a candidate outside the tokenizer": _candidate_outside,
    "candidates without end": lambda values: values["steps"].update(k=(1 << 31) - 1, records=b"", top_ids=b""),
    "a time that is no number": lambda values: values["timings"].update(load_s=float("nan")),
    "an infinite figure": lambda values: values["steps"].update(records=_infinite(values["steps"]["records"])),
    "kinds that do not fit": lambda values: values["tokenizer"].update(kinds=b""),
}


def test_a_trial_of_an_earlier_version_is_taken(history: History, inbox: Path) -> None:
    trial = make_trial()
    path = write_inbox(inbox, trial)
    values = _plain(path)
    for name in ("threads", "threads_batch"):
        del values["timings"][name]
    del values["unknown_fields"]
    path.write_bytes(msgspec.msgpack.encode(values))
    assert Inbox(inbox).take(history) == [trial.id]
    found = history.trial(trial.id)
    assert found is not None
    assert found.completion.timings == trial.completion.timings._replace(threads=None, threads_batch=None)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_with_a_fault_is_set_aside(history: History, inbox: Path, damage: str) -> None:
    bad, good = write_inbox(inbox, make_trial()), make_trial()
    values = _plain(bad)
    DAMAGE[damage](values)
    bad.write_bytes(msgspec.msgpack.encode(values))
    write_inbox(inbox, good)
    assert Inbox(inbox).take(history) == [good.id]
    assert [summary.id for summary in history.recent()] == [good.id]
    assert sorted(path.name for path in inbox.iterdir()) == ["refused"]
    assert sorted(path.name for path in (inbox / "refused").iterdir()) == [bad.name, f"{bad.name}.reason.txt"]
    assert len((inbox / "refused" / f"{bad.name}.reason.txt").read_text()) > 10


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80", bytes(10_000), b"\x85\xa6format"])
def test_a_file_that_is_no_trial_is_set_aside(history: History, inbox: Path, content: bytes) -> None:
    inbox.mkdir()
    (inbox / f"{uuid7()}.trial").write_bytes(content)
    assert Inbox(inbox).take(history) == []
    assert len(list((inbox / "refused").iterdir())) == 2
    assert Inbox(inbox).take(history) == []


@pytest.mark.parametrize("depth", [10, 500, 900, 20_000, 1_000_000])
@pytest.mark.parametrize("of_maps", [False, True])
def test_a_nested_file_is_set_aside_and_the_next_is_taken(
    history: History, inbox: Path, depth: int, of_maps: bool
) -> None:
    good = make_trial()
    write_inbox(inbox, good)
    (inbox / f"{'0' * 8}-1.trial").write_bytes(_nested(depth, of_maps=of_maps))
    assert Inbox(inbox).take(history) == [good.id]
    ((name, reason),) = refusals(inbox).items()
    assert name == "00000000-1.trial" and 10 < len(reason) < 1_100


@pytest.mark.parametrize("nest", [20_000, 1_000_000])
def test_a_nested_run_is_set_aside(history: History, inbox: Path, nest: int) -> None:
    good = make_run(4)
    write_inbox(inbox, good)
    bad = write_inbox(inbox, make_run(4))
    with zipfile.ZipFile(bad) as members:
        plain, samples = members.read("run.json").decode(), members.read("samples.csv")
    with zipfile.ZipFile(bad, "w") as members:
        members.writestr("run.json", plain.replace('"model"', f'"m": {"[" * nest}{"]" * nest}, "model"', 1))
        members.writestr("samples.csv", samples)
    assert Inbox(inbox).take(history) == [good.id]
    assert list(refusals(inbox)) == [bad.name]


def test_a_defect_while_reading_sets_that_file_aside(
    history: History, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = write_inbox(inbox, make_trial()), make_trial()
    write_inbox(inbox, good)

    def reading(path: Path) -> Any:
        if path == bad:
            raise MemoryError
        return read_trial(path)

    monkeypatch.setattr("engine.history.inbox.read_trial", reading)
    assert Inbox(inbox).take(history) == [good.id]
    assert refusals(inbox) == {bad.name: "MemoryError:"}
    (unreadable := inbox / "refused" / f"0{REASON}").mkdir()
    assert refusals(inbox) == {bad.name: "MemoryError:", "0": "the reason cannot be read (it is not a regular file)"}
    unreadable.rmdir()


def test_an_unfinished_file_is_left_alone(history: History, inbox: Path) -> None:
    path = write_inbox(inbox, make_trial())
    unfinished = path.rename(path.with_suffix(".7.unfinished"))
    assert Inbox(inbox).take(history) == []
    assert list(inbox.iterdir()) == [unfinished]


def strange(path: Path, kind: str) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link to a name too long":
            path.symlink_to("b" * 300)
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "link to a name too long", "link to a device", "folder"])
@pytest.mark.parametrize("ending", [".trial", ".run.zip"])
def test_what_is_no_file_is_set_aside_and_the_next_is_taken(
    history: History, inbox: Path, kind: str, ending: str
) -> None:
    trial = make_trial()
    write_inbox(inbox, trial)
    strange(inbox / f"0{ending}", kind)
    assert Inbox(inbox).take(history) == [trial.id]
    assert list(inbox.iterdir()) == [inbox / "refused"]
    assert "not a regular file" in refusals(inbox)[f"0{ending}"]


@pytest.mark.parametrize("name", ["a" * 240, "\N{CAT}" * 60])
def test_a_file_with_a_long_name_is_set_aside(history: History, inbox: Path, name: str) -> None:
    trial = make_trial()
    write_inbox(inbox, trial)
    (inbox / f"{name}.trial").write_bytes(b"no trial")
    assert Inbox(inbox).take(history) == [trial.id]
    assert len(refusals(inbox)) == 1
    assert Inbox(inbox).take(history) == []


def test_what_cannot_be_set_aside_holds_up_no_other(history: History, inbox: Path) -> None:
    trial = make_trial()
    write_inbox(inbox, trial)
    (inbox / "0.trial").mkdir()
    (inbox / "refused" / "0.trial" / "kept").mkdir(parents=True)
    with pytest.raises(HistoryError, match="or set aside"):
        Inbox(inbox).take(history)
    assert history.trial(trial.id) is not None


@pytest.mark.parametrize("error", [LimitExceeded("too long"), WorkerDied("closing")])
def test_a_file_whose_reader_fails_is_read_again(history: History, inbox: Path, error: EngineError) -> None:
    bad, good = write_inbox(inbox, make_trial()), make_trial()
    write_inbox(inbox, good)

    def stage(path: Path, folder: Path) -> None:
        if path == bad:
            raise error
        stage_kept(path, folder)

    given = Inbox(inbox, stage)
    assert [given.take(history) for _ in range(TRIES - 1)] == [[good.id], *[[]] * (TRIES - 2)]
    assert bad.exists()
    assert given.take(history) == []
    assert refusals(inbox) == ({bad.name: "too long"} if isinstance(error, LimitExceeded) else {})
    assert Inbox(inbox).take(history) == ([] if isinstance(error, LimitExceeded) else [bad.stem])


def test_a_disk_without_room_leaves_the_file_where_it_is(history: History, inbox: Path) -> None:
    trial = make_trial()
    path = write_inbox(inbox, trial)
    with pytest.raises(HistoryError, match="stays in the inbox"):
        Inbox(inbox, lambda path, folder: stage_kept(path, folder / "missing")).take(history)
    assert list(inbox.iterdir()) == [path]
    assert Inbox(inbox).take(history) == [trial.id]


def test_what_the_history_refuses_and_cannot_be_set_aside_holds_up_no_other(history: History, inbox: Path) -> None:
    bad, good = write_inbox(inbox, make_trial()), make_trial()
    write_inbox(inbox, good)
    (inbox / "refused" / bad.name / "kept").mkdir(parents=True)

    def stage(path: Path, folder: Path) -> None:
        stage_kept(path, folder)
        if path == bad:
            (folder / TRIALS).write_bytes(b"\xff")

    with pytest.raises(HistoryError, match="or set aside"):
        Inbox(inbox, stage).take(history)
    assert history.trial(good.id) is not None


def test_what_an_ended_process_left_is_removed(history: History, inbox: Path) -> None:
    trial = make_trial()
    write_inbox(inbox, trial)
    (inbox / ".staging").mkdir()
    (inbox / ".staging" / TRIALS).write_bytes(b"\xff")
    assert Inbox(inbox).take(history) == [trial.id]
    assert list(inbox.iterdir()) == []


def test_files_stay_while_the_history_takes_no_more(path: Path, inbox: Path) -> None:
    trial = make_trial()
    write_inbox(inbox, trial)
    history = History.open(path)
    history.close()
    with pytest.raises(HistoryError, match="closed"):
        Inbox(inbox).take(history)
    with History.open(path) as history:
        assert Inbox(inbox).take(history) == [trial.id]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="could not be written"):
        write_inbox(tmp_path / "file" / "inbox", make_trial())


def test_a_file_can_be_read_by_itself(inbox: Path) -> None:
    trial = make_trial(label="recorded example")
    read = read_trial(write_inbox(inbox, trial))
    assert (read.id, read.label, read.completion.ids) == (trial.id, "recorded example", trial.completion.ids)
