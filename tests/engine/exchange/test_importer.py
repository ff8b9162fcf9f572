"""Imports in a child process under limits: bombs are refused, Stop ends a frozen process, and the next file is read."""

import io
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.errors import EngineError, LimitExceeded, WorkerDied
from engine.exchange.importer import Importer
from engine.history import History, Inbox, export_history, refusals, run_bytes, write_inbox
from engine.history.run_columns import sample_table
from tests.engine.exchange.test_llama_bench_files import row
from tests.engine.history.run_maker import assert_same_run, make_run
from tests.engine.history.test_run_file import packed, unpacked
from tests.engine.history.trial_maker import make_trial
from tests.waiting import until

pytestmark = pytest.mark.slow

LINES = b"235 tokens in 80s = 2.93 tokens/s (4 threads)\n"
MOST_GROWTH = 400 << 20
"""Limit on the growth of this process while the child reads a bomb, in bytes."""


@pytest.fixture(scope="module")
def importer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Importer]:
    with Importer(tmp_path_factory.mktemp("home")) as importer:
        yield importer


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History.open(tmp_path / "history.duckdb") as opened:
        yield opened


def archive() -> dict[str, bytes]:
    file = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, History.open(Path(folder, "history.duckdb")) as other:
        other.runs.keep(make_run())
        other.record(make_trial(4)).result()
        export_history(other, file)
    return unpacked(file.getvalue())


