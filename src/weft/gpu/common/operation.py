"""The operation of a contraction as one constant of its kernel: functions, types, algebra, and auxiliary operands.

Kernels of complex elements have an operation of their own: functions of parts, and how elements are accessed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from weft.algebra import log
from weft.errors import FunctionError, UnsupportedError
from weft.fn import Pointwise
from weft.fn.triton.device_code import jit_function
from weft.gpu.common.constants import TRITON_TYPES, WrittenFunction
from weft.gpu.common.launch import KernelLaunch, type_reason, words_of
from weft.gpu.common.tiling import TENSORS
from weft.planner.coefficients import fitted
from weft.planner.schedule import Scalar, Target
from weft.spec import Arithmetic, Contraction, Layout, Mode, Strides
from weft.spec.contraction import Aux

KINDS = ("reals", "words", "pairs")  # elements of one part, of two in one word, and of two


def kind_of(layout: Layout | None) -> str:
    """Which of `KINDS` a tensor's elements are."""
    if layout is None or not layout.dtype.is_complex:
        return "reals"
    return "words" if layout.dtype is torch.complex64 and layout.alignment >= 8 else "pairs"


def as_elements(layout: Layout) -> Layout:
    """The layout as a kernel takes it: of words, or of single parts. Only type and alignment matter there."""
    return layout._replace(dtype=torch.int64 if kind_of(layout) == "words" else layout.dtype.to_real())


def strides_of_parts(modes: Sequence[Mode]) -> list[Mode]:
    """Modes whose strides count parts, two to an element: how far offsets reach."""
    return [mode._replace(strides=Strides(*(2 * stride for stride in mode.strides))) for mode in modes]


def real_arithmetic(arithmetic: Arithmetic) -> Arithmetic:
    """The arithmetic of the real products that complex ones are made of."""
    product, accumulate = arithmetic.product.to_real(), arithmetic.accumulate.to_real()
    return replace(arithmetic, product=product, accumulate=accumulate, three=False)


class AuxEntry(NamedTuple):
    """One auxiliary operand of a contraction."""

    tensor: int  # its position in `Mode.strides`
    pointer: int  # its position among the pointers that the kernel is given, -1 for a coordinate
    long: bool  # a coordinate of 64 bits
    kind: int = 0  # how its elements are accessed: position in `KINDS`; kernels take no text here


class AuxParams(NamedTuple):
    """The auxiliary operands that each function takes, in the order of its parameters, and further results."""

    a: tuple[AuxEntry, ...]
    b: tuple[AuxEntry, ...]
    c: tuple[AuxEntry, ...]
    epilogue: tuple[AuxEntry, ...]
    outputs: tuple[AuxEntry, ...]


def aux_params(contraction: Contraction) -> AuxParams:
    arguments = (
        contraction.a_args,
        contraction.b_args,
        contraction.c_args,
        contraction.epilogue_args,
        contraction.outputs,
    )
    every = entries(contraction.aux)
    return AuxParams._make(tuple(every[at] for at in each) for each in arguments)


def aux_bytes(aux: Sequence[Aux], modes: Sequence[Mode]) -> int:
    """Bytes of all that is read alongside operands and written alongside D, each element once."""
    return sum(
        each.dtype.itemsize * math.prod(mode.extent for mode in modes if mode.strides.aux[at])
        for at, each in enumerate(aux)
        if each.layout is not None
    )


def entries(aux: Sequence[Aux]) -> list[AuxEntry]:
    """Each of them, in order."""
    found, pointers = [], 0
    for at, each in enumerate(aux):
        index = each.layout is None
        long = index and each.dtype is torch.int64
        found.append(AuxEntry(TENSORS + at, -1 if index else pointers, long, KINDS.index(kind_of(each.layout))))
        pointers += not index
    return found


