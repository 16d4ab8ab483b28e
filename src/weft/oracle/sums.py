"""How the oracle reduces: every label is one dimension; align, combine, reduce over those that D lacks.

Where the table of all pairs would not fit in memory, the widest label is halved. Floating-point sums of products of
such pieces go through `torch.matmul` in float64; tests hold both ways against each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from weft.algebra import Algebra
from weft.errors import ShapeError
from weft.spec.notation import Label, label_text, term_text

# Pairs held at once by the naive way; elements of A, B and D together in one batched matrix product, and matrices.
_PRODUCTS = 1 << 22
_ELEMENTS = 1 << 28
_MATRICES = 1 << 15

AuxValues: TypeAlias = Mapping[str, torch.Tensor]
Read: TypeAlias = Callable[[torch.Tensor, AuxValues], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Source:
    """A stored tensor with one label for each dimension, what its function takes beside, and how values are read."""

    term: tuple[Label, ...]  # no label twice, no extent of 1: a broadcast label is a label that is not there
    stored: torch.Tensor
    read: Read
    aux_args: AuxValues = field(default_factory=dict)  # dimensions as `stored`, of extent 1 where one lacks them

    @property
    def extents(self) -> dict[Label, int]:
        return dict(zip(self.term, self.stored.shape, strict=True))

    @property
    def values(self) -> torch.Tensor:
        return self.read(self.stored, self.aux_args)

    def part(self, label: Label, start: int, length: int) -> Source:
        if label not in self.term:
            return self
        at = self.term.index(label)
        aux_args = {name: x.narrow(at, start, length) if x.shape[at] != 1 else x for name, x in self.aux_args.items()}
        return replace(self, stored=self.stored.narrow(at, start, length), aux_args=aux_args)


def source(
    term: Sequence[Label],
    stored: torch.Tensor,
    read: Read,
    aux_args: Mapping[str, tuple[Sequence[Label], torch.Tensor]],
    extents: Mapping[Label, int],
) -> Source:
    """Take diagonals, drop extents of 1, and expand along labels that only what stands beside it moves along."""
    labels, stored = simplified(term, stored)
    others = {name: simplified(*placed) for name, placed in aux_args.items()}
    missing = tuple(dict.fromkeys(label for found, _ in others.values() for label in found if label not in labels))
    labels = (*labels, *missing)
    shape = (*stored.shape, *(extents[label] for label in missing))
    stored = stored[(..., *(None for _ in missing))].expand(shape)
    return Source(labels, stored, read, {name: aligned(*placed, labels) for name, placed in others.items()})


def simplified(term: Sequence[Label], stored: torch.Tensor) -> tuple[tuple[Label, ...], torch.Tensor]:
    """A tensor without labels that stand twice and without extents of 1."""
    labels = list(term)
    for label in dict.fromkeys(term):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if stored.shape[first] != stored.shape[second]:
                extents = f"{stored.shape[first]} and {stored.shape[second]}"
                raise ShapeError(f"label '{label_text(label)}' stands twice in '{term_text(tuple(term))}': {extents}")
            stored = stored.diagonal(0, first, second)
            labels = [*labels[:first], *labels[first + 1 : second], *labels[second + 1 :], label]
    kept = tuple(label for label, extent in zip(labels, stored.shape, strict=True) if extent != 1)
    return kept, stored.squeeze()


def aligned(term: Sequence[Label], values: torch.Tensor, labels: Sequence[Label]) -> torch.Tensor:
    """`values` with one dimension for each of `labels`, of extent 1 where it lacks one."""
    values = values.permute([term.index(label) for label in labels if label in term])
    return values[tuple(slice(None) if label in term else None for label in labels)]


def sum_of_products(x: Source, y: Source, output: tuple[Label, ...]) -> torch.Tensor:
    """D's labels in the order of `output`; all others are summed."""
    extents = x.extents | y.extents
    exact = all(not (source.stored.is_floating_point() or source.stored.is_complex()) for source in (x, y))
    if math.prod(extents.values()) <= _PRODUCTS:
        return _by_broadcasting(x, y, output)
    elements = x.stored.numel() + y.stored.numel() + math.prod(extents[label] for label in output)
    matrices = math.prod(extents[label] for label in output if label in x.term and label in y.term)
    if not exact and elements <= _ELEMENTS and matrices <= _MATRICES:
        return _by_matrix_product(x, y, output)
    label, halves = _halved(x, y, extents)
    parts = [sum_of_products(*half, output) for half in halves]
    return torch.cat(parts, output.index(label)) if label in output else parts[0] + parts[1]


