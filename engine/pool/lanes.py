"""Lanes: the order in which waiting jobs start, as a weighted round robin over lanes and a round robin over clients.

Each lane has a moment at which its next job is due, in units of virtual time: the lane that is due first goes next, and
is due again a stride later. A lane that was empty is due at once, but gains nothing for the time before.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from engine.specs import LANES, Lane, Origin

T = TypeVar("T", bound=Hashable)

WEIGHTS: dict[Lane, int] = {"browser": 4, "api": 2, "batch": 1}
"""Jobs of each lane that start in turn while all of them have some waiting; of lanes that are due together, the first
goes first."""
_PERIOD = 4  # a multiple of every weight
RESERVE = 8
"""In a full lane, each client may still have one in RESERVE of its places."""


class _Lane(Generic[T]):
    """Waiting items of one lane by client, in the order of the clients' turns. due: moment of its next item."""

    def __init__(self, weight: int) -> None:
        self.stride = _PERIOD // weight
        self.due = self.num = 0
        self.clients: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()

    def add(self, item: T, client: str) -> None:
        self.clients.setdefault(client, OrderedDict())[item] = None
        self.num += 1

    def first(self) -> T:
        return next(iter(next(iter(self.clients.values()))))

    def pop(self) -> T:
        client, items = next(iter(self.clients.items()))
        item, _ = items.popitem(last=False)
        self.num -= 1
        self.clients.move_to_end(client)
        if not items:
            del self.clients[client]
        return item

    def remove(self, item: T, client: str) -> None:
        del self.clients[client][item]
        self.num -= 1
        if not self.clients[client]:
            del self.clients[client]

    def before(self, item: T, client: str) -> int:
        """Return the number of items of this lane that come before one of them."""
        mine = next(place for place, one in enumerate(self.clients[client]) if one == item)
        num, is_behind = 0, False
        for name, items in self.clients.items():
            is_behind = is_behind or name == client
            num += min(len(items), mine if is_behind else mine + 1)
        return num


class Lanes(Generic[T]):
    """Waiting items, in the order in which they will be taken if no more come. Adding and taking one is O(1)."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, _Lane[T]] = {lane: _Lane(WEIGHTS[lane]) for lane in LANES}
        self._origins: dict[T, Origin] = {}
        self._now = 0

    def __len__(self) -> int:
        return len(self._origins)

    def __contains__(self, item: T) -> bool:
        return item in self._origins

    def __iter__(self) -> Iterator[T]:
        """Iterate in the order of arrival."""
        return iter(self._origins)

    def num_in(self, lane: Lane) -> int:
        """Return the number of items of a lane."""
        return self._lanes[lane].num

    def is_full(self, origin: Origin, most: int) -> bool:
        """Return whether a lane of `most` places has none for a client: all are taken, and so is the client's reserve.

        So one client cannot shut out the others. All reserves together are at most as large as the lane, which bounds
        the memory.
        """
        lane = self._lanes[origin.lane]
        if lane.num < most:
            return False
        return lane.num >= 2 * most or len(lane.clients.get(origin.client, ())) >= max(1, most // RESERVE)

    def add(self, item: T, origin: Origin) -> None:
        """Append an item behind those of its client."""
        lane = self._lanes[origin.lane]
        if not lane.num:
            lane.due = max(lane.due, self._now)
        lane.add(item, origin.client)
        self._origins[item] = origin

    def first(self) -> T:
        """Return the next item, which stays."""
        return self._next().first()

    def pop(self) -> T:
        """Take the next item."""
        lane = self._next()
        self._now, lane.due = lane.due, lane.due + lane.stride
        item = lane.pop()
        del self._origins[item]
        return item

    def remove(self, item: T) -> None:
        """Remove an item from its place."""
        origin = self._origins.pop(item)
        self._lanes[origin.lane].remove(item, origin.client)

    def clear(self) -> None:
        """Remove all items."""
        for item in list(self._origins):
            self.remove(item)

    def position(self, item: T) -> int:
        """Return the number of items that will be taken before this one if no more come."""
        origin = self._origins[item]
        own = self._lanes[origin.lane]
        num = own.before(item, origin.client)
        moment, is_behind = own.due + num * own.stride, False
        for lane in self._lanes.values():
            is_behind = is_behind or lane is own
            if lane is not own:
                num_due = (moment - lane.due + lane.stride - is_behind) // lane.stride
                num += min(lane.num, max(num_due, 0))
        return num

    def _next(self) -> _Lane[T]:
        return min((lane for lane in self._lanes.values() if lane.num), key=lambda lane: lane.due)
