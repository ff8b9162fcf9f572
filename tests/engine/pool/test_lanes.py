"""Lanes with integers: who goes next, against a slow copy that counts turns; positions tell the truth."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.pool.lanes import WEIGHTS, Lanes
from engine.specs import LANES, Lane, Origin


def taken(lanes: Lanes[int]) -> list[int]:
    """Return the items in the order in which they are taken."""
    rest = copy.deepcopy(lanes)
    return [rest.pop() for _ in range(len(rest))]


def filled(counts: dict[Lane, int]) -> tuple[Lanes[int], dict[int, Lane]]:
    lanes, lane_of = Lanes[int](), dict[int, Lane]()
    for lane, count in counts.items():
        for _ in range(count):
            lane_of[len(lane_of)] = lane
            lanes.add(len(lane_of) - 1, Origin(lane=lane))
    return lanes, lane_of


def test_of_seven_jobs_four_are_watched_two_are_calls_and_one_is_of_a_batch() -> None:
    lanes, lane_of = filled({"batch": 100, "api": 100, "browser": 100})
    order = [lane_of[item] for item in taken(lanes)]
    assert order[:7] == ["browser", "api", "batch", "browser", "browser", "api", "browser"]
    for start in range(0, 98, 7):
        turn = order[start : start + 7]
        assert {lane: turn.count(lane) for lane in LANES} == WEIGHTS


@given(
    st.fixed_dictionaries({lane: st.integers(0, 60) for lane in LANES}),
    st.sampled_from(LANES),
)
def test_nobody_starves_whoever_keeps_coming(counts: dict[Lane, int], lane: Lane) -> None:
    """An item of any lane goes within nine turns, though others are added before each."""
    lanes, _lane_of = filled(counts)
    for _ in range(sum(counts.values()) // 2):
        lanes.pop()
    lanes.clear()
    lanes.add(-1, Origin(lane=lane))
    for turn in range(9):
        for other in LANES:
            if other != lane:
                lanes.add(1000 + turn * 10 + LANES.index(other), Origin(lane=other))
        if lanes.pop() == -1:
            return
    raise AssertionError(f"{lane} waits for ever")


def test_a_job_that_is_watched_goes_before_a_thousand_calls() -> None:
    lanes, _ = filled({"api": 1000, "batch": 1000})
    for _ in range(500):
        lanes.pop()
    lanes.add(-1, Origin())
    assert lanes.position(-1) == 0
    assert lanes.pop() == -1


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_clients_take_turns_and_each_keeps_its_order(clients: list[int]) -> None:
    lanes = Lanes[int]()
    for item, client in enumerate(clients):
        lanes.add(item, Origin(lane="api", client=str(client)))
    order = taken(lanes)
    first_seen = list(dict.fromkeys(clients))
    rounds: list[tuple[int, int, int]] = []  # which of its client's, the client's turn, the item
    for item, client in enumerate(clients):
        rounds.append((clients[:item].count(client), first_seen.index(client), item))
    assert order == [item for *_, item in sorted(rounds)]


class LanesMachine(RuleBasedStateMachine):
    """Adding, taking and removing in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes[int]()
        self.origins: dict[int, Origin] = {}
        self.num = 0

    @rule(lane=st.sampled_from(LANES), client=st.sampled_from("abc"), count=st.integers(1, 4))
    def add(self, lane: Lane, client: str, count: int) -> None:
        for _ in range(count):
            self.num += 1
            self.origins[self.num] = Origin(lane=lane, client=client)
            self.lanes.add(self.num, self.origins[self.num])

    @precondition(lambda self: self.origins)
    @rule()
    def pop(self) -> None:
        first = self.lanes.first()
        assert self.lanes.pop() == first
        origin = self.origins.pop(first)
        assert first < min((item for item, other in self.origins.items() if other == origin), default=self.num + 1)

    @precondition(lambda self: self.origins)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(list(self.origins)))
        self.lanes.remove(item)
        del self.origins[item]

    @invariant()
    def each_is_there_once_and_knows_its_place(self) -> None:
        order = taken(self.lanes)
        assert sorted(order) == list(self.lanes) == list(self.origins)
        assert [self.lanes.position(item) for item in order] == list(range(len(order)))
        for lane in LANES:
            assert self.lanes.num_in(lane) == sum(origin.lane == lane for origin in self.origins.values())
        assert all(item in self.lanes for item in order) and -1 not in self.lanes


TestLanes = LanesMachine.TestCase
TestLanes.settings = settings(deadline=None)
