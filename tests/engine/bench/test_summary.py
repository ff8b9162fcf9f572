"""Summary of a run: which samples count, figures by rounds, the sentence, the table, and very large runs."""

import math
import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.analysis.rounds import round_s
from engine.bench.analysis.summary import Summary, by_round, summarise, words_of
from engine.bench.analysis.wording import SPEEDS, looks
from engine.runs import CellRecord, RunRecord
from engine.samples import METRICS, METRICS_BY_NAME, SAMPLE, Samples, make_sample, no_samples
from engine.stats import Interval


def run_of(samples: Samples, labels: list[str], outcome: dict[str, Any] | None = None, **cells: Any) -> RunRecord:
    """Return a finished run with one cell per label."""
    return RunRecord(
        id="run",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        name="",
        question="speed",
        status="done",
        plan={},
        machine={},
        versions={},
        cells=tuple(
            CellRecord(number=number, label=label, settings={}, **cells) for number, label in enumerate(labels)
        ),
        samples=samples,
        outcome=outcome or {},
    )


def measured(speeds: list[float], num_rounds: int = 8, noise_sd: float = 0.01, seed: int = 0, **also: Any) -> Samples:
    """Return one sample of each cell in each round, ten seconds apart; a round takes a minute."""
    random = np.random.default_rng(seed)
    return np.concatenate(
        [
            make_sample(
                cell=cell,
                round=number,
                position=number * len(speeds) + cell,
                started_at=1e9 + 60 * number + 10 * cell,
                duration_s=5,
                tokens_per_s=speed * math.exp(random.normal(0, noise_sd)),
                **also,
            )
            for number in range(num_rounds)
            for cell, speed in enumerate(speeds)
        ]
    )


def test_a_faster_cell_is_named_with_its_gain() -> None:
    summary = summarise(run_of(measured([30, 41]), ["1 × 2", "2 × 1"]))
    assert (summary.baseline, summary.best, summary.main_metric) == (0, 1, "tokens_per_s")
    verdict = summary.cells[1].verdict
    assert verdict is not None
    assert verdict.word == "faster"
    assert verdict.ratio.value == pytest.approx(41 / 30, rel=0.02)
    assert summary.cells[0].verdict is None
    assert summary.sentence.startswith("2 × 1: 4")
    assert (
        f"{verdict.ratio.value:.2f} times ({verdict.ratio.low:.2f} to {verdict.ratio.high:.2f}) that of 1 × 2."
        in summary.sentence
    )


def test_of_two_faster_cells_the_better_one_is_best() -> None:
    assert summarise(run_of(measured([30, 41, 38]), ["a", "b", "c"])).best == 1
    samples = measured([1, 1, 1])
    samples["ttft_s"] = 1 / measured([30, 41, 60])["tokens_per_s"]
    by_first_token = summarise(run_of(samples, ["a", "b", "c"]), main_metric="ttft_s")
    assert by_first_token.best == 2
    assert by_first_token.sentence.startswith("c: 16.")
    assert " ms (" in by_first_token.sentence
    assert "0.50 times" in by_first_token.sentence


def test_when_nothing_is_faster_the_baseline_is_kept() -> None:
    summary = summarise(run_of(measured([30, 20, 30], num_rounds=12, noise_sd=0.004), ["a", "b", "c"]))
    assert summary.best == 0
    assert summary.sentence.startswith("No setting is faster than a (1 of 2 the same within ±2 %): keep it, at 30.")


def test_when_it_cannot_be_decided_the_rounds_and_minutes_that_would_are_said() -> None:
    few = summarise(run_of(measured([30, 41], num_rounds=3), ["a", "b"]))
    assert re.fullmatch(
        r"b looks 3\d % faster than a \(3\d to 3\d %\); 5 more rounds \(about 5 min\) would confirm it\.", few.sentence
    )
    assert few.best == 0
    noisy = summarise(run_of(measured([30, 20, 29], noise_sd=0.1), ["a", "c", "b"]))
    verdict = noisy.cells[2].verdict
    assert verdict is not None
    assert verdict.word == "not enough data"
    assert re.match(r"b looks \d\S* % (faster|slower) than a \(−?\S+ to \S+ %\); ", noisy.sentence)
    assert f"; {verdict.more_rounds} more rounds (about " in noisy.sentence


