"""Job queue without a model: no job is lost or assigned twice at a time, each ends once, in the order of the lanes."""

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import PoolClosed, QueueFull, WorkerDied
from engine.jobs import Job
from engine.llama.phase import Phase
from engine.pool import messages as m
from engine.pool.in_order import BATCH, completions
from engine.pool.job_queue import COMPUTING
from engine.specs import LANES, Lane, Origin
from tests.engine.pool.made import Queue, Worker, ended, job_of, rows, started
from tests.engine.pool.schedule import Race, at_every_line
from tests.waiting import until

PATIENCE_S = 60.0


class Scene:
    """Two workers with a running and a waiting job each, and two more jobs in the queue."""

    def __init__(self) -> None:
        self.made = Queue(2, parallel=1, most_waiting=4)
        self.queue = self.made.queue
        self.jobs: list[Job] = []
        self.num_ends: dict[str, int] = {}
        for number in range(6):
            self.add([number % 3] * 40)
        for worker in self.made.workers:
            self.start(worker)

    def add(self, prompt: str | list[int]) -> None:
        job = job_of(prompt, self.queue)
        self.queue.add(job)
        self.jobs.append(job)
        self.num_ends[job.id] = 0
        job.add_done_callback(self._ended)

    def _ended(self, job: Job) -> None:
        self.num_ends[job.id] += 1

    def start(self, worker: Worker) -> None:
        for number, job in list(self.made.of(worker).items())[:1]:
            assert not isinstance(job.prompt, str)
            self.queue.on_started(worker, started(number, list(job.prompt)))
            self.queue.on_decoded(worker, m.Decoded([m.Steps(number, False, rows([1, 2]))]))

    def end(self, worker: Worker) -> None:
        for number in list(self.made.of(worker))[:1]:
            self.queue.on_ended(worker, ended(number, 0))

    def die(self, worker: Worker) -> None:
        worker.is_alive = False
        for job in self.queue.take_back(worker):
            job.fail(WorkerDied("killed"))
        worker.is_alive = True
        self.queue.dispatch()

    def close(self) -> None:
        for job in self.queue.close():
            job.fail(PoolClosed("closed"))

    def run(self, operation: "Operation", worker: Worker) -> None:
        """Run the operation, which a full or closed queue may refuse."""
        with contextlib.suppress(PoolClosed, QueueFull):
            operation(self, worker)

    def check(self) -> None:
        """Let the workers compute all that they have and are given; then each job must have ended once."""
        self.queue.resume()
        while any(map(self.made.of, self.made.workers)):
            for worker in self.made.workers:
                self.end(worker)
        assert set(self.num_ends.values()) == {1}
        assert self.queue.num_open == 0
        assert [job.queue_position for job in self.jobs] == [0] * len(self.jobs)


Operation = Callable[[Scene, Worker], object]
OPERATIONS: dict[str, Operation] = {
    "submit": lambda scene, _worker: scene.add("abc"),
    "submit ids that the model does not have": lambda scene, _worker: scene.add([99_999]),
    "a job starts": lambda scene, worker: scene.start(worker),
    "a job ends": lambda scene, worker: scene.end(worker),
    "a worker dies": lambda scene, worker: scene.die(worker),
    "cancel what waits": lambda scene, _worker: scene.jobs[5].cancel(),
    "cancel what runs": lambda scene, _worker: scene.jobs[0].cancel(),
    "pause": lambda scene, _worker: scene.queue.pause(),
    "resume": lambda scene, _worker: scene.queue.resume(),
    "close": lambda scene, _worker: scene.close(),
    "look": lambda scene, _worker: (scene.queue.num_open, [job.queue_position for job in scene.jobs]),
}


@pytest.mark.slow
@pytest.mark.parametrize("first", OPERATIONS)
@pytest.mark.parametrize("second", OPERATIONS)
def test_two_operations_at_once_lose_no_job(first: str, second: str) -> None:
    def race() -> Race:
        scene = Scene()
        one, other = scene.made.workers
        return Race(
            lambda: scene.run(OPERATIONS[first], one), lambda: scene.run(OPERATIONS[second], other), scene.check
        )

    at_every_line(race)


@pytest.mark.parametrize("move", ["a job ends", "a worker dies", "cancel what waits", "close"])
def test_who_waits_for_room_goes_on_when_there_is_some_though_others_still_wait(move: str) -> None:
    scene = Scene()
    for _ in range(2):
        scene.add("x")
    assert not scene.queue.try_add(job_of())
    waiter = threading.Thread(target=scene.queue.wait_for_room, args=(Origin(),), daemon=True)
    waiter.start()
    OPERATIONS[move](scene, scene.made.workers[0])
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()
    assert move == "close" or scene.queue.num_open > 4, "nothing but this made room"


def test_who_waits_for_room_goes_on_when_the_first_job_is_over_though_nothing_moves() -> None:
    scene = Scene()
    scene.queue.pause()
    for _ in range(2):
        scene.add("x")
    waiter = threading.Thread(target=scene.queue.wait_for_room, args=(Origin(), scene.jobs[0]), daemon=True)
    waiter.start()
    scene.end(scene.made.workers[0])
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()
    assert not scene.queue.try_add(job_of())


