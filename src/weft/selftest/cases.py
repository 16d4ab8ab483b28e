"""Cases of the self-test: for every family a few small problems, and which of its schedules each stands for.

Extents are odd, so that tiles overhang on every side, but where a family asks for more. Operands are whole numbers from
-3 to 3 and functions keep them whole, so that every sum is exact in any order and results are compared exactly;
`INEXACT` functions are held to the bound of `weft.oracle.bounds`.

A case with `kernel` is for a part of its family's schedules: one of those is run, the best priced, and before such a
schedule is used this case must have passed. Other parts then need not be compiled. `like` narrows down which of them is
run: small problems are best priced in tiles that large ones are not computed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from weft.selftest.case import Case, PermuteCase, from_letters
from weft.spec.dtypes import dtype_name

Kernel = Callable[[Any, Any], bool]  # of a description and a schedule

INEXACT = ("gelu",)


@dataclass(frozen=True, slots=True)
class InPlaceCase:
    """A stack of matrices to be transposed in place."""

    name: str
    shape: tuple[int, int, int]  # (batch, rows, columns)
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class Trial:
    """One case of one family."""

    family: str  # its module
    case: Case | PermuteCase | InPlaceCase
    kernel: Kernel | None = None  # which schedules it stands for; None for all
    like: Kernel | None = None  # which of those is run; None for any

    @property
    def name(self) -> str:
        return self.case.name

    def covers(self, description: Any, schedule: Any) -> bool:
        return self.kernel is None or self.kernel(description, schedule)

    def runs(self, description: Any, schedule: Any) -> bool:
        return self.covers(description, schedule) and (self.like is None or self.like(description, schedule))


def trials(backend: str) -> tuple[Trial, ...]:
    """All of a backend, in the order of the table."""
    return TRIALS[backend]


def trials_of(family: str, backend: str) -> tuple[Trial, ...]:
    return tuple(trial for trial in TRIALS[backend] if trial.family == family)


def _has(**wanted: bool) -> Kernel:
    """A description some of whose attributes are true, others false."""
    return lambda description, _: all(bool(getattr(description, name)) == is_ for name, is_ in wanted.items())


def _in_parts(wanted: bool) -> Kernel:
    """Sums are split, or whole."""
    return lambda _, schedule: (schedule.splits > 1) == wanted


def _product_by_library(_: Any, schedule: Any) -> bool:
    """A schedule of several steps, whose product takes no kernel of weft's: its family has a trial of its own."""
    return bool(schedule.product.best.schedule.family == import_module(_BLAS).NAME)


def _packs_both(_: Any, schedule: Any) -> bool:
    """A schedule of `_product_by_library` with both operands packed."""
    return _product_by_library(_, schedule) and schedule.main == 2


def _permutes_d(_: Any, schedule: Any) -> bool:
    """A schedule of `_product_by_library` that writes D from a workspace."""
    return _product_by_library(_, schedule) and len(schedule.intermediates) > schedule.main


def _stationary(_: Any, schedule: Any) -> bool:
    return hasattr(schedule, "pipelines")


def _in_memory(split: bool) -> Kernel:
    """Operands are split in memory; else in the registers of another family's product, a step of a program."""
    return lambda _, schedule: hasattr(schedule, "steps") != split


def _in_pipelines(split: bool) -> Kernel:
    """Both operands come in pipelines, and functions are applied in registers."""

    def kernel(description: Any, schedule: Any) -> bool:
        return not _stationary(description, schedule) and (schedule.splits > 1) == split

    return kernel


def _shortened(wanted: bool) -> Kernel:
    return lambda description, _: (description.arithmetic.precision == "tf32") == wanted


def _in_tiles(least: int) -> Kernel:
    """A schedule in tiles of at least so many elements."""
    return lambda _, schedule: schedule.size >= least


def _for_warp_groups(_: Any, schedule: Any) -> bool:
    """A schedule in tiles that matrix instructions of four warps make, where the device has them."""
    return min(schedule.tile[:2]) >= 64


def _moves_by(way: str) -> Kernel:
    return lambda description, schedule: bool(description.is_move and schedule.way == way)


def _large(described: Any, _: Any) -> bool:
    """Rectangular ones that may not fit into the workspace."""
    rows, columns = described.extents
    return not described.square and rows * columns > 1 << 19


def _computed_in(dtype: torch.dtype) -> Kernel:
    """A contraction that the CPU's kernels of a type compute."""

    def kernel(description: Any, _: Any) -> bool:
        from weft.cpu.gett.forms import form_of

        return bool(form_of(description).dtype == dtype)

    return kernel


def _stored_as(dtype: torch.dtype) -> Kernel:
    """Operands of a type."""
    return lambda description, _: bool(description.a.dtype == dtype)


def _short_integers(description: Any, _: Any) -> bool:
    return description.a.dtype in (torch.int8, torch.uint8, torch.int16)


