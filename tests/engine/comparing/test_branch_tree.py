"""Branch tree: every path can be read off its branches, whatever the order of the trials."""

import random

import numpy as np
import pytest

from engine.comparing.branch_tree import Branch, TokenPath, branches_of


def path(id: str, ids: list[int], forced: tuple[int, ...] = ()) -> TokenPath:
    logprobs = np.array([-0.1 * (token + 1) for token in ids], np.float64)
    is_forced = np.isin(np.arange(len(ids)), forced)
    return TokenPath(id, np.array(ids, np.int32), logprobs, is_forced)


def spelled(branches: list[Branch], paths: dict[str, TokenPath], at: int) -> list[int]:
    """Return all tokens from the root to the end of a branch."""
    parts: list[list[int]] = []
    place: int | None = at
    while place is not None:
        one = branches[place]
        parts.append(paths[one.trial_id].ids[one.start : one.end].tolist())
        place = one.parent
    return [token for part in parts[::-1] for token in part]


@pytest.mark.parametrize("seed", range(200))
def test_each_path_is_spelled_by_the_branches_up_to_its_end(seed: int) -> None:
    draw = random.Random(seed)
    lists = [[draw.randrange(3) for _ in range(draw.randrange(9))] for _ in range(draw.randrange(1, 12))]
    paths = {str(number): path(str(number), ids) for number, ids in enumerate(lists)}
    branches = branches_of(paths.values())
    ends = {id: at for at, one in enumerate(branches) for id in one.ends}
    assert ends.keys() == {id for id, one in paths.items() if len(one.ids)}
    for id, at in ends.items():
        assert spelled(branches, paths, at) == lists[int(id)]
    for at, one in enumerate(branches):
        so_far = spelled(branches, paths, at)
        through = {id for id in paths if lists[int(id)][: len(so_far)] == so_far}
        assert set(one.trials) == through and len(one.trials) == len(through)
        assert one.start < one.end == len(so_far)
        assert one.parent is None or (one.parent < at and branches[one.parent].depth == one.depth - 1)
        children = [other for other in branches if other.parent == at]
        assert len(children) != 1 or one.ends, "a branch that neither parts nor ends here goes on"
        firsts = [int(paths[child.trial_id].ids[child.start]) for child in children]
        assert len(set(firsts)) == len(firsts)


def test_figures_of_a_branch() -> None:
    one, other = path("a", [1, 2, 3]), path("b", [1, 5, 6], forced=(1,))
    branches = branches_of([one, other])
    assert [(b.start, b.end, b.depth, b.trials, b.ends) for b in branches] == [
        (0, 1, 0, ("a", "b"), ()), (1, 3, 1, ("a",), ("a",)), (1, 3, 1, ("b",), ("b",)),
    ]  # fmt: skip
    assert branches[1].p == pytest.approx(np.exp(-0.3)) and branches[1].logprob == pytest.approx(-0.7)
    assert [b.is_forced for b in branches] == [False, False, True]


def test_figures_that_were_not_recorded_are_unknown() -> None:
    unknown = path("a", [1, 2])._replace(logprobs=np.array([np.nan, -1.0]))
    (branch,) = branches_of([unknown])
    assert branch.p is None and branch.logprob is None


def test_a_path_that_goes_on_from_another_ends_after_it() -> None:
    branches = branches_of([path("a", [1, 2]), path("b", [1, 2, 3]), path("c", [1, 2])])
    assert [(b.trials, b.ends) for b in branches] == [(("a", "b", "c"), ("a", "c")), (("b",), ("b",))]


def test_a_thousand_paths_each_one_token_longer_are_no_recursion() -> None:
    branches = branches_of(path(str(number), [7] * number) for number in range(1, 1001))
    assert len(branches) == 1000 and branches[-1].depth == 999
