"""Embedding pool with the real model: correct vectors in order, for any text and whatever happens to the workers."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer

import engine
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, EngineError, JobTimeout, ModelError, PoolClosed, QueueFull, WorkerDied
from engine.step_parts import Floats
from tests.engine.embedding.conftest import TEXTS
from tests.processes import children_with, has_ended
from tests.waiting import until

pytestmark = pytest.mark.slow

SIMILARITY = [[1.0, 0.66196, -0.04102], [0.66196, 1.0, -0.10647], [-0.04102, -0.10647, 1.0]]
"""Cosines of the first three texts, by SentenceTransformer.encode 6.2.0 in float32."""


@pytest.fixture(scope="module")
def vectors(embedder: EmbeddingPool) -> Floats:
    """The vectors of all texts."""
    return embedder.embed(TEXTS)


@pytest.fixture
def bounded(embedder: EmbeddingPool) -> Iterator[EmbeddingPool]:
    """Pool whose workers a test may harm; at the end, two workers must answer."""
    yield embedder
    embedder.embed(TEXTS)
    assert len(embedder.measure().workers) == 2


def kill_workers(pool: EmbeddingPool) -> None:
    for worker in pool.measure().workers:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)


def test_vectors_have_length_one_and_one_row_a_text(embedder: EmbeddingPool, vectors: Floats) -> None:
    assert vectors.shape == (len(TEXTS), embedder.dim) == (len(TEXTS), 384)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert embedder.max_tokens == 256


def test_vectors_are_those_of_sentence_transformers(vectors: Floats) -> None:
    assert vectors[:3] @ vectors[:3].T == pytest.approx(np.asarray(SIMILARITY), abs=1e-4)


def test_texts_that_mean_the_same_are_near(vectors: Floats) -> None:
    cat, kitten, bank = vectors[:3]
    assert cat @ kitten > cat @ bank + 0.3


def test_the_order_of_the_texts_is_kept_and_neighbours_do_not_matter(embedder: EmbeddingPool, vectors: Floats) -> None:
    assert embedder.embed(TEXTS[::-1])[::-1] == pytest.approx(vectors, abs=1e-5)
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS[:8]])
    assert alone == pytest.approx(vectors[:8], abs=1e-5)


def test_no_texts_give_no_rows(embedder: EmbeddingPool) -> None:
    assert embedder.embed([]).shape == (0, embedder.dim)


def test_what_is_longer_than_the_model_takes_is_cut_and_counted(embedder: EmbeddingPool) -> None:
    num_words = embedder.max_tokens - 2
    done = embedder.submit(["word " * num_words, "word " * 1_000, "a b c " * 170_000]).result(60)
    assert (done.num_cut, done.num_tokens) == (2, 3 * embedder.max_tokens)
    assert done.is_cut.tolist() == [False, True, True]
    assert done.vectors[1] == pytest.approx(done.vectors[0], abs=1e-5)


def test_token_ids_are_taken_as_they_are(embedder: EmbeddingPool, vectors: Floats) -> None:
    tokenizer = Tokenizer.from_file(str(embedder.model.path / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [tokenizer.encode(text).ids for text in TEXTS[:3]]
    long = [ids[0][0], *[ids[0][1]] * 400]
    done = embedder.submit([ids[0], TEXTS[1], long, ids[2]]).result(60)
    assert done.vectors[[0, 1, 3]] == pytest.approx(vectors[:3], abs=1e-5)
    assert done.is_cut.tolist() == [False, False, True, False]
    assert done.num_tokens == sum(map(len, ids)) + embedder.max_tokens
    for wrong in (embedder.num_vocab, -1, True, 1.0, 10**30, "a"):
        with pytest.raises(ConfigError, match="text 2 of 2: .* is not a token id"):
            embedder.submit([TEXTS[0], [5, wrong]])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="text 1 of 1 has no tokens"):
        embedder.submit([[]])


def test_odd_characters_are_texts_too(embedder: EmbeddingPool) -> None:
    odd = ["\0", "half \ud83d of a pair", "a\u202eb", "\x1b[31m", "e\u0301" * 50, "[MASK] [SEP]"]
    assert np.isfinite(embedder.embed(odd)).all()


def test_what_is_no_list_of_texts_is_refused(embedder: EmbeddingPool) -> None:
    with pytest.raises(ConfigError, match="not a single text"):
        embedder.embed("text")
    with pytest.raises(ConfigError, match="text 2 of 2 is not text but int"):
        embedder.embed(["text", 3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="texts = 3"):
        embedder.embed(3)  # type: ignore[arg-type]


def test_texts_may_come_one_by_one(embedder: EmbeddingPool, vectors: Floats) -> None:
    assert np.abs(embedder.embed(text for text in TEXTS) - vectors).max() < 1e-5


def test_progress_goes_to_one(embedder: EmbeddingPool) -> None:
    shares: list[float] = []
    embedder.embed(TEXTS * 4, on_progress=shares.append)
    assert len(shares) > 2
    assert 0 < shares[0] < 1
    assert shares[-1] == 1


def test_a_cancelled_job_gives_what_it_has(bounded: EmbeddingPool) -> None:
    begun = threading.Event()
    job = bounded.submit(TEXTS * 100, on_progress=lambda _share: begun.set())
    assert begun.wait(60)
    assert job.cancel()
    done = job.result(0)
    computed = np.isfinite(done.vectors).all(axis=1)
    assert done.is_cancelled
    assert 0 < computed.sum() < len(TEXTS) * 100
    assert np.isnan(done.vectors[~computed]).all()


def test_a_timeout_ends_what_it_waits_for(bounded: EmbeddingPool) -> None:
    with pytest.raises(JobTimeout, match="of 6,700 texts so far: job cancelled"):
        bounded.embed(TEXTS * 100, timeout=0.05)


def test_a_question_does_not_wait_for_a_long_job(bounded: EmbeddingPool) -> None:
    long = bounded.submit(TEXTS * 100)
    bounded.embed(["a question"])
    assert not long.done()
    long.cancel()


def test_too_much_waiting_text_is_refused(bounded: EmbeddingPool) -> None:
    running = bounded.submit(["word " * 2_000] * 4_000)
    with pytest.raises(QueueFull, match="tokens are waiting"):
        bounded.submit(["word " * 2_000] * 4_000)
    running.cancel()


def test_a_dead_worker_is_replaced_and_its_texts_are_done_again(bounded: EmbeddingPool, vectors: Floats) -> None:
    before = {worker.pid for worker in bounded.measure().workers}
    begun = threading.Event()
    job = bounded.submit(TEXTS * 4, on_progress=lambda _share: begun.set())
    assert begun.wait(60)
    kill_workers(bounded)
    assert job.result(60).vectors == pytest.approx(np.tile(vectors, (4, 1)), abs=1e-5)
    assert not before & {worker.pid for worker in bounded.measure().workers}


def test_texts_that_end_two_workers_are_given_up(bounded: EmbeddingPool) -> None:
    job = bounded.submit(["word " * 250] * 4)
    while not job.done():
        kill_workers(bounded)
        time.sleep(0.005)
    with pytest.raises(WorkerDied, match="killed"):
        job.result(0)


@pytest.mark.parametrize("of", ["worker", "program"])
def test_what_is_stopped_from_outside_is_replaced_and_its_texts_are_done(
    bounded: EmbeddingPool, vectors: Floats, of: str
) -> None:
    measured = bounded.measure()
    stopped = measured.program.pid if of == "program" else measured.workers[0].pid
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: has_ended(stopped))
    assert bounded.embed(TEXTS) == pytest.approx(vectors, abs=1e-5)


def test_texts_whose_worker_is_stopped_meanwhile_are_done_by_another(bounded: EmbeddingPool) -> None:
    job = bounded.submit(["a long text about nothing at all " * 30] * 200)
    os.kill(bounded.measure().workers[0].pid, signal.SIGSTOP)
    assert job.result(120).vectors.shape == (200, 384)


@pytest.mark.usefixtures("quick_embedding")
def test_a_load_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.pool.watchdog.SILENCE_S", 1.0)

    def stop(_end: Callable[[], object]) -> None:
        children_with("engine.embedding.worker")[-1].suspend()

    with pytest.raises(ModelError, match="no heartbeat"):
        EmbeddingPool(EmbedSpec(workers=1, threads=1), on_opening=stop)


def test_a_worker_has_little_of_its_own(embedder: EmbeddingPool) -> None:
    weights = (embedder.model.path / "model.safetensors").stat().st_size
    measured = embedder.measure()
    assert all(0 < worker.private_bytes < weights for worker in measured.workers)
    assert measured.pss_bytes > measured.program.pss_bytes


@pytest.mark.usefixtures("quick_embedding")
def test_a_program_that_ended_is_started_again() -> None:
    with EmbeddingPool(EmbedSpec(workers=2, threads=1, tokens_per_batch=128)) as pool:
        before = pool.embed(TEXTS)
        kill_workers(pool)
        os.kill(pool.measure().program.pid, signal.SIGKILL)
        assert pool.embed(TEXTS) == pytest.approx(before, abs=1e-5)
        assert len(pool.measure().workers) == 2


@pytest.mark.usefixtures("quick_embedding")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that forked it")
def test_workers_end_with_the_program_that_forked_them() -> None:
    with EmbeddingPool(EmbedSpec(workers=2, threads=1, tokens_per_batch=128)) as pool:
        measured = pool.measure()
        workers = [psutil.Process(worker.pid) for worker in measured.workers]
        os.kill(measured.program.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert [one for one in alive if not has_ended(one.pid)] == []


def test_a_fork_of_the_process_cannot_use_the_pool_and_ends_nothing_of_it(
    embedder: EmbeddingPool, vectors: Floats
) -> None:
    child = os.fork()
    if not child:
        try:
            embedder.embed(TEXTS)
        except PoolClosed as error:
            embedder._workers._program.close()
            os._exit(7 if "which was forked" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert embedder.embed(TEXTS) == pytest.approx(vectors, abs=1e-5)


def test_a_job_is_not_waited_for_in_a_fork(embedder: EmbeddingPool) -> None:
    job = embedder.submit(TEXTS * 200)
    child = os.fork()
    if not child:
        try:
            job.result()
        except PoolClosed as error:
            os._exit(7 if "which was forked" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    job.cancel()


@pytest.mark.parametrize("way", ["embed", "result", "full queue"])
def test_a_progress_listener_may_not_wait_for_the_pool(
    embedder: EmbeddingPool, vectors: Floats, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    other = embedder.submit(TEXTS * 200)
    errors: list[EngineError] = []

    def ask(_share: float) -> None:
        if way == "full queue":
            monkeypatch.setattr(embedder._queue, "_most", 1)
        try:
            other.result() if way == "result" else embedder.embed(TEXTS)
        except EngineError as error:
            errors.append(error)

    job = embedder.submit(TEXTS, on_progress=ask)
    assert job.result(120).vectors == pytest.approx(vectors, abs=1e-5)
    assert errors and all("must not wait" in str(error) for error in errors)
    other.cancel()


def test_one_text_gives_one_vector_and_nothing_is_left_running(vectors: Floats) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    found = engine.embed(TEXTS[0], workers=2)
    assert found == pytest.approx(vectors[0], abs=1e-5)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_an_unknown_parameter_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="did you mean workers"):
        engine.embed("text", worker=2)  # type: ignore[call-arg]


def test_a_model_that_is_not_here_is_said_before_anything_is_loaded() -> None:
    with pytest.raises(ModelError, match="is not on this machine"):
        engine.embed("text", model="/nowhere")