def test_a_job_that_was_cancelled_is_not_given_to_another_worker() -> None:
    scene = Scene()
    waiting = scene.jobs[2]
    assert not waiting.is_started
    waiting.cancel()
    scene.die(scene.made.workers[0])
    assert waiting.result(0).finish_reason == "cancelled"


def test_many_prompts_fill_their_own_lane_only_and_leave_the_next_turns_to_others() -> None:
    made = Queue(1, parallel=1, most_waiting=4)
    (worker,) = made.workers
    prompts = [f"prompt {number}" for number in range(30)]
    done = completions(
        prompts, lambda prompt: job_of(str(prompt), made.queue, BATCH), made.queue, is_failing=True, num_sequences=1
    )
    answers: list[Any] = []
    mapping = threading.Thread(target=lambda: answers.extend(done), daemon=True)
    mapping.start()
    until(lambda: made.queue.num_open == 6, "the lane of batches was not filled")
    for lane in ("batch", "browser", "api"):
        is_taken = made.queue.try_add(job_of(lane, made.queue, Origin(lane=lane)))
        assert is_taken is (lane != "batch")

    def end_what_runs() -> bool:
        for number in list(made.of(worker))[:1]:
            made.queue.on_ended(worker, ended(number, 0))
        return not mapping.is_alive()

    until(end_what_runs, "the prompts were not all answered")
    order = [message.prompt for message in worker.sent if isinstance(message, m.AddRequest)]
    assert order[2:4] == ["browser", "api"], "two prompts were given to the worker before these came"
    assert [prompt for prompt in order if prompt not in LANES] == prompts
    assert len(answers) == len(prompts)


def test_a_client_finds_a_place_beside_one_that_fills_its_lane() -> None:
    made = Queue(1, parallel=1, most_waiting=32)
    made.queue.pause()

    def taken(client: str) -> int:
        origin = Origin(lane="api", client=client)
        tries = [made.queue.try_add(job_of("x", made.queue, origin)) for _ in range(100)]
        assert tries == sorted(tries, reverse=True)
        return sum(tries)

    assert taken("greedy") == 32
    assert [taken(f"client {number}") for number in range(9)] == [4] * 8 + [0], "twice the places, and no more"
    with pytest.raises(QueueFull):
        made.queue.add(job_of("x", made.queue, Origin(lane="api", client="greedy")))


