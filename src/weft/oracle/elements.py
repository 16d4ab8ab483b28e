"""Single elements of D computed another way: gathered by index, multiplied and summed in wide types.

    D[s] = epilogue(alpha * sum over k of a_fn(A[s, k]) * b_fn(B[s, k]) + beta * c_fn(C[s]))

Nothing is shared with the kernels but the description's modes and strides. With each element comes the most by which a
correct one may differ, by the rounding model of `weft.oracle.rounding`, taken for these elements alone. Of an algebra
the combined values are reduced in pairs in the accumulator's type; a reduction in another order may differ by as many
roundings as there are values, relative to the largest of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.oracle.problem import Operands, Problem, flat, poisoned
from weft.oracle.reference import wide
from weft.oracle.rounding import (
    NUDGES,
    addend_bound,
    any_order_bound,
    epsilon,
    function_bound,
    is_inexact,
    rounded_bound,
    shortening,
    sum_bound,
)
from weft.oracle.sums import reduced_in_pairs
from weft.planner.schedule import Scalar
from weft.spec import Contraction, Layout, Mode, Role
from weft.spec.dtypes import value_type
from weft.spec.permutation import Permutation

_GATHERED = {"cuda": 1 << 23, "cpu": 1 << 18}  # elements of A and of B held at once


class Expected(NamedTuple):
    """Elements of D, float64 (complex128, int64), and how far a correct result may be off, float64."""

    value: torch.Tensor
    bound: torch.Tensor


def result_modes(description: Contraction | Permutation) -> tuple[Mode, ...]:
    """The modes that D has, as it lies in memory; an element's coordinates are its indices along them.

    Outermost first: torch compares tensors on a GPU along 25 dimensions, and those that lie so are one.
    """
    kept = [mode for mode in description.modes if mode.role is not Role.K]
    return tuple(sorted(kept, key=lambda mode: -mode.strides.d))


def expected(problem: Problem, operands: Operands, coordinates: torch.Tensor) -> list[Expected]:
    """The elements of D, and of each further output, at `coordinates`: int64 of shape (elements, modes of D)."""
    if isinstance(problem.description, Permutation):
        return [_moved(problem.description, problem, operands, coordinates)]
    return _contracted(problem.description, problem, operands, coordinates)


def offsets(modes: Sequence[Mode], coordinates: torch.Tensor, tensor: int) -> torch.Tensor:
    """Where elements lie in A, B, C or D (0 to 3), in elements from its first."""
    strides = torch.tensor([mode.strides[tensor] for mode in modes], dtype=torch.int64, device=coordinates.device)
    return (coordinates * strides).sum(dim=1)


def every_index(extents: Sequence[int], start: int, end: int, device: torch.device) -> torch.Tensor:
    """Indices number `start` to `end` of a box, the last mode fastest: shape (end - start, modes)."""
    if not extents:
        return torch.zeros(end - start, 0, dtype=torch.int64, device=device)
    return torch.stack(torch.unravel_index(torch.arange(start, end, device=device), tuple(extents)), dim=1)


def _contracted(
    contraction: Contraction, problem: Problem, operands: Operands, coordinates: torch.Tensor
) -> list[Expected]:
    total = contraction.arithmetic.accumulate
    modes = result_modes(contraction)
    alpha, beta = problem.scalars
    value, bound = _sums(contraction, operands, coordinates, alpha)
    if contraction.c is not None and operands.c is not None:
        stored = flat(operands.c)[offsets(modes, coordinates, 2)].to(total)
        aux_args = _aux(contraction, contraction.c_args, operands, lambda at: offsets(modes, coordinates, at))
        addend, unsure = _evaluated(contraction.c_fn, stored, aux_args)
        bound = bound + addend_bound(addend, unsure, total, beta)
        if contraction.algebra is None:
            value = value + beta * addend
        else:
            value = wide(applied(contraction.algebra.reduce, value.to(total), addend.to(total)))
    if not is_inexact(total):
        value = value.to(total).to(torch.int64)  # sums wrap around as the accumulator does
    if contraction.epilogue is None:
        return [_stored(value, bound, contraction.d.dtype)]
    aux_args = _aux(contraction, contraction.epilogue_args, operands, lambda at: offsets(modes, coordinates, at))
    dtypes = (contraction.d.dtype, *(contraction.aux[at].dtype for at in contraction.outputs))
    return [
        _stored(*_through(contraction.epilogue, value, bound, total, aux_args, result), dtype)
        for result, dtype in enumerate(dtypes)
    ]


def _aux(
    contraction: Contraction, places: Sequence[int], operands: Operands, offset: Callable[[int], torch.Tensor]
) -> list[torch.Tensor]:
    """A function's arguments after the value: elements of operands, and coordinates, which are offsets themselves."""
    found = []
    for place in places:
        at, tensor = offset(4 + place), operands.aux[place]
        found.append(flat(tensor)[at] if tensor is not None else at.to(contraction.aux[place].dtype))
    return found


