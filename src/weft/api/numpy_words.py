"""`matmul`, `tensordot`, `inner`, `outer`, `trace` and `transpose` with the arguments that NumPy gives them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Unpack, overload

import torch

from weft.api.contract import contract
from weft.api.einsum import einsum
from weft.api.entry import bare
from weft.api.keywords import AnyKeywords, TensorKeywords, signed
from weft.base.arguments import describe_call
from weft.base.arrays import Array, as_result, as_tensor, as_tensors, is_scalar, like, returned, source_of
from weft.base.dispatch import is_dynamo_compiling
from weft.base.figures import counted
from weft.engine.calls import CALLS
from weft.errors import ArgumentError, ShapeError, call_context
from weft.plans.keywords import refuse_unknown
from weft.spec.arguments import read_flag, read_integer, read_sequence

_SEQUENCES = {tuple, list}  # of axes
Axes = int | Sequence[int | Sequence[int]]


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
    >>> x = torch.tensor([[1., 2.], [3., 4.], [5., 6.]])
    >>> y = torch.tensor([[1., 0.], [0., 1.], [1., 1.]])
    >>> weft.matmul(x, y, transpose_a=True)
    tensor([[ 6.,  8.],
            [ 8., 10.]])
    """
    if is_dynamo_compiling():  # which reads no further than it must
        _check_matrices(a, b, transpose_a, transpose_b)
        return contract(_matmul_equation(a.dim(), b.dim(), transpose_a, transpose_b), a, b, **keywords)
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
        _check_matrices(left, right, transpose_a, transpose_b)
        if out is not None and not isinstance(out, tuple):
            keywords = {**keywords, "out": as_result(out)}
        equation = _matmul_equation(left.dim(), right.dim(), transpose_a, transpose_b)
        result = contract(equation, left, right, **keywords)
        if place is not None and left is a and right is b:
            CALLS.keep(place, (a, b), CALLS.find(bare(equation), (a, b))[0])
    return returned(source_of(a, b, c), out, result, read_flag("return_arg", keywords.get("return_arg", False)))


@overload
def tensordot(a: Array, b: Any, axes: Axes = 2, **keywords: Unpack[TensorKeywords]) -> Array: ...
@overload
def tensordot(a: Any, b: Any, axes: Axes = 2, **keywords: Unpack[AnyKeywords]) -> Any: ...
def tensordot(a: Any, b: Any, axes: Axes = 2, **keywords: Any) -> Any:
    """Sum of products over axes of `a` and `b`, as `numpy.tensordot` has it.

    `axes`: how many of the last axes of `a` are summed with as many first ones of `b`, or a pair: the axes of `a`, and
    those of `b` in the same order; negative ones count from the end. The result has the other axes of `a`, then those
    of `b`. Keywords, types and errors as for `weft.contract`, which makes it; a `ShapeError` names axes that do not
    fit.

    >>> import torch, weft
    >>> a, b = torch.ones(2, 3, 4), torch.ones(4, 3, 5)
    >>> weft.tensordot(a, b, axes=((1, 2), (1, 0))).shape
    torch.Size([2, 5])
    """
    words = None if keywords or is_dynamo_compiling() else _words(axes)
    known, place = (None, None) if words is None else CALLS.find(words, (a, b))
    if known is not None and (found := known.run(a, b)) is not None:
        return found
    with call_context(lambda: describe_call("tensordot", f"axes={axes!r}", a=a, b=b)):
        refuse_unknown("tensordot", keywords)
        (x, y), source = _operands(a, b, keywords)
        equation = _equation_once(_rank(x), _rank(y), *_pair_of_axes(axes, _rank(x)))
        _check_extents(x, y, axes, equation)
        found = contract(equation, x, y, **keywords)
        if place is not None and x is a and y is b:
            CALLS.keep(place, (a, b), CALLS.find(bare(equation), (a, b))[0])
        return _like(source, x, found)


@overload
def inner(a: Array, b: Any, **keywords: Unpack[TensorKeywords]) -> Array: ...
@overload
def inner(a: Any, b: Any, **keywords: Unpack[AnyKeywords]) -> Any: ...
def inner(a: Any, b: Any, **keywords: Any) -> Any:
    """Sum of products over the last axes of both, as `numpy.inner` has it; of a scalar and anything their product.

    >>> import torch, weft
    >>> weft.inner(torch.ones(2, 3), torch.ones(5, 3)).shape
    torch.Size([2, 5])
    """
    with call_context(lambda: describe_call("inner", "last axes", a=a, b=b)):
        refuse_unknown("inner", keywords)
        (x, y), source = _operands(a, b, keywords)
        axes: Axes = ((-1,), (-1,)) if _rank(x) and _rank(y) else 0
        return _like(source, x, tensordot(x, y, axes, **keywords))


