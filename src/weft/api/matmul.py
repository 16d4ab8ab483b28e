"""`matmul`: dense matrices by the contraction engine, in the words of linear algebra."""

from __future__ import annotations

from typing import Any, Unpack, overload

import torch

from weft.api.contract import contract
from weft.api.entry import bare
from weft.api.keywords import AnyKeywords, TensorKeywords, signed
from weft.base.arrays import Array, as_result, as_tensor, returned, source_of
from weft.base.describe import describe_call
from weft.base.dispatch import is_dynamo_compiling
from weft.engine.calls import CALLS
from weft.errors import ArgumentError, ShapeError, call_context
from weft.plans.keywords import refuse_unknown
from weft.spec.arguments import read_flag


@overload
def matmul(
    a: Array, b: Any, *, transpose_a: bool = False, transpose_b: bool = False, **keywords: Unpack[TensorKeywords]
) -> Array: ...
@overload
def matmul(
    a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False, **keywords: Unpack[AnyKeywords]
) -> Any: ...
@signed("matmul", ("a", "b"))
def matmul(a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False, **keywords: Any) -> Any:
    """Multiply matrices: ``D = epilogue(alpha * op(a_fn(A)) @ op(b_fn(B)) + beta * c_fn(C))``.

    `a` is (..., m, k) and `b` (..., k, n), or with `transpose_a` and `transpose_b` (..., k, m) and (..., n, k); the
    result is (..., m, n). As with `torch.matmul` dimensions before the last two are batches and broadcast, and a vector
    (k,) is a row on the left, a column on the right, and its dimension is not in the result. Row- and column-major
    matrices, and any other strides, mix freely.

    `c`: what is added, of the result's rank, its extents those of the result or 1; `beta`, 1 by default, is its factor.
    To accumulate, as BLAS does, pass one tensor as `c` and `out`. The modes that `operands` and `indices` may name are
    "m", "n" and "k". All other keywords, types and errors are those of `weft.contract`; a `ShapeError` names the shapes
    of both operands, an `ArgumentError` a flag that is neither True nor False.

    >>> import torch, weft
    >>> x, y = torch.tensor([[1., 2.], [3., 4.], [5., 6.]]), torch.tensor([[1., 0.], [0., 1.], [1., 1.]])
    >>> weft.matmul(x, y, transpose_a=True)
    tensor([[ 6.,  8.],
            [ 8., 10.]])
    """
    if is_dynamo_compiling():  # which reads no further than it must
        _check(a, b, transpose_a, transpose_b)
        return contract(_equation(a.dim(), b.dim(), transpose_a, transpose_b), a, b, **keywords)
    place = None
    if not keywords and type(transpose_a) is bool is type(transpose_b):
        known, place = CALLS.find(("matmul", transpose_a, transpose_b), (a, b))
        if known is not None and (found := known.run(a, b)) is not None:
            return found
    c, out = keywords.get("c"), keywords.get("out")
    with call_context(lambda: describe_call("matmul", _states(transpose_a, transpose_b), a=a, b=b, c=c, out=out)):
        refuse_unknown("matmul", keywords)
        read_flag("transpose_a", transpose_a)
        read_flag("transpose_b", transpose_b)
        if isinstance(a, str) or isinstance(b, str):
            raise ArgumentError("matmul takes no equation: weft.contract('mk,kn->mn', a, b) does")
        promote = read_flag("promote", keywords.get("promote", False))
        left, right = as_tensor("a", a, promote), as_tensor("b", b, promote)
        _check(left, right, transpose_a, transpose_b)
        if out is not None and not isinstance(out, tuple):
            keywords = {**keywords, "out": as_result(out)}
        equation = _equation(left.dim(), right.dim(), transpose_a, transpose_b)
        result = contract(equation, left, right, **keywords)
        if place is not None and left is a and right is b:
            CALLS.keep(place, (a, b), CALLS.find(bare(equation), (a, b))[0])
    return returned(source_of(a, b, c), out, result, read_flag("return_arg", keywords.get("return_arg", False)))


def _states(transpose_a: bool, transpose_b: bool) -> str:
    return f"{'a^T' if transpose_a is True else 'a'} @ {'b^T' if transpose_b is True else 'b'}"


def _equation(rank_a: int, rank_b: int, transpose_a: bool, transpose_b: bool) -> str:
    """Labels of the product: m and n are left out with the dimensions that vectors lack."""
    term_a = "k" if rank_a == 1 else "...km" if transpose_a else "...mk"
    term_b = "k" if rank_b == 1 else "...nk" if transpose_b else "...kn"
    batches = "..." if max(rank_a, rank_b) > 1 else ""
    return f"{term_a},{term_b}->{batches}{'m' if rank_a > 1 else ''}{'n' if rank_b > 1 else ''}"


def _check(a: torch.Tensor, b: torch.Tensor, transpose_a: bool, transpose_b: bool) -> None:
    """Raise `ShapeError` where the shapes do not multiply; here extents of 1 broadcast in batches only."""
    shapes = f"a of shape {tuple(a.shape)} and b of shape {tuple(b.shape)}"
    for name, tensor, transposed in (("a", a, transpose_a), ("b", b, transpose_b)):
        if tensor.dim() == 0:
            raise ShapeError(f"{shapes}: {name} is a scalar, not a matrix")
        if tensor.dim() == 1 and transposed:
            raise ShapeError(f"{shapes}: {name} is a vector and has no transpose")
    columns = a.shape[-2 if transpose_a else -1]
    rows = b.shape[0 if b.dim() == 1 else -1 if transpose_b else -2]
    if columns != rows:
        states = [f"{name} transposed" for name, transposed in (("a", transpose_a), ("b", transpose_b)) if transposed]
        how = f" ({' and '.join(states)})" if states else ""
        raise ShapeError(f"{shapes}{how}: the left one's columns are {columns}, the right one's rows {rows}")
    try:
        torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ShapeError(f"{shapes}: their batches do not broadcast") from None
