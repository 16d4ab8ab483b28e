"""The operation of a contraction as one constant of its kernel: functions, types, algebra."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.gpu.common.aux_operands import AuxParams, aux_params
from weft.gpu.common.constants import TRITON_TYPES
from weft.spec import Contraction


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
