"""Tensors that a tuning runs its candidates on: laid out as described, in poisoned memory.

Real operands are never touched. Each tensor lies in the middle of bytes that make NaN, at the alignment that was
planned, so that a candidate that reads or writes past its ends shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from weft.oracle.judgement import unwritten
from weft.planner.schedule import Description, Scalar
from weft.spec import Aux, Layout
from weft.spec.permutation import Permutation

GUARD = 256  # bytes before and after a tensor


class Operands(NamedTuple):
    """The tensors of one call. A permutation has its source in `a` and no `b`; where it adds, `c` is `d`.

    `aux` has a tensor for each auxiliary operand of a contraction, None for a coordinate.
    """

    a: torch.Tensor
    b: torch.Tensor | None
    c: torch.Tensor | None
    d: torch.Tensor
    aux: tuple[torch.Tensor | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """A description on one device, with the scalars it is run with."""

    description: Description
    device: torch.device

    @property
    def added(self) -> bool:
        return self.description.c is not None

    @property
    def scalars(self) -> tuple[Scalar, Scalar]:
        """alpha and beta: exact in every type, and 1 or 0 only where nothing else is allowed."""
        if isinstance(self.description, Permutation):
            if not self.description.scaled:
                return 1, 0
            dtype = self.description.scale
        elif self.description.algebra is not None:
            return 1.0, 1.0  # what a plan without scaling is called with
        else:
            dtype = self.description.arithmetic.accumulate
        exact: tuple[Scalar, Scalar] = (0.5, -2.0) if dtype.is_floating_point or dtype.is_complex else (3, -2)
        alpha, beta = (complex(x) for x in exact) if dtype.is_complex else exact
        return alpha, beta if self.added else type(alpha)(0)

    def operands(self, seed: int) -> Operands:
        """Random operands, and a place for the result that holds poison (values, where the result is added to)."""
        description = self.description
        if isinstance(description, Permutation):
            source = filled(description.x, self.device, 3 * seed)
            if not self.added:
                return Operands(source, None, None, poisoned(description.d, self.device))
            place = filled(description.d, self.device, 3 * seed + 1)
            return Operands(source, None, place, place)
        a, b = (filled(layout, self.device, 3 * seed + at) for at, layout in enumerate((description.a, description.b)))
        c = filled(description.c, self.device, 3 * seed + 2) if description.c is not None else None
        aux = tuple(self._aux_operand(each, 1000 * seed + at) for at, each in enumerate(description.aux))
        return Operands(a, b, c, poisoned(description.d, self.device), aux)

    def call(self, launch: Any) -> Callable[..., None]:
        """A launch as a function of `Operands`."""
        alpha, beta = self.scalars
        if isinstance(self.description, Permutation):
            return lambda a, b, c, d, aux: launch(a, c, d, alpha, beta)
        return lambda a, b, c, d, aux: launch(a, b, c, d, alpha, beta, aux)

    def results(self, operands: Operands) -> list[tuple[int, torch.Tensor]]:
        """The tensors that a call writes: D and further outputs, each with its place in a mode's strides."""
        if isinstance(self.description, Permutation):
            return [(3, operands.d)]
        others = [(4 + at, operands.aux[at]) for at in self.description.outputs]
        return [(3, operands.d), *((at, tensor) for at, tensor in others if tensor is not None)]

    def _aux_operand(self, each: Aux, seed: int) -> torch.Tensor | None:
        if each.layout is None:
            return None
        if each.kind == "output":
            return poisoned(each.layout, self.device)
        made = filled(each.layout, self.device, seed)
        whole = not (each.dtype.is_floating_point or each.dtype.is_complex or each.dtype is torch.bool)
        # One whole number is an offset, or the bits of a peak: with 0 a function masks and scales nothing.
        return made.zero_() if whole and made.numel() == 1 else made


def filled(layout: Layout, device: torch.device, seed: int) -> torch.Tensor:
    """Normal values, whole numbers from -3 to 3 in integer types; what lies between the elements has values too."""
    tensor = poisoned(layout, device)
    every = flat(tensor)
    every.copy_(random_values(every.shape, layout.dtype, torch.Generator(device).manual_seed(seed)))
    return tensor


def random_values(
    shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator, whole: bool = False
) -> torch.Tensor:
    """Normal values in floating types; whole numbers from -3 to 3 (from 0 where unsigned) in others, or if `whole`."""
    device = generator.device
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator, device=device)
    if whole or not (dtype.is_floating_point or dtype.is_complex):
        low = -3 if dtype.is_signed else 0
        parts = [torch.randint(low, 4, shape, generator=generator, device=device) for _ in range(1 + dtype.is_complex)]
        return torch.complex(*[part.double() for part in parts]) if dtype.is_complex else parts[0]
    work = torch.promote_types(dtype, torch.float32) if dtype.itemsize >= 4 else torch.float32
    return torch.randn(shape, dtype=work, generator=generator, device=device)


def poisoned(layout: Layout, device: torch.device) -> torch.Tensor:
    """A tensor as the layout says in memory full of poison, itself included."""
    size = layout.dtype.itemsize
    shift = layout.alignment if layout.alignment < 16 and layout.alignment % size == 0 else 0
    start = GUARD + shift
    total = -(-(start + span(layout) * size + GUARD) // 16) * 16
    memory = torch.full((total,), unwritten(layout.dtype), dtype=torch.uint8, device=device)
    return memory.view(layout.dtype).as_strided(layout.shape, layout.strides, start // size)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory that a tensor made here lies in, guards included."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Every element from the first to the last that a tensor has, those between its own included."""
    return tensor.as_strided((span(Layout.of(tensor)),), (1,))


def span(layout: Layout) -> int:
    """Elements from the first to the last."""
    if 0 in layout.shape:
        return 0
    return sum(stride * (extent - 1) for stride, extent in zip(layout.strides, layout.shape, strict=True)) + 1


def described_bytes(description: Description) -> int:
    """Bytes of all tensors of one call."""
    layouts = [description.d, description.c]
    if isinstance(description, Permutation):
        layouts.append(description.x)
    else:
        layouts += [description.a, description.b, *(each.layout for each in description.aux)]
    return sum(span(layout) * layout.dtype.itemsize for layout in layouts if layout is not None)


def is_empty(description: Description) -> bool:
    return math.prod(mode.extent for mode in description.modes) == 0
