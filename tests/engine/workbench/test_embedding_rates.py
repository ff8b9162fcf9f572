"""Embedding runs as the basis of cost estimates."""

from engine.cost import CostJob, estimate
from engine.workbench.costing import rates_of
from tests.engine.bench.embedding_runs import embedding_run
from tests.engine.bench.run_maker import MACHINE, measured_run


def test_jobs_that_embed_take_the_fastest_rate_of_their_machine() -> None:
    here, elsewhere = measured_run("g", [40.0]), measured_run("o", [40.0], machine={"name": "other", "hash": "o"})
    rates = rates_of([here, elsewhere, embedding_run("e", machine=MACHINE)])
    assert [rate.run_id for rate in rates] == ["g", "o"]
    own, other = rates
    assert other.embedding is None
    assert own.embedding is not None
    assert own.embedding.provenance == "measured here"
    assert own.embedding.remark == "all-MiniLM-L6-v2 by torch-bf16"
    assert 92 < own.embedding.per_s.value < 95
    found = estimate(CostJob(documents=0, embedding_sentences=936_000), own)
    assert 2.7 < found.hours.value < 2.9
    assert found.hours.low < found.hours.value < found.hours.high


def test_without_a_run_of_embedding_the_rate_is_not_known() -> None:
    (rate,) = rates_of([measured_run("g", [40.0])])
    assert rate.embedding is None
