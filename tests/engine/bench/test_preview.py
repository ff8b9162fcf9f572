"""Preview of a plan's time and memory before launch, and the presets."""

import math
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bench.planning import feasibility
from engine.bench.planning.candidates import default_threads, settings_plan
from engine.bench.planning.cells import cells_of
from engine.bench.planning.engines import SINGLE
from engine.bench.planning.plan import ARMS, GOALS, Goal, Plan
from engine.bench.planning.presets import MINUTE_S, PRESETS, QUICK_S, layouts, minute_plan, preset
from engine.bench.planning.preview import preview
from engine.bench.planning.schedule import MOST_REPEATS, turns_of
from engine.errors import ConfigError
from engine.models.memory import estimate
from engine.specs import PoolSpec
from engine.stats import FIRST_LOOK, smallest_ratio
from engine.units import duration
from tests.engine.models.headers import array, gguf, key, tensor, text, u32

TEXT, U32 = 8, 4


@pytest.fixture
def large_model(tmp_path: Path) -> Path:
    """Sparse file with the header of a 7 B model at Q4_K."""
    tensors = [(f"blk.{layer}.ffn_up.weight", (4096, 51_200)) for layer in range(32)]
    size = 4096 * 51_200 // 256 * 144
    keys = [
        key("general.architecture", TEXT, text("llama")),
        u32("llama.context_length", 4096),
        u32("llama.embedding_length", 4096),
        u32("llama.block_count", 32),
        u32("llama.feed_forward_length", 11_008),
        u32("llama.attention.head_count", 32),
        array("llama.attention.head_count_kv", U32, 32, struct.pack("<32I", *[32] * 32)),
        u32("llama.vocab_size", 32_000),
    ]
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf(keys, [tensor(name, shape, 12, i * size) for i, (name, shape) in enumerate(tensors)], b""))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + len(tensors) * size)
    return path


def test_it_counts_what_the_schedule_has(story_model: Path) -> None:
    plan = Plan(model=str(story_model), axes={"parallel": (1, 2, 4)}, rounds=8)
    found = preview(plan)
    assert found.num_samples == len(turns_of(plan, list(found.cells)))
    assert found.seconds == pytest.approx(sum(found.seconds_by_cell.values()))
    assert found.seconds > found.num_samples
    assert found.smallest_ratio == smallest_ratio(0.07, 8, num_comparisons=2)
    assert found.sentence.startswith("3 configurations × 8 rounds: 29 samples, including the control, about ")


def test_what_a_noisy_machine_takes_at_most_is_reported(story_model: Path) -> None:
    found = preview(Plan(model=str(story_model), axes={"parallel": (1, 2, 4)}, rounds=8))
    assert found.most_seconds == (1 + MOST_REPEATS) * found.seconds
    assert f", up to {duration(found.most_seconds)} if the machine is noisy." in found.sentence
    search = preview(preset("settings", story_model, 4))
    assert search.most_seconds == search.seconds


def test_memory_is_the_estimate_of_each_pool(story_model: Path) -> None:
    found = preview(Plan(model=str(story_model), axes={"parallel": (1, 64)}, rounds=6))
    assert found.memory_by_cell.keys() == {0, 1}
    assert found.memory_by_cell[1] > found.memory_by_cell[0] > story_model.stat().st_size


def test_measured_seconds_take_the_place_of_guesses(story_model: Path) -> None:
    plan = Plan(model=str(story_model), axes={"num_generated": (16, 16_000)}, rounds=8, pool={"parallel": 1})
    guessed, measured = preview(plan), preview(plan, sample_s={0: 20.0})
    assert measured.seconds_by_cell[0] > 8 * 20
    ratio = measured.seconds_by_cell[1] / guessed.seconds_by_cell[1]
    assert 1 < ratio < 20
    both = preview(plan, sample_s={0: 1.0, 1: 2.0})
    assert both.seconds_by_cell[1] < 8 * 2 + 20