_MOVES, _COMPUTES = _has(is_move=True), _has(is_move=False)
_OF_NUMBERS, _OF_AN_ALGEBRA = _has(algebra=False), _has(algebra=True)
HALF, SINGLE = torch.float16, torch.float32
COMPLEX, BYTE, WORD = torch.complex64, torch.int8, torch.int32
_HALF_SINGLE, _HALVES, _COMPLEX = (HALF, HALF, SINGLE), (HALF,) * 3, (COMPLEX,) * 3
_OR_AND: dict[str, Any] = {"dtypes": (torch.bool,) * 3, "algebra": "or_and"}

_CPU_EXPONENTIALS = "weft.library.exponentials.family"
_CPU_STREAM = "weft.cpu.stream.family"
_LIBRARY, _CPU_GETT, _CPU_PERMUTE = "weft.library.family", "weft.cpu.gett.family", "weft.cpu.permute.family"
_LIBRARY_PERMUTE = "weft.library.permutations"
_CPU_TRANSPOSE, _TRANSPOSE = "weft.cpu.permute.transpose", "weft.gpu.transpose.family"
_BLAS, _WS = (f"weft.gpu.{name}.family" for name in ("blas", "warp_specialized"))
_GETT, _SEMIRING, _SIMT, _PERMUTE = (f"weft.gpu.{name}.family" for name in ("gett", "semiring", "simt", "permute"))
_DIRECT, _INTERLEAVED, _REAL_FORMS = (f"weft.gpu.complex.{name}" for name in ("direct", "interleaved", "real_forms"))
_TTGT, _LOG, _COUNTING = (f"weft.gpu.composite.{name}" for name in ("ttgt", "logsumexp", "counting"))
_SPLIT = "weft.library.split_family"
_PRE_REDUCE = "weft.planner.pre_reduce"

