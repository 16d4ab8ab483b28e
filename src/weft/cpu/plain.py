"""Everything by torch's own operations on whole tensors: for machines without numba, and for what has no kernel.

    A, B -> [batch, m, k], [batch, k, n]     permuted, converted, functions applied, modes of their own summed
         -> [batch, m, n]                    torch.matmul; of another algebra, tables of pairs reduced by halves
         -> D                                alpha, beta, C, functions, one copy

A family with the four doors of `weft.planner.schedule`. It is the plain way and not the fast one: each step is a pass
over memory, and the workspace holds both operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from weft.cpu.exactness import exact_products
from weft.cpu.host import costs
from weft.fn import Pointwise
from weft.fn.algebra import TracedAlgebra
from weft.fn.pointwise import TritonFunction
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Mode, Role
from weft.spec.dtypes import dtype_name, value_type

NAME = "torch"
TABLE = 1 << 22  # pairs of another algebra's values that stand in memory at once
FIRST = 4  # place of the first auxiliary operand among a mode's strides


@dataclass(frozen=True, slots=True)
class PlainSchedule:
    """Passes over whole tensors."""

    workspace_bytes: int
    family: str = NAME

    def __str__(self) -> str:
        return f"torch: passes over whole tensors; workspace {self.workspace_bytes / 1024:.0f} KiB"


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not.

    "tf32" and "tf32x3" are served by IEEE float32 products, three products by four: they are at least as exact.
    """
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    arithmetic, algebra = contraction.arithmetic, contraction.algebra
    if not torch.can_cast(arithmetic.product, arithmetic.accumulate):
        return f"products in {dtype_name(arithmetic.product)} do not add up in {dtype_name(arithmetic.accumulate)}"
    parts = () if algebra is None else (algebra.combine, algebra.reduce)
    for hook in (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue, *parts):
        if isinstance(hook, TritonFunction):
            return f"{hook.jit.__name__} is a Triton function; the CPU needs it written with torch operations"
    if algebra is None and torch.bool in (contraction.a.dtype, contraction.b.dtype):
        return "bool has no sum of products; convert the operands to an integer type"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    size = contraction.arithmetic.accumulate.itemsize
    table = min(TABLE, batch * m * n * k) if contraction.algebra is not None else 0
    return Candidates((PlainSchedule(size * (batch * (m * k + k * n + 2 * m * n) + 2 * table)),))


def predict(contraction: Contraction, schedule: PlainSchedule, target: Target) -> float:
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    cost, cores = costs("plain"), max(target.processors, 1)
    each = cost("product") if contraction.algebra is None else cost("pair")
    return cost("call") + batch * (cost("pass") * (m * k + k * n + m * n) + each * m * n * k) / cores


def build(contraction: Contraction, schedule: PlainSchedule, target: Target) -> Launch:
    return PlainLaunch(contraction)


class Operand(NamedTuple):
    """A or B: its modes, those that it alone has and those that are summed with the other's."""

    values: Values
    free: tuple[Mode, ...]
    function: Pointwise | None
    conjugate: bool
    value: torch.dtype


