"""The Cost page without a browser: the notes' example, what the address opens, prices, and real documents."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from streamlit.dataframe_util import convert_arrow_bytes_to_pandas_df
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.cost import Counted, Price, count_folder, prices_for, write_prices
from engine.cost.documents import OnFile
from engine.errors import ConfigError
from engine.ids import new_id
from engine.models import embedded_model
from engine.protocol import Engine
from engine.reference import noted_run, read_lines
from engine.runs import RunRecord
from engine.units import time_taken
from engine.workbench import Workbench, costing
from pages.parts.cost import price_table
from pages.parts.plain import plain
from tests.pages.app import HOSTILE, address, open_page, press
from tests.pages.bench_harness import ScriptedManager, make_run

NOTES = "c7i.4xlarge finishes 18 h 12 min sooner than c7i.xlarge for $2.75 more."


@pytest.fixture(autouse=True)
def shipped_prices(bench: Workbench) -> Iterator[None]:
    yield
    costing.forget_prices(bench.settings.home)


@pytest.fixture
def run(manager: ScriptedManager) -> RunRecord:
    """Measured here: two layouts of the model that ships."""
    plan = Plan(name="Mine", model=str(embedded_model()), axes={"layout": ("1x1", "1x2")}, rounds=8)
    run = make_run(plan, machine={"name": costing.this_machine()})
    manager.runs[run.id] = run
    return run


def page(**query: str) -> AppTest:
    return open_page("cost.py", "Cost", **query)


def sentence(at: AppTest) -> str:
    (first,) = at.main.subheader
    return first.value


def captions(at: AppTest) -> str:
    return "\n".join(caption.value for caption in at.main.caption)


def table(at: AppTest) -> pd.DataFrame:
    return next(shown.value for shown in at.main.dataframe if "configuration" in shown.value)


# the answer


def test_it_opens_on_the_example_of_the_notes(manager: ScriptedManager) -> None:
    at = page()
    assert sentence(at) == plain(NOTES)
    assert address(at) == {}
    assert len(at.get("plotly_chart")) == 2
    assert [button.label for button in at.main.button if button.proto.type == "primary"] == []


def test_the_table_has_the_figures_of_the_notes_beside_what_follows_from_their_inputs(manager: ScriptedManager) -> None:
    shown = table(page()).set_index("machine")
    per_dollar = shown["ktokens per $"].round(1).to_dict()
    expected = {
        "g4dn.xlarge": 27.4, "inf1.2xlarge": 80.1, "c7i.4xlarge": 94.1, "c7i.2xlarge": 129.8, "c7i.xlarge": 143.0,
    }  # fmt: skip
    assert {name: per_dollar[name] for name in expected} == pytest.approx(expected, abs=0.11)
    assert shown["ktokens per $, noted"]["g4dn.xlarge"] == 28.2
    for machine, hours, money in (("c7i.4xlarge", 11.2, 8.0), ("c7i.2xlarge", 16.2, 5.78), ("c7i.xlarge", 29.4, 5.25)):
        assert shown["one rate for all tokens, time"][machine] == pytest.approx(3600 * hours)
        assert shown["separate prompt rate, from – to"][machine].startswith("up to ")
        assert shown["one rate for all tokens, $"][machine] == pytest.approx(money, abs=0.006)


def test_the_other_way_of_counting_stands_beside_it(manager: ScriptedManager) -> None:
    at = page(output_tokens="200")
    assert "With a separate prompt rate\\:" in captions(at)
    assert "prefill speed is unknown" in captions(at)
    at = page(counted="apart", output_tokens="200")
    assert "prefill speed is unknown" in sentence(at)
    assert "With one rate for all tokens\\:" in captions(at)
    assert plain("prefill speed not noted") in captions(at)


def test_what_is_noted_and_what_is_assumed_is_said(manager: ScriptedManager) -> None:
    lines = captions(page()).splitlines()
    (noted,) = [line for line in lines if line.startswith("**Noted:**")]
    (assumed,) = [line for line in lines if line.startswith("**Assumed:**")]
    assert plain("c7i.4xlarge") in noted and plain("prices (note A, 2024)") in noted
    assert plain("c7i.xlarge (as c7i.4xlarge") in assumed and plain("1.5 tokens per word") in assumed
    assert not [line for line in lines if line.startswith("**Measured here:**")]


def test_layouts_of_the_notes_are_described_in_words(manager: ScriptedManager) -> None:
    at = page()
    shown = table(at).set_index("machine")["configuration"]
    assert shown["c7i.2xlarge"] == "as c7i.4xlarge, 1 process with 8 threads"
    assert shown["c7i.4xlarge"] == "2 processes with 8 threads each"
    charts = [json.dumps(json.loads(chart.proto.spec), ensure_ascii=False) for chart in at.get("plotly_chart")]
    assert re.findall(r"\d+ ?[x×] ?\d+", " ".join([sentence(at), captions(at), *shown, *charts])) == []


def test_a_deadline_and_a_budget_choose(manager: ScriptedManager) -> None:
    at = page(deadline_h="20")
    assert sentence(at).startswith(
        plain("c7i.2xlarge takes 16 h 12 min and costs $5.78: the cheapest that finishes within 20")
    )
    assert at.number_input(key="cost_deadline_h").value == 20
    assert plain("With a separate prompt rate: c7i.2xlarge takes at most 16 h 11 min") in captions(at)
    at.number_input(key="cost_deadline_h").set_value(None)
    at.number_input(key="cost_budget_usd").set_value(6.0).run()
    expected = "c7i.2xlarge takes 16 h 12 min and costs $5.78: the fastest for at most $6.00"
    assert sentence(at).startswith(plain(expected))
    assert address(at) == {"budget_usd": "6.0"}


def test_what_is_typed_is_the_address_and_opens_again(manager: ScriptedManager) -> None:
    at = page()
    at.number_input(key="cost_documents").set_value(200).run()
    at.slider(key="cost_utilisation").set_value(0.5).run()
    assert address(at) == {"documents": "200", "utilisation": "0.5"}
    again = page(**address(at))
    assert sentence(again) == sentence(at) != plain(NOTES)
    assert again.number_input(key="cost_documents").value == 200


def test_the_page_comes_back_as_it_was_left_and_begins_anew(manager: ScriptedManager) -> None:
    at = page(documents="200")
    at.switch_page("benchmark.py").run()
    at.query_params.clear()
    at.switch_page("cost.py").run()
    assert at.number_input(key="cost_documents").value == 200
    assert address(at) == {"documents": "200"}
    at.button(key="cost_reset").click().run()
    assert sentence(at) == plain(NOTES) and address(at) == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("documents", "-5"),
        ("documents", "many"),
        ("documents", "9" * 30),
        ("documents", "9" * 400),
        ("documents", "9" * 5000),
        ("startup_s", "9" * 400),
        ("documents", "0"),
        ("tokens_per_word", "nan"),
        ("utilisation", "7"),
        ("startup_s", "inf"),
        ("deadline_h", "-1"),
    ],
)
def test_an_address_that_makes_no_job_is_said_and_can_be_mended(manager: ScriptedManager, name: str, text: str) -> None:
    at = page(**{name: text})
    error = at.main.error[0].value.replace("\\", "")
    assert name in error or "the job is empty" in error
    at.query_params[name] = "1"
    at.run()
    assert sentence(at) and not at.main.error


# measured here


def test_it_opens_on_this_machine_once_it_was_measured(run: RunRecord) -> None:
    at = page()
    assert sentence(at).startswith("This machine takes ") and address(at) == {}
    assert at.selectbox(key="cost_model").value == "story"
    notes = captions(at)
    assert "Measured with Mine" in notes and "**Measured here:**" in notes and "**Noted:**" not in notes
    shown = table(at)
    assert shown["source of speed"].tolist() == ["measured here"] * len(run.cells)
    assert set(shown["machine"]) == {"this machine"} and shown["generation, 95 %"].notna().all()
    assert len(at.get("plotly_chart")) == 1


def test_of_a_single_machine_the_last_run_is_shown_or_every_configuration(
    manager: ScriptedManager, run: RunRecord
) -> None:
    newer = replace(run, id=new_id(), name="Newer", cells=run.cells[:1])
    manager.runs[newer.id] = newer
    assert table(page())["configuration"].tolist() == [f"Newer · {run.cells[0].label}"]
    assert len(table(page(every="True"))) == 3


def test_a_machine_that_was_not_measured_is_measured_in_place(
    bench: Workbench, manager: ScriptedManager, run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.cards, "start", lambda: manager.runs.update({run.id: run}))
    del manager.runs[run.id]
    at = page(model="Mistral-7B-Instruct-v0.2")
    assert "This machine was not measured with this model." in captions(at)
    press(at, "cost_measure")
    assert sentence(at).startswith("This machine takes ") and address(at) == {}


def test_a_machine_in_use_is_explained_where_it_would_be_measured(bench: Workbench, manager: ScriptedManager) -> None:
    with bench.machine.acquire("A download", "shared"):
        at = press(page(), "cost_measure")
        assert any("A download is still running" in error.value for error in at.main.error)


def test_this_machine_is_priced_by_its_power_draw_in_place(bench: Workbench, run: RunRecord) -> None:
    at = page()
    at.number_input(key="cost_own_power_w").set_value(100.0)
    at.number_input(key="cost_own_usd_per_kwh").set_value(0.5).run()
    assert plain("$0.0500 per hour of work") in captions(at)
    at.button(key="cost_own_save").click().run()
    assert not at.exception and not at.main.error
    (price,) = prices_for(costing.this_machine(), costing.load_prices(bench.settings.home))
    assert price.kind == "own" and price.hourly_usd == pytest.approx(0.05)
    assert " and costs " in sentence(at)


def test_the_price_of_this_machine_is_changed_to_its_purchase_price(bench: Workbench, run: RunRecord) -> None:
    home, machine = bench.settings.home, costing.this_machine()
    others = costing.load_prices(home)
    costing.save_prices(home, [*others, Price(machine=machine, kind="own", power_w=100.0, usd_per_kwh=0.5)])
    at = page()
    assert at.segmented_control(key="cost_own_by").value == "Power draw"
    assert at.number_input(key="cost_own_power_w").value == 100
    at.segmented_control(key="cost_own_by").set_value("Purchase price").run()
    at.number_input(key="cost_own_purchase_usd").set_value(2000.0)
    at.number_input(key="cost_own_lifetime_h").set_value(10_000.0).run()
    at.button(key="cost_own_save").click().run()
    prices = costing.load_prices(home)
    (price,) = prices_for(machine, prices)
    assert (price.purchase_usd, price.power_w) == (2000, None) and price.hourly_usd == pytest.approx(0.2)
    assert len(prices) == len(others) + 1


def test_half_of_a_price_is_refused_in_place(bench: Workbench, run: RunRecord) -> None:
    at = page()
    at.number_input(key="cost_own_power_w").set_value(0.0).run()
    assert plain("belong together") in captions(at)
    assert "cost_own_save" not in [button.key for button in at.button]


def test_a_price_that_cannot_be_kept_is_said_where_it_is_typed(run: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("the disk is full")

    monkeypatch.setattr(costing, "save_prices", refuse)
    at = page()
    at.button(key="cost_own_save").click().run()
    assert [error.value for error in at.main.error] == ["The disk is full"]


def test_what_comes_first_is_the_job_and_the_rest_is_under_advanced(manager: ScriptedManager) -> None:
    at = page(tokens_per_document="900")
    (advanced,) = [block for block in at.main.expander if block.label.startswith("Advanced")]
    inside = {widget.key for widget in [*advanced.number_input, *advanced.slider, *advanced.toggle]}
    outside = {widget.key for widget in at.main.number_input} - inside
    assert outside == {"cost_documents", "cost_tokens_per_document", "cost_output_tokens"}
    assert {"cost_words_per_document", "cost_deadline_h", "cost_utilisation", "cost_every"} <= inside
    assert advanced.label == "Advanced (1)"


def test_noted_lines_without_a_model_are_not_what_the_page_opens_on(manager: ScriptedManager) -> None:
    noted = noted_run(read_lines("235 tokens in 80s"), machine="laptop", model="")
    manager.runs[noted.id] = noted
    at = page()
    assert sentence(at) == plain(NOTES)
    assert "unknown model" in at.selectbox(key="cost_model").options
    assert "laptop takes" in sentence(page(model="unknown model"))


def test_hostile_names_stay_text(manager: ScriptedManager, run: RunRecord) -> None:
    manager.runs[run.id] = replace(run, name=HOSTILE, machine={"cpu": HOSTILE})
    at = page(model="story")
    said = sentence(at) + captions(at)
    assert "<script>" not in said and "\u202e" not in said and "**bold" not in said


def test_times_of_the_table_are_numbers_that_are_shown_in_the_words_of_the_page(manager: ScriptedManager) -> None:
    (shown,) = [one for one in page().main.dataframe if "configuration" in one.value]
    at, config = shown.value.set_index("machine"), json.loads(shown.proto.columns)
    words = convert_arrow_bytes_to_pandas_df(shown.proto.arrow_data.styler.display_values).set_index("machine")
    name = "one rate for all tokens, time"
    assert at[name].dtype.kind == "f" and name not in config
    assert words[name].tolist() == [time_taken(seconds) for seconds in at[name]]
    assert words[name]["c7i.xlarge"] == "29 h 24 min"
    assert words["separate prompt rate, from – to"]["c7i.xlarge"].startswith("up to ")


def test_a_job_of_ages_has_a_sentence_as_well(manager: ScriptedManager) -> None:
    at = page(documents=str(10**12), words_per_document="600")
    assert "days" in sentence(at)
    assert table(at)["one rate for all tokens, time"].min() > 86_400 * 100_000


def test_heads_of_the_price_table_have_their_units(manager: ScriptedManager) -> None:
    (shown,) = [one for one in page().main.dataframe if "usd_per_kwh" in one.value]
    heads = {name: column.get("label") for name, column in json.loads(shown.proto.columns).items()}
    assert heads["power_w"] == "power, W" and heads["usd_per_kwh"] == "$ per kWh"


# prices


def test_prices_come_and_go_as_csv(bench: Workbench, manager: ScriptedManager) -> None:
    at = page()
    csv = b"machine,usd_per_h,dated\nc7i.4xlarge,1.5,2026-11\nc7i.xlarge,0.2,2026-11\n"
    at.file_uploader(key="cost_price_file").set_value(("mine.csv", csv, "text/csv")).run()
    at.button(key="cost_prices_take").click().run()
    assert not at.exception and not at.main.error
    assert [price.usd_per_h for price in costing.load_prices(bench.settings.home)] == [1.5, 0.2]
    assert sentence(at) != plain(NOTES) and "c7i.4xlarge" in sentence(at).replace("\\", "")
    at.button(key="cost_prices_shipped").click().run()
    assert sentence(at) == plain(NOTES)
    assert at.button(key="cost_prices_shipped").disabled


def test_prices_that_others_took_the_place_of_come_back(bench: Workbench, manager: ScriptedManager) -> None:
    home = bench.settings.home
    own, others, changed = (
        tuple(replace(price, usd_per_h=usd) for price in costing.load_prices(home)) for usd in (1.5, 2.5, 3.5)
    )
    costing.save_prices(home, own)
    at = page()
    csv = write_prices(others).encode()
    at.file_uploader(key="cost_price_file").set_value(("mine.csv", csv, "text/csv")).run()
    at.button(key="cost_prices_take").click().run()
    at.button(key="cost_prices_undo").click().run()
    assert costing.load_prices(home) == own
    at.button(key="cost_prices_shipped").click().run()
    assert sentence(at) == plain(NOTES) and "The default prices were restored." in captions(at)
    at.button(key="cost_prices_undo").click().run()
    assert costing.load_prices(home) == own
    assert "cost_prices_undo" not in [button.key for button in at.button]
    at.button(key="cost_prices_shipped").click().run()
    costing.save_prices(home, changed)
    at.run()
    assert "cost_prices_undo" not in [button.key for button in at.button]


@pytest.mark.parametrize(
    ("line", "message"), [("c7i.xlarge,-0.2", "Line 2"), ("c7i.xlarge,", "missing"), ("c7i.xlarge,1e9", "100")]
)
def test_prices_that_cannot_be_are_refused_and_the_old_ones_stay(
    manager: ScriptedManager, line: str, message: str
) -> None:
    at = page()
    csv = f"machine,usd_per_h\n{line}\n".encode()
    at.file_uploader(key="cost_price_file").set_value(("mine.csv", csv, "text/csv")).run()
    at.button(key="cost_prices_take").click().run()
    (popover,) = [block for block in at.get("popover") if block.proto.popover.label == "Import CSV"]
    (error,) = popover.error
    assert message in error.value.replace("\\", "")
    assert sentence(at) == plain(NOTES)


def test_a_broken_file_of_prices_is_said_and_the_page_goes_on(bench: Workbench, manager: ScriptedManager) -> None:
    (bench.settings.home / costing.PRICES).write_text("machine,usd_per_h\nc7i.xlarge,free\n")
    at = page()
    assert "line 2" in at.main.error[0].value
    assert "no machine here has a price" in sentence(at)


def test_an_edited_table_is_prices_again_or_says_which_row_is_wrong() -> None:
    prices = (
        Price(machine="rented", usd_per_h=1.25, region="eu", dated="2026"),
        Price(machine="mine", kind="own", power_w=90.0, usd_per_kwh=0.3),
    )
    table = price_table.frame(prices)
    assert price_table.prices_of(table) == prices
    table.loc[1, "power_w"] = -3.0
    with pytest.raises(ConfigError, match="Row 2: power_w"):
        price_table.prices_of(table)
    table.loc[1, "power_w"] = None
    with pytest.raises(ConfigError, match="Row 2: .*belong together"):
        price_table.prices_of(table)


# documents


def test_a_folder_is_counted_and_becomes_the_job(bench: Workbench, manager: ScriptedManager, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("Once upon a time there was a cat. " * (number + 1))
    (tmp_path / "picture.bin").write_bytes(b"\0\1\2")
    at = page()
    at.text_input(key="cost_folder").set_value(str(tmp_path)).run()
    at.button(key="cost_count").click().run()
    assert not at.exception and not at.main.error
    assert len(at.get("plotly_chart")) == 3
    skipped = next(shown.value for shown in at.main.dataframe if "reason" in shown.value)
    assert skipped["file"].tolist() == ["picture.bin"] and "binary" in skipped["reason"][0]
    at.button(key="cost_take").click().run()
    found = costing.start_counting(bench, tmp_path).result()
    assert address(at)["documents"] == "3"
    assert float(address(at)["tokens_per_document"]) == pytest.approx(found.num_tokens / 3)
    assert plain("tokens of 3 documents, by") in captions(at)


def test_files_are_counted_too_and_a_missing_folder_is_said(manager: ScriptedManager, tmp_path: Path) -> None:
    at = page()
    assert at.button(key="cost_count").disabled
    at.text_input(key="cost_folder").set_value(str(tmp_path / "nowhere")).run()
    at.button(key="cost_count").click().run()
    assert "no such folder" in at.main.error[0].value
    at.file_uploader(key="cost_files").set_value([("tale.txt", b"Once upon a time.", "text/plain")]).run()
    at.button(key="cost_count").click().run()
    assert not at.main.error
    assert len(at.get("plotly_chart")) == 3


def test_a_long_count_can_be_stopped(
    bench: Workbench, manager: ScriptedManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr("pages.parts.cost.documents.AT_ONCE_S", 0.05)
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("Once upon a time")

    def slowly(engine: Engine, folder: object, on_file: OnFile) -> Counted:
        return count_folder(tmp_path, lambda _text: int(goes_on.wait(60)), on_file)

    monkeypatch.setattr(costing, "count_with", slowly)
    at = page()
    at.text_input(key="cost_folder").set_value(str(tmp_path)).run()
    at.button(key="cost_count").click().run()
    assert not at.exception and at.button(key="cost_count_stop")
    task, _model = at.session_state["cost_counting"]
    at.button(key="cost_count_stop").click().run()
    goes_on.set()
    assert task.wait(60)
    at.run()
    assert "Stopped before all files were counted." in captions(at) and len(at.get("plotly_chart")) == 2
