"""EmbedSpec: what it refuses, and what it fills in."""

from typing import Any

import pytest

from engine.embedding.specs import TOKENS_PER_BATCH, EmbedSpec
from engine.errors import ConfigError
from engine.machine.cores import num_cores


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"workers": 0}, "workers"),
        ({"threads": 0}, "threads"),
        ({"tokens_per_batch": 0}, "tokens_per_batch"),
        ({"backend": "fp8"}, "backend"),
        ({"normalise": "yes"}, "normalise"),
        ({"model": "a\0b"}, "model"),
        ({"normalize": True}, "did you mean normalise"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        EmbedSpec(**values)


def test_workers_share_the_cores() -> None:
    assert EmbedSpec().resolved_threads == num_cores()
    assert EmbedSpec(workers=num_cores()).resolved_threads == 1
    assert EmbedSpec(workers=2, threads=3).resolved_threads == 3


def test_each_thread_has_its_share_of_a_batch() -> None:
    assert EmbedSpec(threads=1).resolved_tokens_per_batch == TOKENS_PER_BATCH
    assert EmbedSpec(threads=4).resolved_tokens_per_batch == 4 * TOKENS_PER_BATCH
    assert EmbedSpec(threads=4, tokens_per_batch=100).resolved_tokens_per_batch == 100
