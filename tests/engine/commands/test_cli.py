"""Command line as a user sees it: in its own process."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import psutil
import pytest

from engine.commands.arguments import SAMPLING_HELP, XRAY_TOP_K, parse
from engine.commands.table import printable, table
from engine.errors import ConfigError
from engine.history import INBOX, History, Inbox, read_run
from engine.pool.pool import Pool
from engine.specs import PoolSpec, Request, Sampling

COMMAND = [sys.executable, "-m", "engine", "generate"]


def generate(*words: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *words], input=given, capture_output=True, text=True, check=False, timeout=120)
    assert not check or done.returncode == 0, done.stderr
    return done


def arguments(*words: str) -> Sampling:
    return parse(["generate", "--prompt", "x", *words]).sampling


# Arguments.


def test_defaults_are_those_of_the_specs() -> None:
    read = parse(["generate", "--prompt", "Once"])
    assert (read.sampling, read.request, read.pool) == (Sampling(), Request(), PoolSpec())
    assert (read.prompt, read.model, read.is_kept) == ("Once", "", True)


def test_a_prompt_may_be_the_message_of_a_chat() -> None:
    user = {"role": "user", "content": "Hello"}
    assert parse(["generate", "--prompt", "Hello"]).messages == []
    assert parse(["generate", "--prompt", "Hello", "--chat"]).messages == [user]
    with_system = parse(["generate", "--prompt", "Hello", "--system", "Be brief."]).messages
    assert with_system == [{"role": "system", "content": "Be brief."}, user]


def test_prompts_may_come_from_a_file() -> None:
    read = parse(["generate", "--prompts", "p.txt", "--out", "a.jsonl", "--system", "Be brief."])
    assert (read.prompt, read.prompts, read.out, read.is_chat) == ("", "p.txt", "a.jsonl", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompts", "p.txt"], "--prompts: needs --out FILE"),
        (["--prompt", "x", "--out", "a.jsonl"], "--out: needs --prompts FILE"),
        *[
            (["--prompts", "p", "--out", "a", word], f"{word}: is for a single")
            for word in ("--json", "--stream", "--keep")
        ],
        (["--prompts", "p", "--out", "a", "--watch", "yes"], "--watch: is for a single"),
    ],
)
def test_files_come_together_and_without_what_shows_one_answer(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(["generate", *words])


@pytest.mark.slow
def test_standard_input_may_be_the_file_of_prompts(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    words = ["--prompts", "-", "--out", str(out), "--max-tokens", "2", "--top-k", "2"]
    assert generate(*words, given="Once\nupon\n").stdout == f"{out}: 2 answers\n"
    assert generate(*words, given="Once\nupon\na\n").stdout == f"{out}: 3 answers, 2 of them from before\n"
    assert [len(json.loads(line)["steps"]) for line in out.read_text().splitlines()] == [2, 2, 2]
    done = generate(*words, given="Once\ntime\n", check=False)
    assert (done.returncode, "line 2 answers another prompt" in done.stderr) == (2, True)
    assert not (home / "history.duckdb").exists()


def test_every_field_of_sampling_has_a_flag() -> None:
    assert set(SAMPLING_HELP) == {field.name for field in fields(Sampling)}


def test_fields_of_all_kinds() -> None:
    read = arguments("--min-p", "0.1", "--sampler-top-k", "7", "--samplers", "top_k", "temperature", "--seed", "5")
    assert read == Sampling(min_p=0.1, top_k=7, samplers=("top_k", "temperature"), seed=5)
    assert arguments("--logit-bias", "5=-inf", "--logit-bias", "6=1.5").logit_bias == ((5, float("-inf")), (6, 1.5))


def test_top_k_counts_recorded_candidates() -> None:
    read = parse(["generate", "--prompt", "x", "--top-k", "3", "--stop", "a", "--stop", "b", "--no-reuse-prefix"])
    assert read.request == Request(top_k=3, stop=("a", "b"), reuse_prefix=False)
    assert read.sampling.top_k == Sampling().top_k


def test_grammar_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "yes.gbnf"
    path.write_text('root ::= "yes"', encoding="utf-8")
    assert arguments("--grammar", f"@{path}").grammar == 'root ::= "yes"'
    with pytest.raises(ConfigError, match="--json-schema @nowhere: the file cannot be read"):
        arguments("--json-schema", "@nowhere")
    with pytest.raises(ConfigError, match="--grammar @/dev/zero: the file has more than 1,048,576 characters"):
        arguments("--grammar", "@/dev/zero")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--temperature", "-1"], "temperature = -1.0"),
        (["--logit-bias", "word"], "must be a token id and a number"),
        (["--samplers", "top_q"], "unknown stage 'top_q'"),
        (["--n-ctx", "3"], "n_ctx = 3"),
        (["--max-tokens", "-2"], "max_tokens = -2"),
    ],
)
def test_values_out_of_range_are_refused(words: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(["generate", "--prompt", "x", *words])


# Output.


@pytest.mark.slow
def test_json_holds_the_completion_with_its_steps() -> None:
    words = ["--prompt", "Once upon a time", "--json", "--top-k", "3", "--max-tokens", "6", "--seed", "4"]
    read = json.loads(generate(*words).stdout, parse_constant=pytest.fail)
    assert read["seed"] == 4
    assert len(read["steps"]) == 6
    assert all(len(step["top"]) == 3 for step in read["steps"])
    assert "".join(step["text"] for step in read["steps"]) == read["text"]


@pytest.mark.slow
def test_streamed_text_is_the_whole_text() -> None:
    words = ["--prompt", "-", "--max-tokens", "12", "--seed", "4", "--no-keep"]
    streamed = generate(*words, "--stream", given="Once upon a time").stdout
    assert streamed == generate(*words, given="Once upon a time").stdout
    assert streamed.strip()


def test_the_table_has_a_line_for_each_token(pool: Pool) -> None:
    completion = pool.submit("Once", Sampling(temperature=0), max_tokens=5, top_k=4, prompt_logprobs=True).result()
    lines = table(completion).splitlines()
    numbered = [line for line in lines if line[:5].strip().isdigit()]
    assert len(numbered) == len(completion.prompt_steps) + len(completion.steps)
    for step, line in zip(completion.steps, numbered[len(completion.prompt_steps) :], strict=True):
        assert repr(step.text) in line
        assert all(repr(candidate.text) in line for candidate in step.top)


def test_an_xray_is_recorded_with_candidates_and_follows_each_token(pool: Pool) -> None:
    read = parse(["generate", "--prompt", "x", "--xray"])
    assert (read.request.stages, read.request.top_k) == (True, XRAY_TOP_K)
    assert parse(["generate", "--prompt", "x", "--xray", "--top-k", "3"]).request.top_k == 3
    completion = pool.submit("Once", Sampling(seed=1), max_tokens=5, top_k=4, stages=True).result()
    lines = table(completion).splitlines()
    shown = [line.strip() for line in lines if line.lstrip().startswith("top_k 40 (")]
    assert len(shown) == 5
    for step, line in zip(completion.steps, shown, strict=True):
        kept = [int(number) for number in re.findall(r" (\d+) \(", line)]
        assert kept == [stage.kept for stage in step.stages]
        assert line.endswith(f"drawn at {step.draw:.4f}")
    stages = completion.to_dict()["steps"][0]["stages"]
    assert [set(stage) for stage in stages] == [{"stage", "kept", "mass", "cut"}] * 4


def test_watched_words_follow_each_token(pool: Pool) -> None:
    assert parse(["generate", "--prompt", "x", "--watch", " yes", "--watch", "no"]).watched == (" yes", "no")
    words = ((1807,), (1023, 3110))
    completion = pool.submit("Once", Sampling(seed=1), max_tokens=3, watched=words).result()
    shown = [line.strip() for line in table(completion).splitlines() if "watched: " in line]
    assert len(shown) == 3
    for step, line in zip(completion.steps, shown, strict=True):
        one, other = step.watched
        assert line.startswith("watched: ' yes' ") and f"(rank {one.rank:,}), 'Yes'|' Yes' " in line
        assert line.endswith(f"(rank {other.rank:,})")


def test_watched_words_are_read_with_the_model_and_printed_as_json() -> None:
    words = ["--prompt", "Once upon a time", "--json", "--no-keep", "--max-tokens", "4", "--seed", "4"]
    read = json.loads(generate(*words, "--watch", " yes", "--watch", "Yes").stdout)
    for step in read["steps"]:
        one, both = step["watched"]
        assert (one["ids"], both["ids"]) == ([1807], [1023, 3110])
        assert one["logprob"] < 0 and one["rank"] > 1
    failed = generate(*words, "--watch", "Lily", check=False)
    assert failed.returncode == 2 and '"Lily" has 2 tokens' in failed.stderr
    failed = generate(*words, *["--watch", "a"] * 17, check=False)
    assert failed.returncode == 2 and "17 words; at most 16 are allowed" in failed.stderr


def test_stages_without_candidates_are_refused() -> None:
    with pytest.raises(ConfigError, match="give a top_k of at least 1"):
        parse(["generate", "--prompt", "x", "--xray", "--top-k", "0"])


def test_a_terminal_is_not_steered_by_a_model() -> None:
    assert printable("a\x1b[2J\u202eb\n", is_terminal=True) == "a\\x1b[2J\\u202eb\n"
    assert printable("a\x1b[2J", is_terminal=False) == "a\x1b[2J"
    assert printable("👩\u200d🚀", is_terminal=True) == "👩\u200d🚀"


# Saving to the history.


@pytest.mark.slow
def test_a_trial_is_kept_unless_asked_otherwise(home: Path) -> None:
    generate("--prompt", "Once", "--max-tokens", "3", "--top-k", "2", "--temperature", "0.5")
    generate("--prompt", "Twice", "--max-tokens", "3", "--no-keep")
    with History.open(home / "history.duckdb") as history:
        (summary,) = history.recent()
        trial = history.trial(summary.id)
    assert trial is not None
    assert (trial.prompt, trial.sampling.temperature) == ("Once", 0.5)
    assert len(trial.completion.steps) == 3
    assert len(trial.completion.steps[0].top) == 2


def test_a_trial_goes_through_the_inbox_while_another_process_owns_the_history(home: Path) -> None:
    with History.open(home / "history.duckdb") as history:
        generate("--prompt", "Once", "--max-tokens", "3")
        assert history.recent() == []
        (taken,) = Inbox(home / INBOX).take(history)
        assert history.recent()[0].id == taken


@pytest.mark.slow
def test_a_history_that_cannot_be_used_costs_only_the_keeping(home: Path) -> None:
    (home / "history.duckdb").write_bytes(b"no database" * 1000)
    done = generate("--prompt", "Once", "--max-tokens", "3", "--seed", "1")
    assert done.stdout.strip()
    assert done.stderr.startswith("not saved: ")


# Failures.


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--prompt", "x", "--model", "nowhere.gguf"], "nowhere.gguf"),
        (["--prompt", "word " * 2000], "the prompt is"),
        (["--prompt", "x", "--seed", "-1"], "seed = -1"),
        (["--prompt", "x", "--chat"], "chat template"),
        (["--prompt", "x", "--grammar", "root ::= ("], "grammar"),
        (["--prompt", "x", "--temprature", "1"], "--temprature"),
    ],
)
def test_errors_are_printed_on_standard_error(words: list[str], reason: str) -> None:
    done = generate(*words, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stopping", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_command(stopping: signal.Signals) -> None:
    words = ["--prompt", "Once upon a time", "--max-tokens", "400", "--stream", "--no-keep", "--logit-bias", "2=-inf"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(20)
        workers = psutil.Process(process.pid).children(recursive=True)
        assert workers
        process.send_signal(stopping)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if stopping == signal.SIGINT else -stopping)
    assert b"Traceback" not in errors
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []


@pytest.mark.slow
def test_an_interrupted_benchmark_is_kept_and_says_that_it_was_stopped(home: Path, tmp_path: Path) -> None:
    words = ["bench", "--layout", "1x1", "--parallel", "1", "--num-prompt", "4", "--num-generated", "4"]
    out = tmp_path / "run.zip"
    command = [*COMMAND[:-1], *words, "--rounds", "30", "--json", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if re.match(r"[1-9]\d* samples?, ", line))
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "not saved" not in errors
    assert "resume with: python -m engine bench resume" in errors
    assert json.loads(printed)["status"] == read_run(out).status == "stopped"
    with History.open(home / "history.duckdb") as history:
        kept = history.runs.run(json.loads(printed)["id"])
    assert kept is not None
    assert kept.status == "stopped"


@pytest.mark.parametrize(
    "words",
    [["bench", "--out", "/nowhere/run.zip"], ["embed", "-", "--out", "/nowhere/vectors.npy"]],
)
def test_a_place_that_cannot_be_written_is_said_before_the_work(words: list[str]) -> None:
    done = subprocess.run([*COMMAND[:-1], *words], input="", capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "the folder /nowhere does not exist" in done.stderr


@pytest.mark.slow
def test_a_plan_of_which_nothing_can_run_is_an_error() -> None:
    words = ["bench", "--model", "/nowhere.gguf", "--dry-run"]
    done = subprocess.run([*COMMAND[:-1], *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "No configuration can run" in done.stderr


def test_an_unknown_command_hears_of_all_there_are() -> None:
    done = subprocess.run([*COMMAND[:-1], "foo"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert all(f"'{name}'" in done.stderr for name in ("generate", "bench", "history", "models"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_behind_standard_output_is_said_in_a_line() -> None:
    with open("/dev/full", "wb") as full:
        words = ["--prompt", "x", "--max-tokens", "2", "--no-keep"]
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("error: the disk is full")
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    words = ["--prompt", "Once upon a time", "--max-tokens", "200", "--stream", "--no-keep"]
    reading, writing = os.pipe()
    with subprocess.Popen([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        os.read(reading, 4)
        os.close(reading)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 141
    assert errors == b""
