"""Load on engines at other addresses than this machine's: how much a plan sends, and the most that it may."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from engine.backends.address import checked_address
from engine.bench.planning import engines
from engine.bench.planning.feasibility import Feasibility, num_at_once
from engine.bench.planning.plan import EmbeddingCell, Plan, PlannedCell
from engine.bench.planning.prompts import NUM_COMPARED
from engine.bench.planning.schedule import turns_of
from engine.embedding.sentences import shipped_sentences
from engine.errors import ConfigError
from engine.units import counted

MOST_PROMPTS, MOST_TEXTS = 200, 5_000
"""Prompts, and texts to embed, to all such addresses together, each time a run is started or continued."""
NUM_ALONE = 3
"""Texts that are embedded one at a time before the samples."""


class Sent(NamedTuple):
    """What a plan sends: prompts or texts, and the most of them."""

    noun: str
    most: int


PROMPTS, TEXTS = Sent("prompt", MOST_PROMPTS), Sent("text", MOST_TEXTS)


def sent_by(plan: Plan) -> Sent:
    """Return what a plan sends to its engines."""
    return TEXTS if plan.is_embedding else PROMPTS


def remote_requests(plan: Plan, cells: Sequence[PlannedCell], feasibility: Feasibility | None = None) -> dict[str, int]:
    """Return about how many prompts, or texts to embed, a plan sends to each address that is not on this machine.

    A sample there is one request of each user, after one that warms up; of an embedding plan its texts once, after
    NUM_ALONE single ones. Raises ConfigError for more than MOST_PROMPTS or MOST_TEXTS.
    """
    able = [cell for cell in cells if not cell.refusal]
    named = {cell.number: cell.spec.backend if isinstance(cell, EmbeddingCell) else cell.arm for cell in able}
    addresses = {number: engines.known_engine(name).url for number, name in named.items() if engines.is_remote(name)}
    if not addresses:
        return {}
    num_turns = Counter(turn.cell for turn in turns_of(plan, cells, feasibility))
    found: dict[str, int] = {}
    for cell in able:
        if cell.number in addresses:
            address = addresses[cell.number]
            if isinstance(cell, EmbeddingCell):  # all of them are compared
                num = len(shipped_sentences()) + NUM_ALONE + num_turns[cell.number] * cell.workload.num_texts
                found[address] = found.get(address, 0) + num
            else:
                before = found.get(address, NUM_COMPARED if plan.compares_answers else 0)
                found[address] = before + 1 + num_turns[cell.number] * num_at_once(cell)
    sent = sent_by(plan)
    if (total := sum(found.values())) > sent.most:
        fewer = "texts" if plan.is_embedding else "users"
        raise ConfigError(
            f"This plan sends about {total:,} {sent.noun}s to {hosts_of(found)}; at most {sent.most:,} are sent to "
            f"other machines each time a run is started or continued: use fewer rounds or {fewer} there"
        )
    return found


def hosts_of(addresses: Collection[str]) -> str:
    """Return the hosts of addresses, in words."""
    return " and ".join(dict.fromkeys(checked_address(address).host for address in addresses))


def describe_requests(requests: Mapping[str, int], sent: Sent = PROMPTS) -> str:
    """Return how much is sent to other machines, as a sentence; empty where nothing is."""
    if not requests:
        return ""
    return f"This sends about {counted(sum(requests.values()), sent.noun)} to {hosts_of(requests)}."


def describe_prompts(plan: Plan) -> str:
    """Return what the prompts or texts are that a plan sends to other machines, as sentences."""
    if plan.is_embedding:
        source = "The texts are those of this plan" if plan.workload.get("texts") else "The texts are random sentences"
        return f"{source}, and sentences that come with Logitbench, to compare the vectors."
    is_own = plan.workload.get("asked") == "prompts"
    source = "The prompts are the texts of this plan." if is_own else "The prompts are random words or random tokens."
    if plan.compares_answers:
        source += f" {NUM_COMPARED} prompts that come with Logitbench are sent too, to compare the answers."
    return source


class RemoteBudget:
    """Prompts or texts that may still be sent to other machines while a run is measured, or goes on after it was
    stopped.

    confirmed: the addresses that a person has allowed. Requests without a prompt, which ask what a server is, and those
    that find out what it reports are not counted.
    """

    def __init__(self, confirmed: Collection[str] = (), sent: Sent = PROMPTS) -> None:
        self._confirmed, self._sent, self._left = frozenset(confirmed), sent, sent.most

    def check(self, addresses: Mapping[str, int]) -> None:
        """Raise ConfigError where one of these addresses was not confirmed."""
        open_ones = {address: num for address, num in addresses.items() if address not in self._confirmed}
        if open_ones:
            raise ConfigError(
                f"{describe_requests(open_ones, self._sent)} Nothing is sent there before you confirm it: start it on "
                "the Benchmark page, which asks, or on the command line with --send-to-others"
            )

    def take(self, address: str, num: int = 1) -> None:
        """Note prompts or texts. Raises ConfigError beyond the most, and for an address that was not confirmed."""
        self.check({address: num})
        if num > self._left:
            noun, most = self._sent
            raise ConfigError(
                f"{most:,} {noun}s may be sent to other machines each time a run is started or continued; of these "
                f"{self._left:,} are left"
            )
        self._left -= num
