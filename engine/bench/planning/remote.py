"""Load on engines at other addresses than this machine's: how many prompts a plan sends, and the most that it may."""

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

MOST_PROMPTS = 200
"""Prompts to all such addresses together, each time a run is started or continued."""


def remote_requests(plan: Plan, cells: Sequence[PlannedCell], feasibility: Feasibility | None = None) -> dict[str, int]:
    """Return about how many requests with a prompt a plan sends to each address that is not on this machine.

    A sample there is one request of each user; one more warms up. Raises ConfigError for more than MOST_PROMPTS.
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
    if (total := sum(found.values())) > MOST_PROMPTS:
        raise ConfigError(
            f"This plan sends about {total:,} prompts to {hosts_of(found)}; at most {MOST_PROMPTS} are sent to other "
            "machines each time a run is started or continued: use fewer rounds or users there"
        )
    return found


def hosts_of(addresses: Collection[str]) -> str:
    """Return the hosts of addresses, in words."""
    return " and ".join(dict.fromkeys(checked_address(address).host for address in addresses))


def told_of(requests: Mapping[str, int]) -> str:
    """Return what a plan sends to other machines, as a sentence; empty where it sends nothing."""
    if not requests:
        return ""
    return f"This sends about {counted(sum(requests.values()), 'prompt')} to {hosts_of(requests)}."


def prompts_told(plan: Plan) -> str:
    """Return what the prompts are that a plan sends to other machines, as sentences."""
    is_own = plan.workload.get("asked") == "prompts"
    told = "The prompts are the texts of this plan." if is_own else "The prompts are random words or random tokens."
    if plan.compares_answers:
        told += f" {NUM_COMPARED} prompts that come with Logitbench are sent too, to compare the answers."
    return told


class RemoteBudget:
    """Prompts that may still be sent to other machines while a run is measured, or goes on after it was stopped.

    confirmed: the addresses that a person has allowed. Requests without a prompt, which ask what a server is, and those
    that find out what it reports are not counted.
    """

    def __init__(self, confirmed: Collection[str] = ()) -> None:
        self._confirmed, self._left = frozenset(confirmed), MOST_PROMPTS

    def check(self, addresses: Mapping[str, int]) -> None:
        """Raise ConfigError where one of these addresses was not confirmed."""
        open_ones = {address: num for address, num in addresses.items() if address not in self._confirmed}
        if open_ones:
            raise ConfigError(
                f"{told_of(open_ones)} Nothing is sent there before you confirm it: start it on the Benchmark page, "
                "which asks, or on the command line with --send-to-others"
            )

    def take(self, address: str) -> None:
        """Note one prompt. Raises ConfigError beyond MOST_PROMPTS, and for an address that was not confirmed."""
        self.check({address: 1})
        if not self._left:
            raise ConfigError(
                f"{MOST_PROMPTS} prompts were sent to other machines, the most each time a run is started or continued"
            )
        self._left -= 1