def parquet(columns: dict[str, Any], **how: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd", **how)
    return file.getvalue()


def one_text(num_rows: int, num_bytes: int, *, is_declared: bool) -> pa.Array:
    """Return a column with the same long text in every row, as a dictionary in the schema or only in the file."""
    coded = pa.DictionaryArray.from_arrays(np.zeros(num_rows, np.int32), pa.array(["x" * num_bytes]))
    return coded if is_declared else pa.array(["x" * num_bytes] * num_rows)


def samples_with(name: str, column: pa.Array) -> bytes:
    table = sample_table(make_run(len(column)).samples)
    columns = {each: table[each] for each in table.column_names}
    return parquet({**columns, name: column}, dictionary_pagesize_limit=1 << 30)


def rows_with(name: str, column: pa.Array) -> bytes:
    plain = row()
    plain.pop("samples_ns"), plain.pop("samples_ts")
    columns = {each: pa.array([value] * len(column)) for each, value in plain.items()}
    return parquet({**columns, name: column}, dictionary_pagesize_limit=1 << 30)


def lists(num_rows: int, num_values: int) -> pa.Array:
    """Return a column of lists of one repeated number, which takes only a few bytes in a file."""
    offsets = np.arange(num_rows + 1, dtype=np.int64) * num_values
    return pa.LargeListArray.from_arrays(offsets, np.ones(num_rows * num_values, np.int64))


def steps_with(name: str, make: Callable[[int], pa.Array]) -> bytes:
    members = archive()
    steps = pq.read_table(io.BytesIO(members["steps.parquet"]))
    columns = {each: steps[each] for each in steps.column_names}
    return packed({**members, "steps.parquet": parquet({**columns, name: make(len(steps))})})


def long_prompts(num: int, num_bytes: int) -> bytes:
    members = archive()
    line = json.loads(members["trials.jsonl"])
    lines = (json.dumps({**line, "id": f"{number:08x}-0000-7000-8000-000000000000"}) for number in range(num))
    body = "\n".join(line.replace('"prompt":"', '"prompt": "').replace('"prompt": "', '"prompt": "' + "x" * num_bytes)
                     for line in lines)  # fmt: skip
    manifest = json.loads(members["manifest.json"])
    manifest["counts"]["trials"] = num
    members |= {"trials.jsonl": body.encode(), "manifest.json": json.dumps(manifest).encode()}
    return packed(members, zipfile.ZIP_STORED)  # deflated, its size alone would refuse it


def plan_with(value: str) -> bytes:
    members = unpacked(run_bytes(make_run()))
    plain = members["run.json"].decode()
    assert '"rounds"' in plain
    return packed({**members, "run.json": plain.replace('"rounds"', f'"of later": {value}, "rounds"', 1).encode()})


BOMBS: dict[str, Callable[[], bytes]] = {
    "a label of 1 MB in 4,000 rows": lambda: samples_with("label", one_text(4_000, 1 << 20, is_declared=True)),
    "a label of 100 kB in 4,000 rows, undeclared": lambda: samples_with(
        "label", one_text(4_000, 100_000, is_declared=False)
    ),
    "a run id of 1 MB in 4,000 rows": lambda: samples_with("run_id", one_text(4_000, 1 << 20, is_declared=True)),
    "a flag of 1 MB in 4,000 rows": lambda: samples_with("flag", one_text(4_000, 1 << 20, is_declared=True)),
    "rows of llama-bench with a text of 1 MB": lambda: rows_with(
        "cpu_info", one_text(4_000, 1 << 20, is_declared=True)
    ),
    "an unknown column with a text of 1 MB": lambda: rows_with("other", one_text(4_000, 1 << 20, is_declared=True)),
    "lists of 100,000 numbers": lambda: rows_with("samples_ns", lists(200, 100_000)),
    "structs": lambda: rows_with("other", pa.array([{"a": [1]}] * 10)),
    "an archive with trial ids of 1 MB": lambda: steps_with(
        "trial_id", lambda num: one_text(num, 1 << 20, is_declared=True)
    ),
    "an archive with lists of 1,000,000 candidates": lambda: steps_with("top_ids", lambda num: lists(num, 1_000_000)),
    "an archive with prompts of 60 MB": lambda: long_prompts(4, 60 << 20),
    "80 kB of empty lists in a plan": lambda: plan_with("[" + "[]," * 27_000 + "[]]"),
    "30 MB of empty lists in a plan": lambda: plan_with("[" + "[]," * 10_000_000 + "[]]"),
    "a plan nested 200,000 deep": lambda: plan_with("[" * 200_000 + "]" * 200_000),
    "60 MB of empty lists as rows": lambda: b"[" + b"[]," * 20_000_000 + b"[]]",
    "60 MB of nesting as rows": lambda: b"[" * (60 << 20),
    "60 MB of empty objects as lines": lambda: b"{}\n" * (20 << 20),
    "60 MB of quotes in SQL": lambda: b"INSERT INTO llama_bench VALUES ('" + b"''" * (30 << 20),
    "60 MB of lines": lambda: b"1 tok\n" + b"\n" * (60 << 20),
    "a run of 200 MB of samples": lambda: packed(
        {**unpacked(run_bytes(make_run())), "samples.csv": b"cell,round\n" + b"," * (200 << 20)}
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_beside_this_process(importer: Importer, history: History, bomb: str) -> None:
    content = BOMBS[bomb]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for act in (importer.recognise, lambda name, data: importer.take_in(history, name, data)):
        try:
            act("bomb", content)
        except EngineError as error:
            assert len(str(error)) < 2_000 and "Traceback" not in str(error)
        else:
            assert bomb.startswith("an archive")  # its preview is the manifest's counts
    assert not history.find.runs().rows and not history.recent()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024)
    assert grown < MOST_GROWTH
    assert importer.recognise("next", LINES).num == 1


def test_what_lies_in_the_inbox_is_read_beside_this_process(
    importer: Importer, history: History, tmp_path: Path
) -> None:
    trial, run, bad = make_trial(), make_run(), make_run()
    for kept in (trial, run):
        write_inbox(tmp_path, kept)
    members = unpacked(run_bytes(bad))
    lists = '"m": [' + ",".join(["[]"] * 11_000_000) + '], "model"'
    members["run.json"] = members["run.json"].replace(b'"model"', lists.encode(), 1)
    (tmp_path / f"{bad.id}.run.zip").write_bytes(packed(members))
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert Inbox(tmp_path, importer.stage_kept).take(history) == [trial.id, run.id]
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert_same_run(history.runs.run(run.id), run)
    assert list(refusals(tmp_path)) == [f"{bad.id}.run.zip"]
    grown = (after.ru_maxrss - before.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
    assert grown < MOST_GROWTH


@pytest.mark.usefixtures("stops_after_check")
def test_what_lies_in_the_inbox_is_imported_though_its_reader_was_suspended(
    importer: Importer, history: History, tmp_path: Path
) -> None:
    trial = make_trial()
    write_inbox(tmp_path / "inbox", trial)
    inbox = Inbox(tmp_path / "inbox", importer.stage_kept)
    os.kill(_pid(importer), signal.SIGSTOP)
    assert inbox.take(history) == []
    assert inbox.take(history) == [trial.id]
    assert refusals(tmp_path / "inbox") == {}


def test_a_closed_importer_starts_no_child(tmp_path: Path) -> None:
    importer = Importer(tmp_path)
    importer.close()
    with pytest.raises(WorkerDied, match="is closing"):
        importer.recognise("lines", LINES)


def test_memory_that_a_file_takes_is_the_childs(importer: Importer) -> None:
    pid = _pid(importer)
    limits = Path(f"/proc/{pid}/limits")
    if not limits.exists():
        pytest.skip("only Linux limits the address space of a process")
    (line,) = [line for line in limits.read_text().splitlines() if line.startswith("Max address space")]
    assert int(line.split()[3]) == 3 << 30


def test_stop_ends_an_import_whose_process_stands_still(importer: Importer, history: History) -> None:
    pid = _pid(importer)
    os.kill(pid, signal.SIGSTOP)

    class Stop(Exception):
        pass

    def stop(_share: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        importer.take_in(history, "lines", LINES, stop)
    assert not history.find.runs().rows
    assert importer.recognise("next", LINES).num == 1
    assert _pid(importer) != pid


@pytest.fixture
def stops_after_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a process that stands still pass for one that did so only after the check before its next request."""
    monkeypatch.setattr("engine.process.program.Program.is_awake", lambda _program: True)


@pytest.mark.usefixtures("stops_after_check")
def test_a_process_that_is_killed_fails_the_import_and_not_the_next(importer: Importer, history: History) -> None:
    pid = _pid(importer)
    os.kill(pid, signal.SIGSTOP)
    killing = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    killing.start()
    with pytest.raises(LimitExceeded, match="lines"):
        importer.take_in(history, "lines", LINES)
    killing.join()
    assert not history.find.runs().rows
    assert importer.take_in(history, "lines", LINES).run_ids


def test_a_process_that_was_killed_while_nobody_asked_is_replaced(importer: Importer) -> None:
    pid = _pid(importer)
    service = importer._service
    assert service is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not service._programs[0].is_alive, "the process does not end")
    assert importer.recognise("next", LINES).num == 1


@pytest.mark.usefixtures("stops_after_check")
def test_a_deadline_ends_a_preview(importer: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    os.kill(_pid(importer), signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr("engine.exchange.importer.LOOK_S", 0.3)
        with pytest.raises(LimitExceeded, match="took longer than 0.3 s"):
            importer.recognise("lines", LINES)
    assert importer.recognise("next", LINES).num == 1


def test_imports_at_once_do_not_mix(importer: Importer, history: History) -> None:
    runs = [make_run(2_000) for _ in range(6)]
    taken: dict[str, tuple[str, ...]] = {}

    def take(number: int) -> None:
        run = runs[number]
        taken[run.id] = importer.take_in(history, f"{number}.zip", run_bytes(run)).run_ids

    threads = [threading.Thread(target=take, args=(number,)) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert taken == {run.id: (run.id,) for run in runs}


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    with Importer(tmp_path) as importer, History.open(tmp_path / "history.duckdb") as history:
        importer.take_in(history, "lines", LINES)
        with pytest.raises(EngineError):
            importer.take_in(history, "nothing", b"\x00")
        importer.read_texts("a.csv", b"text\nhello\n")
        assert list((tmp_path / "imports").iterdir()) == []


@pytest.mark.parametrize("ended_by", ["stop", "SIGKILL", "SIGSTOP", "SIGXCPU", "deadline", "stop between two steps"])
def test_an_import_that_is_ended_leaves_nothing_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    members = archive()
    steps = pq.read_table(io.BytesIO(members["steps.parquet"])).to_pylist()[0]
    many = pa.Table.from_pylist([steps]).take(pa.array(np.zeros(500_000, np.int64)))
    manifest = json.loads(members["manifest.json"])
    manifest["counts"]["steps"] = len(many)
    members |= {
        "steps.parquet": parquet({name: many[name] for name in many.column_names}, row_group_size=8_192),
        "manifest.json": json.dumps(manifest).encode(),
    }
    temporary, inside = tmp_path / "temporary", tmp_path / "imports"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    class Stop(Exception):
        pass

    with Importer(tmp_path) as importer, History.open(tmp_path / "history.duckdb") as history:
        pid = _pid(importer)

        def on_progress(share: float) -> None:
            if ended_by.startswith("SIG"):
                with suppress(ProcessLookupError):
                    os.kill(pid, getattr(signal, ended_by))
            elif ended_by == "stop" or (ended_by == "stop between two steps" and share > 0):
                raise Stop

        if ended_by == "deadline":
            monkeypatch.setattr("engine.exchange.importer.READ_S", 0.2)
        with pytest.raises(Stop if ended_by.startswith("stop") else EngineError):
            importer.take_in(history, "many steps", packed(members, zipfile.ZIP_STORED), on_progress)
        assert not list(temporary.iterdir()) and not list(inside.iterdir())
        assert not Path(f"/proc/{pid}").exists()  # nothing is held open, either
        assert not history.find.runs().rows
        monkeypatch.undo()
        assert importer.recognise("next", LINES).num == 1


def _pid(importer: Importer) -> int:
    """Return the pid of the child that reads files now."""
    importer.recognise("lines", LINES)
    service = importer._service
    assert service is not None
    until(lambda: service._programs, "no child is started")
    return service._programs[0].pid
