"""Facts of this machine: each with its provenance, from a card, a search for settings, trials, and the catalogue."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from engine.history import History
from engine.history.activity import TrialSpeed
from engine.machine.fingerprint import hardware
from engine.models.catalogue import read_catalogue
from engine.units import quantity
from engine.workbench import machine_facts
from engine.workbench.machine_card import MachineCard, Settings
from engine.workbench.machine_facts import CONTEXT, Fact, facts_of, newest_search
from tests.engine.history.run_maker import make_cell, make_run

CARD = MachineCard(
    run_id="run", measured_at=datetime(2026, 11, 28, 9, 5, tzinfo=UTC), machine="Two cores", memory_bytes=24 << 30,
    model="Story", model_hash="ff", quantisation="F16", num_parameters=7_900_000, threads=2, n_ctx=256, num_prompt=64,
    num_generated=32, num_samples=9, llama="0.3.36 (abc)", disturbed="", is_mostly_disturbed=False,
    decode_per_s=1310.0, prefill_per_s=5200.0,
    ttft_s=0.012, limit="compute", limit_sentence="Compute is the limit.", bandwidth_bytes_per_s=20e9, users=16,
    is_at_least=True, users_sentence="This machine serves at least 16 users.",
    best=Settings(layout="2x1", per_s=2146.0, num_users=16, num_tried=2),
)  # fmt: skip


def by_name(facts: tuple[Fact, ...]) -> dict[str, Fact]:
    return {fact.name: fact for fact in facts}


def changed(**changes: Any) -> MachineCard:
    return MachineCard(**{**{name: getattr(CARD, name) for name in CARD.__struct_fields__}, **changes})


def test_a_card_answers_every_question() -> None:
    facts = by_name(facts_of(CARD))
    assert list(facts) == ["speed", "limit", "largest", "users", "settings"]
    assert {name: fact.provenance for name, fact in facts.items()} == {
        "speed": "measured", "limit": "measured", "largest": "estimated", "users": "measured", "settings": "estimated",
    }  # fmt: skip
    assert facts["speed"].value == "1,310 tok/s"
    assert facts["speed"].note == "Prompts at 5,200 tok/s, first token after 12.0 ms."
    assert (facts["limit"].value, facts["limit"].note) == ("Compute", "Compute is the limit.")
    assert (facts["users"].value, facts["users"].run_id) == ("16 or more", "run")
    assert facts["settings"].value == "2 × 1 thread"
    assert "2,146 tok/s in all with 16 users" in facts["settings"].note


def test_a_card_of_a_disturbed_machine_says_so_at_every_figure() -> None:
    facts = by_name(facts_of(changed(disturbed="8 of 9 samples were disturbed", is_mostly_disturbed=True)))
    assert {facts[name].provenance for name in ("speed", "limit", "users")} == {"measured, disturbed"}
    partly = by_name(facts_of(changed(disturbed="1 of 9 samples was disturbed")))
    assert partly["speed"].provenance == "measured"


def test_without_a_card_only_the_catalogue_answers() -> None:
    facts = by_name(facts_of(None))
    assert {name for name, fact in facts.items() if fact.provenance == "not measured"} == {
        "speed", "limit", "users", "settings",
    }  # fmt: skip
    assert {fact.value for fact in facts.values() if fact.provenance == "not measured"} == {"–"}
    assert all(fact.note for fact in facts.values())


def test_trials_stand_for_a_speed_that_was_not_measured() -> None:
    fact = by_name(facts_of(None, speed=TrialSpeed(57.34, 34)))["speed"]
    assert (fact.value, fact.provenance) == ("57.3 tok/s", "estimated")
    assert "34 trials of the last 7 days" in fact.note
    assert by_name(facts_of(CARD, speed=TrialSpeed(57.34, 34)))["speed"].value == "1,310 tok/s"


def test_an_exact_number_of_users_and_an_unknown_limit() -> None:
    facts = by_name(facts_of(changed(users=0, is_at_least=False, limit="unknown", best=None)))
    assert facts["users"].value == "0"
    assert (facts["limit"].value, facts["limit"].provenance) == ("–", "not measured")
    assert facts["settings"].provenance == "not measured"


@pytest.mark.parametrize("free_gb", [0.1, 0.5, 3, 6, 64])
def test_the_largest_model_that_fits_follows_from_the_free_memory(
    free_gb: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = int(free_gb * 1e9)
    monkeypatch.setattr(machine_facts, "available_memory", lambda: free)
    fact = by_name(facts_of(CARD))["largest"]
    texts = [entry for entry in read_catalogue().entries if entry.kind == "text"]
    fitting = [entry for entry in texts if entry.needed_bytes(CONTEXT) <= free]
    if not fitting:
        assert fact.value == "None of the catalogue"
        least = min(entry.needed_bytes(CONTEXT) for entry in texts)
        assert quantity(least, "B") in fact.note and quantity(free, "B") in fact.note
        return
    most = max(entry.num_parameters for entry in fitting)
    named = [entry for entry in fitting if f"{entry.title} {entry.quantisation}" == fact.value]
    assert [entry.num_parameters for entry in named] == [most]
    assert quantity(named[0].tokens_per_s(CARD.bandwidth_bytes_per_s), "tok/s") in fact.note
    assert ("largest of the catalogue" in fact.note) == (most == max(entry.num_parameters for entry in texts))


def test_beside_the_largest_stands_the_largest_that_is_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_facts, "available_memory", lambda: 64 << 30)
    slow, fast = (by_name(facts_of(changed(bandwidth_bytes_per_s=per_s)))["largest"] for per_s in (15e9, 500e9))
    assert "may reach 10 tok/s: " in slow.note and "may reach 10 tok/s: " not in fast.note
    assert slow.value == fast.value and slow.value not in slow.note
    assert "may reach" not in by_name(facts_of(None))["largest"].note


@pytest.mark.parametrize(("word", "provenance"), [("faster", "measured"), ("not enough data", "estimated")])
def test_a_search_for_settings_goes_before_the_card(word: str, provenance: str) -> None:
    outcome = {"winner": 1, "word": word, "sentence": "2x2 is faster."}
    search = make_run(cells=(make_cell(0), make_cell(1, label="2 × 2")), outcome=outcome)
    fact = by_name(facts_of(CARD, search))["settings"]
    assert (fact.value, fact.provenance, fact.note) == ("2 × 2", provenance, "2x2 is faster.")
    assert fact.run_id == search.id
    unknown = replace(search, outcome={})
    assert by_name(facts_of(CARD, unknown))["settings"].value == "–"


def test_the_search_of_this_model_on_this_machine_is_found(tmp_path: Path) -> None:
    here = hardware()
    cells = (make_cell(0, settings={"model": "/models/story.gguf"}),)
    others: tuple[dict[str, Any], ...] = (
        {"machine": {"cpu": "Another", "allowed_cores": [0]}},
        {"status": "stopped"},
        {"origin": "llama-bench"},
        {"question": "speed"},
        {"cells": (make_cell(0, settings={"model": "/models/other.gguf"}),)},
    )
    with History.open(tmp_path / "history.duckdb") as history:
        assert newest_search(history, "story") is None
        for changes in others:
            history.runs.keep(make_run(**{"question": "settings", "machine": here, "cells": cells, **changes}))
        assert newest_search(history, "story") is None
        wanted = make_run(question="settings", machine=here, cells=cells)
        history.runs.keep(wanted)
        found = newest_search(history, "story")
        assert found is not None and found.id == wanted.id
