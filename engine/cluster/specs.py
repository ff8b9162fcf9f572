"""Which cluster, and how a pool's workers are spread over its nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.errors import ConfigError, quoted
from engine.validation import Spec, plain_text, whole_number

MOST_NODES, MOST_WORKERS = 1024, 256

SENDS_WITHIN_S = 86_400.0
"""Time that the nodes of a cluster have to get a model and load it; each block that is sent has a limit of its own."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec(Spec):
    """Parameters of a pool over several machines.

    address: HOST:PORT of a Ray cluster, or "auto" for the one of this machine. workers: how many on each node, by its
    name; empty for one on each, or for as many `instances` as are asked for, by the cores of the nodes. mixed: use also
    nodes with another version of Logitbench, or of llama.cpp, its commit or its processor features, or of what else
    runs the model, so that figures may differ in their last digits; trials record in what.
    """

    goes_into = "Pool(cluster=...)"

    address: str = "auto"
    workers: Mapping[str, int] = field(default_factory=dict)
    mixed: bool = False

    def __post_init__(self) -> None:
        self._set("address", plain_text("address", self.address, 300).strip() or "auto")
        self._one_of("mixed", (True, False))
        if not isinstance(self.workers, Mapping) or len(self.workers) > MOST_NODES:
            raise ConfigError(f"workers = {quoted(self.workers)}: must map names of nodes to numbers of workers")
        self._set("workers", {plain_text("workers", name, 300): _count(num) for name, num in self.workers.items()})
        if self.workers and not 1 <= sum(self.workers.values()) <= MOST_WORKERS:
            raise ConfigError(f"workers = {quoted(self.workers)}: must be 1 to {MOST_WORKERS} in all")


def given_cluster(given: object) -> ClusterSpec:
    """Return the spec of an address or a ClusterSpec. Raises ConfigError for anything else."""
    if isinstance(given, ClusterSpec):
        return given
    if isinstance(given, str) and given.strip():
        return ClusterSpec(address=given)
    raise ConfigError(f"cluster = {quoted(given)}: must be an address, auto, or a ClusterSpec")


def spread(num_workers: int, cores: Sequence[int]) -> list[int]:
    """Return how many workers each node gets, by its cores: each goes where the most cores for it are left."""
    counts = [0] * len(cores)
    for _ in range(num_workers):
        best = min(range(len(cores)), key=lambda at: (counts[at] + 1) / max(cores[at], 1))
        counts[best] += 1
    return counts


def _count(num: object) -> int:
    whole = whole_number(num)
    if whole is None or not 0 <= whole <= MOST_WORKERS:
        raise ConfigError(f"workers = {quoted(num)}: must be a whole number from 0 to {MOST_WORKERS}")
    return whole