def _moved(permutation: Permutation, problem: Problem, operands: Operands, coordinates: torch.Tensor) -> Expected:
    modes = result_modes(permutation)
    source = flat(operands.a)[offsets(modes, coordinates, 0)]
    value, bound = _evaluated(permutation.fn, source.conj().resolve_conj() if permutation.conjugate else source)
    if permutation.scaled:
        step, (alpha, beta) = epsilon(permutation.scale), problem.scalars
        value, bound = value * alpha, bound * abs(alpha) + 2 * step * value.abs().double()
        if operands.c is not None:
            addend = wide(flat(operands.c)[offsets(modes, coordinates, 2)])
            value = value + beta * addend
            bound = bound + 2 * step * (value.abs() + abs(beta) * addend.abs()).double()
    if permutation.is_move:
        return Expected(value, torch.zeros_like(bound))
    return _stored(value, bound, permutation.d.dtype)


def _sums(
    contraction: Contraction, operands: Operands, coordinates: torch.Tensor, alpha: Scalar
) -> tuple[torch.Tensor, torch.Tensor]:
    """alpha times the sums of products, and their bound; of another algebra the reductions, which have no alpha."""
    depth = contraction.of_role(Role.K)
    extents = [mode.extent for mode in depth]
    modes = result_modes(contraction)
    assert operands.b is not None
    many = _GATHERED[coordinates.device.type]
    step = max(1, many // max(len(coordinates), 1))
    parts: list[tuple[torch.Tensor, ...]] = []
    for begin in range(0, contraction.k, step):
        indices = every_index(extents, begin, min(begin + step, contraction.k), coordinates.device)

        def offset(at: int, indices: torch.Tensor = indices) -> torch.Tensor:
            return offsets(modes, coordinates, at)[:, None] + offsets(depth, indices, at)[None]

        (x, x_off), (y, y_off) = (
            _factor(contraction, at, tensor, offset, operands) for at, tensor in ((0, operands.a), (1, operands.b))
        )
        if contraction.algebra is not None:
            parts.append(_reduced(contraction, x, y))
            continue
        x_size, y_size = x.abs().double(), y.abs().double()
        furthest = (x_size + x_off) * (y_size + y_off)
        parts.append(((x * y).sum(1), (x_size * y_size).sum(1), furthest.sum(1)))
    if contraction.algebra is not None:
        return _joined(contraction, parts)
    value, size, furthest = (sum(column[1:], column[0]) for column in zip(*parts, strict=True))
    if not is_inexact(contraction.arithmetic.accumulate):
        return value * alpha, torch.zeros_like(size)
    is_complex = contraction.a.dtype.is_complex or contraction.b.dtype.is_complex
    return value * alpha, sum_bound(size, furthest, contraction.k, contraction.arithmetic, is_complex, alpha)


def _reduced(contraction: Contraction, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Combined values reduced in pairs along the second dimension, and their largest magnitude."""
    algebra, total = contraction.algebra, contraction.arithmetic.accumulate
    assert algebra is not None
    values = applied(algebra.combine, x.to(total), y.to(total)).to(total)
    size = wide(values).abs().double().nan_to_num(posinf=0.0).amax(1)
    value = wide(reduced_in_pairs(values, lambda p, q: applied(algebra.reduce, p, q).to(total))[:, 0])
    size = torch.maximum(size, value.abs().double().nan_to_num(posinf=0.0))
    return value, size


def _joined(contraction: Contraction, parts: Sequence[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The reductions of several stretches of k as one, and the bound."""
    algebra, total = contraction.algebra, contraction.arithmetic.accumulate
    assert algebra is not None
    value, size = parts[0]
    for more, more_size in parts[1:]:
        value = wide(applied(algebra.reduce, value.to(total), more.to(total)))
        size = torch.maximum(size, more_size)
    return value, any_order_bound(contraction.k, size, total)


def _factor(
    contraction: Contraction,
    at: int,
    tensor: torch.Tensor,
    offset: Callable[[int], torch.Tensor],
    operands: Operands,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of A (0) or B (1) as they are multiplied, and how far each may be off."""
    function = (contraction.a_fn, contraction.b_fn)[at]
    conjugate = (contraction.conjugate_a, contraction.conjugate_b)[at]
    stored = flat(tensor)[offset(at)].to(value_type(tensor.dtype, contraction.arithmetic.product))
    aux_args = _aux(contraction, (contraction.a_args, contraction.b_args)[at], operands, offset)
    value, off = _evaluated(function, stored.conj().resolve_conj() if conjugate else stored, aux_args)
    return value, off + shortening(contraction.arithmetic, value)


def _evaluated(
    function: Pointwise | None, values: torch.Tensor, aux_args: Sequence[torch.Tensor] = (), result_at: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Results in a wide type, and how far those of a fused function may be off."""
    if function is None:
        return wide(values), torch.zeros((), dtype=torch.float64, device=values.device).expand(values.shape)
    result = wide(applied(function, values, *aux_args, result=result_at))
    off = torch.zeros(values.shape, dtype=torch.float64, device=values.device)
    if is_inexact(values.dtype):
        for nudge in NUDGES:
            nudged = (wide(values) * (1 + nudge * epsilon(values.dtype))).to(values.dtype)
            near = wide(applied(function, nudged, *aux_args, result=result_at))
            off = torch.maximum(off, (near - result).abs().double().nan_to_num(nan=0.0, posinf=0.0))
        # What cancels within a function is lost relative to its argument, not to its result.
        size = torch.maximum(result.abs().double(), wide(values).abs().double()).nan_to_num(nan=0.0, posinf=0.0)
        off = function_bound(off, size, values.dtype)
    return result, off


def _through(
    epilogue: Pointwise,
    value: torch.Tensor,
    bound: torch.Tensor,
    total: torch.dtype,
    aux_args: Sequence[torch.Tensor],
    result_at: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One result of the epilogue of values that may each be off by their bound."""
    result, off = _evaluated(epilogue, value.to(total), aux_args, result_at)
    if value.is_floating_point() or value.is_complex():
        for part in (-1.0, -0.5, 0.5, 1.0):
            moved = wide(applied(epilogue, (value + part * bound).to(total), *aux_args, result=result_at))
            off = torch.maximum(off, (moved - result).abs().double().nan_to_num(nan=math.inf))
    return result, off


def applied(function: Pointwise, values: torch.Tensor, *aux_args: torch.Tensor, result: int = 0) -> torch.Tensor:
    """One result of a function on vectors: by torch, or where it is Triton's own by the simplest of the kernels.

    `UnsupportedError` for a function of Triton's own that takes more than the value.
    """
    try:
        found = function(values, *(tensor.expand(values.shape) for tensor in aux_args))
    except UnsupportedError:
        if aux_args:
            raise UnsupportedError(
                "a Triton function that takes more than the value cannot be checked, so nothing is tuned with it"
            ) from None
        found = _by_kernel(function, values)
    return found[result] if isinstance(found, tuple) else found


def _by_kernel(function: Pointwise, values: torch.Tensor) -> torch.Tensor:
    from weft.planner.planner import choose
    from weft.planner.target import target_of
    from weft.spec.contraction import Strides

    result = function.result
    assert isinstance(result, torch.dtype)
    source = values.contiguous().view(-1)
    d = Layout((source.numel(),), (1,), result)
    mode = Mode(("element",), source.numel(), Role.M, Strides(1, 0, 0, 1))
    copy = Permutation((mode,), Layout.of(source), None, d, values.dtype, function)
    place = poisoned(d, values.device)
    choose(copy, "triton", target_of("triton", values.device)).built()[1](source, None, place, 1, 0)
    return place.view(values.shape)


def _stored(value: torch.Tensor, bound: torch.Tensor, dtype: torch.dtype) -> Expected:
    """Expected values rounded to D's type; whole numbers of narrower types wrap around."""
    if is_inexact(dtype):
        return Expected(value, rounded_bound(value, bound, dtype))
    return Expected(wide(value.to(dtype)), bound)
