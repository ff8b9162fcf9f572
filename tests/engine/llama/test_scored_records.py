"""Kept records of scored prompts: which of them a prompt shares, and how much memory they take."""

from hypothesis import given
from hypothesis import strategies as st

from engine.llama.scored_records import ScoredRecords
from engine.step_parts import step_dtype

IDS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


def row(ids: list[int], place: int, k: int) -> bytes:
    """A row that tells which prefix it was computed from."""
    return (str((ids[: place + 2], k)).encode()).ljust(step_dtype(k).itemsize)


def num_common(left: list[int], right: list[int]) -> int:
    return next(n for n in range(len(left), -1, -1) if left[:n] == right[:n])


@given(st.lists(st.tuples(IDS, st.integers(0, 2), st.floats(0, 1)), max_size=8), IDS, st.integers(0, 2))
def test_what_is_shared_are_the_records_of_the_longest_common_beginning(
    kept: list[tuple[list[int], int, float]], ids: list[int], k: int
) -> None:
    records, most = ScoredRecords(100), 0
    for each, its_k, share in kept:
        prompt = records.begin(each, its_k)
        assert prompt is not None
        num_rows = int(share * (len(each) - 1))
        prompt.rows += b"".join(row(each, place, its_k) for place in range(num_rows))
        if its_k == k:
            most = max(most, min(num_common(each, ids) - 1, num_rows))
    found = records.shared(ids, k)
    assert found.num_tokens == most
    size = step_dtype(k).itemsize
    assert found.rows[: most * size] == b"".join(row(ids, place, k) for place in range(most))


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 4))
def test_memory_has_a_bound_and_the_oldest_go_first(lengths: list[int], num_prompts: int) -> None:
    size = step_dtype(0).itemsize + 4
    records = ScoredRecords(num_prompts, most_bytes=20 * size)
    begun = []
    for number, length in enumerate(lengths):
        prompt = records.begin([number] * length, 0)
        assert (prompt is None) == (length > 20)
        if prompt:
            prompt.rows += bytes((length - 1) * step_dtype(0).itemsize)
            begun.append((number, length))
    expected: list[tuple[int, int]] = []
    for each in reversed(begun):
        if len(expected) == num_prompts or sum(length for _, length in [*expected, each]) > 20:
            break
        expected.append(each)
    found = {number for number, length in begun if length > 1 and records.shared([number] * length, 0).num_tokens}
    assert found == {number for number, length in expected if length > 1}
