"""What the harness costs on a server: time that it adds, processor time of a token, and its load beside guidellm's."""

import csv
import json
import socket
import tempfile
import time
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from engine import connect
from engine.backends.openai_server import ServerEngine
from engine.specs import Request, Sampling
from tests.clients.test_load import write_prompts
from tests.speed import guidellm
from tests.speed.common import Row, at_least, at_most, interleaved, model, ratio, token_times
from tests.speed.many import SERVER_PORT, server
from tests.speed.paced import KINDS, NUM_TOKENS, Paced, paced

ROUNDS = 8
SHAPE = "llama-1.1b-32k"
PROMPT, TOP_K = "Once upon a time", 10
ADDED_TOKENS, ADDED_GOAL_MS, GAP_GOAL = 100, 1.0, 1.01
STREAMS, CPU_GOAL_US, PACE_GOAL = 64, 100, 0.99
BESIDE, BESIDE_ROUNDS, REQUESTS_A_STREAM = (8, 32), 2, 5
SERVER = f"http://127.0.0.1:{SERVER_PORT}"
Moments = np.ndarray[Any, np.dtype[np.float64]]


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Rows of added time, of processor time, and beside guidellm."""
    guidellm.check_installed()
    path = model(shape)
    rows = []
    for kind in KINDS:
        with paced(kind) as fake:
            rows += added(fake.address, f"a paced server, {kind}", num_rounds)
    with server(path, []):
        rows += added(SERVER, "llama-server", num_rounds)
    for kind in KINDS:
        rows += cpu_of_tokens(kind, num_rounds)
    for num_streams in BESIDE:
        rows += beside_guidellm(path, num_streams, min(num_rounds, BESIDE_ROUNDS))
    return rows


def added(address: str, name: str, num_rounds: int) -> list[Row]:
    """Time to first token and mean gap of a job, beside those of a socket that only notes when its bytes come."""
    gaps: dict[str, list[float]] = {"harness": [], "socket": []}
    numbers = count()
    with connect(address, num_sequences=1) as engine:

        def harness() -> float:
            return noted("harness", of_job(engine))

        def new() -> float:
            return 1e3 * float(of_job(engine, f"{PROMPT} {next(numbers)}")[0])

        def bare() -> float:
            return noted("socket", of_socket(engine))

        def noted(arm: str, moments: Moments) -> float:
            gaps[arm].append(float(np.diff(moments).mean()))
            return 1e3 * float(moments[0])

        tokenised = {"new": new} if engine.capabilities.tokenizes else {}
        found = interleaved(num_rounds + 1, harness=harness, socket=bare, **tokenised)
    ours, theirs, *news = (found[arm][1:] for arm in ("harness", "socket", *tokenised))
    # the first round, left out, opens connections
    compared = ratio(gaps["harness"][1:], gaps["socket"][1:])
    apart_ms = median(one - other for one, other in zip(ours, theirs, strict=True))
    beside = f"{median(ours):.2f} against {median(theirs):.2f} ms"
    for one in news:
        beside += f"; {median(one):.2f} with a text that the server has to tokenise first"
    return [
        at_most(f"time to first token of {name}: harness minus socket", apart_ms, ADDED_GOAL_MS, beside, "ms"),
        at_most(f"gap between tokens of {name}: harness, of socket", compared.value, GAP_GOAL, str(compared)),
    ]


def of_job(engine: ServerEngine, prompt: str = PROMPT) -> Moments:
    """Seconds from the submission of a job to each of its tokens."""
    job = engine.submit(prompt, Sampling(seed=1), max_tokens=ADDED_TOKENS, top_k=TOP_K, reuse_prefix=False)
    job.result()
    return token_times(job) - job.submitted


def of_socket(engine: ServerEngine) -> Moments:
    """Seconds from the same request to each of its events, on a connection that is open before the clock."""
    found, request = engine.found, Request(max_tokens=ADDED_TOKENS, top_k=TOP_K, reuse_prefix=False)
    prompt = engine.tokenize(PROMPT) if engine.capabilities.tokenizes else PROMPT
    body = json.dumps(found.form.body(found.dialect, found.model, prompt, Sampling(seed=1), request))
    head = f"POST {found.form.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    message = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    with socket.create_connection(("127.0.0.1", int(engine.model.rpartition(":")[2]))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began, moments, content = time.monotonic(), list[float](), b""
        connection.sendall(message)
        while len(moments) < ADDED_TOKENS:
            content += connection.recv(1 << 20)
            moments += [time.monotonic()] * (content.count(b"data: ") - len(moments))
    return np.array(moments[:ADDED_TOKENS]) - began


def cpu_of_tokens(kind: str, num_rounds: int) -> list[Row]:
    """Processor microseconds of this process a token, 64 streams at 8,000 tokens a second in all, and its pace."""
    cpu_us, paces = [], []
    with paced(kind) as fake, connect(fake.address, num_sequences=STREAMS) as engine:
        streams(engine, fake)
        for _ in range(num_rounds):
            one_us, pace = streams(engine, fake)
            cpu_us.append(one_us)
            paces.append(pace)
    name = f"{STREAMS} streams of a paced server, {kind}"
    beside = f"{min(cpu_us):.0f} to {max(cpu_us):.0f} µs over {num_rounds} rounds"
    return [
        at_most(f"CPU a token, top_k={TOP_K}, {name}", median(cpu_us), CPU_GOAL_US, beside, "µs"),
        at_least(f"pace of reading, of sending, {name}", median(paces), PACE_GOAL),
    ]


def streams(engine: ServerEngine, fake: Paced) -> tuple[float, float]:
    """Processor microseconds a token of all streams at once, and the time of sending by the time of reading."""
    fake.sent()
    began = time.process_time()
    jobs = [engine.submit(PROMPT, max_tokens=NUM_TOKENS, top_k=TOP_K) for _ in range(STREAMS)]
    num_tokens = sum(len(job.result().steps) for job in jobs)
    cpu_s = time.process_time() - began
    assert num_tokens == STREAMS * NUM_TOKENS
    sent, read = fake.sent(), [token_times(job) for job in jobs]
    pace = _span(sent) / _span(read)
    return 1e6 * cpu_s / num_tokens, pace


def _span(moments: list[Any]) -> float:
    return float(max(one[-1] for one in moments) - min(one[0] for one in moments))


def beside_guidellm(path: str, num_streams: int, num_rounds: int) -> list[Row]:
    """Ratios of guidellm's figures to ours, each on a fresh llama-server with the same prompts and arrivals."""
    found: dict[str, list[dict[str, float]]] = {"theirs": [], "ours": []}
    num_requests = REQUESTS_A_STREAM * num_streams

    def theirs() -> float:
        with server(path, []):
            found["theirs"].append(guidellm.of_guidellm(SERVER, Path(path).name, "none", num_streams, num_requests))
        return 0.0

    def ours() -> float:
        with server(path, []), connect(SERVER, num_sequences=num_streams) as engine:
            found["ours"].append(of_load(engine, num_requests))
        return 0.0

    interleaved(num_rounds, theirs=theirs, ours=ours)
    rows = []
    for name in ("tokens per second", "TTFT", "TPOT"):
        of_guidellm, of_us = ([one[name] for one in found[arm]] for arm in ("theirs", "ours"))
        beside = f"{ratio(of_guidellm, of_us)}; {mean(of_guidellm):.1f} against {mean(of_us):.1f}"
        figure = f"{name} of llama-server, {num_streams} streams: guidellm, of ours"
        rows.append(guidellm.alike(figure, ratio(of_guidellm, of_us).value, beside))
    return rows


def of_load(engine: ServerEngine, num_requests: int) -> dict[str, float]:
    """The same figures of jobs of which as many run at once as the engine has sequences."""
    with tempfile.TemporaryDirectory() as folder:
        write_prompts(file := Path(folder) / "prompts.csv")
        texts = [row["prompt"] for row in csv.DictReader(file.read_text().splitlines())][:num_requests]
    jobs = [engine.submit(text, max_tokens=guidellm.NUM_TOKENS) for text in texts]
    done = [job.result() for job in jobs]
    began = [job.submitted + one.timings.queue_s for job, one in zip(jobs, done, strict=True)]
    times = [token_times(job) for job in jobs]
    num_tokens = sum(len(one) for one in times)
    return {
        "TTFT": 1e3 * median(float(one[0]) - start for one, start in zip(times, began, strict=True)),
        "TPOT": 1e3 * median((float(one[-1]) - start) / len(one) for one, start in zip(times, began, strict=True)),
        "tokens per second": num_tokens / (max(float(one[-1]) for one in times) - min(began)),
    }
