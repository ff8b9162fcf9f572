import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from engine import __main__ as shell
from engine.backends.known import KnownEngine, add_known
from engine.bench.planning import engines
from engine.bench.running.progress import Progress
from engine.commands import bench, watched
from engine.history import History, read_run
from engine.machine.quietness import Quietness
from engine.progress_line import ProgressLine
from engine.settings import Settings
from engine.workbench.bench_keeping import HistoryKeeper
from engine.workbench.bench_run import BenchRun
from tests.engine.backends.fake_server import COMPLETIONS, Request, chunk, fake_server

pytestmark = pytest.mark.usefixtures("short_samples")

SHORT = ("--layout", "1x1", "--num-prompt", "16", "--num-generated", "8", "--rounds", "1")


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert shell.main(list(words)) == 0
    return capsys.readouterr().out


def test_a_dry_run_tells_cells_time_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(output(capsys, "bench", "--layout", "1x1,1x2", "--parallel", "1-8*2", "--dry-run", "--json"))
    assert [cell["settings"]["parallel"] for cell in plan["cells"]] == [1, 2, 4, 8] * 2
    assert all(cell["memory_bytes"] > 0 and cell["seconds"] > 0 for cell in plan["cells"])
    assert "8 configurations" in plan["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize("other_cores", [0.0, 0.9])
def test_before_measuring_it_says_whether_the_machine_is_quiet_and_a_verdict_possible(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, other_cores: float
) -> None:
    now = Quietness(other_cores, 2, 0.0, {"cc1plus": other_cores} if other_cores else {})
    monkeypatch.setattr(bench, "quietness_now", lambda: now)
    plain = json.loads(output(capsys, "bench", *SHORT, "--dry-run", "--json"))["quietness"]
    assert (plain["is_quiet"], plain["sentence"], plain["other_cores"]) == (not other_cores, now.sentence, other_cores)
    assert now.is_quiet is not bool(other_cores)
    assert now.sentence in output(capsys, "bench", *SHORT, "--dry-run")
    assert shell.main(["bench", *SHORT, "--parallel", "1,2"]) == 0
    before = capsys.readouterr().err.splitlines()[0]
    assert "No verdict is possible with 1 round: 8 is the minimum" in before and before.endswith(now.sentence)
    short = output(capsys, "tune", "--budget", "10", "--dry-run")
    assert "10 s is too short for a verdict: " in short and "should suffice" in short


def test_a_run_is_printed_kept_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run.zip"
    found = json.loads(output(capsys, "bench", *SHORT, "--name", "short", "--json", "--out", str(out)))
    (cell,) = found["cells"]
    assert found["status"] == "done"
    assert cell["metrics"]["tokens_per_s"]["value"] > 0
    assert read_run(out).id == found["id"]
    with History.open(Settings.from_environment().history) as history:
        assert [(run.id, run.name) for run in history.runs.recent()] == [(found["id"], "short")]
    again = json.loads(output(capsys, "bench", "resume", found["id"], "--json"))
    assert again["id"] == found["id"]


def test_nothing_is_sent_to_another_machine_without_the_flag_that_allows_it(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(request: Request) -> None:
        request.events(*[chunk(" a") for _ in range(request.body["max_tokens"] - 1)], chunk(" a", finish="length"))

    monkeypatch.setattr(engines, "is_remote", engines.is_external)
    with fake_server({COMPLETIONS: answered}) as (address, seen):
        add_known(home, KnownEngine(name="desk", url=address))
        words = ("bench", *SHORT, "--engine", "pool,external:desk")
        assert shell.main(list(words)) != 0
        refused = capsys.readouterr()
        assert "Nothing is sent there before you confirm it" in refused.err and "--send-to-others" in refused.err
        assert seen == []
        found = json.loads(output(capsys, *words, "--send-to-others", "--json"))
        assert [cell["status"] for cell in found["cells"]] == ["done", "done"]
        prompts = [one for one in seen if one.path == COMPLETIONS and one.body["max_tokens"] == 8]
        assert prompts


@pytest.mark.slow
def test_while_the_history_is_in_use_a_run_goes_to_its_inbox(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with History.open(Settings.from_environment().history):
        found = json.loads(output(capsys, "bench", *SHORT, "--json"))
    assert (home / "inbox" / f"{found['id']}.run.zip").is_file()


class GrowingSession:
    """A session as a run sees it whose rounds grow: each look at it finds one more sample, and new numbers ahead."""

    def __init__(self, ahead: list[int]) -> None:
        self.looks = list(enumerate(ahead, 1))

    def stop(self) -> None:
        del self.looks[1:]

    def measure(self, _task: object) -> None:
        while len(self.looks) > 1:
            time.sleep(0.001)

    @property
    def progress(self) -> Progress:
        done, ahead = self.looks[0]
        texts: Any = {"cell": 0, "turn_left_s": 1.0, "status": "running", "message": "2 samples measured again"}
        return Progress(done=done, total=done + ahead, left_s=10.0 + 5 * ahead, **texts)


class Lines(ProgressLine):
    """A progress line that keeps what it shows, and lets the session go on."""

    def __init__(self, session: GrowingSession) -> None:
        super().__init__()
        self.shown: list[str] = []
        self._session = session

    def show(self, text: str, *, step: int) -> None:
        self.shown.append(text)
        del self._session.looks[: len(self._session.looks) > 1]


@pytest.mark.parametrize("seed", range(10))
def test_rounds_that_are_added_move_neither_the_share_back_nor_the_time_left(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    session = GrowingSession([draw.randrange(1, 30) for _look in range(draw.randrange(2, 40))])
    num_looks, lines = len(session.looks), Lines(session)
    monkeypatch.setattr(watched, "SHOWN_EVERY_S", 0.0)
    run: Any = session
    task = BenchRun(run, HistoryKeeper(None, print), session.measure)
    task._clock = lambda: 0.0
    task.start()
    watched.show_progress(task, lines, lambda: "remark")
    shares = [int(found[1]) for line in lines.shown if (found := re.search(r"(\d+) %", line))]
    assert len(shares) >= num_looks - 1 and shares == sorted(shares)
    assert len({line.rpartition(", ")[2] for line in lines.shown[:-1]}) <= 1  # no time passes; the last may be the end
    assert not re.search(r"\d of \d", " ".join(lines.shown))


@pytest.mark.slow
def test_limits_are_measured_once_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    limits = json.loads(output(capsys, "limits", "--json"))
    assert limits["bandwidth"][0][1] > 1e8
    assert json.loads(output(capsys, "limits", "--json")) == limits


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("bench", "--parallel", "1-100000"), "100,000"),
        (("bench", "--n-batch", "32", "--n-ubatch", "64"), "n_ubatch"),
        (("bench", "--model", "missing.gguf"), "missing.gguf"),
        (("bench", "resume", "no-run"), "there is no run"),
    ],
)
def test_what_cannot_be_measured_is_reported(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(list(words)) == shell.ERROR
    assert reason in capsys.readouterr().err
