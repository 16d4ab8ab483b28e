"""Networks that tests share: random ones, and what they should come to."""

from __future__ import annotations

import itertools
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


def circuit(wires: int, layers: int, extent: int) -> Net:
    """Gates on neighbouring wires, in layers, between two product states: no label lives from one end to the other."""
    names = map(chr, itertools.count(192))
    now = [next(names) for _ in range(wires)]
    terms = list(now)
    for layer in range(layers):
        for at in range(layer % 2, wires - 1, 2):
            new = [next(names), next(names)]
            terms.append("".join((*now[at : at + 2], *new)))
            now[at : at + 2] = new
    terms += now
    generator = torch.Generator().manual_seed(4)
    shapes = [(extent,) * len(term) for term in terms]
    tensors = [torch.randn(x, generator=generator, dtype=torch.float64) / extent ** (len(x) / 4) for x in shapes]
    state, held = torch.ones((), dtype=torch.float64), ""
    for term, tensor in zip(terms, tensors, strict=True):  # gate after gate
        kept = "".join(label for label in held + term if label not in held or label not in term)
        numbers = {label: at for at, label in enumerate(held + term)}
        state = torch.einsum(state, [numbers[x] for x in held], tensor, [numbers[x] for x in term],
                             [numbers[x] for x in kept])  # fmt: skip
        held = kept
    return Net(",".join(terms) + "->", tensors, state)


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
