"""The sources of weft's own kernels for the CPU: what its families compile for small problems of every number type.

Families are asked to build and call kernels while `weft.cpu.jit` collects what it is given; a function that does
nothing stands for each kernel. Functions and algebras of users are not among them.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

import weft
from weft.cpu import jit, selection
from weft.cpu.gett import family as gett
from weft.cpu.gett.family import LOADABLE
from weft.cpu.grouped import launch as grouped
from weft.cpu.permute import launch as permute
from weft.cpu.permute import transpose
from weft.cpu.permute.schedule import LINE, SQUARES
from weft.cpu.stream import family as stream
from weft.library.exponentials import family as exponentials
from weft.planner.schedule import Target

TARGET = Target("cpu", name="CPU", processors=1)
# By the operands' type: the types of sums, and of results, each with every kind of sum.
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)
_COMPLEX = (torch.complex64, torch.complex128)
_WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_ALGEBRAS = ("max_plus", "min_plus", "max_times", "min_max", "max_min", "or_and", "log", "gf2")
_SCALARS = ((1, 0), (2, 0), (1, 1), (1, 2), (2, 1), (2, 2))  # alpha and beta, as far as kernels tell them apart


def sources() -> list[str]:
    """Every source once, in an order that depends on nothing else."""
    nothing = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value
    assert nothing is not None
    with jit.collecting(nothing) as found:
        for each in (_contractions, _algebras, _permutations, _groups, _selections):
            each()
    return sorted(found)


def _contractions() -> None:
    pairs = [(each, each) for each in (*_FLOATS, *_COMPLEX, *_WHOLE)]
    pairs += [pair for each in _COMPLEX for pair in ((each, each.to_real()), (each.to_real(), each))]
    for a, b in pairs:
        for conjugate in itertools.product(*((False, True) if each.is_complex else (False,) for each in (a, b))):
            _products(a, b, conjugate)


def _products(a: torch.dtype, b: torch.dtype, conjugate: tuple[bool, ...]) -> None:
    """Products of two types: sums and results of every type that they may have."""
    x, y = (torch.zeros((64, 64), dtype=dtype) for dtype in (a, b))
    x, y = (each.conj() if wanted else each for each, wanted in zip((x, y), conjugate, strict=True))
    results = (None, *_FLOATS, *_COMPLEX, torch.int32, torch.int64)
    sums = (None, torch.float64, torch.complex128, torch.int64)
    for accumulate, result, equation in itertools.product(sums, results, ("ab,bc->ac", "ab,bc->ca", "ab,ab->ab")):
        with suppress(weft.WeftError):
            _served(equation, x, y, accumulate=accumulate, out_dtype=result)


def _algebras() -> None:
    for dtype, name in itertools.product((*selection.KINDS, torch.bool), _ALGEBRAS):
        x = torch.zeros((64, 64), dtype=dtype)
        for equation in ("ab,bc->ac", "ab,bc->ca"):
            with suppress(weft.WeftError):
                _served(equation, x, x, algebra=name)


def _served(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> None:
    """One contraction by each family that compiles kernels, without C and with it."""
    plan = weft.plan(equation, a, b, backend="reference", **options)
    d = torch.zeros(plan.contraction.d.shape, dtype=plan.contraction.d.dtype)
    for c in (None, d.clone()):
        described = weft.plan(equation, a, b, c=c, backend="reference", **options).contraction
        for family in (gett, stream):
            if family.supports(described, TARGET) is None:
                for schedule in family.schedules(described, TARGET).schedules:
                    launch = family.build(described, schedule, TARGET)
                    for alpha, beta in _SCALARS if family is gett else ((1, 0),):
                        launch(a, b, c, d, alpha, beta)
        if exponentials.supports(described, TARGET) is None:
            (schedule,) = exponentials.schedules(described, TARGET).schedules
            assert isinstance(schedule, exponentials.ExponentialsSchedule)
            exponentials.build(described, schedule, TARGET)


def _permutations() -> None:
    permute.cells_kernel()
    permute.tiles_kernel()
    for name in transpose.KERNELS:
        transpose.kernel_of(name)
    for size, sides in SQUARES.items():
        for side in sides:
            permute.squares_of(size, side)
        permute.squares_of(size, LINE // size, streamed=True)
    for values in _values():
        if permute.fault(values) is None:
            permute.stage(values)


def _values() -> Iterator[permute.Values]:
    """Computations of permutations without functions: conversions; alpha; beta and C."""
    for dtype in LOADABLE:
        ways = ((False, True), (False, True)) if dtype.is_complex else ((False,), (False, True))
        for conjugate, scaled in itertools.product(*ways):
            yield permute.Values(dtype, dtype, None, conjugate, scaled, False)
            yield permute.Values(dtype, dtype, None, conjugate, True, True)
    for family in (_FLOATS, _COMPLEX, _WHOLE):
        for x, d in itertools.permutations(family, 2):
            yield permute.Values(x, d)


def _groups() -> None:
    for dtype in grouped.TYPES:
        grouped.entry_of(dtype, (None, None, None))
        grouped.scaling(dtype)


def _selections() -> None:
    for dtype, name in itertools.product(selection.KINDS, _ALGEBRAS):
        algebra = getattr(weft.algebra, name)
        with suppress(weft.WeftError):
            for extent in (2, selection.LEAST_COLUMNS):  # by rows, and by register blocks
                x = torch.zeros((1, 2, extent), dtype=dtype)
                selection.select(x, x, algebra.traced(dtype), algebra.reduce is torch.maximum)
