"""Tokenizer manager: the tokenizer of one model at a time; kept, replaced, ended."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import ConfigError, ModelError
from engine.workbench.machine_lease import MachineLease
from engine.workbench.tokenizer_manager import TokenizerManager


@pytest.fixture
def manager() -> Iterator[TokenizerManager]:
    made = TokenizerManager(MachineLease())
    yield made
    made.close()


def test_one_is_held_and_another_takes_its_place(manager: TokenizerManager, story_model: Path, tmp_path: Path) -> None:
    first = manager.of(story_model)
    assert manager.of(story_model) is first
    other = tmp_path / "other.gguf"
    shutil.copy(story_model, other)
    second = manager.of(other)
    assert not first.is_alive and second.is_alive
    os.utime(other, ns=(1, 1))
    assert manager.of(other) is not second


def test_the_vocabularies_of_the_last_files_are_kept_without_their_tokenizers(
    manager: TokenizerManager, story_model: Path, tmp_path: Path
) -> None:
    copies = [tmp_path / f"{number}.gguf" for number in range(5)]
    for copy in copies:
        copy.hardlink_to(story_model)
    first, *others = [manager.vocabulary_of(copy) for copy in copies]
    assert first.hash == manager.of(story_model).vocabulary.hash
    assert [manager.vocabulary_of(copy) is known for copy, known in zip(copies[1:], others, strict=True)] == [True] * 4
    assert manager.vocabulary_of(copies[0]) is not first
    copies[0].unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        manager.vocabulary_of(copies[0])


def test_one_that_ended_is_opened_again(manager: TokenizerManager, story_model: Path) -> None:
    first = manager.of(story_model)
    first.close()
    assert manager.of(story_model).tokenize("Once")


def test_a_model_that_is_gone_is_said(manager: TokenizerManager, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.gguf: cannot be read .*may have been removed"):
        manager.of(tmp_path / "gone.gguf")


def test_none_is_opened_while_a_benchmark_measures(story_model: Path) -> None:
    machine = MachineLease()
    manager = TokenizerManager(machine)
    held = manager.of(story_model)
    with machine.acquire("A benchmark", "benchmark"):
        assert manager.of(story_model) is held
        held.close()
        with pytest.raises(ConfigError, match="A benchmark has exclusive use of the machine"):
            manager.of(story_model)
    manager.close()