class KernelOperation(NamedTuple):
    """D = epilogue(alpha * sum over k of a_fn(A) * b_fn(B) + beta * c_fn(C)), or the same in an algebra.

    Functions are None where there is none. Functions and types are plain until a kernel is compiled, see `constants`.
    """

    a_fn: Any
    b_fn: Any
    c_fn: Any
    epilogue: Any
    product: Any  # type of products
    accumulate: Any
    result: Any
    precision: str
    aux: AuxParams
    combine: Any = None  # of an algebra; None for products
    reduce: Any = None  # None for sums
    identity: float | complex = 0  # of sums

    def ending(self) -> KernelOperation:
        """The part that finishes a tile of sums: kernels that do no more are the same for all products."""
        return self._replace(a_fn=None, b_fn=None, product=None, precision="", combine=None, identity=0)

    def __repr__(self) -> str:
        """A part of the kernel's key in Triton's cache: functions by their own keys, which hold their code."""
        values = [getattr(each, "cache_key", None) or repr(each) for each in self]
        return f"KernelOperation({', '.join(values)})"


def operation(contraction: Contraction) -> KernelOperation:
    """The operation of a contraction, whatever the tiles of its kernel."""
    arithmetic, algebra = contraction.arithmetic, contraction.algebra
    return KernelOperation(
        a_fn=contraction.a_fn,
        b_fn=contraction.b_fn,
        c_fn=contraction.c_fn,
        epilogue=contraction.epilogue,
        product=TRITON_TYPES[arithmetic.product],
        accumulate=TRITON_TYPES[arithmetic.accumulate],
        result=TRITON_TYPES[contraction.d.dtype],
        precision=arithmetic.precision,
        aux=aux_params(contraction),
        combine=algebra and algebra.combine,
        reduce=algebra and algebra.reduce,
        identity=algebra.identity if algebra is not None else 0,
    )


EXPONENTIAL_SLOTS = 7  # of a maximum, a difference, an exponential (an eighth of the rate of sums) and a sum

_OVER_AXIS = """@triton.jit
def over_axis(values, AXIS: tl.constexpr):
    return tl.reduce(values, AXIS, reduced_pair)


@triton.jit
def reduced_pair(p, q):
    return REDUCE(p, q).to(p.dtype)
"""

_EXPONENTIAL = """@triton.jit
def exponential(x):
    if x.dtype == tl.float32:
        return device_math.exp2(x * 1.4426950408889634)
    else:
        return libdevice.exp(x)
"""

_LOGARITHM = """@triton.jit
def logarithm(x):
    return libdevice.log(x)
"""


def sums_exponentials(contraction: Contraction) -> bool:
    """Whether a reduction by log(exp(p) + exp(q)) can be a sum of exponentials relative to the largest value: with one
    exponential for each value, where `torch.logaddexp` takes one and a logarithm."""
    algebra, accumulate = contraction.algebra, contraction.arithmetic.accumulate
    if algebra is None or accumulate not in (torch.float32, torch.float64) or algebra.identity != -math.inf:
        return False
    return algebra.reduce == log.traced(accumulate).reduce


def exponential_constants(contraction: Contraction) -> dict[str, Any]:
    """The compile-time parameters EXP and LOG; None where the reduction is not such a sum."""
    if not sums_exponentials(contraction):
        return {"EXP": None, "LOG": None}
    return {"EXP": WrittenFunction(_EXPONENTIAL), "LOG": WrittenFunction(_LOGARITHM)}


def product_slots(contraction: Contraction) -> float:
    """Issue slots of one product and one sum."""
    algebra = contraction.algebra
    if sums_exponentials(contraction):
        slots = 2.0 * max(algebra.combine.flops, 1) + EXPONENTIAL_SLOTS  # type: ignore[union-attr]
        return slots if contraction.arithmetic.accumulate.itemsize < 8 else 10 * slots
    if algebra is None:
        return 1.0 if contraction.arithmetic.accumulate.itemsize < 8 else 6.0
    both, elementary = (algebra.combine, algebra.reduce), fitted("common")("elementary_slots")
    slots = float(sum(max(each.flops, 1) + elementary * each.elementary for each in both))
    return slots if contraction.arithmetic.accumulate.itemsize < 8 else 2.5 * slots


