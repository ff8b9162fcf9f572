"""Comparison of cells of several runs: the selection, the differences, the verdicts and the caveats."""

import re
from typing import Any

import pytest

from engine.bench.analysis.comparison import Comparison, compare_runs
from engine.bench.analysis.entries import NOTED_METRIC, key_of
from engine.bench.analysis.summary import summarise
from engine.errors import ConfigError
from engine.reference import NOTED_BY_HAND, reference_runs
from engine.runs import RunRecord
from engine.samples import METRICS
from engine.stats import compare, compare_independent
from tests.engine.bench.run_maker import MACHINE, SETTINGS, VERSIONS, measured_run

OTHER_MACHINE = {**MACHINE, "cpu": "Faster CPU", "hash": "cd34"}


def noted(id: str = "note", speed: float = 18.7, **changes: Any) -> RunRecord:
    """Return a run noted by hand, with a figure added that a note cannot contain."""
    run = measured_run(id, [speed], num_rounds=1, origin=NOTED_BY_HAND, machine={"name": "a laptop"}, **changes)
    run.samples["pss_bytes"] = 1e9
    return run


def words(found: Comparison, metric: str = "tokens_per_s") -> dict[str, str]:
    return {key: verdict.word for (key, name), verdict in found.verdicts.items() if name == metric}


def test_nothing_chosen_asks_for_a_choice() -> None:
    found = compare_runs([])
    assert (found.entries, found.baseline, found.best, found.verdicts) == ((), None, None, {})
    assert found.sentence == "Select runs to compare."
    assert "Select runs" in found.to_markdown()


def test_cells_of_one_run_are_compared_by_pairs() -> None:
    run = measured_run("a", [30, 41, 30.01])
    found = compare_runs([run])
    assert [entry.key for entry in found.entries] == ["a.0", "a.1", "a.2"]
    assert (found.baseline, found.best, found.main_metric) == ("a.0", "a.1", "tokens_per_s")
    summary = summarise(run)
    assert [found.verdicts["a.1", "tokens_per_s"], found.verdicts["a.2", "tokens_per_s"]] == [
        cell.verdict for cell in summary.cells[1:]
    ]
    assert found.warnings == ()
    assert found.sentence.startswith("parallel 2: 4")
    assert " that of parallel 1." in found.sentence


def test_cells_of_two_runs_are_compared_as_samples_of_their_own() -> None:
    first, second = measured_run("a", [30], seed=1), measured_run("b", [41], seed=2, day=1)
    found = compare_runs([first, second])
    figures = [run.samples["tokens_per_s"].tolist() for run in (second, first)]
    assert found.verdicts["b.0", "tokens_per_s"].ratio == pytest.approx(compare_independent(*figures).ratio)
    assert words(found) == {"b.0": "faster"}
    assert words(found, "ttft_s") == {"b.0": "faster"}
    assert [entry.label for entry in found.entries] == ["a · parallel 1", "b · parallel 1"]
    (warning,) = found.warnings
    assert warning.startswith("Not measured in the same rounds as the baseline: b · parallel 1.")


def test_rows_of_llama_bench_were_not_measured_in_common_rounds() -> None:
    run = measured_run("a", [30, 41], origin="llama-bench")
    verdict = compare_runs([run]).verdicts["a.1", "tokens_per_s"]
    assert verdict.p_value != compare(*(dict.fromkeys(range(8), speed) for speed in (41.0, 30.0))).p_value
    assert verdict == summarise(run).cells[1].verdict
    assert verdict.word == "faster"


def test_cells_of_the_own_run_share_alpha_with_those_of_others() -> None:
    first, second = measured_run("a", [30, 29, 41, 28], seed=1), measured_run("b", [30, 29, 40, 28], seed=2, day=1)
    found = compare_runs([first, second])
    own = {f"a.{cell.number}": cell.verdict for cell in summarise(first).cells if cell.verdict}
    assert len(found.entries) == 8
    for key, verdict in own.items():
        beside = found.verdicts[key, "tokens_per_s"]
        assert beside.ratio == verdict.ratio
        assert beside.p_value == min(1.0, 2 * verdict.p_value)
    assert words(found)["a.2"] == "faster"
    assert found.best == "a.2"


