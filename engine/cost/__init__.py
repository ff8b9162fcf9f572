"""Cost of a job: prices of machines, speeds with their provenance, time and money with intervals. Calculation only."""

from engine.cost.answer import Answer, answer, answer_here, fastest_first
from engine.cost.documents import Counted, Document, Skipped, count_folder, count_texts
from engine.cost.estimate import WAYS, Estimate, Part, Way, estimate, estimates, ktokens_per_usd
from engine.cost.job import CostJob
from engine.cost.prices import PRICE_FIELDS, Price, price_from_row, prices_for, read_prices, write_prices
from engine.cost.rates import PROVENANCES, Provenance, Rate, Speed, best_by_machine

__all__ = [
    "PRICE_FIELDS",
    "PROVENANCES",
    "WAYS",
    "Answer",
    "CostJob",
    "Counted",
    "Document",
    "Estimate",
    "Part",
    "Price",
    "Provenance",
    "Rate",
    "Skipped",
    "Speed",
    "Way",
    "answer",
    "answer_here",
    "best_by_machine",
    "count_folder",
    "count_texts",
    "estimate",
    "estimates",
    "fastest_first",
    "ktokens_per_usd",
    "price_from_row",
    "prices_for",
    "read_prices",
    "write_prices",
]