class PlainLaunch:
    """Runs on new pointers; keeps no state between calls."""

    def __init__(self, contraction: Contraction) -> None:
        self._contraction = contraction
        modes, algebra = contraction.modes, contraction.algebra
        moves = [[any(mode.strides[at] for at in (place, *(FIRST + arg for arg in args))) for mode in modes]
                 for place, args in ((0, contraction.a_args), (1, contraction.b_args))]  # fmt: skip
        in_a, in_b = ({mode for mode, moved in zip(modes, each, strict=True) if moved} for each in moves)
        self._batch = contraction.of_role(Role.BATCH)
        self._m, self._n = contraction.of_role(Role.M), contraction.of_role(Role.N)
        sums = contraction.of_role(Role.K)
        self._k = tuple(mode for mode in sums if algebra is not None or (mode in in_a and mode in in_b))
        alone = [tuple(mode for mode in sums if mode not in self._k and mode in own) for own in (in_a, in_b)]
        self._repeat = math.prod(mode.extent for mode in sums if mode not in in_a | in_b) if algebra is None else 1
        self._operands = [
            self._operand(place, free, own)
            for place, free, own in ((0, self._m, alone[0]), (1, self._n, alone[1]))
        ]  # fmt: skip
        self._kept = (*self._batch, *self._m, *self._n)

    def _operand(self, place: int, free: tuple[Mode, ...], alone: tuple[Mode, ...]) -> Operand:
        contraction = self._contraction
        layout = (contraction.a, contraction.b)[place]
        args, function = ((contraction.a_args, contraction.a_fn), (contraction.b_args, contraction.b_fn))[place]
        conjugate = (contraction.conjugate_a, contraction.conjugate_b)[place] and layout.dtype.is_complex
        values = Values(contraction, place, (*self._batch, *free, *self._k, *alone), args)
        return Operand(values, free, function, conjugate, value_type(layout.dtype, contraction.arithmetic.product))

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        contraction = self._contraction
        x, y = (self._factor(operand, tensor, aux) for operand, tensor in zip(self._operands, (a, b), strict=True))
        if contraction.algebra is None:
            total = self._products(x, y)
            total = total if self._repeat == 1 else total * self._repeat
            total = total if alpha == 1 else total * wrapped(alpha, total.dtype)
        else:
            total = _reduced(contraction.algebra, x, y, contraction.arithmetic.accumulate)
        total = total.reshape([mode.extent for mode in self._kept])
        if c is not None and beta != 0:
            total = self._added(total, c, beta, aux)
        self._store(total, d, aux)

    def _factor(self, operand: Operand, tensor: Tensor, aux: AuxTensors) -> Tensor:
        """[batch, free, k] of an operand's values in the accumulator's type; a real operand stays real."""
        contraction, accumulate = self._contraction, self._contraction.arithmetic.accumulate
        values, *others = operand.values.of(tensor, aux)
        values = (values.conj() if operand.conjugate else values).to(operand.value)
        if operand.function is not None:
            values = _one(operand.function(values, *others)).to(operand.value)
        real = accumulate.is_complex and not tensor.is_complex() and contraction.algebra is None
        values = values.to(accumulate.to_real() if real else accumulate)
        alone = len(operand.values.modes) - len(self._batch) - len(operand.free) - len(self._k)
        if alone:
            values = values.sum(tuple(range(-alone, 0)), dtype=values.dtype)
        sizes = [math.prod(mode.extent for mode in group) for group in (self._batch, operand.free, self._k)]
        return values.reshape(sizes)

    def _products(self, x: Tensor, y: Tensor) -> Tensor:
        """[batch, m, n]. A real factor of a complex one meets its parts as columns of a real matrix."""
        if not self._k:  # infinities meet no zeros of a sum
            return x * y.transpose(1, 2)
        with exact_products():
            if x.is_complex() == y.is_complex():
                return torch.bmm(x, y.transpose(1, 2))
            if x.is_complex():
                return self._with_parts(y, x).transpose(1, 2)
            return self._with_parts(x, y)

    @staticmethod
    def _with_parts(real: Tensor, other: Tensor) -> Tensor:
        parts = torch.view_as_real(other.transpose(1, 2).resolve_conj().contiguous()).flatten(-2)
        found = torch.bmm(real, parts)
        return torch.view_as_complex(found.unflatten(-1, (-1, 2)))

    def _added(self, total: Tensor, c: Tensor, beta: Scalar, aux: AuxTensors) -> Tensor:
        contraction = self._contraction
        values, *others = Values(contraction, 2, self._kept, contraction.c_args).of(c, aux)
        values = values.to(total.dtype)
        if contraction.c_fn is not None:
            values = _one(contraction.c_fn(values, *others)).to(total.dtype)
        if contraction.algebra is not None:
            return _one(contraction.algebra.reduce(total, values)).to(total.dtype)
        return total.add(values, alpha=wrapped(beta, total.dtype))

    def _store(self, total: Tensor, d: Tensor, aux: AuxTensors) -> None:
        contraction = self._contraction
        results: tuple[Tensor, ...] = (total,)
        if contraction.epilogue is not None:
            others = Values(contraction, 3, self._kept, contraction.epilogue_args).of(d, aux)[1:]
            found = contraction.epilogue(total, *others)
            results = found if isinstance(found, tuple) else (found,)
        targets = [(3, d), *((FIRST + place, aux[place]) for place in contraction.outputs)]
        for result, (place, target) in zip(results, targets, strict=True):
            assert target is not None
            _seen(target, self._kept, place).copy_(result)


