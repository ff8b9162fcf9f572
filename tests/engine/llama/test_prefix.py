"""Prefix cache: which sequence a prompt takes, by the ids that each sequence holds."""

import random

import pytest

from engine.llama.prefix import Move, Placement, PrefixCache

ALL = 1 << 30
LONG = list(range(100))


def fill(cache: PrefixCache, ids: list[int], *, release: bool = True) -> int:
    seq_id = cache.place(ids, most=0).seq_id
    cache.extend(seq_id, ids)
    if release:
        cache.release(seq_id)
    return seq_id


def test_a_continued_sequence_is_taken_over_whole() -> None:
    cache = PrefixCache(2, can_cut=True)
    seq_id = fill(cache, [1, 2, 3])
    assert cache.place([1, 2, 3, 4], most=ALL) == Placement(seq_id, seq_id, 3)


def test_a_short_shared_prefix_is_computed_again() -> None:
    cache = PrefixCache(2, can_cut=True)
    fill(cache, [1, 2, 3, 4])
    assert cache.place([1, 2, 3, 9], most=ALL).num_cached == 0


def test_the_last_token_is_always_computed() -> None:
    cache = PrefixCache(2, can_cut=True)
    fill(cache, LONG)
    assert cache.place(LONG, most=ALL).num_cached == 99


def test_a_running_sequence_is_copied_not_taken() -> None:
    cache = PrefixCache(2, can_cut=True)
    running = fill(cache, LONG, release=False)
    placement = cache.place([*LONG[:60], 7], most=ALL)
    assert placement.source == running
    assert placement.seq_id != running
    assert placement.num_cached == 60
    assert list(cache.held[placement.seq_id]) == LONG[:60]
    assert list(cache.held[running]) == LONG


def test_a_free_sequence_that_would_lose_much_is_copied() -> None:
    cache = PrefixCache(3, can_cut=True)
    source = fill(cache, LONG)
    placement = cache.place([*LONG[:40], 7], most=ALL)
    assert (placement.source, placement.num_cached) == (source, 40)
    assert placement.seq_id != source
    assert list(cache.held[source]) == LONG


def test_without_cutting_only_whole_sequences_are_reused() -> None:
    cache = PrefixCache(2, can_cut=False)
    seq_id = fill(cache, LONG)
    assert cache.place([*LONG[:60], 7], most=ALL).num_cached == 0
    assert cache.place([*LONG, 7], most=ALL) == Placement(seq_id, seq_id, 100)


def test_reuse_can_be_refused() -> None:
    cache = PrefixCache(2, can_cut=True)
    fill(cache, LONG)
    assert cache.place([*LONG, 1], most=0).num_cached == 0


def test_forgotten_ids_are_not_offered() -> None:
    cache = PrefixCache(1, can_cut=True)
    seq_id = fill(cache, LONG)
    cache.forget(seq_id)
    assert cache.place([*LONG, 1], most=ALL).num_cached == 0


def taken(cache: PrefixCache) -> list[int]:
    return [seq_id for seq_id in range(len(cache.held)) if seq_id not in cache.free]


def test_an_empty_sequence_beside_a_running_one_comes_first() -> None:
    cache = PrefixCache(5, can_cut=True)
    assert [fill(cache, [number], release=False) for number in range(3)] == [0, 1, 2]
    cache.forget(0)
    cache.release(0)
    cache.release(1)
    assert fill(cache, [7], release=False) == 3


def test_the_longest_unused_is_overwritten_whatever_stands_beside_it() -> None:
    cache = PrefixCache(3, can_cut=True)
    for number in range(3):
        fill(cache, [number])
    assert [fill(cache, [7], release=False), fill(cache, [8])] == [0, 1]
    assert cache.place([9], most=0).seq_id == 2


def test_a_gap_is_closed_by_one_move_that_spares_what_was_used_last() -> None:
    cache = PrefixCache(4, can_cut=True)
    for number in range(3):
        fill(cache, [number], release=False)
    cache.release(1)
    assert cache.close_gaps() == [Move(0, 3)], "3 is empty, 1 holds what may be asked for again"
    assert taken(cache) == [2, 3]
    assert [list(ids) for ids in cache.held] == [[0], [1], [2], [0]]
    assert cache.free == [1, 0]
    cache.extend(3, [5])
    assert list(cache.held[0]) == [0], "the copy does not grow with the other"
    assert cache.close_gaps() == []


def test_few_moves_come_before_what_they_overwrite() -> None:
    cache = PrefixCache(6, can_cut=True)
    for number in range(5):
        fill(cache, [number], release=False)
    cache.release(3)
    assert cache.close_gaps() == [Move(4, 3)]
    assert taken(cache) == [0, 1, 2, 3]


