"""lm-eval on two small tasks of the shipped texts: its figures are those of the engine."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Pool
from tests.clients.conftest import KEY, Clients

TASKS = ("logitbench_endings", "logitbench_perplexity")
MAX_LENGTH = 32
WINDOW = MAX_LENGTH - 2
"""Tokens that lm-eval scores with one request of a rolling text: one is context, one is generated."""


@pytest.fixture(scope="module")
def results(clients: Clients) -> dict[str, Any]:
    """Metrics and samples of each task, as lm-eval writes them."""
    given = {
        "model": "story",
        "base_url": f"{clients.served.address}/completions",
        "tokenizer_backend": "remote",
        "auth_token": KEY,
        "max_length": MAX_LENGTH,
        "num_concurrent": 4,
    }
    folder = clients.served.folder / "lm-eval"
    words = ["--model", "local-completions", "--batch_size", "4", "--tasks", *TASKS, "--log_samples"]
    words += ["--model_args", ",".join(f"{name}={value}" for name, value in given.items())]
    words += ["--include_path", "tests/clients/tasks", "--output_path", str(folder)]
    clients.program("-m", "lm_eval", "run", *words)
    (whole,) = folder.glob("*/results_*.json")
    found = json.loads(whole.read_text())["results"]
    return {task: (found[task], samples(folder, task)) for task in TASKS}


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    (path,) = folder.glob(f"*/samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def scored(pool: Pool, context: list[int], ids: list[int]) -> tuple[float, bool]:
    """Sum of the log-probabilities of `ids` behind `context`; True where each is the most probable token."""
    done = pool.submit([*context, *ids], max_tokens=1, top_k=1, prompt_logprobs=True).result()
    steps = done.prompt_steps[len(context) :]
    return math.fsum(step.logprob or 0.0 for step in steps), all(step.rank == 1 for step in steps)


def encoded(pool: Pool, text: str) -> list[int]:
    return pool.tokenize(text, special=True)[1:]  # without BOS


def windows(ids: list[int], bos: int) -> Iterator[tuple[list[int], list[int]]]:
    """Contexts and scored tokens into which lm-eval cuts a rolling text."""
    for start in range(0, len(ids), WINDOW):
        end = min(start + WINDOW, len(ids))
        yield ids[end - WINDOW - 1 : start] if start else [bos], ids[start:end]


def test_a_choice_is_scored_as_by_the_engine(results: dict[str, Any], pool: Pool) -> None:
    metrics, rows = results["logitbench_endings"]
    found: list[tuple[float, bool]] = []
    num_right = 0
    for row in rows:
        context = encoded(pool, row["doc"]["context"])
        answers = [(float(value), greedy == "True") for ((value, greedy),) in row["resps"]]
        for choice, (value, is_greedy) in zip(row["doc"]["choices"], answers, strict=True):
            whole = encoded(pool, row["doc"]["context"] + choice)
            exact, is_first = scored(pool, context, whole[len(context) :])
            assert value == pytest.approx(exact, rel=1e-4), (row["doc"]["context"], choice)
            assert is_greedy == is_first, (row["doc"]["context"], choice)
            found.append((value, is_greedy))
        num_right += max(range(4), key=lambda place: answers[place][0]) == row["doc"]["ending"]
    assert {is_greedy for _, is_greedy in found} == {True, False}
    assert metrics["acc,none"] == num_right / len(rows)


def test_word_perplexity_is_the_engines_exact_figure(results: dict[str, Any], pool: Pool) -> None:
    metrics, rows = results["logitbench_perplexity"]
    assert pool.vocabulary.bos is not None
    total, num_words, most_windows = 0.0, 0, 0
    for row in rows:
        text = row["doc"]["text"]
        parts = list(windows(encoded(pool, text), pool.vocabulary.bos))
        exact = math.fsum(scored(pool, *part)[0] for part in parts)
        ((value,),) = row["resps"]
        assert float(value[0] if isinstance(value, list) else value) == pytest.approx(exact, rel=1e-4)
        total, num_words = total + exact, num_words + len(text.split())
        most_windows = max(most_windows, len(parts))
    assert most_windows > 1
    assert metrics["word_perplexity,none"] == pytest.approx(math.exp(-total / num_words), rel=1e-4)