def test_more_rounds_and_less_noise_find_smaller_differences(story_model: Path) -> None:
    plan = Plan(model=str(story_model), axes={"parallel": (1, 2)}, rounds=8)
    ratio = preview(plan).smallest_ratio
    assert 1 < preview(replace(plan, rounds=16)).smallest_ratio < ratio
    assert 1 < preview(plan, noise_sd=0.02).smallest_ratio < ratio


def test_too_few_rounds_for_any_verdict_are_reported(story_model: Path) -> None:
    found = preview(Plan(model=str(story_model), axes={"parallel": (1, 2, 3, 4, 5, 6)}, rounds=7))
    assert found.smallest_ratio == math.inf
    assert "No verdict is possible with 7 rounds: 8 is the minimum and detects " in found.sentence
    fewest, more = found.offers
    assert fewest.rounds == 8 < more.rounds
    assert fewest.smallest_ratio > 1.1 >= more.smallest_ratio
    assert fewest.seconds == pytest.approx(found.seconds * 8 / 7)
    assert found.sentence.endswith(found.shortage)
    enough = preview(replace(found.plan, rounds=8))
    assert (enough.offers, enough.shortage) == ((), "")
    assert preview(replace(found.plan, axes={})).offers == ()


def test_refused_cells_cost_nothing_and_are_named(story_model: Path) -> None:
    plan = Plan(model=str(story_model), axes={"n_batch": (256,), "n_ubatch": (128, 512)}, rounds=6)
    found = preview(plan)
    assert [cell.label for cell in found.refused] == ["n_ubatch 512"]
    assert found.seconds_by_cell.keys() == {0}
    assert "1 cannot run: n_ubatch 512: n_ubatch = 512: must not exceed n_batch = 256." in found.sentence


def test_a_plan_of_which_nothing_can_run_is_called_that() -> None:
    found = preview(Plan(model="nowhere.gguf"))
    assert (found.num_samples, found.seconds) == (0, 0)
    assert found.sentence.startswith("No configuration can run: ")
    assert "nowhere.gguf: there is no such file" in found.sentence