class QueueMachine(RuleBasedStateMachine):
    """Operations of callers and workers in any order, checked against a list of who waits and who runs where."""

    parallel, most_waiting = 2, 3

    def __init__(self) -> None:
        super().__init__()
        self.made = Queue(2, parallel=self.parallel, most_waiting=self.most_waiting)
        self.queue = self.made.queue
        self.room = self.parallel + 1
        self.jobs: list[Job] = []
        self.num_ends: dict[str, int] = {}
        self.is_closed = self.is_paused = False
        self.given: dict[str, int] = {}
        self.seen = {id(worker): 0 for worker in self.made.workers}

    # what callers do

    @rule(
        prompt=st.one_of(st.text("abc", max_size=50), st.lists(st.integers(0, 70), max_size=50)),
        lane=st.sampled_from(LANES),
        client=st.sampled_from("ab"),
    )
    def submit(self, prompt: str | list[int], lane: Lane, client: str) -> None:
        job = job_of(prompt, self.queue, Origin(lane=lane, client=client))
        clients = [other.origin.client for other in self.queue._waiting if other.origin.lane == lane]
        has_reserve = len(clients) < 2 * self.most_waiting and client not in clients
        is_full = len(clients) >= self.most_waiting and not has_reserve
        try:
            self.queue.add(job)
        except PoolClosed:
            assert self.is_closed
            return
        except QueueFull:
            assert is_full
            return
        assert not is_full and not self.is_closed
        self.jobs.append(job)
        self.num_ends[job.id] = self.given[job.id] = 0
        job.add_done_callback(self._count)

    def _count(self, job: Job) -> None:
        self.num_ends[job.id] += 1

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        was_waiting, was_over = any(job is other for other in self._waiting()), job.done()
        assert job.cancel() is not was_over
        assert job.done() == (was_waiting or was_over)

    @rule()
    def pause(self) -> None:
        self.queue.pause()
        self.is_paused = True

    @rule()
    def resume(self) -> None:
        self.queue.resume()
        self.is_paused = False

    @precondition(lambda self: len(self.jobs) > 8)
    @rule()
    def close(self) -> None:
        self.is_closed = True
        for job in self.queue.close():
            job.fail(PoolClosed("closed"))

    def _waiting(self) -> list[Job]:
        return [*self.queue._returned.values(), *self.queue._waiting]

    # what workers do

    def _pick(self, data: Any, is_started: bool) -> tuple[Worker, int, Job] | None:
        had = [
            (worker, number, job)
            for worker in self.made.workers
            for number, job in self.made.of(worker).items()
            if worker.is_alive and job.is_started is is_started
        ]
        return data.draw(st.sampled_from(had)) if had else None

    @rule(data=st.data())
    def start(self, data: Any) -> None:
        if picked := self._pick(data, is_started=False):
            worker, number, _job = picked
            self.queue.on_started(worker, started(number, [1, 2, 3]))

    @rule(data=st.data(), ids=st.lists(st.integers(0, 63), min_size=1, max_size=3))
    def decode(self, data: Any, ids: list[int]) -> None:
        if picked := self._pick(data, is_started=True):
            worker, number, _job = picked
            self.queue.on_decoded(worker, m.Decoded([m.Steps(number, False, rows(ids))]))

    @rule(data=st.data(), is_started=st.booleans(), error=st.sampled_from(["", "ConfigError"]))
    def end(self, data: Any, is_started: bool, error: str) -> None:
        if picked := self._pick(data, is_started=is_started):
            worker, number, job = picked
            reason = "cancelled" if job.is_cancelled else "length"
            self.queue.on_ended(worker, m.Ended(number, reason, 0, 0.0, 0.0, error, "wrong"))
            assert job.done()

    @rule(index=st.integers(0, 1), phase=st.sampled_from(Phase), data=st.data())
    def die(self, index: int, phase: Phase, data: Any) -> None:
        worker = self.made.workers[index]
        if not worker.is_alive:
            return
        numbers = self.made.of(worker)
        had = list(numbers.values())
        at = data.draw(st.sampled_from([0, *numbers])) if phase in COMPUTING else 0
        worker.is_at(phase, at)
        computed = [job for job in had if phase == Phase.DECODING and job.is_started] if not at else [numbers[at]]
        assert self.queue.blamed(worker) is (numbers[at] if at else None)
        unharmed = [job for job in had if job not in computed]
        fresh = [job for job in unharmed if not (job.is_retried or len(job.steps) or job.is_cancelled)]
        num_deaths = self.queue.num_deaths
        worker.is_alive = False
        for job in self.queue.take_back(worker):
            job.fail(WorkerDied("killed"))
        self.queue.dispatch()
        for job in had:
            assert job.done() is (job not in fresh)
        assert self.queue.num_deaths == num_deaths + int(phase not in COMPUTING)
        assert not self.made.of(worker)

    @rule(index=st.integers(0, 1))
    def come_back(self, index: int) -> None:
        self.made.workers[index].is_alive = True
        self.queue.dispatch()

    # what holds at all times

    @invariant()
    def nothing_is_lost_and_each_ends_once(self) -> None:
        places = self._waiting()
        for worker in self.made.workers:
            places += self.made.of(worker).values()
        assert len(set(map(id, places))) == len(places)
        for job in self.jobs:
            assert self.num_ends[job.id] == int(job.done())
            assert job.done() is not any(job is other for other in places)
        assert self.queue.num_open == len(places) or any(self.made.of(w) for w in self.made.workers if not w.is_alive)

    @invariant()
    def they_come_to_workers_where_room_is(self) -> None:
        alive = [worker for worker in self.made.workers if worker.is_alive]
        assert all(len(self.made.of(worker)) <= self.room for worker in alive)
        if self._waiting() and not self.is_paused:
            assert all(len(self.made.of(worker)) == self.room for worker in alive)

    @invariant()
    def a_job_is_given_twice_only_when_a_worker_died(self) -> None:
        for worker in self.made.workers:
            new = worker.sent[self.seen[id(worker)] :]
            self.seen[id(worker)] = len(worker.sent)
            starts = [message.job for message in new if isinstance(message, m.AddRequest)]
            assert starts == sorted(starts), "in the order in which they were due"
            assert not (starts and self.is_closed)
            for number in starts:
                job = self.made.of(worker).get(number)
                if job is not None:
                    self.given[job.id] += 1
        for job in self.jobs:
            assert self.given[job.id] <= 1 + int(job.is_retried)

    @invariant()
    def positions_count_those_before(self) -> None:
        """Those that a dead worker had come first; the first that waits has no other waiting one before it."""
        waiting = sorted(self._waiting(), key=lambda job: job.queue_position)
        for before, after in itertools.pairwise(waiting):
            assert before.queue_position < after.queue_position
        returned = [job for _number, job in sorted(self.queue._returned.items())]
        assert waiting[: len(returned)] == returned
        if self.queue._waiting:
            assert waiting[len(returned)] is self.queue._waiting.first()

    def teardown(self) -> None:
        """Let the workers finish what they have until all jobs have ended, however the test went."""
        for worker in self.made.workers:
            worker.is_alive = True
        self.queue.resume()
        while any(map(self.made.of, self.made.workers)):
            for worker in self.made.workers:
                for number in self.made.of(worker):
                    self.queue.on_ended(worker, ended(number, 0))
        assert set(self.num_ends.values()) <= {1}


TestJobQueue = QueueMachine.TestCase
TestJobQueue.settings = settings(deadline=None)
