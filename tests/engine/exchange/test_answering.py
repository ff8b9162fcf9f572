"""Answers to a file of prompts: one line for each in its order, continued by a later run, refused for another one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.calls import complete_file
from engine.errors import ConfigError, EngineError, PoolClosed
from engine.exchange.answer_files import AnswerFile
from engine.exchange.answering import Answering, FileSummary
from engine.exchange.prompt_files import PromptFile
from engine.map_progress import MapProgress
from engine.pool.pool import Pool
from engine.specs import PoolSpec, Sampling
from tests.fake_engine import FakeEngine

GREEDY = Sampling(temperature=0)
PROMPTS = [f"Once {name}" for name in ("upon", "there", "in", "a", "the", "when", "she", "he")]
FIELDS = ["index", "id", "prompt_hash", "text", "finish_reason", "is_context_full", "seed", "timings", "error"]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeEngine]:
    with FakeEngine(spec=PoolSpec(parallel=2)) as engine:
        yield engine


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text, "id": text[5:]}) + "\n" for text in PROMPTS))
    return path


def answered(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def answer_with(engine: Any, prompts: Path, out: Path, **given: Any) -> FileSummary:
    """What complete_file does, by any engine."""
    values: dict[str, Any] = {
        "sampling": Sampling(seed=1),
        "options": {"max_tokens": 5},
        "model": "fake",
        "model_sha256": "0" * 64,
        "is_chat": False,
        "system": "",
    }
    progress = given.pop("progress", False)
    with PromptFile(prompts) as read, AnswerFile(out, read) as answers:
        return Answering(engine, read, answers, **(values | given)).answer(progress)


# What is written.


def test_each_prompt_has_a_line_with_what_the_pool_answers(pool: Pool, prompts: Path) -> None:
    out = prompts.with_name("answers.jsonl")
    summary = complete_file(prompts, out, GREEDY, pool=pool, max_tokens=6, reuse_prefix=False)
    assert summary == FileSummary(8, 0, 0)
    lines = answered(out)
    assert [list(line) for line in lines] == [FIELDS] * 8
    assert [(line["index"], line["id"]) for line in lines] == [(n, text[5:]) for n, text in enumerate(PROMPTS)]
    expected = [done.text for done in pool.map(PROMPTS, GREEDY, max_tokens=6, reuse_prefix=False)]
    assert [line["text"] for line in lines] == expected
    assert all(line["timings"]["num_generated"] <= 6 and line["error"] is None for line in lines)


def test_candidates_and_scores_of_the_prompt_are_written_where_they_are_asked_for(pool: Pool, prompts: Path) -> None:
    for name, asked in (("k", {"top_k": 2}), ("scored", {"prompt_logprobs": True})):
        out = prompts.with_name(name)
        complete_file(prompts, out, GREEDY, pool=pool, max_tokens=2, **asked)
        line = answered(out)[0]
        assert len(line["steps"]) <= 2 and len(line["prompt_steps"]) == len(line["prompt_ids"])
        assert len(line["steps"][0]["top"]) == asked.get("top_k", 0)
        assert (line["prompt_steps"][1]["logprob"] is not None) is (name == "scored")


def test_a_pool_is_opened_where_none_is_given(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = prompts.with_name("answers.jsonl")
    assert complete_file(prompts, out, GREEDY, max_tokens=1, n_ctx=256, parallel=2, progress=True).num_answered == 8
    assert capsys.readouterr().err.splitlines()[-1].startswith("8 prompts, ")


def test_prompts_that_fail_have_their_error_in_their_line(pool: Pool, tmp_path: Path) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    rows = [
        {"prompt": "Once"},
        {"prompt": "word " * 2000, "id": "long"},
        {"prompt": [99_999]},
        {"prompt": []},
        {"messages": [{"role": "user", "content": "Hello"}]},
        {"text": "Once"},
        {"prompt": "upon"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert complete_file(path, out, GREEDY, pool=pool, max_tokens=2) == FileSummary(7, 0, 5)
    lines = answered(out)
    assert [list(line) for line in lines] == [FIELDS] * 7
    assert [(line["error"] or "").partition(":")[0] for line in lines] == [
        "", "PromptTooLong", "ConfigError", "ConfigError", "ConfigError", "ConfigError", ""
    ]  # fmt: skip
    assert lines[1]["id"] == "long"
    assert "prompts[" not in out.read_text()
    assert "no chat template" in lines[4]["error"] and "line 6: has neither" in lines[5]["error"]


def test_texts_are_messages_of_a_chat_where_that_is_wanted(fake: FakeEngine, tmp_path: Path) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    path.write_text('{"prompt": "Hello"}\n{"messages": [{"role": "user", "content": "Hi"}]}\n{"prompt": [97]}\n')
    answer_with(fake, path, out, is_chat=True, system="Be brief.", options={"max_tokens": 1, "top_k": 1})
    lines = answered(out)
    asked = [bytes(line["prompt_ids"]).decode() for line in lines[:2]]
    assert asked == ["system: Be brief.\nuser: Hello\n", "user: Hi\n"]
    assert lines[2]["error"] == "ConfigError: token ids cannot be the message of a chat"


# Continued.


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(num_before=st.integers(0, 8), torn=st.integers(0, 300))
def test_a_file_cut_anywhere_is_completed_without_computing_an_answer_again(
    fake: FakeEngine, prompts: Path, num_before: int, torn: int
) -> None:
    out = prompts.with_name("answers.jsonl")
    out.unlink(missing_ok=True)
    answer_with(fake, prompts, out)
    whole = answered(out)
    lines = out.read_bytes().splitlines(keepends=True)
    left = b"".join(lines[:num_before])
    out.write_bytes(left + b"".join(lines[num_before : num_before + 1])[:torn])
    reports = list[MapProgress]()
    assert answer_with(fake, prompts, out, progress=reports.append) == FileSummary(8, num_before, 0)
    assert reports[-1].num_done == 8 - num_before
    assert out.read_bytes().startswith(left)
    assert [(one["index"], one["text"]) for one in answered(out)] == [(one["index"], one["text"]) for one in whole]


def test_prompts_may_be_added_at_the_end(fake: FakeEngine, prompts: Path) -> None:
    out = prompts.with_name("answers.jsonl")
    answer_with(fake, prompts, out)
    before = out.read_bytes()
    with prompts.open("a") as file:
        file.write('{"prompt": "Once more", "id": "upon"}\n{"prompt": "Once more"}\n')
    assert answer_with(fake, prompts, out) == FileSummary(10, 8, 1)
    assert out.read_bytes().startswith(before)
    assert "an earlier line has it too" in answered(out)[8]["error"]
    assert answer_with(fake, prompts, out) == FileSummary(10, 10, 1)


def test_an_interrupt_leaves_whole_lines_and_the_next_run_continues(fake: FakeEngine, prompts: Path) -> None:
    out = prompts.with_name("answers.jsonl")
    prompts.write_text("".join(json.dumps(f"Once {n}") + "\n" for n in range(300)))

    def interrupt(now: MapProgress) -> None:
        if now.num_done > 20:
            raise KeyboardInterrupt

    with FakeEngine(spec=PoolSpec(parallel=2), step_s=0.002) as slow, pytest.raises(KeyboardInterrupt):
        answer_with(slow, prompts, out, progress=interrupt)
    num_before = len(answered(out))
    assert 0 < num_before < 300 and out.read_bytes().endswith(b"\n")
    assert answer_with(fake, prompts, out) == FileSummary(300, num_before, 0)


def test_an_engine_that_closes_ends_the_run_and_is_no_answer(prompts: Path) -> None:
    out = prompts.with_name("answers.jsonl")
    with FakeEngine(spec=PoolSpec(parallel=2), step_s=0.01) as slow:

        def close(_now: MapProgress) -> None:
            slow.close("the test closes it")

        with pytest.raises(PoolClosed):
            answer_with(slow, prompts, out, options={"max_tokens": 100}, progress=close)
    assert all(line["error"] is None for line in answered(out))


def test_a_prompt_file_that_breaks_off_is_answered_up_to_there(
    fake: FakeEngine, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.exchange.prompt_files.MOST_LINE_BYTES", 100)
    with prompts.open("a") as file:
        file.write("a" * 200)
    out = prompts.with_name("answers.jsonl")
    with pytest.raises(ConfigError, match="line 9: has more than 100 bytes"):
        answer_with(fake, prompts, out)
    assert len(answered(out)) == 8


# Refused.


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sampling": Sampling(seed=2)}, "was begun with sampling.seed = 1, and now it is 2"),
        ({"options": {"max_tokens": 6}}, "request.max_tokens = 5, and now it is 6"),
        ({"options": {"max_tokens": 5, "stop": ["a"]}}, r'request.stop = \[\], and now it is \["a"\]'),
        ({"model": "other", "model_sha256": "1" * 64}, 'model = "fake", and now it is "other"'),
        ({"model_sha256": "1" * 64}, 'model_sha256 = "0000.*", and now it is "1111'),
        ({"is_chat": True}, "chat = false, and now it is true"),
    ],
)
def test_other_settings_are_refused_and_change_nothing(
    fake: FakeEngine, prompts: Path, changed: dict[str, Any], message: str
) -> None:
    out = prompts.with_name("answers.jsonl")
    answer_with(fake, prompts, out)
    torn = out.read_bytes()[:-3]
    out.write_bytes(torn)
    with pytest.raises(ConfigError, match=rf"answers.jsonl: .*{message}"):
        answer_with(fake, prompts, out, **changed)
    assert out.read_bytes() == torn
    assert answer_with(fake, prompts, out, model="renamed").num_before == 7


def test_other_prompts_are_refused_and_change_nothing(fake: FakeEngine, prompts: Path) -> None:
    out = prompts.with_name("answers.jsonl")
    answer_with(fake, prompts, out)
    before, lines = out.read_bytes(), prompts.read_text().splitlines(keepends=True)
    for changed, message in (
        ([*lines[:3], lines[4], lines[3], *lines[5:]], "line 4 answers another prompt"),
        (lines[:5], "has more answers than there are prompts"),
    ):
        prompts.write_text("".join(changed))
        with pytest.raises(ConfigError, match=message):
            answer_with(fake, prompts, out)
        assert out.read_bytes() == before


@pytest.mark.parametrize("content", [b"mine\n", b'{"index": 0}\n', b"\0" * 50 + b"\n"])
def test_a_file_of_something_else_is_refused_and_unchanged(fake: FakeEngine, prompts: Path, content: bytes) -> None:
    out, other = prompts.with_name("mine.txt"), prompts.with_name("answers.jsonl")
    out.write_bytes(content)
    with pytest.raises(ConfigError, match="is not empty, and mine.txt.settings.json"):
        answer_with(fake, prompts, out)
    answer_with(fake, prompts, other)
    other.write_bytes(content)
    with pytest.raises(ConfigError, match="line 1 is not an answer"):
        answer_with(fake, prompts, other)
    assert out.read_bytes() == other.read_bytes() == content


def test_a_line_without_an_end_is_not_read_whole(
    fake: FakeEngine, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as what a disk leaves of a file that was being written: gigabytes of zeros."""
    monkeypatch.setattr("engine.exchange.answer_files.MOST_BYTES", 10_000)
    out = prompts.with_name("answers.jsonl")
    answer_with(fake, prompts, out)
    whole = out.read_bytes()
    out.write_bytes(whole + b"\0" * 20_000)
    with pytest.raises(ConfigError, match="line 9 has more than 10,000 bytes"):
        answer_with(fake, prompts, out)
    out.write_bytes(whole + b"\0" * 9_000)
    assert answer_with(fake, prompts, out).num_before == 8
    assert out.read_bytes() == whole