def test_what_may_be_better_than_the_best_is_named_with_the_rounds_that_would_tell() -> None:
    samples = measured([30, 41, 50])
    samples["pss_bytes"] = 1e9 / samples["tokens_per_s"]
    run = run_of(samples[(samples["cell"] < 2) | (samples["round"] < 3)], ["a", "b", "c"])
    speed, memory = summarise(run), summarise(run, main_metric="pss_bytes")
    assert (speed.best, memory.best) == (1, 1)
    assert speed.sentence.startswith("b: 4")
    assert " that of a. c may be faster still, at 5" in speed.sentence
    assert speed.sentence.endswith("): 5 more rounds (about 5 min) would settle it.")
    assert " that of a. c may have less memory (PSS) still, at " in memory.sentence


def test_memory_is_less_or_more() -> None:
    samples = measured([1, 1])
    samples["pss_bytes"] = 1e9 / measured([30, 60])["tokens_per_s"]
    summary = summarise(run_of(samples, ["a", "b"]), main_metric="pss_bytes")
    assert summary.best == 1
    assert summary.cells[1].verdict is not None
    assert summary.cells[1].verdict.word == "less"
    assert [words_of(METRICS_BY_NAME[name])[0] for name in ("ttft_s", "goodput_per_s", "pss_bytes")] == [
        "faster",
        "more",
        "less",
    ]


def test_another_baseline_turns_the_verdict() -> None:
    run = run_of(measured([30, 41]), ["a", "b"])
    summary = summarise(run, baseline=1)
    assert (summary.baseline, summary.best) == (1, 1)
    assert summary.cells[0].verdict is not None
    assert summary.cells[0].verdict.word == "slower"
    assert summary.sentence.startswith("No setting is faster than b: keep it")


def test_a_baseline_that_failed_gives_way() -> None:
    samples = measured([30, 41, 30])
    run = run_of(samples[samples["cell"] > 0], ["a", "b", "c"])
    assert summarise(run).baseline == 1


def test_without_samples_it_says_so_and_why() -> None:
    nothing = summarise(run_of(no_samples(), ["a", "b"]))
    assert (nothing.baseline, nothing.best, nothing.sentence) == (None, None, "No measurements yet.")
    failed = summarise(run_of(no_samples(), ["a"], status="failed", reason="The worker was killed."))
    assert failed.sentence == "Nothing could be measured: The worker was killed."
    assert summarise(run_of(no_samples(), [])).cells == ()


def test_one_cell_says_what_it_does() -> None:
    assert summarise(run_of(measured([30]), [""])).sentence.startswith("This setting: 30.")


def test_the_question_may_say_it_better() -> None:
    assert summarise(run_of(measured([30]), ["a"], {"sentence": "Serves 4 users."})).sentence == "Serves 4 users."


def test_disturbed_and_replaced_samples_are_left_out_where_both_cells_have_others() -> None:
    samples = measured([30, 30], num_rounds=10, noise_sd=0)
    samples["tokens_per_s"][np.isin(samples["round"], (2, 3))] = 3
    samples["flag"][np.isin(samples["round"], (2, 3)) & (samples["cell"] == 0)] = 1
    samples["is_replaced"][np.isin(samples["round"], (2, 3)) & (samples["cell"] == 1)] = True
    first, second = summarise(run_of(samples, ["a", "b"])).cells
    assert [(cell.num_counted, cell.num_disturbed, cell.num_replaced) for cell in (first, second)] == [
        (8, 2, 0),
        (8, 0, 2),
    ]
    assert first.metrics["tokens_per_s"] == second.metrics["tokens_per_s"] == (30, 30, 30, 8)
    assert second.verdict is not None
    assert second.verdict.num_rounds == 8


def test_where_one_cell_has_no_clean_samples_those_of_the_other_do_not_count_alone() -> None:
    samples = measured([30, 30], num_rounds=9, noise_sd=0)
    samples["flag"][samples["cell"] == 1] = 2
    samples["flag"][(samples["round"] == 2) & (samples["cell"] == 0)] = 1
    first, second = summarise(run_of(samples, ["a", "b"])).cells
    assert (first.num_counted, first.num_disturbed, second.num_counted, second.num_disturbed) == (9, 1, 9, 9)


def test_several_samples_of_a_round_count_as_one() -> None:
    samples = measured([30, 41], noise_sd=0)
    anchors = np.concatenate([samples[:2]] * 20)
    anchors["cell"], anchors["is_anchor"], anchors["tokens_per_s"] = 0, True, np.linspace(33, 35, 40)
    both = np.concatenate([anchors, samples])
    assert by_round(both, 0, "tokens_per_s") == pytest.approx(
        {0: np.median([*np.linspace(33, 35, 40), 30])} | dict.fromkeys(range(1, 8), 30.0)
    )
    cell = summarise(run_of(both, ["a", "b"])).cells[0]
    assert cell.metrics["tokens_per_s"].num == 8
    assert cell.metrics["tokens_per_s"].value == 30
    assert cell.num_counted == 48


