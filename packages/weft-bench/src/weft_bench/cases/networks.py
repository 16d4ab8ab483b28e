"""Public tensor networks, as data of the package: graphs, one path and slicing each, what peers took on an H200."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import torch


@dataclass(frozen=True)
class NetworkCase:
    """One slice of a network. Labels are numbers; sliced ones stand nowhere."""

    name: str
    terms: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    extents: tuple[int, ...]  # by label
    path: tuple[tuple[int, int], ...]  # in static single assignment
    sliced: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    precision: str | None = None
    measured: Mapping[str, Any] = field(default_factory=dict, compare=False)  # what peers took of the whole case

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.extents[label] for label in term) for term in self.terms)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(self.extents[label] for label in self.output)

    @property
    def equation(self) -> str:
        """In a few words: written out it would have hundreds of terms."""
        return f"{len(self.terms)} operands, {len(self.extents)} labels"

    def steps(self) -> list[tuple[frozenset[int], frozenset[int], frozenset[int]]]:
        """The labels of both operands and the result of each step."""
        nodes = [frozenset(term) for term in self.terms]
        uses = [0] * len(self.extents)
        for labels in (*nodes, frozenset(self.output)):
            for label in labels:
                uses[label] += 1
        found = []
        for left, right in self.path:
            for child in (left, right):
                for label in nodes[child]:
                    uses[label] -= 1
            kept = frozenset(label for label in nodes[left] | nodes[right] if uses[label])
            for label in kept:
                uses[label] += 1
            nodes.append(kept)
            found.append((nodes[left], nodes[right], kept))
        return found

    @property
    def work(self) -> int:
        """Multiply-adds of the slice."""
        return sum(self._size(left | right) for left, right, _ in self.steps())

    @property
    def traffic(self) -> int:
        """Bytes that all steps read and write."""
        return self.dtype.itemsize * sum(self._size(each) for step in self.steps() for each in step)

    @property
    def largest(self) -> int:
        """Bytes of the largest intermediate."""
        return self.dtype.itemsize * max(self._size(kept) for _, _, kept in self.steps())

    def operands(self, *, device: torch.device | str = "cpu", seed: int = 0) -> list[torch.Tensor]:
        """Normal random numbers about 1, scaled so that results stay in range, however many operands there are.

        A label of extent d that stands in n tensors, the result among them, divides each of them by d^(1/n).
        """
        generator = torch.Generator(device=device).manual_seed(seed + 1)
        uses = Counter(label for term in (*self.terms, self.output) for label in term)
        scales = [math.prod([self.extents[label] ** (1 / uses[label]) for label in term]) for term in self.terms]
        return [
            (1 + torch.randn(shape, generator=generator, device=device, dtype=self.dtype) / 2) / scale
            for shape, scale in zip(self.shapes, scales, strict=True)
        ]

    def slice(self, labels: tuple[int, ...]) -> NetworkCase:
        """One slice of this: without these labels."""
        gone = frozenset(labels)
        terms = tuple(tuple(label for label in term if label not in gone) for term in self.terms)
        output = tuple(label for label in self.output if label not in gone)
        return replace(self, terms=terms, output=output, sliced=(*self.sliced, *labels))

    def batch(self, count: int) -> tuple[NetworkCase, int]:
        """The sum of so many of these, which differ in all operands; and the label over which it is summed."""
        label = len(self.extents)
        terms = tuple((label, *term) for term in self.terms)
        return replace(self, terms=terms, extents=(*self.extents, count)), label

    def _size(self, labels: frozenset[int]) -> int:
        return math.prod([self.extents[label] for label in labels])


def circuit(extent: int, layers: int, wires: int = 6, precision: str | None = None) -> NetworkCase:
    """Gates on neighbouring wires, in layers, between two product states; contracted gate after gate.

    No label lives from the first gate to the last: where the state must not be whole, slices repeat nearly all of it.
    """
    now = list(range(wires))
    terms: list[tuple[int, ...]] = [(label,) for label in now]
    count = wires
    for layer in range(layers):
        for at in range(layer % 2, wires - 1, 2):
            terms.append((now[at], now[at + 1], count, count + 1))
            now[at : at + 2] = count, count + 1
            count += 2
    terms += [(label,) for label in now]
    path = [(0, 1), *((len(terms) + at - 2, at) for at in range(2, len(terms)))]
    name = f"circuit_{wires}x{layers}_{extent}"
    return NetworkCase(name, tuple(terms), (), (extent,) * count, tuple(path), precision=precision)


@cache
def networks(precision: str | None = None) -> tuple[NetworkCase, ...]:
    """One slice of each network: of the five that peers were measured at, then of all others."""
    whole = (*whole_networks(precision), *whole_networks(precision, "more_networks.json"))
    return tuple(case.slice(sliced) for case, sliced in whole)


def whole_networks(
    precision: str | None = None, file: str = "networks.json"
) -> tuple[tuple[NetworkCase, tuple[int, ...]], ...]:
    """The networks of a file, each with the labels that are sliced: the five that peers were measured at, or more."""
    table = json.loads(resources.files("weft_bench").joinpath("data", file).read_text())
    return tuple(
        (
            NetworkCase(
                name, tuple(map(tuple, row["inputs"])), tuple(row["output"]), tuple(row["extents"]),
                tuple((left, right) for left, right in row["path"]), precision=precision,
                measured=row.get("measured", {}),
            ),
            tuple(row["sliced"]),
        )
        for name, row in table["networks"].items()
    )  # fmt: skip


def shrunk_network(case: NetworkCase, work: int) -> NetworkCase:
    """A slice of at most `work` multiply-adds: labels that stand in most of the work go first."""
    while case.work > work:
        share: dict[int, float] = {}
        for left, right, _ in case.steps():
            size = case._size(left | right)
            for label in left | right:
                if case.extents[label] > 1:
                    share[label] = share.get(label, 0.0) + size * (1 - 1 / case.extents[label])
        if not share:
            break
        case = case.slice((max(share, key=lambda label: (share[label], -label)),))
    return case