def test_the_family_of_the_own_run_is_the_same_whichever_cells_are_chosen() -> None:
    run = measured_run("a", [30, 41, *[30] * 8], num_rounds=8)
    chosen = compare_runs([run], chosen=["a.0", "a.1"]).verdicts["a.1", "tokens_per_s"]
    assert chosen == summarise(run).cells[1].verdict
    assert chosen.word == "faster"


def test_cells_of_other_runs_are_a_family_of_their_own() -> None:
    first, others = measured_run("a", [30, 41], seed=1), measured_run("b", [31, 30, 32], seed=2)
    found = compare_runs([first, others])
    key = ("b.0", "tokens_per_s")
    alone = compare_runs([first, others], chosen=["a.0", "b.0"])
    whole = compare_runs([first, others], chosen=["a.0", "b.0", "b.1", "b.2"])
    assert found.verdicts[key] == whole.verdicts[key]
    assert alone.verdicts[key].p_value <= found.verdicts[key].p_value <= 3 * alone.verdicts[key].p_value


def test_a_faster_cell_that_lacks_rounds_is_named_beside_the_best() -> None:
    runs = [measured_run("a", [30, 41]), measured_run("b", [50], num_rounds=4, day=1)]
    found = compare_runs(runs)
    assert words(found) == {"a.1": "faster", "b.0": "not enough data"}
    assert found.best == "a.1"
    assert found.sentence.startswith("a · parallel 2: 4")
    assert re.search(
        r" b · parallel 1 may be faster still, at (49|50)\.\d tok/s .*: \d more rounds would settle it\.",
        found.sentence,
    )
    slower = compare_runs([runs[0], measured_run("b", [36], num_rounds=4, day=1)])
    assert words(slower)["b.0"] == "not enough data"
    assert "may be" not in slower.sentence


def test_another_baseline_turns_the_verdicts() -> None:
    runs = [measured_run("a", [30]), measured_run("b", [41], seed=3)]
    found = compare_runs(runs, baseline="b.0")
    assert (found.baseline, found.best) == ("b.0", "b.0")
    assert words(found) == {"a.0": "slower"}
    assert found.sentence.startswith("Nothing here is faster than b · parallel 1: keep it")


def test_a_baseline_that_is_not_there_gives_way_to_one_with_enough_rounds() -> None:
    runs = [measured_run("a", [30], num_rounds=3), measured_run("b", [41])]
    assert compare_runs(runs, baseline="c.9").baseline == "b.0"
    assert compare_runs(runs, baseline="a.0").baseline == "a.0"
    assert compare_runs(runs[:1]).baseline == "a.0"


def test_of_many_cells_the_first_and_the_best_of_each_run_are_chosen() -> None:
    runs = [measured_run(id, [30, 29, 41, 28, 27], seed=number) for number, id in enumerate("abc")]
    found = compare_runs(runs)
    assert [entry.key for entry in found.entries] == ["a.0", "a.2", "b.0", "b.2", "c.0", "c.2"]
    assert len(found.offered) == 15
    assert found.offered["b.1"] == "b · parallel 2"
    chosen = compare_runs(runs, chosen=["c.1", "a.0", "c.1"])
    assert [entry.key for entry in chosen.entries] == ["c.1", "a.0"]


def test_cells_that_are_no_longer_there_are_reported() -> None:
    found = compare_runs([measured_run("a", [30, 41])], chosen=["a.1", "a.7", "gone.0", "nonsense"])
    assert [entry.key for entry in found.entries] == ["a.1"]
    assert found.warnings[0].startswith("3 selected configurations are left out")
    assert (
        compare_runs([], chosen=["gone.0"])
        .warnings[0]
        .startswith("1 selected configuration is left out: its run was deleted")
    )


def test_only_what_differs_is_shown_and_what_is_not_recorded_is_no_difference() -> None:
    settings: list[dict[str, Any]] = [{"parallel": 1, "n_ctx": 512}, {"parallel": 2, "flash_attn": None}]
    other = measured_run("b", [30], settings=[{"model": "C:\\models\\story-Q4_K_M.gguf"}])
    found = compare_runs([measured_run("a", [30, 41], settings=settings), other])
    assert found.differing == ("model", "quantisation", "parallel")
    assert [entry.settings["quantisation"] for entry in found.entries] == ["Q8_0", "Q8_0", "Q4_K_M"]
    assert [entry.settings["model"] for entry in found.entries][1:] == ["story-Q8_0", "story-Q4_K_M"]
    assert found.same["layout"] == "1x2"
    assert found.same["n_ctx"] == 512
    assert found.same["machine"] == "Reference CPU, 2 of 2 cores"
    assert list(found.same)[:2] == ["machine", "llama.cpp"]