def test_what_was_not_measured_is_not_there() -> None:
    samples = measured([30])
    samples["ttft_s"][1:3] = 0.5
    (cell,) = summarise(run_of(samples, ["a"])).cells
    assert set(cell.metrics) == {"tokens_per_s", "ttft_s"}
    assert cell.metrics["ttft_s"] == (0.5, 0.5, 0.5, 2)
    assert by_round(samples, 0, "ttft_s") == {1: 0.5, 2: 0.5}
    assert by_round(samples, 5, "ttft_s") == {}


def test_the_table_shows_hostile_names_as_they_are() -> None:
    samples = measured([30, 41], pss_bytes=1.2e9)
    run = run_of(samples, ["a", "<img src=x> | *b*\n# c"])
    lines = summarise(run).to_markdown().splitlines()
    assert lines[2] == "| configuration | rounds | total speed | memory (PSS) | verdict |"
    assert lines[4].startswith("| a | 8 | ")
    assert lines[4].endswith("| 1.20 GB (1.20 to 1.20) | baseline |")
    assert r"| \<img src=x\> \| \*b\* \# c | 8 | " in lines[5]
    assert "| faster: 1.3" in lines[5]
    assert lines[-1] == (
        "Median over rounds (95 % interval). p is corrected for multiple comparisons and repeated looks."
    )


def test_the_table_says_what_failed_and_what_few_rounds_mean() -> None:
    run = run_of(no_samples(), ["a"], status="refused", reason="Too large.")
    assert "| a | 0 | refused: Too large. |" in summarise(run).to_markdown()
    few = summarise(run_of(measured([30, 41], num_rounds=3), ["a", "b", "c"])).to_markdown()
    assert re.search(r"not enough data: 1\.3\d times \(1\.3\d to 1\.3\d\), 5 more rounds", few)
    assert few.endswith("range below six rounds). 1 configuration not measured.\n")
    assert "| c |" not in few


def test_seconds_of_a_round_are_not_those_of_a_pause() -> None:
    samples = measured([30, 41], num_rounds=5)
    samples["started_at"][samples["round"] == 4] += 86_400
    assert round_s(samples) == 60
    assert math.isnan(round_s(measured([30], num_rounds=1)))
    assert math.isnan(round_s(no_samples()))


@pytest.mark.parametrize(("num_rounds", "num_each"), [(500, 1), (10, 50)])
def test_a_hundred_thousand_samples_of_two_hundred_cells(num_rounds: int, num_each: int) -> None:
    random, num_cells = np.random.default_rng(0), 200
    samples = np.zeros(num_cells * num_rounds * num_each, SAMPLE)
    samples["cell"] = np.tile(np.repeat(np.arange(num_cells), num_each), num_rounds)
    samples["round"] = np.repeat(np.arange(num_rounds), num_cells * num_each)
    samples["position"] = np.arange(len(samples))
    samples["flag"] = random.random(len(samples)) < 0.05
    for metric in METRICS:
        samples[metric.name] = random.lognormal(3 + 0.002 * samples["cell"], 0.05)
    run = run_of(samples, [str(cell) for cell in range(num_cells)])
    summary: Summary = summarise(run)
    assert len(summary.cells) == num_cells
    assert all(len(cell.metrics) == len(METRICS) for cell in summary.cells)
    assert summary.cells[199].metrics["tokens_per_s"].value == pytest.approx(math.exp(3.398), rel=0.02)


@given(
    ratio=st.floats(0.2, 9).filter(lambda ratio: abs(ratio - 1) > 0.001),
    width=st.floats(1.0, 1.5),
    name=st.sampled_from([metric.name for metric in METRICS if metric.is_more_better is not None]),
)
def test_an_estimate_says_how_much_better_or_worse_with_its_interval(ratio: float, width: float, name: str) -> None:
    metric = METRICS_BY_NAME[name]
    said = looks("a", "b", Interval(ratio, ratio / width, ratio * width, 5), metric)
    gain = 1 / ratio if metric.unit == "s" else ratio
    if gain >= 2:
        assert f" {gain:.2f} times " in said
    else:
        word = {True: ("faster", "slower"), False: ("more ", "less ")}[metric.unit in SPEEDS]
        assert f" % {word[gain < 1]}" in said
        shown = float(re.search(r"(?:looks|have) (\S+) %", said)[1])  # type: ignore[index]
        assert shown == pytest.approx(100 * abs(gain - 1), abs=0.51)
    low, high = (float(end.replace("−", "-")) for end in re.search(r"\((\S+) to (\S+?)(?: %)?\)", said).groups())  # type: ignore[union-attr]
    assert low <= high
    assert "e+" not in said and "e-" not in said
