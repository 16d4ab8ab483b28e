"""Everything by torch's own operations: for machines without numba, and for what has no kernel.

    A, B -> [batch, m, k], [batch, n, k]     permuted, converted, functions applied, modes of their own summed
         -> [batch, m, n]                    torch.bmm; of another algebra, tables of pairs reduced by halves
         -> D                                alpha, beta, C, functions, one copy

A family with the four doors of `weft.planner.schedule`. It is the plain way and not the fast one: each step is a pass
over memory. Large tensors are taken in blocks, so that the workspace is bounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from weft.cpu.blas import of_bytes
from weft.cpu.exactness import exact_products
from weft.cpu.host import costs
from weft.fn import Pointwise
from weft.fn.algebra import TracedAlgebra
from weft.fn.pointwise import TritonFunction
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Mode, Role
from weft.spec.dtypes import dtype_name, value_type

NAME = "torch"
BLOCK = 1 << 24  # elements of A, B and D that are in work at once,
NEAR = 1 << 18  # and where no element meets several: passes over them stay in the caches
TABLE = 1 << 22  # pairs of another algebra's values that stand in memory at once
FIRST = 4  # place of the first auxiliary operand among a mode's strides


@dataclass(frozen=True, slots=True)
class EagerSchedule:
    """Passes over tensors, or over blocks of them."""

    workspace_bytes: int
    family: str = NAME

    def __str__(self) -> str:
        return f"torch: passes over tensors; workspace {self.workspace_bytes / 1024:.0f} KiB"


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
    extents = [piece for _, piece in _pieces(contraction)]
    size = _elements(contraction, extents) * contraction.arithmetic.accumulate.itemsize
    if contraction.algebra is not None:
        pairs = math.prod(extents)
        size += 2 * min(TABLE, pairs) * contraction.arithmetic.accumulate.itemsize
    return Candidates((EagerSchedule(2 * size),))


def _pieces(contraction: Contraction) -> list[tuple[Mode, int]]:
    """How much of each mode a block has: the longest are halved until it is small enough."""
    extents = [mode.extent for mode in contraction.modes]
    most = BLOCK if contraction.m > 1 and contraction.n > 1 and contraction.k > 1 else NEAR
    while extents and _elements(contraction, extents) > most:
        at = max(range(len(extents)), key=extents.__getitem__)
        extents[at] = (extents[at] + 1) // 2
    return list(zip(contraction.modes, extents, strict=True))


def _elements(contraction: Contraction, extents: Sequence[int]) -> int:
    """Elements of A, B and D that a block has."""
    sizes = dict.fromkeys(Role, 1)
    for mode, extent in zip(contraction.modes, extents, strict=True):
        sizes[mode.role] *= extent
    batch, m, n, k = (sizes[role] for role in (Role.BATCH, Role.M, Role.N, Role.K))
    return batch * (m * k + n * k + m * n)


def predict(contraction: Contraction, schedule: EagerSchedule, target: Target) -> float:
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    cost, cores = costs("eager"), max(target.processors, 1)
    each = cost("byte" if _of_bytes(contraction) else "product" if contraction.algebra is None else "pair")
    return cost("call") + batch * (cost("pass") * (m * k + k * n + m * n) + each * m * n * k) / cores


def build(contraction: Contraction, schedule: EagerSchedule, target: Target) -> Launch:
    return EagerLaunch(contraction)


def _of_bytes(contraction: Contraction) -> bool:
    """Whether it is one product of int8 matrices that the host has instructions for."""
    bare = contraction.algebra is None and contraction.a_fn is None and contraction.b_fn is None
    return bare and of_bytes(contraction) and contraction.batch == 1


class Block(NamedTuple):
    """A part of the contraction: where it begins along each mode, and how much of it it has."""

    starts: dict[Mode, int]
    extents: dict[Mode, int]

    def shape(self, modes: Sequence[Mode]) -> list[int]:
        return [self.extents[mode] for mode in modes]

    def size(self, modes: Sequence[Mode]) -> int:
        return math.prod(self.shape(modes))

    def of(self, tensor: Tensor, modes: Sequence[Mode], place: int) -> Tensor:
        """The part of a tensor, one dimension for each mode; of one without elements a part of zeros."""
        if tensor.numel() == 0:  # modes of stride 0 would need an element that memory does not have
            return tensor.new_zeros(self.shape(modes))
        start = sum(self.starts[mode] * mode.strides[place] for mode in modes)
        strides = [mode.strides[place] for mode in modes]
        return tensor.as_strided(self.shape(modes), strides, int(tensor.storage_offset()) + start)


class Operand(NamedTuple):
    """A or B: its modes, and what becomes of its values."""

    place: int
    free: tuple[Mode, ...]
    alone: tuple[Mode, ...]  # summed here and in no product
    function: Pointwise | None
    args: tuple[int, ...]
    conjugate: bool
    value: torch.dtype


class EagerLaunch:
    """Runs on new pointers; keeps no state between calls."""

    def __init__(self, contraction: Contraction) -> None:
        self._contraction = contraction
        algebra, places = contraction.algebra, ((0, contraction.a_args), (1, contraction.b_args))
        in_a, in_b = (
            {mode for mode in contraction.modes if any(mode.strides[at] for at in (place, *(FIRST + x for x in args)))}
            for place, args in places
        )
        self._batch = contraction.of_role(Role.BATCH)
        m, n, sums = (contraction.of_role(role) for role in (Role.M, Role.N, Role.K))
        self._k = tuple(mode for mode in sums if algebra is not None or mode in in_a & in_b)
        self._repeat = math.prod(mode.extent for mode in sums if mode not in {*self._k, *in_a, *in_b})
        alone = [tuple(mode for mode in sums if mode not in self._k and mode in own) for own in (in_a, in_b)]
        self._operands = self._operand(0, m, alone[0]), self._operand(1, n, alone[1])
        self._kept = (*self._batch, *m, *n)
        self._pieces = _pieces(contraction)
        self._bytes = _of_bytes(contraction) and not alone[0] and not alone[1]

    def _operand(self, place: int, free: tuple[Mode, ...], alone: tuple[Mode, ...]) -> Operand:
        contraction = self._contraction
        layout = (contraction.a, contraction.b)[place]
        args, function = ((contraction.a_args, contraction.a_fn), (contraction.b_args, contraction.b_fn))[place]
        conjugate = (contraction.conjugate_a, contraction.conjugate_b)[place] and layout.dtype.is_complex
        value = value_type(layout.dtype, contraction.arithmetic.product)
        return Operand(place, free, alone, function, args, conjugate, value)

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        for part in self._blocks(self._kept, Block({}, {})):
            total: Tensor | None = None
            for block in self._blocks([mode for mode, _ in self._pieces if mode not in self._kept], part):
                found = self._sums(a, b, aux, block)
                total = found if total is None else self._joined(total, found)
            assert total is not None, "there is a block of no sums as well"
            self._finish(total, c if beta != 0 else None, d, (alpha, beta), aux, part)

    def _blocks(self, modes: Sequence[Mode], around: Block) -> Iterator[Block]:
        """The blocks of these modes within what is around; an empty mode has one."""
        pieces = [(mode, piece) for mode, piece in self._pieces if mode in modes]
        for starts in itertools.product(*(range(0, max(mode.extent, 1), max(piece, 1)) for mode, piece in pieces)):
            begins = {mode: start for (mode, _), start in zip(pieces, starts, strict=True)}
            extents = {mode: min(piece, mode.extent - begins[mode]) for mode, piece in pieces}
            yield Block(around.starts | begins, around.extents | extents)

    def _joined(self, total: Tensor, found: Tensor) -> Tensor:
        algebra = self._contraction.algebra
        return total + found if algebra is None else _one(algebra.reduce(total, found)).to(total.dtype)

    def _sums(self, a: Tensor, b: Tensor, aux: AuxTensors, block: Block) -> Tensor:
        """[batch, m, n] of one block."""
        x, y = (self._factor(own, tensor, aux, block) for own, tensor in zip(self._operands, (a, b), strict=True))
        algebra = self._contraction.algebra
        return self._products(x, y) if algebra is None else _reduced(algebra, x, y, self._contraction.arithmetic)

    def _factor(self, operand: Operand, tensor: Tensor, aux: AuxTensors, block: Block) -> Tensor:
        """[batch, free, k] of an operand's values in the accumulator's type; a real operand stays real."""
        contraction, accumulate = self._contraction, self._contraction.arithmetic.accumulate
        modes = (*self._batch, *operand.free, *self._k, *operand.alone)
        values = block.of(tensor, modes, operand.place)
        values = (values.conj() if operand.conjugate else values).to(operand.value)
        if operand.function is not None:
            others = self._beside(operand.args, modes, aux, block)
            values = _one(operand.function(values, *others)).to(operand.value)
        real = accumulate.is_complex and not tensor.is_complex() and contraction.algebra is None
        if not self._bytes:
            values = values.to(accumulate.to_real() if real else accumulate)
        if operand.alone:
            values = values.sum(tuple(range(-len(operand.alone), 0)), dtype=values.dtype)
        return values.reshape([block.size(group) for group in (self._batch, operand.free, self._k)])

    def _beside(self, args: Sequence[int], modes: Sequence[Mode], aux: AuxTensors, block: Block) -> list[Tensor]:
        """What a function takes beside the value: operands and coordinates."""
        found = []
        for arg in args:
            tensor = aux[arg]
            if tensor is not None:
                found.append(block.of(tensor, modes, FIRST + arg))
                continue
            values = torch.zeros((), dtype=self._contraction.aux[arg].dtype, device="cpu")
            for at, mode in enumerate(modes):
                if mode.strides[FIRST + arg]:
                    steps = torch.arange(block.extents[mode], dtype=values.dtype, device="cpu") + block.starts[mode]
                    values = steps.reshape([-1 if i == at else 1 for i in range(len(modes))])
            found.append(values.expand(block.shape(modes)))
        return found

    def _products(self, x: Tensor, y: Tensor) -> Tensor:
        """[batch, m, n]. A real factor of a complex one meets its parts as columns of a real matrix."""
        if self._bytes:
            if x.shape[2] > 1:
                return torch._int_mm(x[0], y[0].t())[None]
            x, y = x.to(torch.int32), y.to(torch.int32)  # the last block of k may be of one
        if not self._k:  # infinities meet no zeros of a sum
            return x * y.transpose(1, 2)
        with exact_products():
            if x.is_complex() == y.is_complex():
                return torch.bmm(x, y.transpose(1, 2))
            return _with_parts(y, x).transpose(1, 2) if x.is_complex() else _with_parts(x, y)

    def _finish(
        self, total: Tensor, c: Tensor | None, d: Tensor, factors: tuple[Scalar, Scalar], aux: AuxTensors, block: Block
    ) -> None:
        """alpha * sums + beta * c_fn(C), the epilogue, and the copies to D and what else the epilogue yields."""
        contraction, (alpha, beta) = self._contraction, factors
        total = total.reshape(block.shape(self._kept))
        if self._repeat != 1 and contraction.algebra is None:
            total = total * self._repeat
        if alpha != 1:
            total = total * wrapped(alpha, total.dtype)
        if c is not None:
            values = block.of(c, self._kept, 2).to(total.dtype)
            if contraction.c_fn is not None:
                others = self._beside(contraction.c_args, self._kept, aux, block)
                values = _one(contraction.c_fn(values, *others)).to(total.dtype)
            if contraction.algebra is None:
                total = total.add(values, alpha=wrapped(beta, total.dtype))
            else:
                total = self._joined(total, values)
        results: tuple[Tensor, ...] = (total,)
        if contraction.epilogue is not None:
            found = contraction.epilogue(total, *self._beside(contraction.epilogue_args, self._kept, aux, block))
            results = found if isinstance(found, tuple) else (found,)
        targets = [(3, d), *((FIRST + place, aux[place]) for place in contraction.outputs)]
        for result, (place, target) in zip(results, targets, strict=True):
            assert target is not None
            block.of(target, self._kept, place).copy_(result)


def _with_parts(real: Tensor, other: Tensor) -> Tensor:
    """[batch, m, k] real times [batch, n, k] complex."""
    parts = torch.view_as_real(other.transpose(1, 2).resolve_conj().contiguous()).flatten(-2)
    return torch.view_as_complex(torch.bmm(real, parts).unflatten(-1, (-1, 2)))


def _one(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    assert isinstance(result, Tensor), "this function has one result"
    return result


# -- other algebras ----------------------------------------------------------------------------------------------------


def _reduced(algebra: TracedAlgebra, x: Tensor, y: Tensor, arithmetic: Arithmetic) -> Tensor:
    """[batch, m, n] of [batch, m, k] and [batch, n, k], by tables of pairs of a bounded size."""
    (batch, m, k), n, dtype = x.shape, y.shape[1], arithmetic.accumulate
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