# The CPU's kernels are compiled for the type that they compute in: a case for each, so that no other is compiled.
_CPU_KINDS = tuple(
    Trial(
        _CPU_GETT,
        from_letters(dtype_name(dtype), "amk,kbn->bnma", a=3, m=17, k=41, b=2, n=29, dtypes=(dtype,) * 3),
        _computed_in(dtype),
    )
    for dtype in (SINGLE, torch.float64, COMPLEX, torch.complex128, WORD, torch.int64)
)
# So are loops over memory: sums of rows that are turned, whose results are turned as well.
_CPU_STREAMS = (
    *(
        Trial(
            _CPU_STREAM,
            from_letters(dtype_name(dtype), "ac,abc->cb", a=13, b=19, c=21, dtypes=(dtype,) * 3),
            _stored_as(dtype),
        )
        for dtype in (SINGLE, torch.float64, COMPLEX, torch.complex128, WORD, torch.int64, HALF, torch.bfloat16)
    ),
    Trial(
        _CPU_STREAM, from_letters("short integers", "ab,ba->", a=37, b=39, dtypes=(BYTE, BYTE, WORD)), _short_integers
    ),
)
TRIALS: dict[str, tuple[Trial, ...]] = {
    "cpu": (
        *_CPU_KINDS,
        *_CPU_STREAMS,
        Trial(_CPU_EXPONENTIALS, from_letters("log", "amk,kn->amn", a=3, m=17, k=64, n=29, algebra="log")),
        Trial(_LIBRARY, from_letters(
            "batched, added to C", "bmk,bkn->bnm", b=3, m=17, n=29, k=41, alpha=0.5,
            beta=-2.0, add=True,
        )),
        Trial(_LIBRARY, from_letters("float16, ReLU", "mk,nk->mn", m=33, n=19, k=47, dtypes=_HALF_SINGLE, a_fn="relu")),
        Trial(_LIBRARY, from_letters("GELU", "mk,kn->mn", m=9, n=13, k=7, epilogue="gelu")),
        Trial(_LIBRARY, from_letters("complex64", "km,kn->nm", m=15, n=11, k=13, dtypes=_COMPLEX)),
        Trial(_LIBRARY, from_letters("int8", "mk,kn->mn", m=21, n=9, k=35, dtypes=(BYTE, BYTE, WORD))),
        Trial(_LIBRARY, from_letters("truth values", "kam,nk->amn", k=330, a=3, m=17, n=29, **_OR_AND)),
        Trial(_LIBRARY, from_letters("max-plus", "mk,kn->mn", m=13, n=17, k=11, algebra="max_plus")),
        Trial(_PRE_REDUCE, from_letters("a mode of A alone", "mik,kn->mn", m=9, i=5, k=11, n=7)),
        Trial(_CPU_PERMUTE, PermuteCase("squares", "abc->bca", (17, 30, 33), HALF), _moves_by("squares")),
        Trial(_CPU_PERMUTE, PermuteCase("cells", "abc->bac", (17, 30, 33)), _moves_by("cells")),
        Trial(_CPU_PERMUTE, PermuteCase("computed", "abc->cba", (17, 19, 23), fn="relu", out_dtype=HALF), _COMPUTES),
        Trial(_LIBRARY_PERMUTE, PermuteCase("ReLU", "abc->cba", (17, 19, 23), fn="relu")),
        Trial(_CPU_TRANSPOSE, InPlaceCase("square", (2, 37, 37)), _has(square=True)),
        Trial(_CPU_TRANSPOSE, InPlaceCase("rectangular", (2, 37, 23)), _has(square=False)),
    ),
    "triton": (
        Trial(_BLAS, from_letters("float16", "mk,kn->mn", m=72, n=136, k=40, dtypes=_HALVES), _shortened(False)),
        Trial(_BLAS, from_letters("TF32", "mk,kn->mn", m=72, n=136, k=40, precision="tf32"), _shortened(True)),
        Trial(_WS, from_letters("whole sums", "mk,nk->mn", m=264, n=128, k=264, dtypes=_HALVES), _in_pipelines(False)),
        Trial(_WS, from_letters(
            "split sums", "mk,nk->mn", m=264, n=128, k=2056, dtypes=_HALF_SINGLE,
        ), _in_pipelines(True)),
        Trial(_WS, from_letters(
            "added to C", "mk,nk->mn", m=264, n=136, k=264, dtypes=_HALVES, alpha=0.5, beta=-2.0, add=True,
        ), _in_pipelines(False)),
        Trial(_WS, from_letters(
            "int8", "mk,nk->mn", m=264, n=128, k=272, dtypes=(BYTE, BYTE, WORD),
        ), _in_pipelines(False)),
        Trial(_WS, from_letters(
            "stationary operand", "mk,nk->mn", m=4104, n=64, k=72, dtypes=_HALVES, a_fn="relu",
        ), _stationary),
        Trial(_GETT, from_letters(
            "whole sums", "ambk,nk->bmna", a=3, m=50, b=5, n=67, k=41, dtypes=_HALF_SINGLE, b_fn="relu",
        ), _in_parts(False), _for_warp_groups),
        Trial(_GETT, from_letters("split sums", "mk,kn->nm", m=67, n=35, k=2051), _in_parts(True)),
        Trial(_SEMIRING, from_letters("int32", "mk,kn->mn", m=67, n=35, k=33, dtypes=(WORD,) * 3), _OF_NUMBERS),
        Trial(_SEMIRING, from_letters("max-plus", "mk,kn->mn", m=67, n=35, k=33, algebra="max_plus"), _OF_AN_ALGEBRA),
        Trial(_SIMT, from_letters("GELU", "bmk,bkn->bmn", b=67, m=3, n=5, k=33, epilogue="gelu")),
        Trial(_PRE_REDUCE, from_letters("a mode of A alone", "mik,kn->mn", m=33, i=35, k=19, n=37)),
        Trial(_DIRECT, from_letters("complex64", "mk,kn->nm", m=67, n=35, k=33, dtypes=_COMPLEX)),
        Trial(_REAL_FORMS, from_letters(
            "one operand as 2x2 matrices", "mk,kn->mn", m=72, n=40, k=56, dtypes=_COMPLEX,
        ), like=_product_by_library),
        Trial(_TTGT, from_letters(
            "operands packed", "ampk,pknb->manb", a=18, m=24, p=20, k=20, n=20, b=22, dtypes=_HALF_SINGLE,
        ), like=_packs_both),
        Trial(_TTGT, from_letters(
            "D permuted", "kam,knb->anmb", a=18, m=24, k=400, n=20, b=22,
        ), like=_permutes_d),
        Trial(_LOG, from_letters("float32", "mk,kn->mn", m=264, n=264, k=136, algebra="log")),
        Trial(_COUNTING, from_letters("truth values", "mk,kn->mn", m=67, n=35, k=330, **_OR_AND)),
        Trial(_SPLIT, from_letters(
            "split in memory", "mk,kn->nm", m=1800, n=1544, k=1601, precision="ieee_bound",
        ), _in_memory(True)),
        Trial(_SPLIT, from_letters(
            "split in registers", "mk,kn->nm", m=67, n=35, k=331, precision="ieee_bound",
        ), _in_memory(False)),
        Trial(_PERMUTE, PermuteCase("float16", "abc->bac", (17, 30, 3), HALF), _MOVES, _in_tiles(1024)),
        Trial(_PERMUTE, PermuteCase("float32, large tiles", "abc->cab", (67, 130, 35)), _MOVES, _in_tiles(1024)),
        Trial(_PERMUTE, PermuteCase(
            "ReLU, to float16", "abcd->dbca", (17, 9, 5, 70), fn="relu", out_dtype=HALF,
        ), _COMPUTES),
        Trial(_INTERLEAVED, PermuteCase("complex64", "abc->cba", (33, 5, 35), COMPLEX, fn="double_it")),
        Trial(_TRANSPOSE, InPlaceCase("square", (2, 130, 130), HALF), _has(square=True)),
        Trial(_TRANSPOSE, InPlaceCase("rectangular", (2, 130, 67)), _has(square=False)),
        Trial(_TRANSPOSE, InPlaceCase("by squares", (1, 1536, 1408)), _large),
    ),
}  # fmt: skip