def test_where_nothing_can_be_cut_nothing_moves() -> None:
    cache = PrefixCache(3, can_cut=False)
    for number in range(3):
        fill(cache, [number], release=False)
    cache.release(1)
    assert cache.close_gaps() == []


@pytest.mark.parametrize("seed", range(20))
def test_whoever_comes_and_goes_the_taken_ones_follow_each_other_with_what_they_hold(seed: int) -> None:
    chance, cache = random.Random(seed), PrefixCache(8, can_cut=True)
    jobs: dict[int, list[int]] = {}
    for number in range(60):
        if len(jobs) < 8 and chance.random() < 0.5:
            jobs[fill(cache, [number] * chance.randint(1, 3), release=False)] = [number]
        for seq_id in [seq_id for seq_id in jobs if chance.random() < 0.2]:
            cache.release(seq_id)
            del jobs[seq_id]
        for source, target in cache.close_gaps():
            assert target not in jobs
            jobs[target] = jobs.pop(source)
        assert sorted(jobs) == taken(cache)
        assert not jobs or max(jobs) - min(jobs) == len(jobs) - 1
        assert sorted([*cache.free, *taken(cache)]) == list(range(8))
        assert all(set(cache.held[seq_id]) == set(ids) for seq_id, ids in jobs.items())


def test_no_more_is_reused_than_is_asked_for() -> None:
    for whole, most, num_cached in ((LONG, 99, 99), (LONG, 60, 60), (LONG, 31, 0), (LONG, 0, 0)):
        cache = PrefixCache(2, can_cut=True)
        fill(cache, whole)
        assert cache.place([*whole, 7], most=most).num_cached == num_cached
    short = PrefixCache(2, can_cut=True)
    fill(short, [1, 2, 3])
    assert short.place([1, 2, 3, 4], most=3).num_cached == 3
    uncut = PrefixCache(2, can_cut=False)
    fill(uncut, LONG)
    assert uncut.place([*LONG, 7], most=99).num_cached == 0


def begin(cache: PrefixCache, ids: list[int], *, num_coming: int | None = None) -> int:
    """Place a prompt whose tokens will be computed, and return its sequence."""
    return cache.place(ids, most=ALL, num_coming=len(ids) if num_coming is None else num_coming).seq_id


def test_a_prompt_waits_for_one_that_computes_its_beginning_until_that_is_computed() -> None:
    cache = PrefixCache(3, can_cut=True)
    first, second = begin(cache, LONG), [*LONG[:60], 7]
    for num_held in (0, 20):
        cache.extend(first, LONG[:num_held])
        assert cache.is_coming(second, most=ALL)
    cache.extend(first, LONG[20:29])
    assert not cache.is_coming(second, most=ALL), "31 more are not worth it"
    cache.extend(first, LONG[29:])
    assert not cache.is_coming(second, most=ALL)
    assert cache.place(second, most=ALL).num_cached == 60


@pytest.mark.parametrize(
    ("prompt", "most", "can_cut", "num_coming"),
    [
        ([*LONG[:31], 7], ALL, True, 100),
        ([7, *LONG], ALL, True, 100),
        ([*LONG[:60], 7], 31, True, 100),
        ([*LONG[:60], 7], 0, True, 100),
        ([*LONG[:60], 7], ALL, False, 100),
        ([*LONG[:60], 7], ALL, True, 0),
        ([*LONG[:60], 7], ALL, True, 31),
    ],
)
def test_a_prompt_waits_for_nothing_that_it_could_not_copy(
    prompt: list[int], most: int, can_cut: bool, num_coming: int
) -> None:
    cache = PrefixCache(3, can_cut=can_cut)
    begin(cache, LONG, num_coming=num_coming)
    assert not cache.is_coming(prompt, most=most)


def test_a_prompt_waits_no_more_when_the_other_job_is_over_or_moved_and_over() -> None:
    cache = PrefixCache(4, can_cut=True)
    cache.release(begin(cache, LONG))
    assert not cache.is_coming(LONG, most=ALL)
    gap, other = begin(cache, [7]), begin(cache, LONG)
    last = begin(cache, [8])
    cache.release(gap)
    cache.release(last)
    begin(cache, [9])
    moves = {move.source: move.target for move in cache.close_gaps()}
    assert cache.is_coming(LONG, most=ALL)
    cache.release(moves.get(other, other))
    assert not cache.is_coming(LONG, most=ALL)


def test_what_is_held_already_is_not_waited_for() -> None:
    cache = PrefixCache(3, can_cut=True)
    fill(cache, LONG[:90])
    begin(cache, LONG)
    assert not cache.is_coming(LONG, most=ALL), "90 are here, 9 more are not worth it"
