"""Embedding target with the installed model: figures, shared workers, agreement and failures."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bench.measurement.embedding import EmbeddingTarget, open_embedding_target
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning.embedding_cells import embedding_cells
from engine.bench.planning.embedding_guesses import guessed_bytes
from engine.bench.planning.plan import EmbeddingCell, Plan
from engine.bench.running.comparing import compared_vectors
from engine.bench.running.runner import Runner, first_record
from engine.embedding.embedder import Embedder
from engine.embedding.models import EMBEDDED_NAME, find_model
from engine.errors import BenchTimeout, PoolClosed, WorkerDied
from engine.settings import PREFIX
from tests.engine.bench.fakes import Kept

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("short_samples")]

SAMPLE_S = 0.05
PLAN = Plan(
    question="embedding",
    model=EMBEDDED_NAME,
    axes={"backend": ("torch", "torch-bf16")},
    pool={"workers": 2, "threads": 1, "tokens_per_batch": 128},
    workload={"num_words": 6, "num_texts": 4},
    rounds=1,
)
QUICK = replace(PLAN, axes={"backend": ("onnx",)})
"""Needs no PyTorch."""


def open_short(cell: EmbeddingCell, timeout: LoadTimeout | None = None) -> EmbeddingTarget:
    return open_embedding_target(cell, timeout, sample_s=SAMPLE_S)


@pytest.fixture(scope="module")
def target(exported: Path) -> Iterator[EmbeddingTarget]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PREFIX + "HOME", str(exported))
        opened = open_short(embedding_cells(QUICK)[0])
    with closing(opened):
        opened.warm_up(60)
        yield opened


def test_a_sample_has_the_figures_of_embedding_and_no_others(target: EmbeddingTarget) -> None:
    measured = target.sample(seed=1, timeout_s=60)
    found = measured.metrics
    assert found["sentences_per_s"] > 0
    assert found["embedded_per_s"] > 2 * found["sentences_per_s"]
    assert 0 < found["compute_share"] <= 1
    assert found["private_bytes"] < found["pss_bytes"]
    assert found["cpu_cores"] > 0
    assert "tokens_per_s" not in found
    assert measured.duration_s >= SAMPLE_S
    assert target.facts["repetitions"] >= 1
    assert 0 < target.facts["one_text_s"] < target.facts["load_warm_s"]
    assert target.facts["cut_share"] == 0


def test_the_guess_of_memory_is_near_what_is_measured(target: EmbeddingTarget) -> None:
    measured = target.sample(seed=1, timeout_s=60).metrics["pss_bytes"]
    assert 0.6 < guessed_bytes(target.pool.spec, find_model("")) / measured < 1.7


def test_texts_longer_than_the_model_takes_are_reported(target: EmbeddingTarget) -> None:
    cell = embedding_cells(replace(QUICK, workload={"num_texts": 2, "texts": ["short", "long " * 2000]}))[0]
    beside = target.beside(cell)
    assert beside.pool is target.pool
    beside.warm_up(60)
    assert beside.facts["cut_share"] == 0.5


def test_too_little_time_is_a_timeout_that_says_how_far_it_came(target: EmbeddingTarget) -> None:
    cell = embedding_cells(replace(QUICK, workload={"num_texts": 2000, "num_words": 100}))[0]
    with pytest.raises(BenchTimeout, match="of 2,000 texts were embedded within 0.2 s"):
        target.beside(cell).warm_up(0.2)
    with pytest.raises(BenchTimeout, match="0 of 1 texts were embedded within 0 s"):
        target.beside(cell).sample(seed=2, timeout_s=0)
    assert target.sample(seed=2, timeout_s=60).metrics["sentences_per_s"] > 0


def test_a_worker_that_dies_costs_the_sample(target: EmbeddingTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, killed = target.pool.submit, list[int]()

    def submit_and_kill(texts: list[str]) -> object:
        if not killed and len(texts) == 4:
            figures = target.pool.measure()
            assert figures is not None
            killed.append(figures.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)
        return submit(texts)

    monkeypatch.setattr(target.pool, "submit", submit_and_kill)
    with pytest.raises(WorkerDied, match="the sample was dropped"):
        target.sample(seed=3, timeout_s=60)
    assert killed


def test_a_load_ends_when_it_is_stopped() -> None:
    cell = embedding_cells(PLAN)[0]
    timeout = LoadTimeout()
    threading.Timer(0.3, timeout.stop).start()
    with pytest.raises(PoolClosed, match="stopped while a model was loading"), timeout:
        open_short(cell, timeout)


def test_a_run_measures_every_cell_and_tells_how_near_the_vectors_are() -> None:
    cells, reporter = embedding_cells(PLAN), Kept()
    with closing(TargetPool(open_short)) as targets:
        assert Runner(PLAN, cells, targets, reporter).run() == "done"
        more_texts = embedding_cells(replace(PLAN, workload={"num_texts": 16}))[1]
        assert pool_of(targets, more_texts) is pool_of(targets, cells[1]) is not pool_of(targets, cells[0])
        pairs = [(cell, replace(first_record(cell), facts={"repetitions": 1.0})) for cell in cells]
        exact, near = (record.facts for record in compared_vectors(pairs, targets.target, 60))
    own = reporter.samples[~reporter.samples["is_anchor"] & ~reporter.samples["is_replaced"]]
    assert sorted(own["cell"].tolist()) == [0, 1]
    assert (own["sentences_per_s"] > 0).all()
    for sample in own:
        assert 0.6 < guessed_bytes(cells[sample["cell"]].spec, find_model("")) / sample["pss_bytes"] < 1.7
    assert exact["repetitions"] == near["repetitions"] == 1.0
    assert exact["worst_cosine"] > 0.999999
    assert exact["rank_correlation"] > 0.99999
    assert 0.98 < near["worst_cosine"] < near["mean_cosine"] < 0.99999
    assert 0.99 < near["rank_correlation"] < 1


def pool_of(targets: TargetPool, cell: EmbeddingCell) -> Embedder:
    target = targets.target(cell)
    assert isinstance(target, EmbeddingTarget)
    return target.pool