def test_threads_for_prefill_are_left_out_where_they_follow_the_layout() -> None:
    settings = [{"layout": "1x2", "threads_batch": 2}, {"layout": "2x1", "threads_batch": 1}]
    assert compare_runs([measured_run("a", [30, 41], settings=settings)]).differing == ("layout",)


@pytest.mark.parametrize(
    ("changes", "mark", "fact"),
    [
        ({"machine": OTHER_MACHINE}, "other machine", "Faster CPU, 2 of 2 cores"),
        ({"machine": {**MACHINE, "system": "Linux 6.6", "hash": "x"}}, "other system", "Linux 6.6"),
        (
            {"machine": {**MACHINE, "llama": {"commit": "fedcba"}, "hash": "x"}, "versions": {"llama-cpp-python": "9"}},
            "other llama.cpp",
            "9 fedcba; the baseline 0.3.36 abcdef",
        ),
        ({"machine": {}}, "unknown machine", "on an unknown machine"),
    ],
)
def test_other_surroundings_are_marked_and_named(changes: dict[str, Any], mark: str, fact: str) -> None:
    found = compare_runs([measured_run("a", [30]), measured_run("b", [41], seed=4, **changes)])
    assert [entry.marks for entry in found.entries] == [(), (mark,)]
    assert any(fact in warning and "b · parallel 1 was measured" in warning for warning in found.warnings)
    assert "It was measured " in found.sentence
    assert mark in found.to_markdown()


def test_different_work_is_reported() -> None:
    runs = [measured_run("a", [30]), measured_run("b", [41], settings=[{"num_prompt": 512}])]
    assert "Workloads differ: Prompt 128 and 512." in compare_runs(runs).warnings[0]
    texts = [{"workload": {"prompts": prompts}} for prompts in (["one"], ["two"], ["two"])]
    asked = [measured_run(id, [30], plan=plan) for id, plan in zip("abc", texts, strict=True)]
    assert any("Prompts" in warning for warning in compare_runs(asked).warnings)
    assert not any("Workloads differ" in warning for warning in compare_runs(asked[1:]).warnings)


def test_notes_stand_beside_end_to_end_alone_and_get_no_verdict() -> None:
    found = compare_runs([measured_run("a", [30, 41]), noted()])
    assert found.main_metric == NOTED_METRIC
    note = found.entries[-1]
    assert (note.is_noted, note.marks, set(note.cell.metrics)) == (True, ("noted by hand",), {NOTED_METRIC})
    assert {key for key, _ in found.verdicts} == {"a.1"}
    assert words(found, NOTED_METRIC) == {"a.1": "faster"}
    assert found.sentence.startswith("a · parallel 2: 3")
    assert found.sentence.endswith("From notes (end to end): note · parallel 1 (story-Q8_0): 16.8 tok/s.")
    assert any("From notes, not measured here: note" in warning for warning in found.warnings)
    assert compare_runs([noted(), measured_run("a", [30])], baseline="note.0").baseline == "a.0"


def test_notes_alone_have_neither_baseline_nor_best() -> None:
    found = compare_runs([noted("one"), noted("two", 20)])
    assert (found.baseline, found.best, found.verdicts) == (None, None, {})
    assert found.sentence.startswith("From notes (end to end): two")


def test_the_reference_machines_stand_beside_this_one() -> None:
    (reference,) = [run for run in reference_runs() if run.name == "c7i.4xlarge"]
    found = compare_runs([measured_run("a", [30]), reference])
    assert found.baseline == "a.0"
    assert all(set(entry.cell.metrics) == {NOTED_METRIC} for entry in found.entries if entry.is_noted)
    assert {entry.marks for entry in found.entries} == {(), ("reference",)}
    assert "machine" in found.differing
    assert found.sentence.endswith("c7i.4xlarge · 2 × 8 (Mistral-7B-Instruct-v0.2): 18.7 tok/s.")


