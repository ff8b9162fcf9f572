"""The tokenizer of one model at a time: kept, changed, ended."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import ConfigError, ModelError
from engine.workbench.machine_lease import MachineLease
from engine.workbench.tokenizer_slot import TokenizerSlot


@pytest.fixture
def slot() -> Iterator[TokenizerSlot]:
    made = TokenizerSlot(MachineLease())
    yield made
    made.close()


def test_one_is_held_and_another_takes_its_place(slot: TokenizerSlot, story_model: Path, tmp_path: Path) -> None:
    first = slot.of(story_model)
    assert slot.of(story_model) is first
    other = tmp_path / "other.gguf"
    shutil.copy(story_model, other)
    second = slot.of(other)
    assert not first.is_alive and second.is_alive
    os.utime(other, ns=(1, 1))
    assert slot.of(other) is not second


def test_one_that_ended_is_opened_again(slot: TokenizerSlot, story_model: Path) -> None:
    first = slot.of(story_model)
    first.close()
    assert slot.of(story_model).tokenize("Once")


def test_a_model_that_is_gone_is_said(slot: TokenizerSlot, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.gguf: cannot be read .*may have been removed"):
        slot.of(tmp_path / "gone.gguf")


def test_none_is_opened_while_a_benchmark_measures(story_model: Path) -> None:
    machine = MachineLease()
    slot = TokenizerSlot(machine)
    held = slot.of(story_model)
    with machine.acquire("A benchmark", "benchmark"):
        assert slot.of(story_model) is held
        held.close()
        with pytest.raises(ConfigError, match="A benchmark has the machine to itself"):
            slot.of(story_model)
    slot.close()
