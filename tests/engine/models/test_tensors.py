"""Groups of tensors: every byte counted once."""

from pathlib import Path

import pytest

from engine.models.reading import read_model
from engine.models.tensors import by_size, by_type
from tests.engine.models.headers import gguf, tensor, write


def test_every_byte_is_in_one_group(synthetic: Path) -> None:
    model = read_model(synthetic)
    for groups in (by_type(model), by_size(model)):
        assert sum(group.num_bytes for group in groups) == model.weights_bytes
        assert sum(group.num_values for group in groups) == model.num_parameters
        assert sum(group.num_tensors for group in groups) == len(model.tensors)
        assert [group.num_bytes for group in groups] == sorted((group.num_bytes for group in groups), reverse=True)


def test_layers_are_put_together(synthetic: Path) -> None:
    model = read_model(synthetic)
    groups = {group.name: group for group in by_size(model)}
    assert groups["ffn_down.weight"].num_tensors == model.n_layer
    assert len(groups["ffn_down.weight"].types) == 2
    assert groups["token_embd.weight"].num_values == model.n_vocab * model.n_embd


def test_bits_are_those_of_the_type_with_its_scales(tmp_path: Path) -> None:
    tensors = [tensor("a.weight", (64, 3), 8, 0), tensor("enc.blk.7.b.weight", (64,), 0, 224)]
    model = read_model(write(tmp_path, gguf(tensors=[*tensors, tensor("enc.blk.8.b.weight", (0,), 0, 480)])))
    assert [(group.name, group.types, group.bits_per_value) for group in by_type(model)] == [
        ("F32", ("F32",), 32),
        ("Q8_0", ("Q8_0",), pytest.approx(8.5)),
    ]
    assert [group.to_dict()["name"] for group in by_size(model)] == ["enc.b.weight", "a.weight"]
