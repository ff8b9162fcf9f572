"""guidellm's 320 requests in 32 streams, and schemathesis on the description of the API."""

import csv
import json
import os
from pathlib import Path

from tests.clients.conftest import KEY, ROOT, Clients

STREAMS, REQUESTS, NUM_TOKENS = 32, 320, 16
EXAMPLES = 25


def test_guidellm_gets_every_answer(clients: Clients) -> None:
    prompts, report = clients.served.folder / "prompts.csv", clients.served.folder / "guidellm.json"
    write_prompts(prompts)
    backend = {"kind": "openai_http", "target": clients.served.address.removesuffix("/v1"), "api_key": KEY}
    backend |= {"request_format": "/v1/completions", "max_tokens": str(NUM_TOKENS), "model": "story"}
    clients.program(
        "-m", "guidellm", "run", "--disable-console",
        "--backend", ",".join(f"{name}={value}" for name, value in backend.items()),
        "--profile", f"kind=concurrent,streams={STREAMS}",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--data", f"kind=csv_file,path={prompts}",
        "--output", f"kind=json,path={report}",
    )  # fmt: skip
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    assert metrics["request_totals"] == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    assert metrics["output_token_count"]["successful"]["max"] == NUM_TOKENS
    assert metrics["time_to_first_token_ms"]["successful"]["min"] > 0


def write_prompts(path: Path) -> None:
    """As many prompts as requests, each of two shipped sentences, in no two the same."""
    lines = (ROOT / "data" / "prompts" / "sentences.jsonl").read_text("utf-8").splitlines()
    texts = [one["text"] for one in map(json.loads, lines) if one["language"] == "English"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["prompt"])
        writer.writerows([f"{first} {second}"] for first in texts for second in texts if first != second)


def test_schemathesis_finds_nothing(clients: Clients) -> None:
    address = clients.served.address.removesuffix("/v1")
    words = ["run", f"{address}/openapi.json", "--header", f"Authorization: Bearer {KEY}", "--no-color"]
    words += ["--max-examples", str(EXAMPLES), "--request-timeout", "60"]
    words += ["--generation-deterministic"] if "CI" in os.environ else ["--generation-database", "none"]
    config = str(ROOT / "tests" / "clients" / "schemathesis.toml")
    output = clients.program("-m", "schemathesis.cli", "--config-file", config, *words, folder=clients.served.folder)
    assert "No issues found" in output, output[-4000:]
