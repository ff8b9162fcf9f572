"""Pareto front: the entries that no other entry dominates."""

import pytest

from engine.bench.analysis.comparison import compare_runs
from engine.bench.analysis.entries import Entry
from engine.bench.analysis.pareto import pareto
from engine.errors import ConfigError
from tests.engine.bench.run_maker import measured_run


def entries(*figures: tuple[float, float, float]) -> list[Entry]:
    """Return entries "0.0", "1.0", … with these speeds, times to first token (s) and memory sizes (GB)."""
    runs = [
        measured_run(str(number), [speed], noise_sd=0, also={"ttft_s": ttft_s, "pss_bytes": 1e9 * memory})
        for number, (speed, ttft_s, memory) in enumerate(figures)
    ]
    chosen = [f"{number}.0" for number in range(len(figures))]
    return list(compare_runs(runs, chosen=chosen).entries)


def test_what_is_worse_in_everything_is_left_out() -> None:
    found = entries((40, 0.2, 2), (50, 0.3, 3), (39, 0.3, 3), (20, 0.1, 1))
    assert pareto(found, ["tokens_per_s", "ttft_s", "pss_bytes"]) == ["1.0", "0.0", "3.0"]
    assert pareto(found, ["tokens_per_s"]) == ["1.0"]
    assert pareto(found, ["ttft_s", "pss_bytes"]) == ["3.0"]


def test_equals_stand_beside_each_other() -> None:
    found = entries((40, 0.2, 2), (40, 0.2, 2), (40, 0.2, 3))
    assert pareto(found, ["tokens_per_s", "ttft_s"]) == ["0.0", "1.0", "2.0"]
    assert pareto(found, ["tokens_per_s", "pss_bytes"]) == ["0.0", "1.0"]


def test_entries_without_a_figure_are_left_out() -> None:
    found = entries((40, 0.2, 2), (50, 0.3, float("nan")))
    assert pareto(found, ["tokens_per_s", "pss_bytes"]) == ["0.0"]
    assert pareto([], ["tokens_per_s"]) == []


@pytest.mark.parametrize(
    ("metrics", "said"), [([], "no metrics"), (["cpu_cores"], "no Pareto front by"), (["x"], "no Pareto front by")]
)
def test_a_metric_must_have_a_better_side(metrics: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pareto(entries((40, 0.2, 2)), metrics)
