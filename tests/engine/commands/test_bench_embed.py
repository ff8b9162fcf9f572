"""`python -m engine bench --embed`: its arguments, and one run."""

import json
from pathlib import Path

import pytest

from engine.bench.planning.axes import EMBEDDING_AXES
from engine.bench.planning.axis import Axis
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.plan import Plan
from engine.bench.planning.plan_file import plan_to_json
from engine.bench.planning.presets import preset
from engine.commands import bench
from engine.commands.bench_arguments import BenchArguments, parse
from engine.embedding.models import EMBEDDED_NAME
from engine.errors import ConfigError
from engine.history import History
from engine.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("short_samples")]


def plan_of(*words: str) -> Plan:
    arguments = parse(("bench", *words))
    assert isinstance(arguments, BenchArguments)
    return arguments.plan


def test_workers_and_backends() -> None:
    plan = plan_of("--embed", "--workers", "1,2", "--threads", "1", "--backend", "torch,torch-bf16", "--rounds", "3")
    axes = {"backend": ("torch", "torch-bf16"), "layout": ("1x1", "2x1")}
    assert plan == Plan(question="embedding", model=EMBEDDED_NAME, axes=axes, rounds=3)
    assert planned_cells(plan)[0].label == "1 × 1 · torch"


@pytest.mark.parametrize("axis", EMBEDDING_AXES, ids=lambda axis: axis.name)
def test_every_axis_has_a_flag(axis: Axis) -> None:
    text = {"layout": "1x2", "backend": "torch-bf16"}.get(axis.name, "7")
    words = [f"--{axis.name.replace('_', '-')}", text] * (2 if axis.name == "model" else 1)
    found = plan_of("--embed", *words)
    assert axis.name in found.axes
    assert found.question == "embedding"


def test_without_axes_it_is_the_preset_of_the_model() -> None:
    assert plan_of("--embed") == preset("embedding", EMBEDDED_NAME) == plan_of("--preset", "embedding")
    assert plan_of("--embed", "--model", "no-such-model").model == "no-such-model"


def test_own_texts_are_embedded(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("One\nTwo\n")
    assert plan_of("--embed", "--prompts", str(file)).workload == {"texts": ("One", "Two")}


def test_a_plan_from_a_file_needs_no_flag(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan_to_json(preset("embedding", EMBEDDED_NAME)))
    plan = plan_of("--plan", str(file), "--backend", "torch", "--num-texts", "8,16")
    assert plan.axes["backend"] == ("torch",)
    assert plan.axes["num_texts"] == (8, 16)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--embed", "--parallel", "2"], "--parallel: embedding has no such axis"),
        (["--backend", "torch"], "--backend: it needs --embed"),
        (["--embed", "--backend", "abacus"], "backend = 'abacus'"),
        (["--embed", "--cold"], "--cold times the loading of GGUF files"),
        (["--embed", "--layout", "1x1", "--workers", "2"], "--layout already sets"),
    ],
)
def test_what_has_no_sense_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan_of(*words)


def test_a_plan_that_generates_does_not_embed(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan_to_json(Plan(model="m.gguf")))
    with pytest.raises(ConfigError, match="generates text; remove one of the two"):
        plan_of("--embed", "--plan", str(file))


def test_a_run_is_measured_kept_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--embed", "--workers", "1", "--backend", "torch", "--num-texts", "8", "--num-words", "4"]
    bench.run([*words, "--rounds", "1", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["status"] == "done"
    assert "sent/s" in printed["sentence"] and "Worst cosine to float32: 1.0000" in printed["sentence"]
    assert printed["versions"]["torch"]
    (cell,) = printed["cells"]
    assert cell["settings"]["backend"] == "torch"
    assert cell["metrics"]["sentences_per_s"]["value"] > 0
    assert cell["facts"]["rank_correlation"] > 0.9999
    with History.open(Settings.from_environment().history) as history:
        kept = history.runs.run(printed["id"])
        (found,) = history.find.runs().rows
    assert kept is not None
    assert kept.samples["sentences_per_s"].min() > 0
    assert (found["question"], found["best_metric"], found["model_name"]) == (
        "embedding",
        "sentences_per_s",
        EMBEDDED_NAME,
    )