def test_what_cannot_be_the_file_of_answers_is_refused(fake: FakeEngine, prompts: Path) -> None:
    folder = prompts.parent
    link = folder / "link.jsonl"
    link.symlink_to(prompts)
    os.mkfifo(folder / "pipe")
    for out, message in (
        (folder, "Is a directory"),
        (folder / "nowhere" / "a.jsonl", "No such file or directory"),
        (folder / "pipe", "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
        (prompts, "is the file of the prompts"),
        (link, "is the file of the prompts"),
    ):
        with pytest.raises(ConfigError, match=message):
            answer_with(fake, prompts, out)
    assert len(read_lines := prompts.read_text().splitlines()) == 8, read_lines


def test_two_processes_do_not_write_one_file(fake: FakeEngine, prompts: Path) -> None:
    out = prompts.with_name("answers.jsonl")
    refused = pytest.raises(ConfigError, match="is being written by another process")
    with PromptFile(prompts) as read, AnswerFile(out, read), refused:
        answer_with(fake, prompts, out)
    assert answer_with(fake, prompts, out).num_answered == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampling": Sampling(grammar="root ::= (")}, "grammar"),
        ({"sampling": Sampling(logit_bias=((99_999, 1.0),))}, "names token 99,999"),
        ({"chat": True}, "no chat template"),
        ({"max_tokens": -1}, "max_tokens = -1"),
        ({"n_ctx": 512}, "n_ctx is a parameter of the pool that is given"),
        ({"model": "a.gguf"}, "model is a parameter of the pool that is given"),
        ({"system": b"Be brief."}, "system = .*: must be text"),
        ({"temperature": 1}, "belongs in Sampling"),
    ],
)
def test_what_would_fail_for_every_prompt_is_an_error_at_once(
    pool: Pool, prompts: Path, given: dict[str, Any], message: str
) -> None:
    out = prompts.with_name("answers.jsonl")
    with pytest.raises(EngineError, match=message):
        complete_file(prompts, out, pool=pool, **given)
    assert not out.exists() or not out.stat().st_size


