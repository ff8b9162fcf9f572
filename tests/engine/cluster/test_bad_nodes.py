"""A real Ray cluster under faults: a node killed while a corpus is embedded, the program that speaks to Ray killed."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.calls import embed
from engine.cluster import cluster as clusters
from engine.cluster.cluster import Cluster
from engine.cluster.messages import StartAgent
from engine.embedding.models import find_model
from engine.errors import ConfigError, ServerFailed
from engine.over_nodes.corpus import CorpusSettings, EmbedParts, begin, corpus_files, parts_of, versions_of
from engine.pool.pool import Pool
from engine.process.program import Program
from tests.processes import children_with, free_port
from tests.ray_cluster import RayCluster, ray_cluster
from tests.waiting import until

pytestmark = pytest.mark.slow

NUM_PARTS, ROWS = 200, 10
"""Parts of a corpus, so many that they outlast the kill of a node by far."""
SLOW_START_S = 180
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster("a", "b") as one:
        yield one


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with one file of many row groups; row N has the text "N. ..."."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [f"{row}. One of many sentences that a node embeds." for row in range(NUM_PARTS * ROWS)]
    pq.write_table(pa.table({"text": texts}), folder / "all.parquet", row_group_size=ROWS)
    return folder


def embedding(cluster: RayCluster, corpus: Path, out: Path) -> "subprocess.Popen[str]":
    """Start the command that embeds a corpus."""
    words = ["embed", str(corpus), "--cluster", cluster.address, "--out", str(out), "--backend", "torch", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "engine", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def embedded(order: EmbedParts) -> int:
    """Embed parts by a program of their own; return the number of texts."""
    with closing(Program("engine.over_nodes.corpus_program", does="embeds", answers=int)) as program:
        num_texts: int = program.ask(order, SLOW_START_S)
        return num_texts


def titled(processes: list[psutil.Process], words: str) -> list[psutil.Process]:
    """Return the processes whose name contains words; Ray names one after what it runs."""
    found = []
    for process in processes:
        try:
            if words in process.name():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def embeds(cluster: RayCluster) -> str:
    """Return the name of a node that embeds, as soon as one does."""
    found = list[str]()

    def looked() -> list[str]:
        found.extend(name for name in cluster.raylets if titled(cluster.processes_of(name), "MapWorker"))
        return found

    until(looked, "no node embeds")
    return found[0]


def speaking_to_ray(before: set[int]) -> list[psutil.Process]:
    """Return the programs of this process that speak to Ray, but for those from before."""
    return [one for one in children_with("engine.cluster.nodes") if one.pid not in before]


def places(pool: Pool) -> list[str]:
    return sorted(worker.node for worker in pool.workers())


@contextmanager
def opening_without_b(cluster: RayCluster, meanwhile: Callable[[], object]) -> Iterator["Future[Cluster]"]:
    """Open a cluster whose node b is suspended, and replace the program that speaks to Ray while b's agent is awaited:
    the next one knows nothing of that agent. meanwhile: called before."""
    before = {one.pid for one in speaking_to_ray(set())}
    is_awaited = threading.Event()
    psutil.Process(cluster.raylets["b"]).suspend()  # it starts no agent
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(
            Cluster, cluster.address, on_nodes=lambda ready, _found: is_awaited.set() if ready else None
        )
        assert is_awaited.wait(SLOW_START_S)
        meanwhile()
        (program,) = speaking_to_ray(before)
        program.kill()
        until(lambda: speaking_to_ray(before | {program.pid}), "no other program speaks to Ray")
        yield opening


def test_a_node_killed_while_a_corpus_is_embedded_loses_no_row_and_doubles_none(
    cluster: RayCluster, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    running = embedding(cluster, corpus, out)
    until(lambda: len(list(out.glob("*.parquet"))) >= 2, "nothing is embedded", SLOW_START_S)
    killed = embeds(cluster)
    cluster.kill(killed)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert len(before) < NUM_PARTS
    output, errors = running.communicate(timeout=300)
    cluster.add(killed)
    if running.returncode:  # its end is said, and what is missing is computed by the next start
        assert "Start it again to go on" in errors
        again = embedding(cluster, corpus, out)
        output, errors = again.communicate(timeout=300)
        assert again.returncode == 0, errors
    assert json.loads(output)["num_rows"] == NUM_PARTS * ROWS
    parts = sorted(out.glob("*.parquet"))
    assert {path.name: path.stat().st_mtime_ns for path in parts} | before == {
        path.name: path.stat().st_mtime_ns for path in parts
    }
    rows = [row for path in parts for row in pq.read_table(path).to_pylist()]
    assert [int(row["text"].partition(".")[0]) for row in rows] == list(range(NUM_PARTS * ROWS))
    assert {path.name for path in out.iterdir()} == {path.name for path in parts} | {"corpus.json"}
    sample = rows[:: ROWS * NUM_PARTS // 10]
    expected = embed([row["text"] for row in sample], backend="torch")
    assert np.allclose([row["vector"] for row in sample], expected, atol=1e-5)


def test_a_node_with_other_versions_embeds_nothing_unless_asked_for(
    cluster: RayCluster, corpus: Path, tmp_path: Path
) -> None:
    out, model = tmp_path / "out", find_model("")
    parts = parts_of(corpus_files(corpus), "text")[:2]
    ours = versions_of("torch")
    older = CorpusSettings("", model.content_hash(), "torch", False, "text", {}, ours | {"torch": "0.4"})
    begin(out, older).close()
    order = EmbedParts(cluster.address, str(out), older, parts, False)
    with pytest.raises(ServerFailed, match=r"node [ab] has another torch \(.* instead of 0.4\)"):
        embedded(order)
    assert embedded(msgspec.structs.replace(order, is_mixed=True)) == 2 * ROWS
    written = pq.read_schema(next(out.glob("*.parquet"))).metadata
    assert json.loads(written[b"versions"]) == ours


def test_jobs_and_nodes_outlive_the_program_that_speaks_to_ray(cluster: RayCluster, story_model: Path) -> None:
    before = {one.pid for one in speaking_to_ray(set())}
    with Pool(story_model, cluster=cluster.address, threads=1, parallel=4, n_ctx=256) as pool:
        until(lambda: places(pool) == ["a", "b"], "a node is missing", SLOW_START_S)
        workers = {worker.pid for worker in pool.workers()}
        jobs = [pool.submit(f"{number}: {PROMPT}", max_tokens=200) for number in range(12)]
        until(lambda: sum(len(job.steps) > 0 for job in jobs) >= 8, "no tokens come")
        (program,) = speaking_to_ray(before)
        program.kill()
        assert all(job.result(120).finish_reason in ("length", "stop") for job in jobs)
        until(lambda: speaking_to_ray(before | {program.pid}), "no other program speaks to Ray")
        assert {worker.pid for worker in pool.workers()} == workers
        cluster.add("c")
        try:
            until(lambda: [node.name for node in pool.nodes()] == ["a", "b", "c"], "it is not seen", SLOW_START_S)
            pool.add_worker("c")
            assert places(pool) == ["a", "b", "c"] and pool.submit(PROMPT, max_tokens=4).result(120).text
        finally:
            cluster.kill("c")
    until(lambda: not titled(cluster.processes(), "_Agent"), "an agent outlives the pool")


def test_a_node_killed_while_its_agent_is_awaited_is_given_up_once_ray_lists_it_no_more(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clusters, "_AGENT_S", SLOW_START_S)  # so that only the list can end the wait
    with opening_without_b(cluster, lambda: None) as opening:
        cluster.kill("b")
        try:
            with opening.result(SLOW_START_S) as opened:
                assert [node.name for node in opened.nodes] == ["a"]
        finally:
            cluster.add("b")
    assert "node b is not used: the node left the cluster" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_an_agent_that_nobody_knows_any_more_is_started_anew_and_its_failure_reported(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    monkeypatch.setattr(clusters, "_AGENT_S", SLOW_START_S)  # so that its end is not that of the wait
    cluster.forget_killed()

    def mislead() -> None:
        ask, nowhere = Program.ask, free_port()

        def misled(program: Program, request: Any, *more: Any) -> Any:
            if isinstance(request, StartAgent):
                request = msgspec.structs.replace(request, port=nowhere)
            return ask(program, request, *more)

        if fails:
            monkeypatch.setattr(Program, "ask", misled)

    with opening_without_b(cluster, mislead) as opening:
        psutil.Process(cluster.raylets["b"]).resume()
        with opening.result(SLOW_START_S / 2) as opened:
            assert [node.name for node in opened.nodes] == (["a"] if fails else ["a", "b"])
    reason = "node b is not used: its agent ended: ConnectionRefusedError"
    assert (reason in caplog.text) == fails
    until(lambda: not titled(cluster.processes(), "_Agent"), "an agent outlives the cluster")


def test_a_cluster_of_another_ray_is_refused_in_one_sentence(cluster: RayCluster) -> None:
    with cluster.another_version("2.9.0"), pytest.raises(ConfigError) as caught:
        Cluster(cluster.address)
    message = str(caught.value)
    assert message.startswith(f"the cluster at {cluster.address} runs Ray 2.9.0 and Python 3.")
    assert message.endswith("install the same here") and message.count(".\n") == 0


def test_an_agent_that_nobody_starts_ends_by_itself() -> None:
    program = (
        "import threading; from engine.cluster import nodes; nodes._UNUSED_S = 0.1; "
        "one = nodes._Agent(); threading.Event().wait()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=SLOW_START_S)
