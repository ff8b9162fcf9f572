"""Disturbance in words: the number of samples, causes, whether they count, and what figures of few samples mean."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bench.analysis.comparison import compare_runs
from engine.bench.analysis.disturbance import PROGRAMS, Disturbance, basis, disturbance_of
from engine.bench.analysis.rounds import Rounds
from engine.bench.analysis.summary import summarise
from engine.runs import RunRecord
from engine.samples import FLAGS, METRICS_BY_NAME, Samples
from pages.parts.benchmark import verdict_columns
from tests.engine.bench.run_maker import measured_run
from tests.engine.bench.test_summary import measured, run_of


def disturbed(num: int, flag: str, num_rounds: int = 16, **noise: float) -> RunRecord:
    """Return a run of two cells whose first `num` samples were disturbed."""
    samples = measured([30, 41], num_rounds=num_rounds)
    samples["flag"][:num] = FLAGS.index(flag)
    for name, value in noise.items():
        samples[name][:num] = value
    return replace(run_of(samples, ["a", "b"]), machine={"allowed_cores": [0, 1]})


def found_in(run: RunRecord) -> Disturbance:
    return disturbance_of(run, Rounds.of(run.samples).samples)


def test_a_quiet_run_says_nothing_of_it() -> None:
    found = found_in(disturbed(0, "clean"))
    assert (found.num, found.sentence, found.is_mostly) == (0, "", False)


@pytest.mark.parametrize(
    ("flag", "noise", "words"),
    [
        ("contended", {"other_cores": 0.8, "steal_share": 0.0}, ": by other programs (0.8 cores). "),
        ("contended", {"other_cores": 0.0, "steal_share": 0.3}, ": taken by the host. "),
        ("contended", {"other_cores": 1.2, "steal_share": 0.3}, "6 by other programs (1.2 cores), 6 taken by the"),
        ("throttled", {}, ": throttled. "),
        ("cold", {}, ": read from the disk. "),
        ("contended", {"other_cores": 1.0, "pressure_share": 0.34}, "; tasks waited for CPU 34 % of the time"),
        ("contended", {}, ": by other programs. "),
    ],
)
def test_what_disturbed_is_named(flag: str, noise: dict[str, Any], words: str) -> None:
    found = found_in(disturbed(6, flag, **noise))
    assert found.sentence.startswith("6 of 32 samples were disturbed: ")
    assert words in found.sentence
    assert found.sentence.endswith("Medians and verdicts exclude them.")


def test_where_disturbed_samples_count_it_says_why() -> None:
    found = found_in(disturbed(18, "contended"))
    assert found.is_mostly
    assert found.num_excluded == 0
    assert found.sentence.endswith("They are included: without them some configuration would have fewer than 8 rounds.")


def test_programs_are_named_by_what_they_used() -> None:
    run = replace(disturbed(18, "contended", other_cores=1.3), outcome={PROGRAMS: {"chromium": 0.81, "cc1plus": 0.4}})
    assert "(1.3 cores, mostly chromium 0.8 cores, cc1plus 0.4 cores)" in found_in(run).sentence


def test_a_run_mostly_disturbed_offers_a_quiet_machine_not_rounds() -> None:
    quiet, loud = disturbed(0, "clean", 4), disturbed(8, "contended", 4)
    assert "4 more rounds" in summarise(quiet).sentence
    assert summarise(loud).sentence.endswith("; a run on a quiet machine would confirm it.")


def test_table_and_json_say_what_the_page_says() -> None:
    summary = summarise(disturbed(18, "contended", other_cores=0.8, steal_share=0.0))
    assert "18 of 32 samples were disturbed: by other programs (0.8 cores). They are included" in summary.to_markdown()
    plain = json.loads(json.dumps(summary.disturbance.to_dict(), allow_nan=False))
    assert (plain["num"], plain["total"], plain["sentence"]) == (18, 32, summary.disturbance.sentence)
    assert plain["causes"] == {"by other programs": 18}


def samples_of(*flags: str) -> Samples:
    samples = measured([30], num_rounds=len(flags))
    samples["flag"] = [FLAGS.index(flag) for flag in flags]
    return samples


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["contended"], "interrupted", "one contended sample of an interrupted run"),
        (["clean"], "stopped", "one sample of a stopped run"),
        (["throttled"] * 9, "done", "9 throttled samples"),
        (["cold", "contended"], "done", "2 disturbed samples"),
        (["clean"] * 3, "done", "3 samples"),
        (["clean"] * 8, "done", ""),
        (["clean"] * 7 + ["contended"], "done", ""),
    ],
)
def test_what_a_figure_of_few_samples_rests_on(flags: list[str], status: Any, words: str) -> None:
    run = replace(run_of(samples_of(*flags), ["a"]), status=status)
    assert basis(run, run.samples, len(flags)) == words


def test_replaced_samples_are_not_counted_among_the_disturbed() -> None:
    run = disturbed(6, "contended")
    run.samples["is_replaced"][:4] = True
    found = found_in(run)
    assert (found.num, found.total, found.num_replaced) == (2, 28, 4)
    assert found.sentence.startswith("2 of 28 samples were disturbed (4 more were replaced): ")
    assert sum(cell.num_disturbed for cell in summarise(run).cells) == found.num
    assert sum(cell.num_replaced for cell in summarise(run).cells) == found.num_replaced


@given(seed=st.integers(0, 1 << 20), share=st.floats(0, 1), num_rounds=st.integers(1, 20), gain=st.floats(0.9, 1.2))
@settings(max_examples=60, deadline=None)
def test_no_answer_asks_for_rounds_and_for_a_quiet_machine(
    seed: int, share: float, num_rounds: int, gain: float
) -> None:
    random = np.random.default_rng(seed)
    samples = measured([30, 30 * gain, 31], num_rounds, 0.1, seed)
    samples["flag"] = np.where(random.random(len(samples)) < share, FLAGS.index("contended"), FLAGS.index("clean"))
    samples["is_replaced"] = random.random(len(samples)) < 0.2
    run = run_of(samples, ["a", "b", "c"])
    summary, other = summarise(run), measured_run("other", [30.0, 33.0], num_rounds=5, noise_sd=0.1)
    verdicts = [cell.verdict for cell in summary.cells if cell.verdict]
    shown = [verdict_columns.words(verdict, METRICS_BY_NAME[summary.main_metric]) for verdict in verdicts]
    texts = [summary.to_markdown(), *shown, compare_runs([run]).to_markdown()]
    if summary.disturbance.is_mostly:
        texts.append(compare_runs([run, other], baseline=f"{run.id}.0").to_markdown())
        assert not any("more round" in text for text in texts)
    else:
        assert not any("quiet machine" in text for text in texts)
    undecided = [verdict for verdict in verdicts if verdict.word == "not enough data"]
    assert all((verdict.more_rounds > 0) is not summary.disturbance.is_mostly for verdict in undecided)