def test_loading_anew_each_round_is_counted(story_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(model=str(story_model), axes={"parallel": (1, 2, 3)}, rounds=6)
    together = preview(plan)
    largest = max(together.memory_by_cell.values())
    monkeypatch.setattr(feasibility, "estimate", lambda *asked: replace(estimate(*asked), available=2 * largest))
    apart = preview(plan)
    assert (together.fits_together, apart.fits_together) == (True, False)
    assert apart.seconds > together.seconds + 3 * 5 * 0.5
    assert "reloaded each round" in apart.sentence


def test_a_cold_load_is_counted(story_model: Path) -> None:
    plan = Plan(model=str(story_model), rounds=6)
    assert preview(replace(plan, measures_cold=True)).seconds > preview(plan).seconds


def test_the_search_for_settings_stays_in_its_budget(story_model: Path) -> None:
    found = preview(replace(preset("settings", story_model, 4), budget_s=60.0))
    assert found.seconds <= 60
    assert found.cells[0].label == "llama.cpp's default"
    assert "candidates" in found.sentence


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("budget_s", [1.0, 10.0, 25.0])
def test_a_search_too_short_for_a_verdict_says_so_and_offers_a_time_that_is_not(
    story_model: Path, goal: Goal, budget_s: float
) -> None:
    plan = settings_plan(story_model, goal, budget_s)
    short = preview(plan)
    assert short.smallest_ratio == math.inf
    assert f"{duration(budget_s)} is too short for a verdict: " in short.sentence
    assert "Detects" not in short.sentence
    (offer,) = short.offers
    assert offer.rounds == FIRST_LOOK and f": {duration(offer.seconds)} should suffice" in short.sentence
    enough = preview(replace(plan, budget_s=offer.seconds))
    assert (enough.offers, enough.smallest_ratio) == ((), offer.smallest_ratio)
    assert "Detects differences of " in enough.sentence
    assert preview(replace(plan, rounds=3)).offers == short.offers


def test_a_large_model_needs_a_longer_search(large_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.models.memory.available_memory", lambda: 64 << 30)
    (offer,) = preview(settings_plan(large_model, "throughput", 60.0)).offers
    assert offer.seconds > 60


def test_a_search_with_nothing_to_compare_promises_no_verdict(story_model: Path) -> None:
    alone = {"layout": (f"1x{default_threads()}",), "parallel": (1,), "share_weights": (False,)}
    found = preview(replace(settings_plan(story_model), axes=alone))
    assert (len(found.cells), found.smallest_ratio, found.offers) == (1, math.inf, ())


# Presets.


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("cores", [1, 2, 6, 16])
def test_presets_can_run(name: str, cores: int, story_model: Path) -> None:
    plan = preset(name, story_model, cores)
    found = preview(plan)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert all(cell.arm in SINGLE and cell.workload.users > 1 for cell in found.refused)  # type: ignore[union-attr]
    assert found.smallest_ratio < math.inf


def test_questions_of_the_presets(story_model: Path) -> None:
    questions = {name: preset(name, story_model, 2).question for name in PRESETS}
    assert questions == {
        "quick": "speed",
        "speed": "speed",
        "settings": "settings",
        "python": "python",
        "engines": "engines",
        "users": "users",
        "embedding": "embedding",
        "standard": "speed",
    }


@pytest.mark.parametrize("cores", [1, 2, 4, 64])
def test_quick_takes_two_minutes(cores: int, story_model: Path) -> None:
    plan = preset("quick", story_model, cores)
    assert preview(plan).seconds <= QUICK_S
    assert len(cells_of(plan)) >= 3


def test_quick_asks_less_of_a_large_model(large_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.models.memory.available_memory", lambda: 64 << 30)
    found = preview(preset("quick", large_model, 2))
    assert found.refused == ()
    assert found.seconds <= QUICK_S
    assert len(found.cells) >= 2


@pytest.mark.parametrize("cores", [1, 2, 4, 64])
def test_the_plan_of_a_card_takes_less_than_a_minute_and_begins_with_one_user(cores: int, story_model: Path) -> None:
    plan = minute_plan(story_model, share_weights=True, cores=cores)
    found = preview(plan)
    assert found.refused == () and found.seconds <= MINUTE_S
    first = cells_of(plan)[0]
    assert (first.settings["layout"], first.workload.users) == (f"1x{cores}", 1)
    assert first.pool.share_weights and first.pool.parallel >= max(plan.axes["users"])
    assert Plan.from_dict(plan.to_dict()) == plan


def test_the_plan_of_a_card_asks_less_of_a_large_model(large_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.models.memory.available_memory", lambda: 64 << 30)
    found = preview(minute_plan(large_model, share_weights=True, cores=2))
    assert found.refused == () and found.seconds <= MINUTE_S


def test_time_for_a_sample_grows_with_the_model(
    large_model: Path, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.models.memory.available_memory", lambda: 64 << 30)
    assert preset("users", story_model, 2).timeout_s == Plan.timeout_s
    slow = preset("users", large_model, 2)
    assert slow.timeout_s > 300
    assert slow.workload["duration_s"] > preset("users", story_model, 2).workload["duration_s"]


def test_every_way_of_calling_gets_the_same_flags(story_model: Path) -> None:
    cells = cells_of(preset("python", story_model, 2))
    assert [cell.arm for cell in cells] == list(ARMS)
    assert len({cell.pool for cell in cells}) == 1
    assert cells[0].pool == PoolSpec(
        threads=2, threads_batch=2, parallel=1, n_batch=512, n_ubatch=512, share_weights=False
    )


def test_layouts_share_out_the_cores() -> None:
    assert layouts(16, 3) == ("1x16", "2x8", "4x4")
    assert layouts(6, 6) == ("1x6", "2x3", "4x1")
    assert layouts(1, 6) == ("1x1",)


def test_unknown_presets_are_refused(story_model: Path) -> None:
    with pytest.raises(ConfigError, match="there is no preset 'fast'; known: quick, speed"):
        preset("fast", story_model)
