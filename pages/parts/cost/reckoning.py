"""Every estimate that the page shows: the speeds that are known, the prices, and both ways of counting."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import streamlit as st

from engine.cost import WAYS, Answer, CostJob, Estimate, Price, Rate, Way, answer, best_by_machine, estimates
from engine.errors import EngineError
from engine.workbench import Workbench, costing
from pages.parts.notice import notice

EVERY_MODEL = "every model"


class Reckoned(NamedTuple):
    """Estimates, alike in their order, and answers of a job by the way of counting, the one asked for first."""

    job: CostJob
    estimates: dict[Way, list[Estimate]]
    answers: dict[Way, Answer]


class Looked(NamedTuple):
    """The speeds that are looked at: of one model or of every, of each machine the fastest or every configuration."""

    model: str
    is_every: bool
    way: Way
    rates: list[Rate]


def rates(bench: Workbench) -> list[Rate]:
    """The speeds that are known here; those of the notes alone where the history cannot be read, which is said."""
    try:
        return _rates(tuple(bench.bench.recent()[: costing.NUM_RUNS]), bench)
    except EngineError as error:
        notice(error)
        return costing.reference_rates()


@st.cache_resource(max_entries=4, show_spinner=False)
def _rates(key: tuple[object, ...], _bench: Workbench) -> list[Rate]:
    """Read again where a run is new, has more samples or another name."""
    return costing.rates(_bench)


def looked_at(known: Sequence[Rate]) -> Looked:
    """What the address asks for, else the model of the notes' example, each machine at its fastest.

    Prefill is usually counted apart where its speed is known of all of them, else as the notes counted.
    """
    models = {rate.model for rate in known}
    model = next(filter({*models, EVERY_MODEL}.__contains__, (st.query_params.get("model"), _noted_model(known))))
    is_every = st.query_params.get("every") == str(True)
    found = [rate for rate in known if model in (rate.model, EVERY_MODEL)]
    shown = found if is_every else best_by_machine(found)
    usual: Way = "apart" if all(rate.prefill is not None for rate in shown) else "notes"
    way = next((one for one in WAYS if one == st.query_params.get("counted")), usual)
    return Looked(model, is_every, way, shown)


def _noted_model(known: Sequence[Rate]) -> str:
    return next((rate.model for rate in known if rate.noted_ktokens_per_usd is not None), EVERY_MODEL)


def reckon(job: CostJob, goals: Mapping[str, float | None], looked: Looked, prices: Sequence[Price]) -> Reckoned:
    """What the job takes by every rate, at each price of its machine, both ways."""
    found = {
        way: estimates(job, looked.rates, prices, counted_as=way)
        for way in sorted(WAYS, key=lambda way: way != looked.way)
    }
    return Reckoned(job, found, {way: answer(own, **goals) for way, own in found.items()})