# Bounds.


def test_an_endless_file_is_answered_while_it_is_read(tmp_path: Path) -> None:
    path, out = tmp_path / "prompts", tmp_path / "answers.jsonl"
    os.mkfifo(path)

    class Enough(Exception):
        pass

    def stop(now: MapProgress) -> None:
        if now.num_done > 50:
            raise Enough

    endless = subprocess.Popen(["sh", "-c", f"yes 'Once upon' > '{path}'"], stderr=subprocess.DEVNULL)
    with endless, FakeEngine(spec=PoolSpec(parallel=2)) as engine, pytest.raises(Enough):
        answer_with(engine, path, out, progress=stop)
    assert len(answered(out)) > 10


LIMITED = """
import resource, sys
from engine import EngineError, Pool, Sampling, complete_file
from engine.models import embedded_model
with Pool(embedded_model(), n_ctx=256) as pool:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
    try:
        complete_file(sys.argv[1], sys.argv[2], Sampling(temperature=0), pool=pool, max_tokens=2)
    except EngineError as error:
        print(error)
"""


def test_a_full_disk_leaves_whole_lines_and_says_how_to_go_on(prompts: Path) -> None:
    out = prompts.with_name("answers.jsonl")
    command = [sys.executable, "-c", LIMITED, str(prompts), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "cannot be written (File too large). What is answered is in it: the same again continues" in done.stdout
    assert out.stat().st_size <= 2500
    num_before = len(answered(out))
    assert num_before > 0
    assert complete_file(prompts, out, GREEDY, n_ctx=256, max_tokens=2) == FileSummary(8, num_before, 0)


@pytest.mark.slow
@pytest.mark.parametrize("stopping", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_command_is_continued(tmp_path: Path, stopping: signal.Signals) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    num = 400
    prompts.write_text("".join(f"Once upon a time number {number}\n" for number in range(num)))
    words = ["--prompts", str(prompts), "--out", str(out), "--max-tokens", "24", "--temperature", "0"]
    command = [sys.executable, "-m", "engine", "generate", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not out.exists() or out.read_bytes().count(b"\n") < 30:
            assert process.poll() is None
        process.send_signal(stopping)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if stopping == signal.SIGINT else -stopping)
    assert "Traceback" not in errors
    assert ("the same command continues" in errors) is (stopping == signal.SIGINT)
    left = out.read_bytes()
    whole = left[: left.rfind(b"\n") + 1]
    num_before = whole.count(b"\n")
    assert 30 <= num_before < num
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"{out}: {num} answers, {num_before} of them from before\n"
    assert out.read_bytes().startswith(whole)
    assert [line["index"] for line in answered(out)] == list(range(num))
