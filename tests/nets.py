"""Networks that tests share: random ones, and what they should come to."""

from __future__ import annotations

import random
import string
from typing import Any, NamedTuple

import torch


class Net(NamedTuple):
    """An equation with its operands, in float64, and the right result."""

    equation: str
    tensors: list[torch.Tensor]
    expected: torch.Tensor

    def of(self, dtype: torch.dtype) -> list[torch.Tensor]:
        return [tensor.to(dtype) for tensor in self.tensors]


def random_net(seed: int, most: int = 8) -> Net:
    """Labels in any number of operands, some twice in one, some alone, extents of 1, outputs in any order."""
    chance = random.Random(seed)
    labels = string.ascii_letters[: chance.randint(4, 10)]
    extents = {label: chance.choice([1, 2, 3, 4, 5]) for label in labels}
    terms = ["".join(chance.choices(labels, k=chance.randint(0, 4))) for _ in range(chance.randint(3, most))]
    there = [label for label in labels if any(label in term for term in terms)]
    output = "".join(chance.sample(there, min(len(there), chance.randint(0, 4))))
    return net_of(",".join(terms) + "->" + output, extents, seed)


def net_of(equation: str, extents: dict[str, int], seed: int = 0, dtype: Any = torch.float64) -> Net:
    """An equation with random operands."""
    generator = torch.Generator().manual_seed(seed)
    terms = equation.partition("->")[0].split(",")
    tensors = [torch.randn([extents[label] for label in term], generator=generator, dtype=dtype) for term in terms]
    return Net(equation, tensors, torch.einsum(equation, *tensors))


def chain(count: int, extent: int = 4, seed: int = 0, scale: float = 1.0) -> Net:
    """A product of matrices."""
    labels = string.ascii_letters[: count + 1]
    equation = ",".join(labels[at : at + 2] for at in range(count)) + "->" + labels[0] + labels[-1]
    found = net_of(equation, dict.fromkeys(labels, extent), seed)
    tensors = [tensor * scale for tensor in found.tensors]
    expected = tensors[0]
    for tensor in tensors[1:]:
        expected = expected @ tensor
    return Net(equation, tensors, expected)
