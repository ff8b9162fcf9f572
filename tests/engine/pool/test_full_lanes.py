"""Full lanes, with jobs made by hand: one client shuts out no other, in the queue of a pool and in that of a server."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.waiting import WaitingJobs
from engine.jobs import Job
from engine.pool.lanes import Lanes
from engine.specs import LANES, Lane, Origin
from tests.engine.pool.made import Queue, job_of

Arrivals = list[tuple[Lane, int]]
MOST = st.integers(1, 20)
ARRIVALS: st.SearchStrategy[Arrivals] = st.lists(st.tuples(st.sampled_from(LANES), st.integers(0, 3)), max_size=80)
"""Lane and client of each job that comes."""


def pool_queue(most: int) -> Callable[[Job], bool]:
    made = Queue(1, most_waiting=most)
    made.queue.pause()
    return made.queue.try_add


def server_queue(most: int) -> Callable[[Job], bool]:
    waiting = WaitingJobs(lambda _job: None, num_sequences=1, most_waiting=most)
    waiting.pause(is_paused=True)
    return waiting.try_add


@pytest.mark.parametrize("queue", [pool_queue, server_queue])
@given(MOST, ARRIVALS)
def test_who_has_no_job_in_a_lane_finds_a_place(
    queue: Callable[[int], Callable[[Job], bool]], most: int, arrivals: Arrivals
) -> None:
    try_add, num_of = queue(most), Counter[tuple[Lane, int]]()
    for lane, client in arrivals:
        num_in = sum(num for (other, _), num in num_of.items() if other == lane)
        is_taken = try_add(job_of("a", origin=Origin(lane=lane, client=str(client))))
        assert is_taken or num_in >= most, "a place is left"
        assert is_taken or num_of[lane, client] or num_in == 2 * most, "another client has taken all places"
        num_of[lane, client] += is_taken
        assert num_in + is_taken <= 2 * most


@given(MOST, ARRIVALS)
def test_both_queues_take_the_same_jobs(most: int, arrivals: Arrivals) -> None:
    of_pool, of_server, lanes = pool_queue(most), server_queue(most), Lanes[int]()
    for item, (lane, client) in enumerate(arrivals):
        origin = Origin(lane=lane, client=str(client))
        has_room = not lanes.is_full(origin, most)
        assert of_pool(job_of("a", origin=origin)) == of_server(job_of("a", origin=origin)) == has_room
        if has_room:
            lanes.add(item, origin)
