"""Failures of the history: locks, damage, full disks, crashes. Saved data remains; the error says what happened."""

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import duckdb
import pytest

from engine.errors import HistoryError, HistoryLocked, HistoryNewer
from engine.history import History
from engine.samples import Samples
from tests.engine.history.run_maker import assert_same_samples, make_samples
from tests.engine.history.trial_maker import make_trial
from tests.waiting import until

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}

OWNER = """
import sys
from pathlib import Path
from engine.history import History
from tests.engine.history.trial_maker import make_trial
history = History.open(Path(sys.argv[1]))
history.record(make_trial()).result()
print("ready", flush=True)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start another Python process."""
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def run(program: str, *arguments: object) -> str:
    """Return the output of another Python process that ends successfully."""
    with start(program, *arguments) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output


def test_a_file_that_another_process_owns(path: Path) -> None:
    with start(OWNER + "sys.stdin.read()", path) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        with pytest.raises(HistoryLocked, match=f"process {owner.pid}\\b"):
            History.open(path)
        owner.communicate(timeout=60)
    with History.open(path) as history:
        assert len(history.recent()) == 1


ASCII = "".join(map(chr, range(1, 128)))


@pytest.mark.parametrize(
    "names", [(ASCII.translate({ord(c): None for c in "/?\\"}), "h"), ("é \u2028\u202e 😀", "::,*é")]
)
def test_any_name_of_a_folder_or_file_works(tmp_path: Path, names: tuple[str, str]) -> None:
    path = tmp_path.joinpath(*names)
    with History.open(path) as history:
        history.record(make_trial()).result()
        assert history.console.run("FROM trials").num_rows == 1
    with History.open(path) as history:
        assert len(history.recent()) == 1


@pytest.mark.parametrize("name", ["what?", "what?/history.duckdb", "back\\slash", "a\\b/history.duckdb"])
def test_a_name_that_duckdb_cannot_use_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(HistoryError, match=r"DuckDB cannot use a path with (\?|\\) in it"):
        History.open(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_file_that_this_process_owns_already(path: Path) -> None:
    with History.open(path), pytest.raises(HistoryLocked, match=f"process {os.getpid()}\\b"):
        History.open(path)
    History.open(path).close()


def test_a_file_with_a_migration_of_the_future(path: Path) -> None:
    History.open(path).close()
    with duckdb.connect(path) as connection:
        connection.execute("INSERT INTO migrations VALUES (99, 'telepathy', now()::TIMESTAMP)")
    assert_untouched(path, HistoryNewer, "telepathy")


def test_a_file_of_a_newer_duckdb(path: Path) -> None:
    History.open(path).close()
    content = bytearray(path.read_bytes())
    content[12:20] = struct.pack("<Q", 9999)  # the storage version, after checksum and magic bytes
    content[0:8] = struct.pack("<Q", checksum(content[8:4096]))
    path.write_bytes(content)
    assert_untouched(path, HistoryNewer, "newer version of DuckDB")


def checksum(block: bytes | bytearray) -> int:
    """Return DuckDB's checksum of a block."""
    result = 5381
    for (word,) in struct.iter_unpack("<Q", block):
        result ^= word * 0xBF58476D1CE4E5B9 % (1 << 64)
    return result


@pytest.mark.parametrize("damage", ["garbage", "half", "header only", "flipped"])
def test_a_damaged_file(path: Path, damage: str) -> None:
    with History.open(path) as history:
        history.record(make_trial(50, 64)).result(60)
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "garbage": os.urandom(100_000),
            "half": content[:middle],
            "header only": content[:12_000],
            "flipped": content[:12_288] + bytes(byte ^ 0xFF for byte in content[12_288:]),
        }[damage]
    )
    assert_untouched(path, HistoryError, "damaged")


def test_a_file_without_content_is_a_new_history(path: Path) -> None:
    path.write_bytes(b"")
    with History.open(path) as history:
        trial = make_trial()
        history.record(trial).result(60)
        assert history.trial(trial.id) is not None


def test_a_file_without_content_is_kept_with_its_log(path: Path) -> None:
    path.write_bytes(b"")
    Path(f"{path}.wal").write_bytes(b"rows")
    assert_untouched(path, HistoryError, "damaged")


CREATES = """
import sys
from pathlib import Path
from engine.history import History
print(flush=True)
History.open(Path(sys.argv[1])).close()
"""


