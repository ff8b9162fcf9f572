"""The scheduler with a fake runner: fairness, chunked prefill, cancellation, a full cache."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.llama.scheduler import Plan, Progress, Scheduler


@dataclass
class FakeRunner:
    """Runner that computes plans immediately, refuses those of more than `room` tokens, and records every plan."""

    scheduler: Scheduler[Progress]
    room: int = 1 << 30
    plans: list[Plan] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)

    def step(self) -> Plan:
        plan = self.scheduler.plan()
        self.plans.append(plan)
        if sum(plan.values()) > self.room:
            seq_id = self.scheduler.refused(plan)
            if seq_id is not None:
                self.stuck.append(seq_id)
                self.scheduler.release(seq_id)
            return {}
        self.scheduler.computed(plan)
        return plan


def make(*, sequences: int = 4, n_batch: int = 512, n_ubatch: int = 64, share: int = 8) -> Scheduler[Progress]:
    return Scheduler(sequences, n_batch, n_ubatch, share)


def generate(scheduler: Scheduler[Progress], seq_id: int) -> None:
    """Bring a sequence to the point where it generates."""
    scheduler.admit(seq_id, Progress(1))
    scheduler.computed({seq_id: 1})


def test_a_prompt_alone_is_computed_in_whole_batches() -> None:
    scheduler = make()
    scheduler.admit(0, Progress(150))
    runner = FakeRunner(scheduler)
    for _ in range(4):
        runner.step()
    assert runner.plans == [{0: 64}, {0: 64}, {0: 22}, {0: 1}]


def test_while_a_stream_generates_prompts_get_only_their_share() -> None:
    scheduler = make(share=8)
    generate(scheduler, 0)
    scheduler.admit(1, Progress(20))
    scheduler.admit(2, Progress(20))
    runner = FakeRunner(scheduler)
    for _ in range(6):
        prompts = [seq_id for seq_id, one in scheduler.running.items() if not one.is_generating]
        plan = runner.step()
        assert plan[0] == 1, "the stream gets its token in every step"
        assert sum(plan.get(seq_id, 0) for seq_id in prompts) <= 8 * 2
    assert runner.plans[:3] == [{0: 1, 1: 16}, {0: 1, 1: 4, 2: 12}, {0: 1, 1: 1, 2: 8}], "the oldest prompt first"
    assert all(one.is_generating for one in scheduler.running.values())


def test_cached_tokens_are_not_computed_again() -> None:
    scheduler = make()
    scheduler.admit(0, Progress(100, 99))
    assert scheduler.plan() == {0: 1}


def test_a_replayed_tail_goes_one_token_at_a_time() -> None:
    scheduler = make()
    scheduler.admit(0, Progress(13, single_from=10))
    runner = FakeRunner(scheduler)
    assert [runner.step() for _ in range(4)] == [{0: 10}, {0: 1}, {0: 1}, {0: 1}]


def test_scored_prompts_share_the_rows_of_a_step() -> None:
    scheduler: Scheduler[Progress] = Scheduler(4, 512, 64, 8, scored_rows=32)
    scheduler.admit(0, Progress(50, is_scored=True))
    scheduler.admit(1, Progress(50, is_scored=True))
    scheduler.admit(2, Progress(50))
    assert scheduler.plan() == {0: 32, 2: 32}
    scheduler.computed({0: 32, 2: 32})
    assert scheduler.plan() == {0: 18, 2: 18}, "the 14 rows that are left would be a pass of their own"
    scheduler.computed({0: 18, 2: 18})
    assert scheduler.plan() == {0: 1, 1: 16, 2: 1}


def test_jobs_wait_for_a_free_sequence_in_order() -> None:
    scheduler = make(sequences=2)
    for job in (7, 8, 9):
        scheduler.enqueue(job)
    assert [scheduler.next_job()] == [7]
    scheduler.admit(0, Progress(5))
    assert scheduler.next_job() == 8
    scheduler.admit(1, Progress(5))
    assert scheduler.next_job() is None
    scheduler.release(0)
    assert scheduler.next_job() == 9


def test_a_waiting_job_can_be_dropped_once() -> None:
    scheduler = make()
    scheduler.enqueue(1)
    assert scheduler.drop(1)
    assert not scheduler.drop(1)
    assert scheduler.is_idle


def test_release_ends_a_prompt_in_the_middle() -> None:
    scheduler = make()
    scheduler.admit(0, Progress(500))
    FakeRunner(scheduler).step()
    scheduler.release(0)
    assert scheduler.is_idle
    assert scheduler.plan() == {}


def test_streams_go_on_as_they_are_until_one_comes_or_goes() -> None:
    scheduler = make()
    generate(scheduler, 0)
    generate(scheduler, 1)
    runner = FakeRunner(scheduler)
    assert [runner.step() for _ in range(3)] == [{0: 1, 1: 1}] * 3
    scheduler.admit(2, Progress(3))
    assert [runner.step(), runner.step()] == [{0: 1, 1: 1, 2: 3}, {0: 1, 1: 1, 2: 1}]
    scheduler.release(0)
    assert runner.step() == {1: 1, 2: 1}


def test_a_batch_is_in_the_order_of_its_sequences() -> None:
    """llama.cpp computes sequences that are not consecutive in separate passes."""
    scheduler = make()
    for seq_id in (2, 3, 1):
        generate(scheduler, seq_id)
    assert list(scheduler.plan()) == [1, 2, 3]
    scheduler.admit(0, Progress(20))
    assert list(scheduler.plan().items()) == [(0, 8), (1, 1), (2, 1), (3, 1)]


def test_a_job_moves_with_its_progress_and_its_turn() -> None:
    scheduler = make()
    generate(scheduler, 0)
    scheduler.admit(3, Progress(100))
    FakeRunner(scheduler).step()
    assert not scheduler.is_steady
    scheduler.move(3, 1)
    scheduler.admit(2, Progress(100))
    assert scheduler.plan() == {0: 1, 1: 16}
    assert list(scheduler.running) == [0, 1, 2]
    assert scheduler.running[1].num_computed == 8


def test_it_is_steady_until_a_job_comes_goes_or_moves() -> None:
    scheduler = make()
    generate(scheduler, 0)
    scheduler.plan()
    assert scheduler.is_steady
    scheduler.move(0, 1)
    assert not scheduler.is_steady
    assert scheduler.plan() == {1: 1}


def test_a_full_cache_halves_the_batch_until_it_fits_and_all_get_their_turn() -> None:
    scheduler = make(sequences=8)
    for seq_id in range(8):
        generate(scheduler, seq_id)
    runner = FakeRunner(scheduler, room=2)
    seen: set[int] = set()
    for _ in range(24):
        seen |= runner.step().keys()
    assert seen == set(range(8))
    assert not runner.stuck


def test_a_token_that_never_fits_names_its_sequence() -> None:
    scheduler = make()
    generate(scheduler, 3)
    runner = FakeRunner(scheduler, room=0)
    runner.step()
    assert runner.stuck == [3]


def test_a_crowd_of_prompts_is_not_kept_waiting_for_one_stream() -> None:
    scheduler = make(sequences=16, n_ubatch=64, share=8)
    generate(scheduler, 0)
    for seq_id in range(1, 16):
        scheduler.admit(seq_id, Progress(8))
    runner = FakeRunner(scheduler)
    assert sum(runner.step().values()) == 1 + 64, "never more than n_ubatch"
    runner.step()
    assert all(one.is_generating for one in scheduler.running.values())


def test_the_share_of_a_burst_stays_until_its_last_prompt_is_computed() -> None:
    scheduler = make(share=8)
    generate(scheduler, 0)
    for seq_id in (1, 2, 3):
        scheduler.admit(seq_id, Progress(60))
    runner = FakeRunner(scheduler)
    while not scheduler.running[3].is_generating:
        runner.step()
    chunks = [sum(num for seq_id, num in plan.items() if seq_id and num > 1) for plan in runner.plans]
    assert chunks == [24, 24, 24, 24, 24, 24, 24, 12]
    scheduler.release(3)
    scheduler.admit(3, Progress(60))
    assert runner.step()[3] == 8, "the next one comes alone"


def test_a_burst_counts_the_jobs_that_have_a_sequence_but_are_not_admitted_yet() -> None:
    scheduler = make(sequences=4, share=8)
    generate(scheduler, 0)
    for job in range(5):
        scheduler.enqueue(job)
    bursts = []
    while scheduler.next_job() is not None:
        scheduler.admit(len(scheduler.running), Progress(60))
        bursts.append(scheduler.running[len(scheduler.running) - 1].burst)
    assert bursts == [3, 3, 3], "two of the five jobs have no sequence"
    scheduler.move(3, 3)
    assert scheduler.running[3].burst == 3


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90)), max_size=30), st.integers(1, 40))
def test_a_step_beside_a_stream_is_never_larger_than_the_share_of_a_burst(
    arrivals: list[tuple[int, int]], share: int
) -> None:
    """Prompts come in one of every few steps, and leave once computed."""
    scheduler = make(sequences=8, n_ubatch=256, share=share)
    generate(scheduler, 0)
    runner, most = FakeRunner(scheduler), 0
    for pause, length in arrivals:
        free = next((seq_id for seq_id in range(1, 8) if seq_id not in scheduler.running), None)
        if free is not None:
            scheduler.admit(free, Progress(length))
        for _ in range(pause):
            prompts = [one for one in scheduler.running.values() if not one.is_generating]
            most = max(most, len(prompts)) if prompts else 0
            plan = runner.step()
            given = sum(num for seq_id, num in plan.items() if not scheduler.running[seq_id].is_generating or num > 1)
            assert given <= min(share * most, 256)
            for seq_id in [one for one in scheduler.running if one and scheduler.running[one].is_generating]:
                scheduler.release(seq_id)


@pytest.mark.parametrize("num_prompt", [1, 31, 32, 33, 200])
def test_every_prompt_token_is_computed_exactly_once(num_prompt: int) -> None:
    scheduler = make(share=5)
    generate(scheduler, 0)
    scheduler.admit(1, Progress(num_prompt))
    runner = FakeRunner(scheduler)
    while not scheduler.running[1].is_generating:
        runner.step()
    assert sum(plan.get(1, 0) for plan in runner.plans) == num_prompt


def num_passes(plan: Plan, n_ubatch: int) -> int:
    """Return the number of passes over the weights that llama.cpp needs: each takes equally many tokens of every
    sequence that is left.

    This holds for consecutive sequences (llama-batch.cpp, split_equal).
    """
    left, passes = [*plan.values()], 0
    while left:
        together = left[:n_ubatch]
        taken = min(min(together), max(n_ubatch // len(together), 1))
        left = [num - taken * (place < len(together)) for place, num in enumerate(left)]
        left = [num for num in left if num]
        passes += 1
    return passes


def oldest_first(scheduler: Scheduler[Progress]) -> Plan:
    """Return the plan that fills all the room with the prompts, oldest first."""
    room = min(scheduler.n_ubatch, scheduler.n_batch)
    plan = {}
    for seq_id, one in scheduler.running.items():
        if num := one.chunk(room):
            plan[seq_id] = num
            room -= num
    return plan


def crowd(lengths: list[int]) -> Scheduler[Progress]:
    scheduler = make(sequences=len(lengths), n_batch=512, n_ubatch=512, share=32)
    for seq_id, length in enumerate(lengths):
        scheduler.admit(seq_id, Progress(length))
    return scheduler


@pytest.mark.parametrize(
    ("lengths", "plans"),
    [
        ([272] * 4, [{0: 272}, {1: 272}, {2: 272}, {3: 272}]),
        ([256] * 4, [{0: 256, 1: 256}, {2: 256, 3: 256}]),
        ([100] * 6, [dict.fromkeys(range(5), 100), {5: 100}]),
        ([16] * 40, [dict.fromkeys(range(32), 16), dict.fromkeys(range(32, 40), 16)]),
        ([600, 88, 300], [{0: 512}, {0: 88, 1: 88, 2: 88}, {2: 212}]),
    ],
)
def test_prompts_go_in_passes_of_equal_lengths(lengths: list[int], plans: list[Plan]) -> None:
    scheduler = crowd(lengths)
    found = []
    while not scheduler.is_idle:
        found.append(scheduler.plan())
        scheduler.computed(found[-1])
        for seq_id in [seq_id for seq_id, one in scheduler.running.items() if one.is_generating]:
            scheduler.release(seq_id)
    assert found == plans


@given(st.lists(st.integers(1, 700), min_size=1, max_size=40))
def test_no_plan_gives_fewer_tokens_a_pass_than_the_oldest_first_in_all_the_room(lengths: list[int]) -> None:
    scheduler = crowd(lengths)
    plan, filled = scheduler.plan(), oldest_first(scheduler)
    assert plan[0] == filled[0], "the oldest prompt loses nothing"
    assert sum(plan.values()) <= 512
    tokens_a_pass = [sum(each.values()) / num_passes(each, 512) for each in (plan, filled)]
    assert tokens_a_pass[0] >= tokens_a_pass[1]


@given(st.lists(st.integers(1, 700), min_size=1, max_size=20), st.lists(st.integers(0, 19), max_size=3))
def test_every_prompt_of_a_crowd_is_computed_once_and_no_later_than_all_before_it(
    lengths: list[int], streams: list[int]
) -> None:
    scheduler = crowd(lengths)
    for seq_id in {one % len(lengths) for one in streams}:
        scheduler.computed({seq_id: lengths[seq_id]})
    waiting = {seq_id: one.num_prompt for seq_id, one in scheduler.running.items() if not one.is_generating}
    runner = FakeRunner(scheduler)
    while any(not one.is_generating for one in scheduler.running.values()):
        oldest = next(seq_id for seq_id, one in scheduler.running.items() if not one.is_generating)
        assert runner.step()[oldest] > 0
        assert len(runner.plans) <= sum(waiting.values())
    for seq_id, length in waiting.items():
        before_it_generates = [plan.get(seq_id, 0) for plan in runner.plans]
        total = 0
        for num in before_it_generates:
            if total == length:
                break
            total += num
        assert total == length


def test_a_job_that_is_postponed_keeps_its_place_and_the_room_of_the_crowd() -> None:
    scheduler = make(sequences=4, share=8)
    generate(scheduler, 0)
    scheduler.admit(1, Progress(100))
    for job in (7, 8):
        scheduler.enqueue(job)
    assert scheduler.next_job() == 7
    scheduler.postpone(7)
    assert list(scheduler.waiting) == [7, 8]
    assert scheduler.plan() == {0: 1, 1: 24}, "as much as the three prompts together would bring"
    assert scheduler.drop(7)
    assert scheduler.next_job() == 8
