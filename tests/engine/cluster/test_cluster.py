"""Pools over the nodes of a real Ray cluster: tokens, losses of nodes, the front's own end, and addresses that fail."""

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.calls import embed
from engine.cluster import messages
from engine.cluster.cluster import Cluster
from engine.errors import ConfigError, EngineError, ServerFailed, WorkerDied
from engine.history import History
from engine.jobs import Job
from engine.pool.pool import Pool
from engine.pool.watchdog import SILENCE_S
from engine.process.program import Program
from engine.settings import Settings
from engine.specs import Sampling
from tests.conftest import ENDLESS
from tests.processes import children_with, free_port
from tests.ray_cluster import RayCluster, ray_cluster
from tests.servers import our_server
from tests.waiting import until

pytestmark = pytest.mark.slow

PROMPT = "Once upon a time"
SILENT_S = 6.0
"""Limit of silence where a node is to be lost: other programs let no node that runs wait that long."""
SLOW_START_S = 180
FRONT = """
import sys
from engine import Pool
with Pool(sys.argv[1], cluster=sys.argv[2], threads=1, n_ctx=256) as pool:
    jobs = [pool.submit("Once upon a time", max_tokens=200) for _ in range(8)]
    print("runs", flush=True)
    for job in jobs:
        job.result()
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster("a", "b", "c") as one:
        yield one


@pytest.fixture
def spread_pool(cluster: RayCluster, story_model: Path) -> Iterator[Pool]:
    """A pool with a worker on each of three nodes."""
    cluster.forget_killed()
    with Pool(story_model, cluster=cluster.address, threads=1, parallel=4, n_ctx=256) as pool:
        until(lambda: places(pool) == ["a", "b", "c"], "a node is missing", SLOW_START_S)
        yield pool


def places(pool: Pool) -> list[str]:
    return sorted(worker.node for worker in pool.workers())


def longest_silence_s(pool: Pool) -> float:
    assert pool._nodes is not None
    return max(node.silent_s for node in pool._nodes._cluster.nodes)


def workers_of(cluster: RayCluster) -> list[psutil.Process]:
    return [child for parent in agents_of(cluster) for child in children_with("engine.pool.worker", parent)]


def agents_of(cluster: RayCluster) -> list[psutil.Process]:
    return [process for process in cluster.processes() if "_Agent" in name_of(process)]


def serving_agent(cluster: RayCluster) -> psutil.Process:
    """Return an agent with a worker: those of a pool that was closed stay for some seconds."""
    return next(agent for agent in agents_of(cluster) if children_with("engine.pool.worker", agent))


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def test_a_cluster_gives_the_tokens_of_this_machine(spread_pool: Pool, pool: Pool) -> None:
    asked = [(f"{PROMPT} {number}", Sampling(seed=number)) for number in range(12)]
    here = [pool.submit(prompt, sampling, max_tokens=16, top_k=5) for prompt, sampling in asked]
    there = [spread_pool.submit(prompt, sampling, max_tokens=16, top_k=5) for prompt, sampling in asked]
    for one, other in zip(here, there, strict=True):
        assert [step.id for step in one.result(120).steps] == [step.id for step in other.result(120).steps]
    assert {node.name for node in spread_pool.nodes()} == {"a", "b", "c"}


def test_jobs_survive_or_name_the_node_that_was_killed(cluster: RayCluster, spread_pool: Pool) -> None:
    before = {process.pid for process in workers_of(cluster)}
    jobs = [spread_pool.submit(f"{number}: {PROMPT}", max_tokens=120) for number in range(24)]
    until(lambda: sum(len(job.steps) > 0 for job in jobs) >= 6, "no tokens come")
    cluster.kill("b")
    errors = [error for job in jobs if (error := ended(job)) is not None]
    assert all("node b" in str(error) for error in errors), errors
    assert len(errors) <= 5  # those that the worker of b had, and that had tokens
    until(lambda: len([one for one in workers_of(cluster) if one.pid in before]) <= 2, "an orphan is left")
    until(lambda: places(spread_pool) == ["a", "c"], "the worker of the killed node stays")
    assert spread_pool.submit(PROMPT, max_tokens=4).result(120).text
    cluster.add("b")
    until(lambda: places(spread_pool) == ["a", "b", "c"], "the node that came back is not used", SLOW_START_S)


def test_an_agent_that_is_killed_takes_its_worker_along_and_comes_back(cluster: RayCluster, spread_pool: Pool) -> None:
    agent = serving_agent(cluster)
    worker = children_with("engine.pool.worker", agent)[0]
    agent.kill()
    until(lambda: not worker.is_running(), "the worker outlived its agent")
    assert spread_pool.submit(PROMPT, max_tokens=4).result(120).text
    until(lambda: places(spread_pool) == ["a", "b", "c"], "its node is not used again", SLOW_START_S)


def test_a_short_silence_is_waited_for(cluster: RayCluster, spread_pool: Pool) -> None:
    before = {worker.pid for worker in spread_pool.workers()}
    agent = serving_agent(cluster)
    agent.suspend()
    until(lambda: longest_silence_s(spread_pool) > SILENCE_S + 1, "the silence is not noticed")
    agent.resume()
    until(lambda: longest_silence_s(spread_pool) < 1, "the agent is not heard again")
    assert {worker.pid for worker in spread_pool.workers()} == before
    assert [spread_pool.submit(PROMPT, max_tokens=4).result(120).text for _ in range(6)]


def test_a_long_silence_is_the_loss_of_the_node(
    cluster: RayCluster, spread_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = serving_agent(cluster)
    worker = children_with("engine.pool.worker", agent)[0]
    monkeypatch.setattr(messages, "LOST_S", SILENT_S)
    jobs = [spread_pool.submit(f"{number}: {PROMPT}", ENDLESS, max_tokens=200) for number in range(12)]
    until(lambda: all(len(job.steps) for job in jobs), "no tokens come")
    with spread_pool.held():
        agent.suspend()
        until(lambda: len(places(spread_pool)) == 2, "the silent node is not given up")
    monkeypatch.undo()
    errors = [error for job in jobs if (error := ended(job)) is not None]
    assert len(errors) == 4 and all(f"it was silent for {SILENT_S:g} s" in str(error) for error in errors)
    agent.resume()
    until(lambda: not worker.is_running() and not agent.is_running(), "a process of the silent node stays")
    until(lambda: places(spread_pool) == ["a", "b", "c"], "the node is not used again", SLOW_START_S)


def test_a_closed_pool_leaves_no_process_on_its_nodes(cluster: RayCluster, story_model: Path) -> None:
    with Pool(story_model, cluster=cluster.address, threads=1, n_ctx=256) as pool:
        pool.submit(PROMPT, max_tokens=200)
        assert workers_of(cluster)
    until(lambda: not workers_of(cluster) and not agents_of(cluster), "a process of the closed pool stays")


def test_a_killed_front_leaves_no_process_on_its_nodes(cluster: RayCluster, story_model: Path) -> None:
    front = subprocess.Popen(
        [sys.executable, "-c", FRONT, str(story_model), cluster.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with front:
        assert front.stdout is not None and front.stdout.readline() == "runs\n"
        assert workers_of(cluster)
        front.send_signal(signal.SIGKILL)
    until(lambda: not workers_of(cluster) and not agents_of(cluster), "a process of the killed front stays")


def test_the_command_line_generates_on_a_cluster(cluster: RayCluster, story_model: Path) -> None:
    words = [
        "generate",
        "--prompt",
        PROMPT,
        "--max-tokens",
        "8",
        "--seed",
        "1",
        "--no-keep",
        "--model",
        str(story_model),
    ]
    alone, spread = (
        subprocess.run(
            [sys.executable, "-m", "engine", *words, *more], capture_output=True, text=True, check=True, timeout=300
        ).stdout
        for more in ([], ["--cluster", cluster.address])
    )
    assert alone == spread != ""


def test_the_command_line_serves_from_a_cluster(
    cluster: RayCluster, story_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.forget_killed()
    words = ["--cluster", cluster.address, "--threads", "1", "--parallel", "1", "--n-ctx", "256"]
    body = json.dumps({"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True}).encode()

    def asked(address: str) -> str:
        request = Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=120) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 60
            return str(answer.headers["x-logitbench-trial"])

    with our_server(story_model, tmp_path, *words) as address, ThreadPoolExecutor(6) as users:
        trials = list(users.map(asked, [address] * 6))
    until(lambda: not workers_of(cluster) and not agents_of(cluster), "a process of the server stays")
    monkeypatch.setenv("LOGITBENCH_HOME", str(tmp_path))
    with History.open(Settings.from_environment().history) as history:
        nodes = {trial.node for id in trials if (trial := history.trial(id)) is not None}
    assert len(nodes) > 1 and nodes <= set("abc")


def test_the_command_line_measures_a_plan_on_every_node(cluster: RayCluster, story_model: Path) -> None:
    small = ["--layout", "1x1", "--num-prompt", "8", "--num-generated", "4", "--rounds", "1"]
    words = ["bench", *small, "--model", str(story_model), "--cluster", cluster.address, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "engine", *words], capture_output=True, text=True, check=True, timeout=300
    )
    runs = json.loads(done.stdout)
    assert [run["machine"]["name"].partition(":")[0] for run in runs] == ["a", "b", "c"]
    assert all(run["cells"][0]["metrics"]["tokens_per_s"]["value"] > 0 for run in runs)
    until(lambda: not agents_of(cluster), "an agent of the benchmark stays")


def test_the_command_line_embeds_a_corpus_and_goes_on(cluster: RayCluster, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("one", "two"):
        table = pa.table({"text": [f"Sentence {row} of {name}." for row in range(40)]})
        pq.write_table(table, corpus / f"{name}.parquet", row_group_size=10)
    out = tmp_path / "out"
    words = ["embed", str(corpus), "--cluster", cluster.address, "--out", str(out), "--backend", "torch", "--json"]

    def counts() -> dict[str, int]:
        done = subprocess.run(
            [sys.executable, "-m", "engine", *words], capture_output=True, text=True, check=True, timeout=300
        )
        return {name: value for name, value in json.loads(done.stdout).items() if name != "out"}

    assert counts() == {"num_parts": 8, "num_before": 0, "num_rows": 80}
    written = {path: path.stat().st_mtime_ns for path in sorted(out.glob("*.parquet"))}
    again = next(iter(written))
    again.unlink()
    assert counts() == {"num_parts": 8, "num_before": 7, "num_rows": 80}
    assert [path for path, at in written.items() if path.stat().st_mtime_ns != at] == [again]
    vectors = pq.read_table(again)["vector"].to_pylist()
    assert np.allclose(vectors, embed(pq.read_table(again)["text"].to_pylist(), backend="torch"), atol=1e-5)


def test_a_cluster_that_does_not_exist_is_said_so() -> None:
    with pytest.raises(ServerFailed, match=r"no Ray cluster answers at .*ray start --head"):
        Cluster(f"127.0.0.1:{free_port()}")
    for address in ("nowhere", "127.0.0.1:port", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            Cluster(address)


def test_without_ray_one_sentence_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    with pytest.raises(ConfigError, match=r"requirements-ray.txt.*logitbench\[cluster\]"):
        Cluster("auto")


def test_an_error_of_ray_is_reported_and_leaves_its_process_running() -> None:
    with closing(Program("engine.cluster.nodes", does="speaks to Ray", answers=messages.Listing | None)) as program:
        for _ in range(2):
            with pytest.raises(ServerFailed, match="Ray failed"):
                program.ask(messages.ListNodes(), SLOW_START_S)
        assert program.is_alive


def ended(job: Job) -> EngineError | None:
    try:
        job.result(120)
    except WorkerDied as error:
        return error
    return None