def test_a_process_killed_while_it_creates_the_file_leaves_all_or_nothing(path: Path) -> None:
    random = Random(1)
    sizes = set()
    for number in range(10):
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        with subprocess.Popen([sys.executable, "-c", CREATES, str(path)], stdout=subprocess.PIPE) as creating:
            assert creating.stdout is not None and creating.stdout.readline()
            until(lambda: list(path.parent.iterdir()), "nothing is created")
            time.sleep(random.uniform(0, 0.007 * number))
            creating.kill()
        sizes.add(path.stat().st_size if path.exists() else None)
        with History.open(path) as history:
            assert history.recent() == []
        assert not list(path.parent.glob(".*scratch*"))
    assert sizes & {None}, "no process was killed early enough to show anything"


def test_processes_that_create_the_file_at_once_use_the_same(path: Path) -> None:
    words = [sys.executable, "-c", CREATES, str(path)]
    started = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
    for process in started:
        _out, said = process.communicate(timeout=60)
        assert process.returncode == 0 or b"HistoryLocked" in said
    assert [name.name for name in path.parent.iterdir() if name.suffix == ".duckdb"] == [path.name]
    with History.open(path) as history:
        assert history.recent() == []


def test_a_database_of_somebody_else(path: Path) -> None:
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE wages (name VARCHAR)")
    assert_untouched(path, HistoryError, "not a Logitbench history")


def assert_untouched(path: Path, error: type[HistoryError], text: str) -> None:
    """Assert that opening fails with this message, and that neither the file nor its folder changes."""
    before, beside = path.read_bytes(), sorted(path.parent.iterdir())
    for _ in range(2):
        with pytest.raises(error, match=text) as caught:
            History.open(path)
        assert str(path) in str(caught.value)
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == (before, beside)


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    with History.open(tmp_path / "a" / "b" / "history.duckdb") as history:
        assert history.recent() == []


@pytest.mark.parametrize("name", ["history.duckdb", "history.duckdb.wal"])
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(HistoryError, match="cannot be created"):
        History.open(tmp_path / "history.duckdb")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "history.duckdb", tmp_path / "file" / "folder" / "history.duckdb", tmp_path):
        with pytest.raises(HistoryError, match="cannot be created"):
            History.open(path)


def test_a_folder_or_file_that_is_not_writable() -> None:
    printed = run("""
import os, tempfile
from pathlib import Path
from engine.errors import HistoryError
from engine.history import History
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "history.duckdb")
    History.open(path).close()
    path.chmod(0o444)
    Path(folder).chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)  # root may write anywhere
    for place in (path, Path(folder, "other.duckdb"), Path(folder, "deeper", "history.duckdb")):
        try:
            History.open(place)
        except HistoryError as error:
            print(error)
    if os.getuid() == 0:
        os.seteuid(0)
    Path(folder).chmod(0o755)
""")
    lines = printed.splitlines()
    assert len(lines) == 3
    assert all("is not writable by this user" in line for line in lines)


FULL_DISK = """
import resource, sys
from pathlib import Path
from engine.errors import HistoryError
from engine.history import History
from tests.engine.history.trial_maker import make_steps, make_trial
from dataclasses import replace
path, limit = Path(sys.argv[1]), int(sys.argv[2])
trial = make_trial(400, 256)
def again():
    return replace(make_trial(0), completion=trial.completion)
history = History.open(path)
kept, failed, text = [], 0, ""
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
while failed < 3:
    now = again()
    try:
        history.record(now).result()
        kept.append(now.id)
    except HistoryError as error:
        failed, text = failed + 1, str(error)
found = [summary.id for summary in history.recent(1000)]
assert sorted(found) == sorted(kept), (len(found), len(kept))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
history.record(now := again()).result()
history.close()
print(len(kept) + 1, text)
"""


@pytest.mark.parametrize("megabytes", [6, 25], ids=["the log cannot grow", "the checkpoint cannot be written"])
def test_a_full_disk(path: Path, megabytes: int) -> None:
    num_kept, text = run(FULL_DISK, path, megabytes * 1_000_000).split(" ", 1)
    assert "the disk is full" in text
    assert int(num_kept) > 3
    with History.open(path) as history:
        found = [history.trial(summary.id) for summary in history.recent(1000)]
    assert len(found) == int(num_kept)
    assert all(trial is not None and len(trial.completion.steps) == 400 for trial in found)


