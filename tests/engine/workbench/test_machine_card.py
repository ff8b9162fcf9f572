"""Machine card: measured with the shipped model by llama.cpp, kept over a restart, refused, stopped, and unreadable."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ConfigError, ModelError
from engine.machine.limits import Limits
from engine.models import read_model
from engine.runs import RunRecord
from engine.samples import make_sample
from engine.settings import PREFIX
from engine.settings import Settings as WorkbenchSettings
from engine.workbench import Workbench, machine_card, machine_card_manager
from engine.workbench.machine_card import (
    FILE,
    MOST_CARDS,
    MachineCard,
    Settings,
    card_of,
    own_machine,
    read_cards,
    with_card,
)
from tests.engine.history.run_maker import make_cell
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("short_samples")

LIMITS = Limits(machine_hash="a1", num_cores=2, cache_bytes=1, bandwidth=((1, 2e9), (2, 4e9)), flops=1e11)
WITHIN_S = 180


def opened(home: Path) -> Workbench:
    bench = Workbench(WorkbenchSettings.from_environment({PREFIX + "HOME": str(home)}))
    bench.load_default()
    until(lambda: bench.model.engine)
    return bench


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, short_samples: None) -> Iterator[tuple[Workbench, MachineCard]]:
    """A workbench with its card, which no test changes."""
    bench = opened(tmp_path_factory.mktemp("measured"))
    assert bench.cards.card() is None
    yield bench, bench.cards.start().result(WITHIN_S)
    bench.close()


@pytest.fixture
def bench(home: Path) -> Iterator[Workbench]:
    bench = opened(home)
    yield bench
    bench.close()


def run_of(bench: Workbench, card: MachineCard) -> RunRecord:
    run = bench.bench.run(card.run_id)
    assert run is not None
    return run


def test_the_card_has_the_figures_of_a_kept_run(measured: tuple[Workbench, MachineCard], story_model: Path) -> None:
    bench, card = measured
    run = run_of(bench, card)
    alone = run.samples[(run.samples["cell"] == 0) & ~run.samples["is_replaced"]]
    assert alone["decode_per_s"].min() <= card.decode_per_s <= alone["decode_per_s"].max()
    assert card.prefill_per_s is not None and card.ttft_s is not None
    assert alone["prefill_per_s"].min() <= card.prefill_per_s <= alone["prefill_per_s"].max()
    assert card.num_samples <= len(run.samples)
    settings = run.cells[0].settings
    assert settings["layout"] == f"1x{card.threads}" and settings["users"] == 1
    assert (card.n_ctx, card.num_prompt) == (settings["n_ctx"], settings["num_prompt"])
    assert card.model == read_model(story_model).name
    assert card.machine == own_machine()
    assert card.users_sentence.startswith("This machine serves")
    limits = bench.bench.limits()
    assert limits is not None and card.bandwidth_bytes_per_s == limits.bandwidth_bytes_per_s


def test_the_conditions_are_one_line(measured: tuple[Workbench, MachineCard]) -> None:
    _bench, card = measured
    conditions = card.conditions
    assert card.title == f"{card.model} {card.quantisation}"
    for part in (card.machine, f"context {card.n_ctx:,}", f"llama.cpp {card.llama}", "UTC"):
        assert part in conditions
    quiet = replace_card(card, disturbed="", is_mostly_disturbed=False)
    assert quiet.conditions.endswith(" · quiet machine")
    some = replace_card(quiet, disturbed="1 of 9 samples was disturbed")
    assert some.conditions.endswith(" · partly disturbed")
    assert replace_card(some, is_mostly_disturbed=True).conditions.endswith(" · disturbed")


def test_the_measurement_is_an_ordinary_run(measured: tuple[Workbench, MachineCard]) -> None:
    bench, card = measured
    assert bench.history is not None
    (kept,) = bench.history.runs.recent()
    assert (kept.id, kept.name) == (card.run_id, "Your machine in 60 seconds")
    assert bench.cards.running is None and not bench.machine.busy_with


def test_the_card_is_there_after_a_restart(measured: tuple[Workbench, MachineCard], home: Path) -> None:
    bench, card = measured
    (home / FILE).write_bytes((bench.settings.home / FILE).read_bytes())
    again = opened(home)
    try:
        assert again.cards.card() == card
    finally:
        again.close()


def test_a_card_of_another_machine_or_model_is_not_shown(measured: tuple[Workbench, MachineCard], home: Path) -> None:
    card = measured[1]
    others = [replace_card(card, machine="Another, 4 of 4 cores"), replace_card(card, model_hash="ff")]
    machine_card.write_cards(home, others)
    bench = opened(home)
    try:
        assert bench.cards.card() is None
        bench.model_manager.eject()
        assert bench.cards.card() == others[1]  # of this machine, and no model is loaded to ask for
    finally:
        bench.close()


def test_stop_ends_it_without_a_card(bench: Workbench) -> None:
    task = bench.cards.start()
    until(lambda: bench.bench.running is not None or not task.is_running)
    bench.cards.stop()
    assert task.wait(60)
    assert task.state == "stopped"
    assert bench.cards.card() is None and bench.bench.running is None
    bench.machine.acquire("A test", "measurement").release()  # nothing holds the machine


def test_it_ends_when_its_time_is_over(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_card_manager, "MOST_S", 0.0)
    card = bench.cards.start().result(WITHIN_S)
    run = run_of(bench, card)
    assert run.status == "stopped"
    assert 1 <= len(run.samples) < run.plan["rounds"] * len(run.cells)


def test_a_machine_in_use_is_not_measured(bench: Workbench) -> None:
    with bench.machine.acquire("A download", "shared"), pytest.raises(ConfigError, match="A download is still running"):
        bench.cards.start()
    assert bench.cards.running is None


def test_without_a_model_there_is_nothing_to_measure(bench: Workbench) -> None:
    bench.model_manager.eject()
    with pytest.raises(ModelError, match="No model is loaded"):
        bench.cards.start()


def test_a_card_that_cannot_be_saved_is_still_shown(
    bench: Workbench, measured: tuple[Workbench, MachineCard], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = measured[1]
    monkeypatch.setattr(machine_card_manager, "MOST_S", 0.0)
    monkeypatch.setattr(machine_card_manager, "card_of", lambda *_arguments: card)
    (bench.settings.home / FILE).mkdir()  # nothing can replace a folder
    task = bench.cards.start()
    with pytest.raises(ConfigError, match="cannot be saved"):
        task.result(WITHIN_S)
    assert bench.cards.card() == card


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"version": 2, "cards": []}',
        b'{"version": 1, "cards": [{}]}',
        b'{"version": 1, "cards": [], "more": 1}',
        b"[" * 100_000,
        b" " * ((1 << 20) + 1),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_in_words(home: Path, content: bytes) -> None:
    (home / FILE).write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read .* Move the file away, or measure again"):
        read_cards(home)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decode_per_s", 0),
        ("decode_per_s", None),
        ("users", -1),
        ("limit", "the moon"),
        ("model", "x" * 3000),
        ("x", 1),
    ],
)
def test_a_card_with_an_impossible_value_is_refused(
    measured: tuple[Workbench, MachineCard], home: Path, name: str, value: object
) -> None:
    whole = json.loads((measured[0].settings.home / FILE).read_bytes())
    whole["cards"][0][name] = value
    (home / FILE).write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cards(home)


def test_a_missing_file_has_no_cards(home: Path) -> None:
    assert read_cards(home) == []


def test_a_new_card_replaces_the_former_one_and_the_number_is_bounded(
    measured: tuple[Workbench, MachineCard],
) -> None:
    card = measured[1]
    cards: list[MachineCard] = []
    for number in range(MOST_CARDS + 5):
        cards = with_card(cards, replace_card(card, model_hash=str(number)))
    assert [one.model_hash for one in cards] == [str(number) for number in range(MOST_CARDS + 4, 4, -1)]
    newer = replace_card(cards[3], decode_per_s=1.0)
    assert with_card(cards, newer) == [newer, *cards[:3], *cards[4:]]


def test_a_run_without_a_sample_of_one_user_has_no_card(
    measured: tuple[Workbench, MachineCard], story_model: Path
) -> None:
    bench, card = measured
    run = run_of(bench, card)
    others = replace(run, samples=run.samples[run.samples["cell"] != 0])
    with pytest.raises(ConfigError, match="was not measured: no sample was finished"):
        card_of(others, read_model(story_model), "ff", LIMITS)
    failed = tuple(replace(cell, reason="the worker died") for cell in run.cells)
    with pytest.raises(ConfigError, match="was not measured: the worker died"):
        card_of(replace(others, cells=failed), read_model(story_model), "ff", LIMITS)


@pytest.mark.parametrize(
    ("bandwidth", "cache_bytes", "limit"),
    [(1e30, 1, "compute"), (1.0, 1, "memory bandwidth"), (1e30, 1 << 40, "cached")],
)
def test_what_limits_it_follows_from_the_limits_of_the_machine(
    measured: tuple[Workbench, MachineCard], story_model: Path, bandwidth: float, cache_bytes: int, limit: str
) -> None:
    bench, card = measured
    run = run_of(bench, card)
    limits = replace(LIMITS, bandwidth=((2, bandwidth),), cache_bytes=cache_bytes)
    assert card_of(run, read_model(story_model), "ff", limits).limit == limit


def test_the_best_settings_are_the_fastest_layout_with_the_most_users(
    measured: tuple[Workbench, MachineCard], story_model: Path
) -> None:
    bench, card = measured
    run = run_of(bench, card)
    speeds = {"1x2": 50.0, "2x1": 70.0}
    cells = tuple(
        make_cell(number, settings={"layout": layout, "users": users})
        for number, (layout, users) in enumerate(product(speeds, (1, 16)))
    )
    samples = [
        make_sample(
            cell=cell.number, position=cell.number, duration_s=1.0, tokens_per_s=speeds[cell.settings["layout"]],
            decode_per_s=9.0, prefill_per_s=9.0, ttft_s=0.1, tpot_s=0.1, requests_per_s=1.0, goodput_per_s=1.0,
        )
        for cell in cells
    ]  # fmt: skip
    model = read_model(story_model)
    found = card_of(replace(run, cells=cells, samples=np.concatenate(samples)), model, "ff", LIMITS)
    assert found.best == Settings(layout="2x1", per_s=70.0, num_users=16, num_tried=2)
    assert (found.users, found.is_at_least, found.decode_per_s) == (16, True, 9.0)
    one = replace(run, cells=cells[:2], samples=np.concatenate(samples[:2]))
    assert card_of(one, model, "ff", LIMITS).best is None


def replace_card(card: MachineCard, **changes: object) -> MachineCard:
    values = {name: getattr(card, name) for name in card.__struct_fields__}
    return MachineCard(**{**values, **changes})
