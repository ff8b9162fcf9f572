"""Line labels of a chart: like those of cells, with each model named by the end of its path that identifies it."""

import shutil
from pathlib import Path

from engine.bench.analysis import series
from engine.bench.analysis.summary import summarise
from engine.bench.planning.plan import Plan
from tests.pages.bench_harness import make_run


def test_models_are_told_apart_by_the_ends_of_their_paths(story_model: Path, tmp_path: Path) -> None:
    others = [tmp_path / place / "same.gguf" for place in ("here", "there")]
    for path in others:
        path.parent.mkdir()
        shutil.copy(story_model, path)
    models = (str(story_model), *map(str, others))
    run = make_run(Plan(model=models[0], axes={"layout": ("1x1",), "parallel": (1, 2), "model": models}, rounds=6))
    lines = series.by_axis(summarise(run), "parallel", "tokens_per_s")
    assert [line.label for line in lines] == ["story", "here/same", "there/same"]
