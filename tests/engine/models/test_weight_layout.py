"""Default layout of weights: what decides it, what is measured, and what happens where nothing can be."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.llama import weight_layouts_program
from engine.llama.weight_layouts import NUM_STREAMS, Job, LayoutTimes, Timings, prefers_file, seconds_of
from engine.models import weight_layout
from engine.models.gguf import ModelFile
from engine.models.planned import planned_model
from engine.models.shapes import SHAPES
from engine.models.weight_layout import with_layout
from engine.pool.pool import Pool
from engine.process.program import Program
from engine.specs import PoolSpec

# As on a Zen 4 (docs/decisions/0008; 8 streams are made up): prompts are faster as in the file, single steps repacked.
REPACKED = LayoutTimes(128 / 175, (1 / 44, 8 / 100, 32 / 134))
AS_IN_FILE = LayoutTimes(128 / 249, (1 / 41, 8 / 98, 32 / 140))
MIXED = Timings(REPACKED, AS_IN_FILE)


@pytest.fixture
def large() -> ModelFile:
    """A model of 1.1 B parameters that has no file."""
    return planned_model("large", SHAPES["llama-1.1b-32k"], "Q4_K_M")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[Timings | Exception | None], list[str]]:
    """Replace the measurement by a result; gives the quantisations that were asked for."""

    def install(result: Timings | Exception | None) -> list[str]:
        asked: list[str] = []

        def measure(quantisation: str, _on_opening: object) -> Timings | None:
            asked.append(quantisation)
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(weight_layout, "_measured", measure)
        return asked

    return install


def test_requests_at_once_take_their_prompts_and_their_steps() -> None:
    times = LayoutTimes(0.5, (0.01, 0.03, 0.1))
    assert seconds_of(times, 1) == pytest.approx(0.5 + 128 * 0.01)
    assert seconds_of(times, 8) == pytest.approx(4 + 128 * 0.03)
    assert seconds_of(times, 20) == pytest.approx(10 + 128 * 0.065)
    assert seconds_of(times, 64) == pytest.approx(32 + 128 * 0.2)


def test_the_number_of_sequences_decides() -> None:
    assert [number for number in (1, 8, 32, 64) if prefers_file(MIXED, number)] == [8, 32, 64]
    assert not any(prefers_file(Timings(AS_IN_FILE, REPACKED), number) for number in (1, 8, 32, 64))


def test_a_small_gain_leaves_the_weights_repacked() -> None:
    nearly = LayoutTimes(REPACKED.prompt_s / 1.04, tuple(seconds / 1.04 for seconds in REPACKED.step_s))
    assert not prefers_file(Timings(REPACKED, nearly), 8)


def test_a_layout_is_measured_once_for_each_quantisation(
    large: ModelFile, measured: Callable[[Timings], list[str]]
) -> None:
    asked = measured(MIXED)
    assert with_layout(PoolSpec(parallel=32), large).share_weights is True
    assert with_layout(PoolSpec(parallel=1), large).share_weights is False
    other = planned_model("other", SHAPES["llama-1.1b-32k"], "Q4_0")
    assert with_layout(PoolSpec(parallel=32), other).share_weights is True
    assert asked == ["Q4_K_M", "Q4_0"]


def test_what_is_given_or_cannot_matter_is_not_measured(
    large: ModelFile, measured: Callable[[Timings], list[str]]
) -> None:
    asked = measured(MIXED)
    for given in (True, False):
        assert with_layout(PoolSpec(parallel=32, share_weights=given), large).share_weights is given
    assert with_layout(PoolSpec(parallel=32, n_gpu_layers=1), large).share_weights is False
    for name, quantisation in (("tiny", "Q4_K_M"), ("tiny", "F16")):
        little = planned_model("little", SHAPES[name], quantisation)
        assert with_layout(PoolSpec(parallel=32), little).share_weights is False
    assert asked == []


@pytest.mark.parametrize("result", [None, ModelError("no"), OSError(errno.ENOSPC, "full")])
def test_weights_are_repacked_where_nothing_was_measured_and_it_is_tried_again(
    result: Exception | None, large: ModelFile, measured: Callable[[object], list[str]]
) -> None:
    asked = measured(result)
    for _load in range(2):
        assert with_layout(PoolSpec(parallel=32), large).share_weights is False
    assert len(asked) == 2
    measured(MIXED)
    assert with_layout(PoolSpec(parallel=32), large).share_weights is True


@pytest.mark.parametrize("content", [b"", b"\xff" * 10, b"\x81\xa6Q4_K_M\xc0", b"\x80"])
def test_a_damaged_store_counts_as_empty(
    content: bytes, home: Path, large: ModelFile, measured: Callable[[Timings], list[str]]
) -> None:
    asked = measured(MIXED)
    with_layout(PoolSpec(parallel=32), large)
    (store,) = (home / "models").glob("layouts-*.msgpack")
    store.write_bytes(content)
    assert with_layout(PoolSpec(parallel=32), large).share_weights is True
    assert len(asked) == 2


def test_llama_cpp_is_timed_in_both_layouts(large: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, on four layers: a disturbed machine gives None, which is as good here. One thread does not wait
    for others, which the tests beside this one keep from running."""
    monkeypatch.setattr(weight_layout, "threads_for", lambda _instances: 1)
    asked: list[Job] = []
    answers: list[Timings | None] = []
    ask = Program.ask

    def noted(program: Program, job: Job, deadline_s: float) -> Timings | None:
        asked.append(job)
        answers.append(ask(program, job, deadline_s))
        return answers[-1]

    monkeypatch.setattr(Program, "ask", noted)
    decided = with_layout(PoolSpec(parallel=32), large)
    assert len(asked) == 1
    assert not Path(asked[0].model).exists()
    (found,) = answers
    assert decided.share_weights is (found is not None and prefers_file(found, 32))


def test_every_kind_of_decode_is_timed(synthetic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_layouts_program, "_AGREED", float("inf"))
    found = weight_layouts_program.timings(Job(str(synthetic), 1))
    assert found is not None
    for times in (found.repacked, found.as_in_file):
        assert len(times.step_s) == len(NUM_STREAMS)
        assert min(times.prompt_s, *times.step_s) > 0


def test_a_disturbed_machine_gives_no_times() -> None:
    calm = [[1.0, 2.0], [1.1, 2.1], [5.0, 9.0]]
    assert weight_layouts_program._shortest(calm) == LayoutTimes(1.0, (2.0,))
    assert weight_layouts_program._shortest(calm[:1]) is None
    assert weight_layouts_program._shortest([[1.0, 2.0], [1.1, 2.4], [5.0, 9.0]]) is None
    assert weight_layouts_program._shortest([]) is None


def test_a_measurement_can_be_stopped(large: ModelFile) -> None:
    aborts: list[Callable[[], None]] = []

    def on_opening(abort: Callable[[], None]) -> None:
        aborts.append(abort)
        abort()

    assert with_layout(PoolSpec(parallel=32), large, on_opening).share_weights is False
    assert len(aborts) == 1


def test_a_pool_has_decided(story_model: Path) -> None:
    with Pool(story_model, parallel=1, n_ctx=256) as pool:
        assert pool.spec.share_weights is False


def test_a_machine_that_is_too_slow_just_now_gives_no_times(synthetic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_layouts_program, "MOST_S", 0.0)
    assert weight_layouts_program.timings(Job(str(synthetic), 1)) is None