class Values:
    """A tensor along some modes, and what a function takes beside it: tensors and coordinates."""

    def __init__(self, contraction: Contraction, place: int, modes: tuple[Mode, ...], args: Sequence[int]) -> None:
        self.modes, self._place = modes, place
        self._args = [(arg, contraction.aux[arg].dtype) for arg in args]

    def of(self, tensor: Tensor, aux: AuxTensors) -> list[Tensor]:
        found = [_seen(tensor, self.modes, self._place)]
        for arg, dtype in self._args:
            other = aux[arg]
            found.append(self._coordinate(arg, dtype) if other is None else _seen(other, self.modes, FIRST + arg))
        return found

    def _coordinate(self, arg: int, dtype: torch.dtype) -> Tensor:
        extents = [mode.extent for mode in self.modes]
        for at, mode in enumerate(self.modes):
            if mode.strides[FIRST + arg]:
                shape = [extent if i == at else 1 for i, extent in enumerate(extents)]
                return torch.arange(mode.extent, dtype=dtype, device="cpu").reshape(shape).expand(extents)
        return torch.zeros((), dtype=dtype, device="cpu").expand(extents)


def _seen(tensor: Tensor, modes: Sequence[Mode], place: int) -> Tensor:
    strides = [mode.strides[place] for mode in modes]
    return tensor.as_strided([mode.extent for mode in modes], strides, tensor.storage_offset())


def _one(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    assert isinstance(result, Tensor), "this function has one result"
    return result


# -- other algebras ----------------------------------------------------------------------------------------------------


def _reduced(algebra: TracedAlgebra, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """[batch, m, n] of [batch, m, k] and [batch, n, k], by tables of pairs of a bounded size."""
    batch, m, k = x.shape
    n = y.shape[1]
    total = torch.full((batch, m, n), algebra.identity, dtype=dtype, device="cpu")
    if not (batch and m and n and k):
        return total

    def reduce(p: Tensor, q: Tensor) -> Tensor:
        return _one(algebra.reduce(p, q)).to(dtype)

    sums = min(k, max(TABLE // n, 1))
    rows = min(m, max(TABLE // (n * sums), 1))
    batches = max(TABLE // (n * sums * rows), 1)
    for b in range(0, batch, batches):
        for i in range(0, m, rows):
            for p in range(0, k, sums):
                left = x[b : b + batches, i : i + rows, None, p : p + sums]
                right = y[b : b + batches, None, :, p : p + sums]
                shape = (left.shape[0], left.shape[1], n, left.shape[3])
                pairs = _one(algebra.combine(left.expand(shape), right.expand(shape))).to(dtype)
                part = halved(pairs.expand(shape), reduce)
                kept = total[b : b + batches, i : i + rows]
                kept.copy_(part if p == 0 else reduce(kept, part))
    return total


def halved(pairs: Tensor, reduce: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Reduce the last dimension, not empty, by halves: about as many calls as its extent has digits in binary."""
    odd: Tensor | None = None
    while (extent := pairs.shape[-1]) > 1:
        half = extent // 2
        if extent % 2:
            last = pairs[..., -1:]
            odd = last if odd is None else reduce(odd, last)
        pairs = reduce(pairs[..., :half], pairs[..., half : 2 * half])
    return (pairs if odd is None else reduce(pairs, odd)).squeeze(-1)


def wrapped(factor: Scalar, dtype: torch.dtype) -> Scalar:
    """A factor of values of that type: whole numbers as they wrap around there."""
    if dtype.is_floating_point or dtype.is_complex:
        return factor
    lowest = torch.iinfo(dtype).min
    return (int(factor.real) - lowest) % (1 << torch.iinfo(dtype).bits) + lowest
