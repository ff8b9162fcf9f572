"""Text queue in front of the workers: bounded, round-robin, closable."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.embedding.job import EmbedJob, Piece
from engine.embedding.messages import Embed, Unusable, Vectors
from engine.embedding.text_queue import TextQueue
from engine.errors import ModelError, PoolClosed, QueueFull


def job_of(queue: TextQueue, num_pieces: int, size: int = 10) -> tuple[EmbedJob, list[Piece]]:
    job = EmbedJob(num_pieces, 2, queue.remove)
    return job, [Piece(job, [place], Embed([b"text"], ""), size) for place in range(num_pieces)]


def put(queue: TextQueue, num_pieces: int, size: int = 10) -> EmbedJob:
    job, pieces = job_of(queue, num_pieces, size)
    queue.put(job, pieces, is_patient=False)
    return job


def test_jobs_are_taken_in_turn() -> None:
    queue = TextQueue()
    long, short = put(queue, 3), put(queue, 1)
    taken = [queue.take() for _ in range(4)]
    assert [piece.job for piece in taken if piece] == [long, short, long, long]


def test_a_full_queue_refuses_and_says_how_much_waits() -> None:
    queue = TextQueue(most_tokens=30)
    put(queue, 2)
    with pytest.raises(QueueFull, match="20 of 30 tokens are waiting"):
        put(queue, 2)
    put(queue, 1)
    assert queue.num_tokens == 30


def test_an_empty_queue_takes_a_job_of_any_size() -> None:
    queue = TextQueue(most_tokens=5)
    put(queue, 1, size=1_000)
    assert queue.num_tokens == 1_000


def test_the_patient_wait_for_room() -> None:
    queue = TextQueue(most_tokens=10)
    put(queue, 1)
    job, pieces = job_of(queue, 1)
    waiting = threading.Thread(target=queue.put, args=(job, pieces), kwargs={"is_patient": True})
    waiting.start()
    assert (first := queue.take()) is not None
    assert first.job is not job
    assert (second := queue.take()) is not None
    assert second.job is job
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_cancelled_job_leaves_the_queue() -> None:
    queue = TextQueue()
    job, other = put(queue, 3), put(queue, 1)
    assert job.cancel()
    assert not job.cancel()
    assert job.result(0).is_cancelled
    assert queue.num_tokens == 10
    assert (piece := queue.take()) is not None
    assert piece.job is other


def test_a_closed_queue_fails_what_waits_and_takes_no_more() -> None:
    queue = TextQueue()
    job = put(queue, 2)
    queue.close(PoolClosed("closed"))
    with pytest.raises(PoolClosed, match="closed"):
        job.result(0)
    with pytest.raises(PoolClosed):
        put(queue, 1)
    assert queue.take() is None


def test_a_job_knows_how_far_it_is_and_a_late_answer_changes_nothing() -> None:
    queue = TextQueue()
    job = put(queue, 2)
    pieces = [queue.take(), queue.take()]
    assert pieces[0] is not None
    assert pieces[1] is not None
    job.on_answer(pieces[0], Vectors(bytes(8), 3, [0], 0.5))
    assert (job.progress, job.num_done, job.done()) == (0.5, 1, False)
    job.on_answer(pieces[1], Unusable(0, "its vector has non-finite values"))
    with pytest.raises(ModelError, match="text 2 of 2"):
        job.result(0)
    job.on_answer(pieces[1], Vectors(bytes(8), 3, [], 0.5))
    assert job.num_done == 1


def test_a_job_without_texts_is_over_at_once() -> None:
    queue = TextQueue()
    job = put(queue, 0)
    assert job.progress == 1.0
    assert job.result(0).vectors.shape == (0, 2)
    assert queue.num_tokens == 0


@pytest.mark.parametrize("kind", [IndexError, SystemExit])
def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture, kind: type[BaseException]) -> None:
    def fail(_share: float) -> None:
        raise kind

    queue = TextQueue()
    job = EmbedJob(1, 2, queue.remove, on_progress=fail)
    piece = Piece(job, [0], Embed([b"text"], ""), 10)
    queue.put(job, [piece], is_patient=False)
    with ThreadPoolExecutor(1) as worker:
        worker.submit(job.on_answer, piece, Vectors(bytes(8), 3, [], 0.5)).result()
    assert job.result(0).num_tokens == 3
    assert "listener" in caplog.text


def test_what_a_worker_left_behind_is_done_first_and_fails_where_the_queue_is_closed() -> None:
    queue = TextQueue()
    job, other = put(queue, 1), put(queue, 1)
    left = queue.take()
    assert left is not None
    queue.put_back(left)
    assert queue.take() is left
    queue.close(PoolClosed("closed"))
    queue.put_back(left)
    for one in (job, other):
        with pytest.raises(PoolClosed, match="closed"):
            one.result(0)