KILLED = """
import os, sys, threading
from pathlib import Path
from dataclasses import replace
from engine.history import History
from tests.engine.history.trial_maker import make_trial
history = History.open(Path(sys.argv[1]))
trial = make_trial(300, 128)
while True:
    now = replace(make_trial(0), completion=trial.completion)
    history.record(now).add_done_callback(lambda done, id=now.id: print(id, flush=True))
"""


def test_killed_in_the_middle_of_writing(path: Path) -> None:
    with start(KILLED, path) as owner:
        assert owner.stdout is not None
        finished = [owner.stdout.readline().strip() for _ in range(25)]
        owner.send_signal(signal.SIGKILL)
        finished += [line.strip() for line in owner.stdout.readlines() if line.endswith("\n")]
    with History.open(path) as history:
        trials = {id: history.trial(id) for id in finished}
        assert all(trial is not None and len(trial.completion.steps) == 300 for trial in trials.values())
        # At most the trial that was being written is there as well, and it is complete.
        others = [summary.id for summary in history.recent(10_000) if summary.id not in trials]
        assert len(others) <= 1
        assert all(len(history.trial(id).completion.steps) == 300 for id in others)  # type: ignore[union-attr]


KILLED_RUN = """
import sys
from pathlib import Path
from engine.history import History
from tests.engine.history.run_maker import make_run, make_samples
history = History.open(Path(sys.argv[1]))
run = make_run(0, status="running")
history.runs.begin(run)
print(run.id, flush=True)
samples = make_samples(10_000)
for position in range(len(samples)):
    history.runs.add(run.id, samples[position : position + 1]).add_done_callback(
        lambda done, position=position: print(position, done.exception(), flush=True)
    )
sys.stdin.read()
"""


def test_killed_in_the_middle_of_a_benchmark(path: Path) -> None:
    with start(KILLED_RUN, path) as owner:
        assert owner.stdout is not None
        id = owner.stdout.readline().strip()
        finished = [owner.stdout.readline() for _ in range(100)]
        owner.send_signal(signal.SIGKILL)
        finished += [line for line in owner.stdout.readlines() if line.endswith("\n")]
    assert finished == [f"{position} None\n" for position in range(len(finished))]
    samples = make_samples(10_000)
    with History.open(path) as history:
        (left,) = history.runs.interrupted()
        # At most the sample that was being written is there as well.
        assert (left.id, left.num_samples - len(finished) in (0, 1)) == (id, True)
        assert_same_samples(samples_of(history, id), samples[: left.num_samples])
        history.runs.resume(id)
        history.runs.add(id, samples[left.num_samples :]).result(60)
        assert_same_samples(samples_of(history, id), samples)


def samples_of(history: History, run_id: str) -> Samples:
    """Return the samples of a run that must exist."""
    run = history.runs.run(run_id)
    assert run is not None
    return run.samples


def test_a_history_whose_blocks_are_gone_says_so_when_read(path: Path) -> None:
    with History.open(path) as history:
        trial = make_trial(400, 256)
        history.record(trial).result(60)
    with path.open("r+b") as file:
        file.seek(12_288 + 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(HistoryError, match="damaged"), History.open(path) as history:
        history.trial(trial.id)


INVALIDATED = """
import resource, sys
from pathlib import Path
from engine.errors import HistoryError
from engine.history import database
from engine.history.database_writer import DatabaseWriter
file = DatabaseWriter.open(Path(sys.argv[1]))
file.write(lambda cursor: cursor.execute("CREATE TABLE kept AS SELECT md5(range::VARCHAR) FROM range(200000)") and None)
file.write(lambda cursor: None).result()
file._checkpoint_at = 0
connect = database.connect
def refuse(path):
    raise HistoryError("the folder is read-only")
def count():
    with file.reading() as cursor:
        return cursor.execute("SELECT count(*) FROM kept").fetchone()[0]
database.connect = refuse
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
file.write(lambda cursor: cursor.execute("INSERT INTO kept VALUES ('1')") and None).result()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        count()
    except HistoryError as error:
        assert str(error) == "the folder is read-only", error
    else:
        raise SystemExit("the checkpoint did not fail")
database.connect = connect
print(count())
file.close()
"""


def test_a_read_opens_a_file_anew_that_a_failed_checkpoint_ended(path: Path) -> None:
    """Until the file is reopened, every read reports why that is not possible; nothing acknowledged is lost."""
    assert run(INVALIDATED, path) == "200001\n"
