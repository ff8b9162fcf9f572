"""Speeds of a configuration, each with its provenance."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.stats import Interval

Provenance = Literal["measured here", "imported", "noted", "assumed"]
PROVENANCES: tuple[Provenance, ...] = ("measured here", "imported", "noted", "assumed")
"""measured here: a run of this history; imported: a run imported from a file; noted: noted by a user or in the notes;
assumed: taken over from another figure, which the figure's remark names."""

THIS_MACHINE = "this machine"


class Speed(NamedTuple):
    """Tokens or sentences per second with the 95 % interval, NaN bounds where there is none."""

    per_s: Interval
    provenance: Provenance
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Speeds of one configuration on one machine: measured in a run, or assumed from one.

    generation: tokens generated per second by all streams together; prefill: prompt tokens per second; decode: tokens
    per second of one stream; embedding: sentences per second of the machine. None where unknown. num_streams: requests
    answered together during the measurement, None where unknown. divergence: KL divergence of the answers from those of
    the run's baseline, nats per token, None where not measured. noted_ktokens_per_usd: the notes' figure for this
    machine, shown next to the one that follows from its speed and price. run_id, cell: where to look it up, empty and 0
    where assumed. is_here: measured on the machine that this program runs on.
    """

    label: str
    machine: str
    model: str
    generation: Speed
    quantisation: str = ""
    prefill: Speed | None = None
    decode: Speed | None = None
    embedding: Speed | None = None
    num_streams: int | None = None
    divergence: float | None = None
    noted_ktokens_per_usd: float | None = None
    run_id: str = ""
    cell: int = 0
    is_here: bool = False

    @property
    def place(self) -> str:
        """The machine in words: "this machine", or its name."""
        return THIS_MACHINE if self.is_here else self.machine


def begun(sentence: str) -> str:
    """Return a sentence with a capital letter if it begins with this machine; names of others are left as they are."""
    return sentence[:1].upper() + sentence[1:] if sentence.startswith(THIS_MACHINE) else sentence


def best_by_machine(rates: Iterable[Rate]) -> list[Rate]:
    """Return the rate with the fastest generation of each machine and model, in the order in which machines appear."""
    best: dict[tuple[str, str], Rate] = {}
    for rate in rates:
        key = rate.machine, rate.model
        if key not in best or rate.generation.per_s.value > best[key].generation.per_s.value:
            best[key] = rate
    return list(best.values())
