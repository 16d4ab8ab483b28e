"""The oracle of permutations: values moved, repeated and computed the plain way in wide types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from weft.base.memory import check_room
from weft.errors import ShapeError
from weft.oracle.arguments import check_places, factor_of, operand
from weft.oracle.reference import Equation, Function, reader, times, wide
from weft.oracle.sums import aligned, source
from weft.spec.notation import Label, Notation, expand, from_sequences, parse, terms_of
from weft.spec.permutation import checked_extents, permutation_extents
from weft.spec.type_names import read_dtype

if TYPE_CHECKING:
    from weft.planner.request import Request
    from weft.planner.schedule import PermutationLaunch, Scalar


def permute(
    equation: Equation,
    x: Any,
    *,
    extents: Mapping[Label, int] | None = None,
    fn: Function | None = None,
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The permutation of `x` in plain torch; arguments mean what they mean for `weft.permute`.

    Where something is computed it is computed in float64, complex128 or int64, and so is the result unless `out_dtype`
    or `out` says otherwise; what is only moved keeps its type.

    >>> import torch
    >>> permute("aab->ba", torch.arange(8).reshape(2, 2, 2))
    tensor([[0, 6],
            [1, 7]])
    """
    x, alpha, beta = operand("x", x), factor_of("alpha", alpha), factor_of("beta", beta)
    if isinstance(equation, str):
        equation = parse(equation, new_labels=True)
    elif not isinstance(equation, Notation):
        equation = from_sequences(*terms_of(equation), new_labels=True)
    notation = expand(equation, [x.ndim])
    given = checked_extents(extents) if extents is not None else {}
    check_places(out)
    found = permutation_extents(notation, x.shape, given, None if out is None else out.shape)
    check_places(out, tuple(found[label] for label in notation.output))
    if out_dtype is not None:
        out_dtype = read_dtype("out_dtype", out_dtype)
    computed = fn is not None or alpha != 1 or beta != 0
    check_room(x.device, x.element_size() * math.prod(found[label] for label in notation.output))
    # The labels of extent 1 that this drops come back where the values are expanded.
    read = source(notation.inputs[0], x, reader(None, fn, keep=False), {}, found)
    values = read.values if computed else read.stored
    values = aligned(read.term, values, notation.output).expand([found[label] for label in notation.output])
    if computed:
        values = times(alpha, values)
    if beta != 0:
        if out is None:
            raise ShapeError(f"beta={beta!r} adds to out, and there is none")
        values = values + times(beta, wide(out))
    if out is not None:
        return out.copy_(values)
    return values.to(out_dtype or values.dtype, copy=True).resolve_conj().contiguous()


def permute_launcher(request: Request) -> PermutationLaunch:
    """The oracle as a backend for permutations."""
    extents = request.extents

    def launch(x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        x = x.conj() if request.conjugate[0] else x
        if c is not None and c is not d:
            d.copy_(c)
        permute(request.moved, x, extents=extents, fn=request.functions.raw[0], alpha=alpha, beta=beta, out=d)

    return launch


def square_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Square matrices (batch, n, n) transposed in place and scaled, by way of a copy."""
    values = matrices.transpose(1, 2)
    matrices.copy_(times(alpha, wide(values)) if alpha != 1 else values.clone())


def rectangular_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Dense row-major matrices (batch, rows, columns) transposed in place and scaled, to (batch, columns, rows)."""
    batch, rows, columns = matrices.shape
    step = matrices.stride(2)
    values = matrices.transpose(1, 2)
    values = times(alpha, wide(values)) if alpha != 1 else values.clone()
    strides = (matrices.stride(0), rows * step, step)
    matrices.as_strided((batch, columns, rows), strides, matrices.storage_offset()).copy_(values)
