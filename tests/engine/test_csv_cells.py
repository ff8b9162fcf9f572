"""CSV export: no text begins a formula, numbers stay numbers, and our own files give the texts back."""

import csv
import io
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.cost.prices import Price, read_prices, write_prices
from engine.csv_cells import escaped, unescaped
from engine.exchange.llama_bench_text import read_rows, write_rows
from engine.history.export import CSV_COLUMNS, to_csv
from engine.workbench.run_files import run_file
from pages.parts.history.sql_view import as_csv
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial

drawn = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
FORMULA = ("=", "+", "-", "@", "\t", "\r")
TEXTS = st.text(st.sampled_from([*FORMULA, "'", " ", ",", '"', "\n", "a", "1", "é"]), max_size=8)
COMMAND = "=HYPERLINK(\"http://evil.example\",\"x\")"  # fmt: skip


def cells(content: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


@drawn
@given(TEXTS)
def test_texts_come_back_and_begin_no_formula(text: str) -> None:
    assert not escaped(text).startswith(FORMULA)
    assert unescaped(escaped(text)) == text


@drawn
@given(st.one_of(st.integers(), st.floats(), st.none(), st.booleans()))
def test_numbers_stay_as_they_are(value: object) -> None:
    assert escaped(value) is value


@drawn
@given(texts=st.lists(TEXTS, min_size=1, max_size=5), numbers=st.lists(st.integers(-9, 9), min_size=5, max_size=5))
def test_answers_of_the_console(texts: list[str], numbers: list[int]) -> None:
    table = pa.table([texts, numbers[: len(texts)], [None] * len(texts)], [COMMAND, "-n", "n"])
    head, *rows = cells(as_csv(table))
    assert head == [f"'{COMMAND}", "'-n", "n"]
    assert [(unescaped(row[0]), int(row[1])) for row in rows] == list(zip(texts, numbers, strict=False))
    assert not any(row[0].startswith(FORMULA) for row in rows)


def test_steps_of_a_trial() -> None:
    trial = make_trial(40, 2)
    texts = [step.text for step in (*trial.completion.prompt_steps, *trial.completion.steps)]
    head, *rows = cells(to_csv(trial))
    assert head == list(CSV_COLUMNS)
    assert [unescaped(row[3]) for row in rows] == texts
    assert any(float(row[5]) < 0 for row in rows if row[5])


def test_samples_of_a_run() -> None:
    run = make_run(4, 2)
    run = replace(run, cells=tuple(replace(cell, label=f"{COMMAND}{cell.number}") for cell in run.cells))
    rows = cells(run_file(run, "csv"))[1:]
    assert {row[0] for row in rows} <= {f"'{COMMAND}{cell.number}" for cell in run.cells}


@drawn
@given(machine=TEXTS.filter(str.strip), region=TEXTS)
def test_prices_come_back(machine: str, region: str) -> None:
    price = Price.from_dict({"machine": machine, "region": region, "usd_per_h": 1.5})
    text = write_prices([price])
    assert not any(cell.startswith(FORMULA) for row in cells(text.encode()) for cell in row)
    assert read_prices(text) == (price,)


@pytest.mark.parametrize("name", [COMMAND, "-x", "'=x", "@a", "x"])
def test_rows_of_llama_bench_come_back(name: str) -> None:
    rows = read_rows('{"n_prompt": 8, "n_gen": 0, "avg_ts": 1.5}')
    changed = [{**row, "cpu_info": name} for row in rows]
    text = write_rows(changed, "csv")
    assert not any(cell.startswith(("=", "@", "+")) for row in cells(text.encode()) for cell in row)
    assert read_rows(text)[0]["cpu_info"] == name
