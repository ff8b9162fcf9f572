"""Mixtures of experts: what a file's header says of them, and how much of the weights a token uses."""

from pathlib import Path

import pytest

from engine.models import read_model
from engine.models.experts import Experts, active_parameters, experts_of, weights_read
from tests.engine.models.headers import KEYS, TENSORS, gguf, tensor, u32

NUM_OTHERS, NUM_OF_EXPERTS = 64 * 3 + 64, 64 * 32 * 8
OFFSET = 480


def mixture(path: Path, count: int, used: int) -> Path:
    """A file whose only layer has the weights of eight experts."""
    keys = [*KEYS, u32("llama.expert_count", count), u32("llama.expert_used_count", used)]
    tensors = [*TENSORS, tensor("blk.0.ffn_up_exps.weight", (64, 32, 8), 0, OFFSET)]
    path.write_bytes(gguf(keys, tensors, bytes(OFFSET + 4 * NUM_OF_EXPERTS)))
    return path


def test_a_file_says_how_many_of_its_experts_a_token_uses(tmp_path: Path) -> None:
    model = read_model(mixture(tmp_path / "mixture.gguf", 8, 2))
    assert experts_of(model) == Experts(8, 2)
    assert model.num_parameters == NUM_OTHERS + NUM_OF_EXPERTS
    assert active_parameters(model) == NUM_OTHERS + NUM_OF_EXPERTS // 4
    assert weights_read(model, 1) == model.weights_bytes - 3 * NUM_OF_EXPERTS


@pytest.mark.parametrize(("count", "used"), [(0, 0), (8, 0), (8, 8), (8, 9), (0, 2), (4_294_967_295, 2)])
def test_a_header_whose_experts_make_no_sense_leaves_all_weights_in_use(tmp_path: Path, count: int, used: int) -> None:
    model = read_model(mixture(tmp_path / "mixture.gguf", count, used))
    assert experts_of(model) is None
    assert active_parameters(model) == model.num_parameters
    assert weights_read(model, 1) == model.weights_bytes