@overload
def outer(a: Array, b: Any, **keywords: Unpack[TensorKeywords]) -> Array: ...
@overload
def outer(a: Any, b: Any, **keywords: Unpack[AnyKeywords]) -> Any: ...
def outer(a: Any, b: Any, **keywords: Any) -> Any:
    """All products of an element of `a` with one of `b`, both flattened, as `numpy.outer` has it: (a.size, b.size).

    >>> import torch, weft
    >>> weft.outer(torch.arange(2.), torch.ones(3))
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """
    with call_context(lambda: describe_call("outer", "all pairs", a=a, b=b)):
        refuse_unknown("outer", keywords)
        (x, y), source = _operands(a, b, keywords)
        promote = read_flag("promote", keywords.get("promote", False))
        left, right = (as_tensor(name, one, promote).reshape(-1) for name, one in (("a", x), ("b", y)))
        return _like(source, left, contract("m,n->mn", left, right, **keywords), keywords.get("out"))


@overload
def trace(a: Array, offset: int = 0, axis1: int = 0, axis2: int = 1, **keywords: Unpack[TensorKeywords]) -> Array: ...
@overload
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, **keywords: Unpack[AnyKeywords]) -> Any: ...
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, **keywords: Any) -> Any:
    """Sum along a diagonal of two axes, as `numpy.trace` has it; the result has the axes that are left.

    `offset`: how far above the main diagonal (below, where it is negative) the elements are. The result has the type of
    `a` unless `out_dtype` says otherwise.

    >>> import torch, weft
    >>> weft.trace(torch.eye(3))
    tensor(3.)
    """
    with call_context(lambda: describe_call("trace", f"axes {axis1} and {axis2}", a=a)):
        refuse_unknown("trace", keywords)
        x = as_tensor("a", a, read_flag("promote", keywords.get("promote", False)))
        if x.dim() < 2:
            raise ShapeError(f"trace of a tensor of {x.dim()} dimensions: it takes two")
        first, second = (_axis(axis, x.dim(), "a") for axis in (axis1, axis2))
        if first == second:
            raise ShapeError(f"axis {first} of a stands twice in the trace")
        result = einsum("...i->...", x.diagonal(read_integer("offset", offset), first, second), **keywords)
        return _like(a, x, result, keywords.get("out"))


@overload
def transpose(x: Array, axes: Sequence[int] | None = None) -> Array: ...
@overload
def transpose(x: Any, axes: Sequence[int] | None = None) -> Any: ...
def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """A view of `x` with its axes in another order, all of them reversed by default, as `numpy.transpose` has it.

    Nothing is moved; `weft.permute` does, and `weft.transpose_` in place.

    >>> import torch, weft
    >>> weft.transpose(torch.ones(2, 3, 4), (1, 2, 0)).shape
    torch.Size([3, 4, 2])
    """
    with call_context(lambda: describe_call("transpose", f"axes={axes!r}", x=x)):
        tensor = as_tensor("x", x)
        rank = tensor.dim()
        given = range(rank)[::-1] if axes is None else read_sequence("axes", axes)
        order = [_axis(axis, rank, "x") for axis in given]
        if sorted(order) != list(range(rank)):
            raise ShapeError(f"axes {tuple(order)} are not each axis of x once: it has {rank}")
        return like(x, tensor.permute(order))


def _states(transpose_a: bool, transpose_b: bool) -> str:
    return f"{'a^T' if transpose_a is True else 'a'} @ {'b^T' if transpose_b is True else 'b'}"


def _matmul_equation(rank_a: int, rank_b: int, transpose_a: bool, transpose_b: bool) -> str:
    """Labels of the product: m and n are left out with the dimensions that vectors lack."""
    term_a = "k" if rank_a == 1 else "...km" if transpose_a else "...mk"
    term_b = "k" if rank_b == 1 else "...nk" if transpose_b else "...kn"
    batches = "..." if max(rank_a, rank_b) > 1 else ""
    return f"{term_a},{term_b}->{batches}{'m' if rank_a > 1 else ''}{'n' if rank_b > 1 else ''}"


def _check_matrices(a: torch.Tensor, b: torch.Tensor, transpose_a: bool, transpose_b: bool) -> None:
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


def _words(axes: Any) -> tuple[str, Any] | None:
    """Axes as words that a repeated call is known by; None for those that are to be read."""
    if type(axes) is int:
        return "tensordot", axes
    if type(axes) not in _SEQUENCES or not {*map(type, axes)} <= _SEQUENCES or len(axes) != 2:
        return None
    pair = tuple(axes[0]), tuple(axes[1])
    return ("tensordot", pair) if {*map(type, pair[0] + pair[1])} <= {int} else None


