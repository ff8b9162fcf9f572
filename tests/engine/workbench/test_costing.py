import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.cost import CostJob, Estimate, Price, Way, answer, best_by_machine, estimates, fastest_first
from engine.errors import ConfigError, ModelError
from engine.exchange.llama_bench_files import read_run
from engine.pool.pool import Pool
from engine.reference import noted_run, read_lines, reference_runs
from engine.runs import CellRecord
from engine.samples import make_sample
from engine.settings import Settings
from engine.workbench import Workbench
from engine.workbench.costing import (
    count_with,
    forget_prices,
    has_own_prices,
    load_prices,
    rates,
    rates_of,
    reference_rates,
    replace_prices,
    restore_prices,
    save_prices,
    start_counting,
    this_machine,
)
from tests.engine.bench.run_maker import measured_run
from tests.engine.history.run_maker import make_run

NOTES = "Mistral-7B-Instruct-v0.2"


@pytest.fixture
def bench() -> Iterator[Workbench]:
    opened = Workbench(Settings.from_environment())
    yield opened
    opened.close()


def by_machine(way: Way = "notes") -> dict[str, Estimate]:
    best = best_by_machine(rate for rate in reference_rates() if rate.model == NOTES)
    made = estimates(CostJob(), best, load_prices(Path("nowhere")), counted_as=way)
    return {one.rate.machine: one for one in made if one.price is not None}


def test_the_notes_tokens_for_a_dollar_come_out() -> None:
    found = by_machine()
    shown = {machine: round(one.ktokens_per_usd.value, 1) for machine, one in found.items()}
    assert shown == {
        "g4dn.xlarge": 27.4,
        "inf1.2xlarge": 80.1,
        "c7i.4xlarge": 94.1,
        "c7i.2xlarge": 129.8,
        "c7i.xlarge": 143.0,
    }
    noted = {machine: one.rate.noted_ktokens_per_usd for machine, one in found.items()}
    assert noted == {**shown, "g4dn.xlarge": 28.2}


def test_the_notes_example_comes_out_and_is_answered_by_a_sentence() -> None:
    found = by_machine()
    shown = {name: (found[name].hours.value, round(found[name].dollars.value, 2)) for name in found if "c7i" in name}
    assert shown == {"c7i.4xlarge": (11.2, 8.00), "c7i.2xlarge": (16.2, 5.78), "c7i.xlarge": (29.4, 5.25)}
    answered = answer(list(found.values()))
    assert answered.sentence == "c7i.4xlarge finishes 18 h 12 min sooner than c7i.xlarge for $2.75 more."
    assert fastest_first(found.values())[0] is answered.chosen


def test_with_prefill_apart_the_notes_have_bounds_alone() -> None:
    for one in by_machine("apart").values():
        assert math.isnan(one.hours.value)
        assert one.hours.low == 0
        assert any("prefill speed not noted" in assumption for assumption in one.assumptions)


def test_what_is_assumed_of_another_machine_says_so() -> None:
    (xlarge,) = (rate for rate in reference_rates() if rate.machine == "c7i.xlarge")
    assert xlarge.generation.provenance == "assumed"
    assert xlarge.generation.remark == "as c7i.4xlarge, 1 process with 4 threads"
    assert xlarge.run_id == ""
    assert xlarge.embedding is None
    home = [rate for rate in reference_rates() if rate.machine == "home, 60 GB"]
    assert {rate.embedding.per_s.value for rate in home if rate.embedding} == {2.05}
    assert {rate.generation.provenance for rate in home} == {"noted"}


def test_an_external_engine_is_no_rate_of_this_machine() -> None:
    run = measured_run("r", [100.0, 900.0], settings=[{"arm": "pool"}, {"arm": "external:desk"}], question="engines")
    assert [rate.label for rate in rates_of([run])] == ["r · arm pool"]


def test_a_measured_run_gives_its_speeds_with_intervals() -> None:
    run = make_run(240, 2)
    cells = tuple(
        CellRecord(
            number=number,
            label=layout,
            settings={"layout": layout, "parallel": 4, "model": "/m/story-Q8_0.gguf"},
            facts={"kl_mean": 0.25} if number else {},
        )
        for number, layout in enumerate(("1x2", "2x1"))
    )
    samples = np.concatenate(
        [
            make_sample(cell=cell, round=turn, tokens_per_s=50 * (cell + 1) + turn, prefill_per_s=200, decode_per_s=20)
            for turn in range(9)
            for cell in range(2)
        ]
    )
    first, second = rates_of([replace(run, cells=cells, samples=samples)])
    assert (first.model, first.quantisation, first.num_streams) == ("story", "Q8_0", 4)
    assert (first.divergence, second.divergence) == (None, 0.25)
    assert second.num_streams == 8
    assert second.generation.per_s.value == 104
    assert 100 <= second.generation.per_s.low < 104 < second.generation.per_s.high <= 108
    assert second.prefill is not None
    assert {second.generation.provenance, second.prefill.provenance} == {"measured here"}
    assert (second.run_id, second.cell) == (run.id, 1)


def test_only_runs_measured_on_this_machine_are_its_own() -> None:
    here = {"name": this_machine()}
    (own, *_), (imported, *_), (elsewhere, *_) = (
        rates_of([make_run(40, machine=machine, origin=origin)])
        for machine, origin in ((here, "measured"), (here, "a.run.zip"), ({"cpu": "Other"}, "measured"))
    )
    assert (own.is_here, own.place) == (True, "this machine")
    assert not imported.is_here and (elsewhere.is_here, elsewhere.place) == (False, "Other")
    assert not any(rate.is_here for rate in reference_rates())