@dataclass(frozen=True, slots=True)
class OverAxis:
    """A function (values, AXIS) that reduces a tensor along one axis.

    `tl.reduce` takes a function by name alone, not as a compile-time constant, and needs one that keeps the type: each
    `reduce` has a text of its own around it.
    """

    reduce: Pointwise

    @property
    def identity(self) -> str:
        return f"{_OVER_AXIS}{self.reduce.identity}"

    @property
    def jit(self) -> Any:
        reduce, name = self.reduce.jit, hashlib.sha256(self.reduce.identity.encode()).hexdigest()
        return jit_function(f"{_OVER_AXIS}# {name}\n", lambda: {"REDUCE": reduce})


def over_axis(contraction: Contraction) -> OverAxis | None:
    """The reduction of a contraction's algebra along an axis of a tensor; None where that is a sum."""
    return OverAxis(contraction.algebra.reduce) if contraction.algebra is not None else None


class ComplexKernelLaunch(KernelLaunch):
    """A kernel that takes complex factors, each in two parts."""

    def _factors(self, alpha: Scalar, beta: Scalar) -> tuple[int, ...]:
        return *words_of(alpha.real, alpha.imag), *words_of(beta.real, beta.imag)


def function_reason(
    functions: Sequence[Pointwise | None], layouts: Sequence[Layout | None], target: Target
) -> str | None:
    """Why a kernel cannot apply functions to parts, or take elements of tensors; None where it can."""
    for function in functions:
        try:
            _ = function and function.split_complex.source
        except (UnsupportedError, FunctionError) as error:
            return str(error)
    return next(filter(None, (type_reason(layout.dtype, target) for layout in layouts if layout is not None)), None)


class ComplexOperation(NamedTuple):
    """Operation of a kernel on the parts of complex values; functions are None where there is none."""

    fn: Any  # of the source that moves
    c_fn: Any
    epilogue: Any
    compute: Any  # real type of products, or of what `fn` sees
    scale: Any  # of what alpha and beta are applied in; None where they are not
    result: Any
    precision: str
    aux: AuxParams
    a_kind: str  # how elements are accessed, see `KINDS`
    b_kind: str
    c_kind: str
    d_kind: str
    conjugate: tuple[bool, bool]  # A, B
    of_reals: tuple[bool, ...]  # whether the functions see real values
    to_complex: tuple[bool, ...]  # whether they yield complex ones
    parts: tuple[tuple[int, int], ...]  # of each result of the epilogue


def complex_operation(
    layouts: Sequence[Layout | None], functions: Sequence[Pointwise | None], conjugate: tuple[bool, bool],
    compute: torch.dtype, scale: torch.dtype | None, result: torch.dtype, aux: AuxParams, precision: str = "",
) -> ComplexOperation:  # fmt: skip
    """The operation on tensors A, B, C and D by `fn`, `c_fn` and `epilogue`."""
    fn, c_fn, epilogue = (function and function.split_complex for function in functions)
    types = (TRITON_TYPES[dtype.to_real()] if dtype is not None else None for dtype in (compute, scale, result))
    real_type, scale_type, result_type = types
    a_kind, b_kind, c_kind, d_kind = map(kind_of, layouts)
    of_reals = tuple(function is not None and not function.dtypes[0].is_complex for function in functions)
    parts = [parts_of(function) for function in functions]
    return ComplexOperation(
        fn, c_fn, epilogue, real_type, scale_type, result_type, precision, aux, a_kind, b_kind, c_kind, d_kind,
        conjugate, of_reals, tuple(len(each) == 1 and each[0][1] > 0 for each in parts), parts[2],
    )  # fmt: skip


def parts_of(function: Pointwise | None) -> tuple[tuple[int, int], ...]:
    """Where the parts of each result stand among all that the function of parts yields; -1: it has no second."""
    if function is None:
        return ()
    results = function.result if isinstance(function.result, tuple) else (function.result,)
    found, at = [], 0
    for result in results:
        found.append((at, at + 1 if result.is_complex else -1))
        at += 2 if result.is_complex else 1
    return tuple(found)
