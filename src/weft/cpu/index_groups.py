"""What blocking needs to know of a contraction: which modes form its matrices, and how each operand is read.

group     A B D   in a block
batch     x x x   first dimension of all three matrices
m         x . x   rows or columns of the accumulator
n         . x x   the other ones
k         x x .   summed by the matrix product
alone     x . .   summed while the operand's block is packed (likewise . x .)
repeated  . . .   broadcast in both and summed: the sum is multiplied by their extent

A mode that only an auxiliary operand of `a_fn` moves along counts as one of A. In another algebra than plus-times
all that is reduced is k: nothing says that reductions may be made before products, or once for many equal ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from weft.cpu.algebra_forms import matrix_form
from weft.fn import Pointwise
from weft.spec import Contraction, Mode, Role
from weft.spec.dtypes import rounds

_REAL_OF = {torch.complex64: torch.float32, torch.complex128: torch.float64}

Group = tuple[int, ...]  # positions in `contraction.modes`


@dataclass(frozen=True)
class Operand:
    """A or B: where its elements lie, and the types they pass through on their way into the product."""

    name: str
    strides: tuple[int, ...]  # elements, one for each mode of the contraction
    storage: torch.dtype
    value: torch.dtype  # what its function sees: the product type, real for a real operand
    compute: torch.dtype  # what the matrix product reads: as wide as the accumulator
    function: Pointwise | None
    args: tuple[int, ...]  # positions in `contraction.aux` of what the function takes beside the value
    conjugate: bool
    free: Group  # the modes that it has and the other operand lacks: m or n
    alone: Group

    @property
    def rounds(self) -> bool:
        """Whether values lose digits between storage and product."""
        return rounds(self.storage, self.value)

    @property
    def staged(self) -> bool:
        """Whether a block must exist in the product type before it is widened to the compute type."""
        return self.value != self.compute and (self.function is not None or self.rounds)

    @property
    def sums_where_it_lies(self) -> bool:
        """Whether its sums over modes of its own need no copy of what is summed."""
        as_stored = self.storage == self.compute and not self.rounds and not self.conjugate
        return bool(self.alone) and self.function is None and as_stored

    @property
    def obstacle(self) -> str | None:
        """Why its blocks must be packed wherever they lie; None if they might be used as they are."""
        if self.function is not None:
            return "its function is applied while packing"
        if self.alone:
            return "it is summed over modes of its own while packing"
        if self.conjugate:
            return "it is conjugated while packing"
        if self.storage != self.compute or self.rounds:
            return f"it is converted to {_name(self.compute)} while packing"
        return None


@dataclass(frozen=True)
class Anatomy:
    """A contraction's modes by what happens to them on the CPU."""

    contraction: Contraction
    batch: Group
    m: Group
    n: Group
    k: Group
    repeated: Group
    a: Operand
    b: Operand

    @property
    def accumulate(self) -> torch.dtype:
        return self.contraction.arithmetic.accumulate

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Extents as blocks are planned for: an empty mode counts as one element, its loop runs over none."""
        return tuple(max(mode.extent, 1) for mode in self.contraction.modes)

    @cached_property
    def strides_c(self) -> tuple[int, ...]:
        return tuple(mode.strides.c for mode in self.contraction.modes)

    @cached_property
    def strides_d(self) -> tuple[int, ...]:
        return tuple(mode.strides.d for mode in self.contraction.modes)

    @property
    def repeat(self) -> int:
        """How often each product counts."""
        return self.size(self.repeated)

    @property
    def empty_sum(self) -> bool:
        """Whether nothing is summed: some reduced mode has extent 0."""
        return self.contraction.k == 0

    @property
    def evaluates_sums(self) -> bool:
        """Whether a function runs on blocks of sums, which should be in cache then and bound what it allocates."""
        return self.contraction.epilogue is not None or self.contraction.c_fn is not None

    @property
    def elementwise(self) -> bool:
        """Whether no mode is summed over products: each element of D is one product."""
        return not self.k

    @cached_property
    def pairs(self) -> bool:
        """Whether products are tables of pairs, for want of a matrix product."""
        algebra = self.contraction.algebra
        return algebra is not None and bool(self.k) and matrix_form(algebra, self.accumulate) is None

    @property
    def mixed(self) -> bool:
        """Whether one operand is real and the other complex."""
        return self.a.compute.is_complex != self.b.compute.is_complex

    def size(self, group: Iterable[int]) -> int:
        return math.prod(self.extents[at] for at in group)

    def of(self, role: Role) -> Group:
        return {Role.BATCH: self.batch, Role.M: self.m, Role.N: self.n, Role.K: self.k}[role]


def dissect(contraction: Contraction) -> Anatomy:
    """Sort the modes of a canonical contraction into groups."""
    groups: dict[str, list[int]] = {name: [] for name in ("batch", "m", "n", "k", "a", "b", "none")}
    for at, mode in enumerate(contraction.modes):
        if mode.role is Role.K:
            group = _reduced_group(contraction, mode)
        else:
            group = mode.role.value
        groups[group].append(at)
    found = {name: tuple(group) for name, group in groups.items()}
    return Anatomy(
        contraction=contraction,
        batch=found["batch"],
        m=found["m"],
        n=found["n"],
        k=found["k"],
        repeated=found["none"],
        a=_operand(contraction, "A", found["m"], found["a"]),
        b=_operand(contraction, "B", found["n"], found["b"]),
    )


def _reduced_group(contraction: Contraction, mode: Mode) -> str:
    if contraction.algebra is not None:
        return "k"
    in_a = any(mode.strides[at] for at in (0, *(4 + arg for arg in contraction.a_args)))
    in_b = any(mode.strides[at] for at in (1, *(4 + arg for arg in contraction.b_args)))
    if in_a:
        return "k" if in_b else "a"
    return "b" if in_b else "none"


def real_of(dtype: torch.dtype) -> torch.dtype:
    """The type of one component of a complex type; a real type itself."""
    return _REAL_OF.get(dtype, dtype)


def _operand(contraction: Contraction, name: str, free: Group, alone: Group) -> Operand:
    first = name == "A"
    storage = (contraction.a if first else contraction.b).dtype
    arithmetic = contraction.arithmetic
    real = not storage.is_complex  # a real operand of a complex product stays real, beside a complex one
    apart = real and contraction.a.dtype.is_complex != contraction.b.dtype.is_complex and contraction.algebra is None
    return Operand(
        name=name,
        strides=tuple(mode.strides.a if first else mode.strides.b for mode in contraction.modes),
        storage=storage,
        value=real_of(arithmetic.product) if real else arithmetic.product,
        compute=real_of(arithmetic.accumulate) if apart else arithmetic.accumulate,
        function=contraction.a_fn if first else contraction.b_fn,
        args=contraction.a_args if first else contraction.b_args,
        conjugate=(contraction.conjugate_a if first else contraction.conjugate_b) and not real,
        free=free,
        alone=alone,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