def test_noted_lines_are_noted_and_files_are_imported() -> None:
    noted = noted_run(read_lines("235 tokens in 80s (4 threads)"), machine="laptop", model="m.Q4_0.gguf")
    (rate,) = rates_of([noted])
    assert (rate.machine, rate.model, rate.quantisation) == ("laptop", "m", "Q4_0")
    assert rate.generation.provenance == "noted"
    assert "prompt included" in rate.generation.remark
    (unnamed,) = rates_of([noted_run(read_lines("235 tokens in 80s"), machine="laptop", model="")])
    assert unnamed.model == "unknown model"
    imported = rates_of([make_run(40, origin="elsewhere.run.zip")])
    assert {rate.generation.provenance for rate in imported} == {"imported"}


def test_prefill_that_llama_bench_measured_by_itself_is_found() -> None:
    rows = [
        {"build_commit": "abc", "model_filename": "m.gguf", "n_prompt": prompt, "n_gen": output, "n_threads": threads,
         "avg_ts": speed, "stddev_ts": 0.1, "avg_ns": 1, "stddev_ns": 1}
        for prompt, output, threads, speed in ((512, 0, 2, 200.0), (0, 128, 2, 50.0), (0, 128, 1, 30.0))
    ]  # fmt: skip
    two, one = rates_of([read_run(json.dumps(rows).encode(), "rows.json")])
    assert (two.generation.per_s.value, one.generation.per_s.value) == pytest.approx((50, 30))
    assert two.prefill is not None
    assert two.prefill.per_s.value == pytest.approx(200)
    assert one.prefill is None


def test_runs_that_generated_nothing_have_no_speed() -> None:
    assert rates_of([make_run(0)]) == []


def test_a_workbench_offers_its_runs_before_the_notes(bench: Workbench) -> None:
    run = make_run(40)
    assert bench.history is not None
    bench.history.runs.keep(run)
    found = rates(bench)
    assert [rate.run_id for rate in found[:2]] == [run.id, run.id]
    assert [rate.label for rate in found[2:]] == [rate.label for rate in reference_rates()]
    machine = reference_runs()[0]
    assert bench.bench.run(machine.id) is machine


def test_prices_are_kept_whole_and_forgotten(home: Path) -> None:
    shipped = load_prices(home)
    assert {price.machine for price in shipped} >= {"g4dn.xlarge", "c7i.xlarge"}
    assert all(price.dated and price.source for price in shipped)
    own = [*shipped, Price(machine="desk", kind="own", power_w=100, usd_per_kwh=0.3)]
    save_prices(home / "new", own)
    assert load_prices(home / "new") == tuple(own)
    forget_prices(home / "new")
    assert load_prices(home / "new") == shipped


def test_a_table_that_another_took_the_place_of_comes_back(home: Path) -> None:
    shipped = load_prices(home)
    mine, theirs = ((Price(machine=name, usd_per_h=1),) for name in ("mine", "theirs"))
    replace_prices(home, mine)
    assert load_prices(home) == mine and has_own_prices(home)
    restore_prices(home)
    assert load_prices(home) == shipped and not has_own_prices(home)
    save_prices(home, mine)
    replace_prices(home, theirs)
    assert load_prices(home) == theirs
    restore_prices(home)
    assert load_prices(home) == mine
    forget_prices(home)
    forget_prices(home)
    assert load_prices(home) == shipped
    restore_prices(home)
    assert load_prices(home) == mine
    with pytest.raises(ConfigError, match="two prices"):
        replace_prices(home, [*theirs, *theirs])
    assert load_prices(home) == mine


def test_a_broken_table_is_reported_with_file_and_line(home: Path) -> None:
    with pytest.raises(ConfigError, match="two prices"):
        save_prices(home, [Price(machine="a", usd_per_h=1), Price(machine="A", usd_per_h=2)])
    assert not (home / "prices.csv").exists()
    (home / "prices.csv").write_text("machine,usd_per_h\nx,-1\n")
    with pytest.raises(ConfigError, match=r"prices\.csv: line 2: usd_per_h = -1"):
        load_prices(home)
    (home / "prices.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"prices\.csv"):
        load_prices(home)
    (home / "prices.csv").unlink()
    (home / "prices.csv").mkdir()
    with pytest.raises(ConfigError, match="cannot be saved"):
        save_prices(home, [Price(machine="a", usd_per_h=1)])
    with pytest.raises(ConfigError, match="cannot be saved"):
        replace_prices(home, [Price(machine="a", usd_per_h=1)])
    (home / "prices.csv").rmdir()
    save_prices(home, [Price(machine="a", usd_per_h=1)])
    (home / "prices-before.csv").mkdir()
    with pytest.raises(ConfigError, match="cannot be moved"):
        forget_prices(home)
    assert [price.machine for price in load_prices(home)] == ["a"]


def test_documents_are_counted_by_the_models_own_tokenizer(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Once upon a time")
    found = count_with(pool, tmp_path)
    assert found.documents == (("a.txt", 4, len(pool.tokenize("Once upon a time"))),)
    text = "Once upon a time there was a little girl. " * 20_000
    (brought,) = count_with(pool, [("long.txt", text.encode())]).documents
    assert brought.num_words == 180_000
    assert brought.num_tokens >= 180_000


def test_without_a_model_nothing_is_counted(bench: Workbench, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No model is loaded"):
        start_counting(bench, tmp_path)
