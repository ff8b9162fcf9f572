"""Job queue when workers end that nobody is to blame for: with their machine, or as they were removed."""

from engine.errors import WorkerDied
from engine.jobs import Job
from tests.engine.pool.made import Queue, job_of


def test_a_job_without_tokens_outlives_the_loss_of_any_number_of_machines_but_of_one_worker_that_died() -> None:
    made = Queue(2, parallel=1)
    job = job_of([1], made.queue)
    made.queue.add(job)
    for _ in range(3):
        _lose(made, job, is_machine_lost=True)
        assert not job.done() and job.is_retried
    _lose(made, job, is_machine_lost=False)
    assert not job.done()
    _lose(made, job, is_machine_lost=True)
    assert not job.done()
    _lose(made, job, is_machine_lost=False)
    assert job.done()


def _lose(made: Queue, job: Job, *, is_machine_lost: bool) -> None:
    """End the worker that has the job, and start it again once the job was taken back."""
    worker = next(one for one in made.workers if job in made.of(one).values())
    worker.is_alive, worker.is_lost = False, is_machine_lost
    for failed in made.queue.take_back(worker):
        failed.fail(WorkerDied("lost"))
    made.queue.dispatch()
    worker.is_alive, worker.is_lost = True, False


def test_a_worker_that_was_removed_does_not_count_as_a_death() -> None:
    made = Queue(2)
    made.workers[0].is_leaving = True
    made.queue.take_back(made.workers[0])
    assert made.queue.num_deaths == 0
    made.queue.take_back(made.workers[1])
    assert made.queue.num_deaths == 1
