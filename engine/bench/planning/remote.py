"""Load on engines at other addresses than this machine's: how many requests a plan sends, and the most that it may."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from engine.backends.address import checked_address
from engine.bench.planning import engines
from engine.bench.planning.feasibility import Feasibility, num_at_once
from engine.bench.planning.plan import Cell, Plan, PlannedCell
from engine.bench.planning.prompts import NUM_COMPARED
from engine.bench.planning.schedule import turns_of
from engine.errors import ConfigError
from engine.units import counted

MOST_REQUESTS = 200
"""Requests of one run to all such addresses together."""


def remote_requests(plan: Plan, cells: Sequence[PlannedCell], feasibility: Feasibility | None = None) -> dict[str, int]:
    """Return about how many requests a plan sends to each address that is not on this machine.

    A sample there is one request of each user; one more warms up. Raises ConfigError for more than MOST_REQUESTS.
    """
    able = [cell for cell in cells if isinstance(cell, Cell) and not cell.refusal]
    addresses = {cell.number: engines.known_engine(cell.arm).url for cell in able if engines.is_remote(cell.arm)}
    if not addresses:
        return {}
    num_turns = Counter(turn.cell for turn in turns_of(plan, cells, feasibility))
    found: dict[str, int] = {}
    for cell in able:
        if cell.number in addresses:
            address = addresses[cell.number]
            before = found.get(address, NUM_COMPARED if plan.compares_answers else 0)
            found[address] = before + 1 + num_turns[cell.number] * num_at_once(cell)
    if (total := sum(found.values())) > MOST_REQUESTS:
        raise ConfigError(
            f"This plan sends about {total:,} requests to {hosts_of(found)}; a run sends at most {MOST_REQUESTS} to "
            "other machines: use fewer rounds or users there"
        )
    return found


def hosts_of(addresses: Collection[str]) -> str:
    """Return the hosts of addresses, in words."""
    return " and ".join(dict.fromkeys(checked_address(address).host for address in addresses))


def told_of(requests: Mapping[str, int]) -> str:
    """Return what a plan sends to other machines, as a sentence; empty where it sends nothing."""
    if not requests:
        return ""
    return f"This sends about {counted(sum(requests.values()), 'request')} to {hosts_of(requests)}."


class RemoteBudget:
    """Requests that one run may still send to other machines. confirmed: the addresses that a person has allowed."""

    def __init__(self, confirmed: Collection[str] = ()) -> None:
        self._confirmed, self._left = frozenset(confirmed), MOST_REQUESTS

    def check(self, addresses: Mapping[str, int]) -> None:
        """Raise ConfigError where one of these addresses was not confirmed."""
        open_ones = {address: num for address, num in addresses.items() if address not in self._confirmed}
        if open_ones:
            raise ConfigError(
                f"{told_of(open_ones)} Nothing is sent there before you confirm it: start it on the Benchmark page, "
                "which asks, or on the command line with --send-to-others"
            )

    def take(self, address: str) -> None:
        """Note one request. Raises ConfigError beyond MOST_REQUESTS, and for an address that was not confirmed."""
        self.check({address: 1})
        if not self._left:
            raise ConfigError(f"{MOST_REQUESTS} requests were sent to other machines, the most that one run sends")
        self._left -= 1
