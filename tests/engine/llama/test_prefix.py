"""Which sequence a prompt takes, by the ids that each cache holds."""

from engine.llama.prefix import Placement, PrefixCache

LONG = list(range(100))


def fill(cache: PrefixCache, ids: list[int], *, release: bool = True) -> int:
    sequence = cache.place(ids, reuse=False).sequence
    cache.extend(sequence, ids)
    if release:
        cache.release(sequence)
    return sequence


def test_a_continued_sequence_is_taken_over_whole() -> None:
    cache = PrefixCache(2, can_cut=True)
    sequence = fill(cache, [1, 2, 3])
    assert cache.place([1, 2, 3, 4], reuse=True) == Placement(sequence, sequence, 3)


def test_a_short_shared_prefix_is_computed_again() -> None:
    cache = PrefixCache(2, can_cut=True)
    fill(cache, [1, 2, 3, 4])
    assert cache.place([1, 2, 3, 9], reuse=True).num_cached == 0


def test_the_last_token_is_always_computed() -> None:
    cache = PrefixCache(2, can_cut=True)
    fill(cache, LONG)
    assert cache.place(LONG, reuse=True).num_cached == 99


def test_a_running_sequence_is_copied_not_taken() -> None:
    cache = PrefixCache(2, can_cut=True)
    running = fill(cache, LONG, release=False)
    placement = cache.place([*LONG[:60], 7], reuse=True)
    assert placement.source == running
    assert placement.sequence != running
    assert placement.num_cached == 60
    assert list(cache.held[placement.sequence]) == LONG[:60]
    assert list(cache.held[running]) == LONG


def test_a_free_sequence_that_would_lose_much_is_copied() -> None:
    cache = PrefixCache(3, can_cut=True)
    source = fill(cache, LONG)
    placement = cache.place([*LONG[:40], 7], reuse=True)
    assert (placement.source, placement.num_cached) == (source, 40)
    assert placement.sequence != source
    assert list(cache.held[source]) == LONG


def test_without_cutting_only_whole_sequences_are_reused() -> None:
    cache = PrefixCache(2, can_cut=False)
    sequence = fill(cache, LONG)
    assert cache.place([*LONG[:60], 7], reuse=True).num_cached == 0
    assert cache.place([*LONG, 7], reuse=True) == Placement(sequence, sequence, 100)


def test_reuse_can_be_refused() -> None:
    cache = PrefixCache(2, can_cut=True)
    fill(cache, LONG)
    assert cache.place([*LONG, 1], reuse=False).num_cached == 0


def test_forgotten_ids_are_not_offered() -> None:
    cache = PrefixCache(1, can_cut=True)
    sequence = fill(cache, LONG)
    cache.forget(sequence)
    assert cache.place([*LONG, 1], reuse=True).num_cached == 0