def _operands(a: Any, b: Any, keywords: dict[str, Any]) -> tuple[list[Any], Any]:
    """Both operands, numbers as tensors, and the one that says what kind of array the result is."""
    if isinstance(a, str) or isinstance(b, str):
        raise ArgumentError("it takes no equation: weft.contract('mk,kn->mn', a, b) does")
    if is_scalar(a) or is_scalar(b):
        tensors, source = as_tensors((a, b), read_flag("promote", keywords.get("promote", False)))
        return list(tensors), source
    if not (isinstance(getattr(a, "ndim", None), int) and isinstance(getattr(b, "ndim", None), int)):
        promote = read_flag("promote", keywords.get("promote", False))
        return [as_tensor("a", a, promote), as_tensor("b", b, promote)], a
    for name, value in (("a", a), ("b", b)):
        if isinstance(value, torch.Tensor):
            as_tensor(name, value)  # refused where it is of a kind that has no shape
    return [a, b], a


def _like(source: Any, given: Any, result: Any, out: Any = None) -> Any:
    """The result as the kind of array that `source` is, where a tensor was made of it."""
    if out is not None:
        return out
    return result if source is given or not isinstance(result, torch.Tensor) else like(source, result)


def _rank(x: Any) -> int:
    return int(x.ndim)


def _pair_of_axes(axes: Axes, rank_a: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of a and of b that are summed, as they were given."""
    if _is_number(axes):
        count = read_integer("axes", axes)
        if count < 0:
            raise ShapeError(f"axes={count}: a number of axes is not negative")
        if count > rank_a:
            raise ShapeError(f"axes={count}: a has {counted(rank_a, 'dimension')}")
        return tuple(range(rank_a - count, rank_a)), tuple(range(count))
    pair = read_sequence("axes", axes)
    if len(pair) != 2:
        raise ShapeError(f"axes is a number or a pair (axes of a, axes of b), not {axes!r}")
    first, second = (_sequence(one) for one in pair)
    if len(first) != len(second):
        raise ShapeError(f"axes: {len(first)} of a with {len(second)} of b")
    return first, second


def _sequence(axes: int | Sequence[int]) -> tuple[int, ...]:
    given = [axes] if _is_number(axes) else read_sequence("axes", axes)
    return tuple(read_integer("an axis", axis) for axis in given)


def _is_number(axes: object) -> bool:
    return hasattr(axes, "__index__") and not getattr(axes, "ndim", 0)


@lru_cache(maxsize=4096)
def _tensordot_equation(rank_a: int, rank_b: int, axes_a: tuple[int, ...], axes_b: tuple[int, ...]) -> str:
    """Text, by which `contract` knows a repeated call at once."""
    of_a, of_b = [_axis(axis, rank_a, "a") for axis in axes_a], [_axis(axis, rank_b, "b") for axis in axes_b]
    for name, found in (("a", of_a), ("b", of_b)):
        if len(set(found)) != len(found):
            raise ShapeError(f"axes {tuple(found)} of {name}: one stands twice")
    from opt_einsum import get_symbol

    labels = [get_symbol(at) for at in range(rank_a + rank_b)]
    term_a, term_b = labels[:rank_a], labels[rank_a:]
    for at, other in zip(of_a, of_b, strict=True):
        term_b[other] = term_a[at]
    kept = [label for label in term_a + term_b if (label in term_a) is not (label in term_b)]
    return f"{''.join(term_a)},{''.join(term_b)}->{''.join(kept)}"


def _equation_once(*said: Any) -> str:
    """`_tensordot_equation` as a constant of dynamo's, which reads through caches."""
    return _tensordot_equation(*said)


_equation_once._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _axis(axis: int, rank: int, name: str) -> int:
    found = read_integer(f"an axis of {name}", axis)
    if not -rank <= found < rank:
        raise ShapeError(f"there is no axis {found} of {name}, which has {counted(rank, 'dimension')}")
    return found % rank


def _check_extents(x: Any, y: Any, axes: Axes, equation: str) -> None:
    """Extents of 1 do not broadcast here, as they do not in NumPy."""
    term_a, term_b = equation.partition("->")[0].split(",")
    for at, label in enumerate(term_a):
        other = term_b.find(label)
        if other >= 0 and x.shape[at] != y.shape[other]:
            raise ShapeError(
                f"axis {at} of a has extent {x.shape[at]}, axis {other} of b that it is summed with {y.shape[other]}"
            )
