"""guidellm's time to first token and time per token beside what the Traffic page shows of the same 320 calls."""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from engine import PoolSpec
from tests.clients.conftest import python
from tests.clients.test_load import write_prompts
from tests.speed.api import KEY, Api, serving
from tests.speed.common import N_CTX, Row, model, output_of

ROUNDS = 1
SHAPE = "llama-1.1b-32k"
"""On the shipped model the clients take more of two cores than the model, and measure how long they wait themselves."""
STREAMS, REQUESTS, NUM_TOKENS = 32, 320, 64
MOST_APART = 0.05


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Ratios of medians, guidellm's to ours, over the rounds."""
    check_installed()
    path = model(shape)
    with serving(path, PoolSpec(parallel=STREAMS, n_ctx=N_CTX)) as api:
        theirs, ours = zip(*(compared(api, Path(path).stem) for _ in range(num_rounds)), strict=True)
    rows = []
    for name in ("TTFT", "TPOT"):
        of_guidellm, of_us = (median(one[name] for one in found) for found in (theirs, ours))
        rows.append(
            alike(f"{name} of guidellm, of ours", of_guidellm / of_us, f"{of_guidellm:.1f} against {of_us:.1f} ms")
        )
    return rows


def check_installed() -> None:
    """Exit with the remedy where guidellm is not there."""
    if not python("clients").is_file():
        sys.exit("guidellm is not installed: run `make clients` first.")


def alike(figure: str, value: float, beside: str) -> Row:
    """A line whose ratio should be within 5 % of 1."""
    return Row(figure, value, "x", "0.95 to 1.05", abs(value - 1) <= MOST_APART, beside)


def compared(api: Api, name: str) -> tuple[dict[str, float], dict[str, float]]:
    """Medians in milliseconds, guidellm's and ours: TTFT, and TPOT, which is the time of a request by its tokens."""
    theirs = of_guidellm(f"http://127.0.0.1:{api.port}", name, KEY, STREAMS, REQUESTS)
    calls = api.inside("calls", num=REQUESTS)
    ours = {
        "TTFT": 1e3 * median(ttft_s for ttft_s, _, _ in calls),
        "TPOT": 1e3 * median(elapsed_s / num for _, elapsed_s, num in calls),
    }
    return theirs, ours


def of_guidellm(address: str, name: str, key: str, num_streams: int, num_requests: int) -> dict[str, float]:
    """guidellm's medians of TTFT and TPOT in milliseconds, and tokens per second from the first request to the last
    answer; exits unless all requests were answered."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, report = Path(folder) / "prompts.csv", Path(folder) / "report.json"
        write_prompts(prompts)
        backend = f"kind=openai_http,target={address},api_key={key},model={name}"
        words: list[str | Path] = [
            python("clients"), "-m", "guidellm", "run", "--disable-console",
            "--backend", f"{backend},request_format=/v1/completions,max_tokens={NUM_TOKENS}",
            "--profile", f"kind=concurrent,streams={num_streams}",
            "--constraint", f"kind=max_requests,count={num_requests}",
            "--data", f"kind=csv_file,path={prompts}",
            "--output", f"kind=json,path={report}",
        ]  # fmt: skip
        output_of(words, {"HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"})
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
    metrics: dict[str, Any] = benchmark["metrics"]
    if metrics["request_totals"]["successful"] != num_requests:
        sys.exit(f"guidellm: {metrics['request_totals']}")
    answered = benchmark["requests"]["successful"]
    seconds = max(one["request_end_time"] for one in answered) - min(one["request_start_time"] for one in answered)
    return {
        "TTFT": metrics["time_to_first_token_ms"]["successful"]["median"],
        "TPOT": metrics["time_per_output_token_ms"]["successful"]["median"],
        "tokens per second": sum(one["output_tokens"] for one in answered) / seconds,
    }
