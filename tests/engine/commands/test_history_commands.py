"""`history` on the command line."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from engine import __main__ as shell
from engine.commands.keeping import owned
from engine.csv_cells import unescaped
from engine.history import INBOX, History, write_inbox
from engine.settings import Settings
from tests.engine.exchange.test_logs import CANDIDATES
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial, uuid7

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]


def output(capsys: Capture, *words: str) -> str:
    assert shell.main(["history", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: Capture, *words: str) -> str:
    assert shell.main(["history", *words]) == shell.ERROR
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.fixture
def ids(home: Path) -> tuple[str, str, str]:
    """Ids of two runs and a trial; the second run has a tag."""
    runs, trial = [make_run(48, 2, name="first"), make_run(48, 2, name="second")], make_trial(5, 3)
    with History.open(Settings.from_environment().history) as history:
        for run in runs:
            history.runs.keep(run)
        history.record(trial).result()
        history.marks.tag("run", [runs[1].id], add=["good"])
    return runs[0].id, runs[1].id, trial.id


def test_runs_and_trials_are_listed(capsys: Capture, ids: tuple[str, str, str]) -> None:
    lines = output(capsys, "list").splitlines()
    assert [line.split()[0] for line in lines[:2]] == [ids[1], ids[0]]
    assert lines[2] == "2 of 2 runs"
    rows = json.loads(output(capsys, "list", "--tag", "good", "--json"))
    assert (rows["total"], [row["id"] for row in rows["rows"]]) == (1, [ids[1]])
    assert json.loads(output(capsys, "list", "--text", "first", "--limit", "1", "--json"))["rows"][0]["id"] == ids[0]
    assert (
        json.loads(output(capsys, "list", "--kind", "trials", "--model", "story", "--json"))["rows"][0]["id"] == ids[2]
    )
    assert json.loads(output(capsys, "list", "--since", "2999-01-01", "--json")) == {
        "total": 0, "rows": [], "references": [],
    }  # fmt: skip


def test_reference_timings_are_listed_as_such_with_their_source(capsys: Capture, ids: tuple[str, str, str]) -> None:
    own, *references = output(capsys, "list").split("2 of 2 runs\n")[1].splitlines()
    assert "reference: note A, g4dn.xlarge" in own
    assert [line for line in references if "reference: note " not in line] == []
    rows = json.loads(output(capsys, "list", "--model", "llama-2-7b", "--json"))["references"]
    assert [(row["origin"], row["source"], row["machine"]) for row in rows] == [
        ("reference", "note B", "machine of note B")
    ]
    assert json.loads(output(capsys, "show", rows[0]["id"], "--json"))["id"] == rows[0]["id"]
    assert json.loads(output(capsys, "list", "--tag", "good", "--json"))["references"] == []
    assert json.loads(output(capsys, "list", "--kind", "trials", "--json"))["references"] == []


def test_the_list_says_how_much_was_disturbed(capsys: Capture, ids: tuple[str, str, str]) -> None:
    rows = {row["id"]: row for row in json.loads(output(capsys, "list", "--json"))["rows"]}
    shown = json.loads(output(capsys, "show", ids[0], "--json"))["disturbance"]
    assert 0 < rows[ids[0]]["num_disturbed"] == shown["num"] <= shown["total"] < 48
    assert rows[ids[0]]["num_samples"] == shown["total"] == 48 - shown["num_replaced"]
    line = next(line for line in output(capsys, "list").splitlines() if line.startswith(ids[0]))
    said = line.rpartition("  ")[2]
    assert said.startswith(f"{shown['num']} of {shown['total']} samples were disturbed")
    assert f"{shown['num_replaced']} more" in said and shown["sentence"].startswith(f"{said}: ")
    cells = json.loads(output(capsys, "show", ids[0], "--json"))["cells"]
    assert sum(cell["num_disturbed"] for cell in cells) == shown["num"]
    assert sum(cell["num_replaced"] for cell in cells) == shown["num_replaced"]


def test_verdicts_come_whole(capsys: Capture, ids: tuple[str, str, str]) -> None:
    (verdict,) = [cell["verdict"] for cell in json.loads(output(capsys, "show", ids[0], "--json"))["cells"][1:]]
    assert set(verdict) == {"word", "ratio", "confidence", "p_value", "num_rounds", "more_rounds"}
    assert verdict["ratio"]["low"] <= verdict["ratio"]["value"] <= verdict["ratio"]["high"]
    assert (verdict["confidence"], 0 < verdict["p_value"] <= 1) == (0.95, True)
    entries = json.loads(output(capsys, "compare", ids[0], "--json"))["entries"]
    assert verdict in [one["verdicts"].get("tokens_per_s") for one in entries]
    sentence = json.loads(output(capsys, "show", ids[0], "--json"))["disturbance"]["sentence"]
    assert sentence in output(capsys, "show", ids[0]).replace("\\", "")


def test_a_run_and_a_trial_are_shown(capsys: Capture, ids: tuple[str, str, str]) -> None:
    assert f"run {ids[0]}" in output(capsys, "show", ids[0])
    assert json.loads(output(capsys, "show", ids[0], "--json"))["id"] == ids[0]
    assert len(output(capsys, "show", ids[2]).splitlines()) > 5
    assert json.loads(output(capsys, "show", ids[2], "--json"))["id"] == ids[2]


def test_runs_are_compared(capsys: Capture, ids: tuple[str, str, str]) -> None:
    found = json.loads(output(capsys, "compare", ids[0], ids[1], "--json"))
    assert {entry["key"].partition(".")[0] for entry in found["entries"]} == {ids[0], ids[1]}
    assert found["baseline"] in {entry["key"] for entry in found["entries"]}
    assert any(entry["verdicts"] for entry in found["entries"])
    assert found["sentence"] in output(capsys, "compare", ids[0], ids[1]).replace("\\", "")


def test_everything_goes_out_and_comes_in_once(
    capsys: Capture, ids: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "all.zip")
    counts = json.loads(output(capsys, "export", path, "--json"))["counts"]
    assert (counts["runs"], counts["trials"]) == (2, 1)
    assert "1 run, 0 trials" in output(capsys, "export", str(tmp_path / "one.zip"), "--run", ids[0])
    monkeypatch.setenv("LOGITBENCH_HOME", str(tmp_path / "elsewhere"))
    assert "2 runs and 1 trial imported" in output(capsys, "import", path)
    (file,) = json.loads(output(capsys, "import", path, "--json"))["files"]
    assert (file["kind"], file["run_ids"]) == ("archive", [])
    assert json.loads(output(capsys, "list", "--json"))["total"] == 2


def test_while_the_history_is_in_use_an_import_goes_to_its_inbox(capsys: Capture, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "candidates.log"
    path.write_text(CANDIDATES)
    with History.open(Settings.from_environment().history) as history:
        assert "inbox" in output(capsys, "import", str(path))
        assert "in use by process" in refused(capsys, "list")
        assert history.recent() == []
    assert len(list((home / "inbox").glob("*.trial"))) == 1
    assert json.loads(output(capsys, "list", "--kind", "trials", "--json"))["total"] == 1
    assert not list((home / "inbox").glob("*.trial"))


@pytest.mark.parametrize("words", [("list", "--kind", "trials"), ("sql", "FROM trials"), ("export", "all.zip")])
def test_commands_see_what_was_kept_while_the_history_was_in_use(
    capsys: Capture, home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(home)
    trials, run = [make_trial() for _ in range(3)], make_run(3)
    for trial in trials:
        write_inbox(home / INBOX, trial)
    write_inbox(home / INBOX, run)
    (home / INBOX / f"{uuid7()}.trial").write_bytes(b"not a trial")
    found = json.loads(output(capsys, *words, "--json"))
    assert 3 in (found.get("total"), len(found.get("rows", ())), found.get("counts", {}).get("trials"))
    assert json.loads(output(capsys, "list", "--json"))["rows"][0]["id"] == run.id
    assert len(list((home / INBOX / "refused").glob("*.trial"))) == 1


def test_what_arrives_while_a_command_owns_the_history_is_imported_at_its_end(home: Path) -> None:
    early, late = make_trial(), make_trial()
    write_inbox(home / INBOX, early)
    with owned(Settings.from_environment()) as history:
        assert [one.id for one in history.recent()] == [early.id]
        write_inbox(home / INBOX, late)
    with History.open(home / "history.duckdb") as history:
        assert {one.id for one in history.recent()} == {early.id, late.id}


def test_a_query_gives_lines_or_json(capsys: Capture, ids: tuple[str, str, str]) -> None:
    query = "SELECT id, created_at, [1.5, NULL] AS list, 'nan'::DOUBLE AS nan FROM trials"
    (row,) = json.loads(output(capsys, "sql", query, "--json"))["rows"]
    assert (row["id"], row["list"], row["nan"]) == (ids[2], [1.5, None], None)
    head, line = output(capsys, "sql", "SELECT count(*) AS num, 'a\x1b[2J' AS text FROM runs").splitlines()
    assert (head, line) == ("num\ttext", "2\ta\\x1b[2J")
    assert shell.main(["history", "sql", "SELECT * FROM range(50)", "--limit", "10"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 11
    assert "first 10 rows" in captured.err


def test_what_was_deleted_is_purged(capsys: Capture, ids: tuple[str, str, str]) -> None:
    with History.open(Settings.from_environment().history) as history:
        history.runs.delete(ids[0])
    assert json.loads(output(capsys, "gc", "--json")) == {"num_purged": 1}
    assert json.loads(output(capsys, "gc", "--json")) == {"num_purged": 0}
    assert json.loads(output(capsys, "list", "--json"))["total"] == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("show", "nonsense"), "There is no run or trial 'nonsense'"),
        (("show", uuid7()), "There is no run or trial"),
        (("compare", uuid7()), "There is no run or trial"),
        (("export", "nowhere/all.zip"), "could not be written"),
        (("export", "all.zip", "--run", uuid7()), "There is no run"),
        (("import", "nowhere.zip"), "nowhere.zip"),
        (("sql", "DELETE FROM runs"), "is read-only"),
        (("list", "--since", "yesterday"), "--since yesterday"),
        (("list", "--limit", "0"), "limit"),
    ],
)
def test_what_cannot_be_done_is_reported(capsys: Capture, words: tuple[str, ...], reason: str) -> None:
    assert reason in refused(capsys, *words)


def test_commands_that_read_work_while_another_process_keeps_trials(
    capsys: Capture, home: Path, tmp_path: Path
) -> None:
    path = Settings.from_environment().history
    words = [sys.executable, "-m", "tests.engine.history.owner", str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            owner.stdout.readline()
            (first, *_) = json.loads(output(capsys, "list", "--kind", "trials", "--json"))["rows"]
            assert json.loads(output(capsys, "show", first["id"], "--json"))["id"] == first["id"]
            assert int(output(capsys, "sql", "SELECT count(*) FROM trials").splitlines()[1]) >= 1
            assert "copy.duckdb" in output(capsys, "snapshot", str(tmp_path / "copy.duckdb"))
            assert shell.main(["cost", "--documents", "1", "--json"]) == 0
            assert "in use" not in capsys.readouterr().err
            assert "in use by process" in refused(capsys, "gc")
        finally:
            owner.kill()
    with duckdb.connect(tmp_path / "copy.duckdb", read_only=True) as plain:
        assert plain.execute("SELECT count(*) > 0 FROM trials").fetchall() == [(True,)]


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("list", "--kind", "trials"),
        ("show", "RUN"),
        ("show", "TRIAL"),
        ("sql", "SELECT id, created_at, [1.5, NULL] AS list, {'a': 1} AS pair, '=1+1' AS text FROM trials"),
    ],
)
def test_what_is_read_goes_into_a_file_by_its_ending(
    capsys: Capture, ids: tuple[str, str, str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    given = [{"RUN": ids[0], "TRIAL": ids[2]}.get(word, word) for word in words]
    for ending in ("json", "csv", "parquet"):
        assert output(capsys, *given, "--out", str(tmp_path / f"x.{ending}")) == ""
    as_json = json.loads((tmp_path / "x.json").read_text())
    with (tmp_path / "x.csv").open(newline="") as file:
        as_csv = list(csv.DictReader(file))
    as_parquet = pq.read_table(tmp_path / "x.parquet")
    assert len(as_csv) == len(as_parquet) > 0
    if words[0] != "show":
        assert [row["id"] for row in as_json] == [row["id"] for row in as_csv] == as_parquet["id"].to_pylist()
        assert all(unescaped(row["text"]) == "=1+1" != row["text"] for row in as_csv if "text" in row)
    else:
        assert as_json["id"] == given[1]


@pytest.mark.parametrize("path", ["x.xlsx", "x", "nowhere/x.csv"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(capsys: Capture, path: str) -> None:
    assert f"--out {path}" in refused(capsys, "sql", "SELECT 1", "--out", path)


@pytest.mark.parametrize("mark", ["\t", "\n", "\r", "\v", "\0", "\x1b", "\x85", "\u2028", "\u202e", "\\"])
def test_a_printed_cell_stays_in_its_cell(capsys: Capture, ids: tuple[str, str, str], mark: str) -> None:
    lines = output(capsys, "sql", f"SELECT 'a' || chr({ord(mark)}) || 'b' AS text, 1 AS one").split("\n")
    assert lines == ["text\tone", f"{'a' + repr(mark)[1:-1] + 'b'}\t1", ""]


def test_a_query_may_take_longer_where_that_is_asked_for(capsys: Capture, ids: tuple[str, str, str]) -> None:
    assert "0.001 s" in refused(capsys, "sql", "SELECT sum(range) FROM range(100_000_000)", "--timeout", "0.001")
    assert output(capsys, "sql", "SELECT sum(range) FROM range(1_000_000)", "--timeout", "60").splitlines()[1]
    assert "timeout" in refused(capsys, "sql", "SELECT 1", "--timeout", "inf")


def test_a_pivot_is_a_query(capsys: Capture, ids: tuple[str, str, str]) -> None:
    lines = output(capsys, "sql", "PIVOT runs ON name USING count(*) GROUP BY status").splitlines()
    assert lines[0].split("\t")[1:] == ["first", "second"]


def test_a_file_that_is_no_archive_is_refused_without_words_of_archives(capsys: Capture, home: Path) -> None:
    (home / "text.txt").write_text("hello")
    for name, reason in (("text.txt", "unknown format"), ("none", "No such file"), (".", "not a regular file")):
        said = refused(capsys, "import", str(home / name))
        assert reason in said and "export it again" not in said


def test_what_cannot_be_written_names_the_folder_that_is_missing(capsys: Capture, home: Path) -> None:
    for command in ("snapshot", "export"):
        said = refused(capsys, command, str(home / "missing" / "file"))
        assert "missing" in said and "scratch" not in said and "unfinished" not in said
