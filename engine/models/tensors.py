"""Tensor groups: a breakdown of a model's bytes by tensor type and by the tensors' role."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from engine.models.gguf import ModelFile
from engine.models.header import TensorInfo

_LAYER = re.compile(r"(^|\.)(?:blk|layers|h)\.\d+\.")
"""Part of a tensor's name that numbers its layer: blk in GGUF files, the others in folders."""


@dataclass(frozen=True)
class TensorGroup:
    """Group of tensors under one `name`; `types` are the names of their tensor types, the one with most bytes first."""

    name: str
    types: tuple[str, ...]
    num_tensors: int
    num_values: int
    num_bytes: int

    @property
    def bits_per_value(self) -> float:
        """Average bits per value, scales included; 0 where the group has no values."""
        return 8 * self.num_bytes / self.num_values if self.num_values else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "name": self.name,
            "types": list(self.types),
            "num_tensors": self.num_tensors,
            "num_values": self.num_values,
            "num_bytes": self.num_bytes,
            "bits_per_value": self.bits_per_value,
        }


def by_type(file: ModelFile) -> list[TensorGroup]:
    """Return a group for each tensor type, such as Q4_K, the one with most bytes first."""
    return _grouped(file.tensors, lambda tensor: tensor.type.name)


def by_size(file: ModelFile) -> list[TensorGroup]:
    """Return a group for each tensor name, such as ffn_down.weight, over all layers; the one with most bytes first."""
    return _grouped(file.tensors, lambda tensor: _LAYER.sub(r"\1", tensor.name))


def _grouped(tensors: Iterable[TensorInfo], name_of: Callable[[TensorInfo], str]) -> list[TensorGroup]:
    members: dict[str, list[TensorInfo]] = defaultdict(list)
    for tensor in tensors:
        members[name_of(tensor)].append(tensor)
    groups = [_group(name, found) for name, found in members.items()]
    return sorted(groups, key=lambda group: -group.num_bytes)


def _group(name: str, tensors: list[TensorInfo]) -> TensorGroup:
    num_bytes: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        num_bytes[tensor.type.name] += tensor.num_bytes
    return TensorGroup(
        name=name,
        types=tuple(sorted(num_bytes, key=lambda kind: -num_bytes[kind])),
        num_tensors=len(tensors),
        num_values=sum(tensor.num_values for tensor in tensors),
        num_bytes=sum(num_bytes.values()),
    )
