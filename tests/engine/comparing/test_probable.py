"""Most probable continuations: the search finds what listing all continuations finds, whatever the order of answers."""

import itertools
import math
import random

import pytest

from engine.comparing.probable import Candidates, ProbableSearch

END = 0


class Model:
    """A distribution over `size` tokens for each prefix, drawn from a seed; token 0 ends the text."""

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.size = seed, size

    def logprobs(self, prefix: tuple[int, ...]) -> list[float]:
        draw = random.Random(f"{self.seed} {prefix}")
        weights = [draw.random() ** draw.choice([1, 8]) + 1e-9 for _ in range(self.size)]
        return [math.log(one / sum(weights)) for one in weights]

    def candidates(self, prefix: tuple[int, ...], k: int) -> Candidates:
        logprobs = self.logprobs(prefix)
        best = sorted(range(self.size), key=lambda token: -logprobs[token])[:k]
        return Candidates(best, [logprobs[token] for token in best], [token == END for token in best])

    def everything(self, depth: int) -> list[tuple[float, tuple[int, ...]]]:
        """Return all complete continuations, the most probable first."""
        found = []
        for length in range(1, depth + 1):
            for ids in itertools.product(range(self.size), repeat=length):
                if END in ids[:-1] or (length < depth and ids[-1] != END):
                    continue
                found.append((sum(self.logprobs(ids[:at])[token] for at, token in enumerate(ids)), ids))
        return sorted(found, reverse=True)


def run(search: ProbableSearch, model: Model, k: int, draw: random.Random, at_once: int) -> None:
    """Answer in a random order, with up to `at_once` prefixes asked for at a time."""
    awaited: list[tuple[int, ...]] = []
    while True:
        while len(awaited) < at_once and (prefix := search.next_prefix()) is not None:
            awaited.append(prefix)
        if not awaited:
            return
        prefix = awaited.pop(draw.randrange(len(awaited)))
        search.expand(prefix, model.candidates(prefix, k))


@pytest.mark.parametrize("seed", range(60))
def test_the_search_finds_the_most_probable_continuations_in_order(seed: int) -> None:
    draw = random.Random(seed)
    model, depth, num = Model(seed, draw.randrange(2, 6)), draw.randrange(1, 5), draw.randrange(1, 30)
    search = ProbableSearch(num, depth)
    run(search, model, model.size, draw, draw.randrange(1, 6))
    expected = model.everything(depth)[:num]
    assert [one.ids for one in search.found] == [ids for _, ids in expected]
    assert [one.logprob for one in search.found] == pytest.approx([logprob for logprob, _ in expected])
    assert all(one.is_exact and one.is_ended == (one.ids[-1] == END) for one in search.found)
    assert not search.is_cut_short


@pytest.mark.parametrize("seed", range(30))
def test_what_is_called_exact_is_right_although_few_candidates_are_known(seed: int) -> None:
    draw = random.Random(seed)
    model = Model(seed, 6)
    search = ProbableSearch(12, 3)
    run(search, model, 3, draw, 2)
    everything = [ids for _, ids in model.everything(3)]
    num_exact = sum(one.is_exact for one in search.found)
    assert [one.ids for one in search.found[:num_exact]] == everything[:num_exact]
    assert not any(one.is_exact for one in search.found[num_exact:])


def test_it_ends_at_a_mass_and_expands_no_more_than_needed() -> None:
    model = Model(3, 4)
    search = ProbableSearch(1000, 4, mass=0.5)
    run(search, model, 4, random.Random(0), 1)
    assert search.found_mass >= 0.5 > search.found_mass - math.exp(search.found[-1].logprob)
    everything = ProbableSearch(1000, 4)
    run(everything, model, 4, random.Random(0), 1)
    assert search.num_asked < everything.num_asked and everything.found_mass == pytest.approx(1)


def test_a_limit_cuts_the_search_short() -> None:
    search = ProbableSearch(50, 6, most_expanded=5)
    run(search, Model(1, 5), 5, random.Random(0), 2)
    assert search.num_asked == 5 and search.is_cut_short and len(search.found) < 50
    best = search.best()
    assert best[: len(search.found)] == search.found and all(not one.is_exact for one in best[len(search.found) :])
    assert 0 < len(best) <= 50 and all(one.ids for one in best)
