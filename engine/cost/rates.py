"""How fast a configuration works, each figure with where it comes from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.stats import Interval

Provenance = Literal["measured here", "imported", "noted", "assumed"]
PROVENANCES: tuple[Provenance, ...] = ("measured here", "imported", "noted", "assumed")
"""measured here: a run of this history; imported: a run that came as a file; noted: written down by hand or in the
notes; assumed: taken over from something else, which the remark of the figure names."""


class Speed(NamedTuple):
    """Tokens or sentences a second with the 95 % interval, NaN bounds where there is none."""

    per_s: Interval
    provenance: Provenance
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """One configuration of one machine: a cell of a run, or what is assumed from one.

    generation: tokens generated a second by all streams together; prefill: prompt tokens a second; decode: tokens a
    second of one stream; embedding: sentences a second of the machine. None where not known. num_streams: requests
    answered together while this was measured, None where not known. divergence: KL of the answers from those of the
    run's baseline, nats a token, None where not measured. noted_ktokens_per_usd: what the notes say of this machine,
    shown beside what follows from its speed and price. run_id, cell: where to look it up, empty and 0 where assumed.
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


def best_by_machine(rates: Iterable[Rate]) -> list[Rate]:
    """Of each machine and model the rate that generates fastest, in the order in which machines appear."""
    best: dict[tuple[str, str], Rate] = {}
    for rate in rates:
        key = rate.machine, rate.model
        if key not in best or rate.generation.per_s.value > best[key].generation.per_s.value:
            best[key] = rate
    return list(best.values())