def test_the_metric_that_decides_is_one_that_all_have() -> None:
    prompts = measured_run("b", [30])
    prompts.samples["tokens_per_s"] = prompts.samples["end_to_end_per_s"] = float("nan")
    prompts.samples["prefill_per_s"] = 200.0
    found = compare_runs([measured_run("a", [30], also={"prefill_per_s": 100.0}), prompts])
    assert found.main_metric == "prefill_per_s"
    assert ("b.0", "tokens_per_s") not in found.verdicts
    assert set(found.metrics) <= set(found.measured)


def test_other_metrics_may_decide() -> None:
    runs = [measured_run("a", [30], also={"pss_bytes": 2e9}), measured_run("b", [20], also={"pss_bytes": 1e9})]
    found = compare_runs(runs, metrics=["pss_bytes", "tokens_per_s"])
    assert (found.best, words(found, "pss_bytes")) == ("b.0", {"b.0": "less"})
    assert found.metrics == ("pss_bytes", "tokens_per_s")
    with pytest.raises(ConfigError, match="there is no metric 'speed'"):
        compare_runs(runs, metrics=["speed"])


def test_the_table_shows_hostile_names_as_they_are() -> None:
    hostile = "<img src=x> | *b*\n# c"
    found = compare_runs([measured_run("a", [30]), measured_run("b", [41], name=hostile, machine=OTHER_MACHINE)])
    text = found.to_markdown()
    assert not re.search(r"(?<!\\)<img", text)
    assert r"\<img src=x\> \| \*b\* \# c · parallel 1" in text
    lines = text.splitlines()
    assert lines[2].startswith("| entry | machine | total speed | ")
    assert "| baseline |" in lines[4]
    assert lines[5].endswith("| other machine |")
    assert any(line.startswith("Same for all: Model story-Q8\\_0, ") for line in lines)


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": {"llama": "no", "allowed_cores": 3, "memory_bytes": "much", "cpu": ["x"]}},
        {"plan": {"workload": "none", "model": 7}},
        {"settings": [{"layout": "many", "parallel": [1], "llama_bench": "x", "threads_batch": 2}]},
    ],
)
def test_foreign_values_do_no_harm(changes: dict[str, Any]) -> None:
    found = compare_runs([measured_run("a", [30]), measured_run("b", [41], **changes)])
    assert words(found) == {"b.0": "faster"}
    assert found.to_markdown()


def test_runs_of_one_name_are_told_apart_by_when_they_began() -> None:
    runs = [
        measured_run("a", [30], name="again"),
        measured_run("b", [30], name="again", day=1),
        measured_run("c", [30], name=""),
    ]
    labels = [entry.label for entry in compare_runs(runs).entries]
    assert labels == [
        "again 2026-01-01 12:00 · parallel 1",
        "again 2026-01-02 12:00 · parallel 1",
        "2026-01-01 12:00 · parallel 1",
    ]
    assert [entry.label for entry in compare_runs([runs[0], runs[0]]).entries] == ["parallel 1"]


def test_the_samples_of_an_entry_are_all_of_its_cell() -> None:
    run = measured_run("a", [30, 41])
    run.samples["is_replaced"][1] = True
    entry = compare_runs([run]).entries[1]
    assert entry.key == key_of("a", 1)
    assert (len(entry.samples), entry.cell.num_counted, entry.cell.num_replaced) == (8, 7, 1)
    assert (entry.versions, entry.machine_hash) == (VERSIONS, "ab12")


def test_twenty_runs_of_fifty_cells() -> None:
    settings = [{**SETTINGS, "n_ctx": 256 * (number + 1)} for number in range(50)]
    also = {metric.name: 1.5 for metric in METRICS if metric.name not in ("tokens_per_s", "end_to_end_per_s", "ttft_s")}
    first = measured_run("0", [30 + number / 10 for number in range(50)], settings=settings, also=also)
    runs = [first, *(measured_run(str(n), [30] * 50, settings=settings, also=also, seed=n) for n in range(1, 20))]
    found = compare_runs(runs)
    assert len(found.entries) == len({entry.key for entry in found.entries})
    assert len(found.offered) == 1000
    assert len(found.verdicts) == (len(found.entries) - 1) * len(found.metrics)
