"""Estimates for the Cost page, from the known speeds, the prices, and both ways of counting."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import streamlit as st

from engine.cost import (
    WAYS,
    Answer,
    CostJob,
    Estimate,
    Price,
    Rate,
    Way,
    answer,
    answer_here,
    best_by_machine,
    estimates,
)
from engine.errors import EngineError
from engine.workbench import Workbench, costing
from pages.parts.notice import notice

EVERY_MODEL = "every model"


class JobEstimates(NamedTuple):
    """Estimates in the same order, and answers of a job, by way of counting; the selected way comes first.

    here: the time and cost on this machine by the selected way, None where it was not measured.
    """

    job: CostJob
    estimates: dict[Way, list[Estimate]]
    answers: dict[Way, Answer]
    here: Answer | None

    @property
    def shown(self) -> list[Estimate]:
        """The estimates by the selected way."""
        return next(iter(self.estimates.values()))

    @property
    def has_prices(self) -> bool:
        """True if any machine considered has a price."""
        return any(one.price is not None for one in self.shown)

    @property
    def num_machines(self) -> int:
        """Number of different machines considered."""
        return len({one.rate.machine for one in self.shown})


class Selection(NamedTuple):
    """The speeds considered: of one model or all, and of each machine the fastest or every configuration."""

    model: str
    is_every: bool
    way: Way
    rates: list[Rate]


def rates(bench: Workbench) -> list[Rate]:
    """Return the known speeds; only those of the notes if the history cannot be read, which is reported."""
    try:
        return _rates(tuple(bench.bench.recent()[: costing.NUM_RUNS]), bench)
    except EngineError as error:
        notice(error)
        return costing.reference_rates()


@st.cache_resource(max_entries=4, show_spinner=False)
def _rates(key: tuple[object, ...], _bench: Workbench) -> list[Rate]:
    """Return the known speeds, cached until a run is new, has more samples or another name."""
    return costing.rates(_bench)


def select(known: Sequence[Rate]) -> Selection:
    """Return the selection in the URL, else the model last measured on this machine, else that of the notes' example.

    By default, each machine is shown at its fastest, a single machine with the configurations of its last run, and
    prefill is counted apart if its speed is known for all rates, else as the notes counted.
    """
    models = {rate.model for rate in known}
    wanted = st.query_params.get("model", "")
    model = wanted if wanted in {*models, EVERY_MODEL} else _usual_model(known)
    found = [rate for rate in known if model in (rate.model, EVERY_MODEL)]
    is_every = st.query_params.get("every") == str(True)
    is_alone = len({rate.machine for rate in found}) == 1
    last = [rate for rate in found if rate.run_id == found[0].run_id] if is_alone else best_by_machine(found)
    shown = found if is_every else last
    usual: Way = "apart" if all(rate.prefill is not None for rate in shown) else "notes"
    way = next((one for one in WAYS if one == st.query_params.get("counted")), usual)
    return Selection(model, is_every, way, shown)


def _usual_model(known: Sequence[Rate]) -> str:
    own = (rate.model for rate in known if rate.is_here)
    noted = (rate.model for rate in known if rate.noted_ktokens_per_usd is not None)
    return next(own, next(noted, EVERY_MODEL))


def estimate(
    job: CostJob, goals: Mapping[str, float | None], selection: Selection, prices: Sequence[Price]
) -> JobEstimates:
    """Estimate the job for every rate, at each price of its machine, in both ways of counting."""
    found = {
        way: estimates(job, selection.rates, prices, counted_as=way)
        for way in sorted(WAYS, key=lambda way: way != selection.way)
    }
    answers = {way: answer(own, **goals) for way, own in found.items()}
    return JobEstimates(job, found, answers, answer_here(found[selection.way]))