def reduced(x: Source, y: Source, output: tuple[Label, ...], algebra: Algebra, held: torch.dtype) -> torch.Tensor:
    """The reduction in another algebra, whose values are held as `held`."""
    extents = x.extents | y.extents
    if math.prod(extents.values()) > _PRODUCTS:
        label, halves = _halved(x, y, extents)
        parts = [reduced(*half, output, algebra, held) for half in halves]
        return torch.cat(parts, output.index(label)) if label in output else _applied(algebra.reduce, parts, held)
    summed = tuple(label for label in extents if label not in output)
    labels = (*output, *summed)
    factors = [aligned(source.term, source.values, labels).to(held) for source in (x, y)]
    shape = [extents[label] for label in output]
    pairs = _applied(algebra.combine, torch.broadcast_tensors(*factors), held)
    pairs = pairs.reshape(*shape, math.prod(extents[label] for label in summed))
    pairs = reduced_in_pairs(pairs, lambda *both: _applied(algebra.reduce, both, held))
    if pairs.shape[-1] == 0:
        return pairs.new_full(shape, algebra.identity_in(held))
    return pairs[..., 0]


def reduced_in_pairs(
    values: torch.Tensor, reduce: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Values reduced along the last dimension, which has one left, or none where it had none."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        pairs = reduce(values[..., :half], values[..., half : 2 * half])
        values = torch.cat([pairs, values[..., 2 * half :]], -1)
    return values


def _applied(function: Any, values: Sequence[torch.Tensor], held: torch.dtype) -> torch.Tensor:
    """A function of two values, which may yield a number."""
    x, y = values
    return torch.as_tensor(function(x, y), device=x.device).to(held).expand(x.shape)


def _halved(x: Source, y: Source, extents: Mapping[Label, int]) -> tuple[Label, list[tuple[Source, Source]]]:
    """Both sources cut in two along the widest label."""
    label = max(extents, key=extents.__getitem__)
    middle = extents[label] // 2
    ranges = ((0, middle), (middle, extents[label] - middle))
    return label, [(x.part(label, start, length), y.part(label, start, length)) for start, length in ranges]


def _by_broadcasting(x: Source, y: Source, output: tuple[Label, ...]) -> torch.Tensor:
    """The definition: every label a dimension, multiply, sum over those that D lacks."""
    summed = tuple(label for label in x.extents | y.extents if label not in output)
    labels = (*output, *summed)
    products = aligned(x.term, x.values, labels) * aligned(y.term, y.values, labels)
    return products.sum(tuple(range(len(output), len(labels)))) if summed else products


def _by_matrix_product(x: Source, y: Source, output: tuple[Label, ...]) -> torch.Tensor:
    """The sum by one batched matrix product of torch's: labels of one operand alone are summed there first."""
    left, right = x.values, y.values
    dtype = torch.promote_types(left.dtype, right.dtype)
    numbers = {label: at for at, label in enumerate(x.extents | y.extents)}
    in_x, in_y, kept = ([numbers[label] for label in term] for term in (x.term, y.term, output))
    return torch.einsum(left.to(dtype), in_x, right.to(dtype), in_y, kept)


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand's values as they are multiplied, and how far each may be off; both real or complex, aligned alike."""

    value: Source
    off: Source
    exact: bool  # nothing is off

    @property
    def size(self) -> Source:
        return replace(self.value, stored=self.value.stored.abs().double())

    @property
    def furthest(self) -> Source:
        """The largest that each magnitude may be."""
        return replace(self.value, stored=self.value.stored.abs().double() + self.off.stored)
