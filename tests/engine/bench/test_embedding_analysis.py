"""Result of an embedding run, alone and compared with other runs."""

from dataclasses import replace

from engine.bench.analysis.comparison import compare_runs
from engine.bench.analysis.embeddings import embedding_sentence, fastest_exact
from engine.bench.analysis.summary import summarise
from engine.bench.analysis.trends import trend
from engine.runs import TrendPoint
from tests.engine.bench.embedding_runs import PLAN, START, embedding_run
from tests.engine.bench.run_maker import measured_run


def test_the_sentence_names_the_fastest_with_what_it_loses_and_the_fastest_without_loss() -> None:
    said = embedding_sentence(embedding_run("a"))
    assert said.startswith("2 × 1 · torch-bf16: 93")
    assert "sent/s" in said and "times" in said
    assert "Worst cosine to float32: 0.9962." in said
    assert "Fastest without loss: 2 × 1 · torch, 5" in said


def test_a_fastest_that_loses_nothing_is_named_alone() -> None:
    said = embedding_sentence(embedding_run("a", cosines={"torch": 1.0, "torch-bf16": 0.99997}))
    assert said.endswith("Worst cosine to float32: 1.0000.")


def test_without_agreement_the_verdict_stands_alone() -> None:
    run = embedding_run("a", cosines={})
    assert embedding_sentence(run) == summarise(run).sentence
    assert fastest_exact(summarise(run)) is None


def test_cells_are_judged_by_sentences_and_shown_in_their_unit() -> None:
    summary = summarise(embedding_run("a"))
    assert summary.main_metric == "sentences_per_s"
    assert summary.cells[summary.best or 0].label == "2 × 1 · torch-bf16"
    verdict = summary.cells[1].verdict
    assert verdict is not None and verdict.word == "faster"
    table = summary.to_markdown()
    assert "| embedding |" in table and "sent/s" in table and "tokens embedded" in table
    assert "| worst cosine |" in table and "| 0.9962 |" in table


def test_embedding_beside_generation_is_marked_and_shares_no_speed() -> None:
    generation = measured_run("g", [50.0, 90.0], also={"pss_bytes": 1e8})
    mixed = compare_runs([generation, embedding_run("e")])
    assert mixed.main_metric in ("tokens_per_s", "sentences_per_s")
    assert any("embedding (" in warning.lower() and "share no speed metric" in warning for warning in mixed.warnings)
    for entry in mixed.entries:
        is_embedding = entry.run.question == "embedding"
        assert ("sentences_per_s" in entry.cell.metrics) is is_embedding
        assert ("tokens_per_s" in entry.cell.metrics) is not is_embedding
    assert not any("share no speed metric" in warning for warning in compare_runs([embedding_run("e")]).warnings)


def test_runs_of_embedding_are_compared_by_their_texts() -> None:
    longer = replace(PLAN, workload={"num_words": 200})
    found = compare_runs([embedding_run("a"), embedding_run("b", longer)])
    assert found.main_metric == "sentences_per_s"
    assert {"num_words", "backend", "layout"} <= set(found.differing)
    assert any("Workloads differ: Text length 32 and 200" in warning for warning in found.warnings)


def test_a_newer_torch_is_a_change_in_the_trend() -> None:
    machine = {"cpu": "One", "hash": "m"}
    points = [
        TrendPoint(
            run_id=str(number),
            created_at=START.replace(hour=number),
            machine_hash="m",
            versions={"torch": version},
            value=speed,
            low=speed,
            high=speed,
            by_round={place: speed * (1 + 0.001 * place) for place in range(8)},
            machine=machine,
        )
        for number, (version, speed) in enumerate([("2.8.0", 50.0), ("2.9.0", 60.0)])
    ]
    found = trend(points, "sentences_per_s")
    assert [change.what for change in found.changes] == ["PyTorch 2.8.0 → 2.9.0"]
    assert found.changes[0].verdict.word == "faster"
