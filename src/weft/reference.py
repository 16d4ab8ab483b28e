"""The oracle: what a contraction means, computed the plain way in wide types.

    D = epilogue(alpha * sum over k of a_fn(A) * b_fn(B) + beta * c_fn(C))

Every value becomes float64, complex128 or int64 first, functions are evaluated as they are given, and every label is
one dimension: align, multiply, sum. Nothing is shared with the backends but the reading of the equation. Where the
table of all products would not fit in memory, the widest label is halved, and floating-point pieces go through
`torch.matmul` in float64; tests hold both ways against each other and against `numpy.einsum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from weft.errors import ShapeError
from weft.spec.notation import Label, Notation, expand, from_sequences, label_text, parse, term_text
from weft.spec.permutation import permutation_extents

if TYPE_CHECKING:
    from weft.plan.permute_plan import PermuteRequest
    from weft.plan.plan import Request
    from weft.plan.schedule import Launch, PermutationLaunch, Scalar

Function: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
Equation: TypeAlias = str | Sequence[Sequence[Label]] | Notation

# Products held at once by the naive way; elements of A, B and D together in one batched matrix product, and matrices.
_PRODUCTS = 1 << 22
_ELEMENTS = 1 << 28
_MATRICES = 1 << 15

_REAL_OF = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def contract(
    equation: Equation,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: Scalar = 1.0,
    beta: Scalar = 1.0,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str | torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    a_fn: Function | None = None,
    b_fn: Function | None = None,
    c_fn: Function | None = None,
    epilogue: Function | None = None,
) -> torch.Tensor:
    """The contraction of `a` and `b`, as exact as float64 makes it.

    Arguments mean what they mean for `weft.contract`. The result is float64, complex128 or int64, or `out_dtype`
    where that is given: one rounding at the end. A dtype as `precision` rounds the values of A and B to it before
    their functions see them; "tf32" and "tf32x3" change nothing here. `accumulate` matters for integers alone: sums
    wrap around as that type does (int64 where int64 is stored, else int32). `beta=0` does not read `c`.

    >>> import torch
    >>> contract("ij,j->i", torch.tensor([[1, 2], [3, 4]]), torch.tensor([10, 1]))
    tensor([12, 34])
    """
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    notation = _read(equation, (a.ndim, b.ndim))
    shape = _output_shape(notation, (a.shape, b.shape))
    x = _operand(notation.inputs[0], a, precision, a_fn)
    y = _operand(notation.inputs[1], b, precision, b_fn)
    output = tuple(label for label, extent in zip(notation.output, shape, strict=True) if extent != 1)
    value = _times(alpha, _sum_of_products(x, y, output).reshape(shape))
    if c is not None and beta != 0:
        addend = wide(torch.as_tensor(c))
        value = value + _times(beta, _evaluated(c_fn, addend))
    if not (value.is_floating_point() or value.is_complex()):
        value = value.to(accumulate or _integer_accumulator(a, b, precision)).to(torch.int64)
    value = _evaluated(epilogue, value)
    if out_dtype is not None:
        value = value.to(out_dtype)
    return value if out is None else out.copy_(value)


def launcher(request: Request) -> Launch:
    """The oracle as a backend: the launch of a plan that chooses nothing."""
    a_fn, b_fn, c_fn, epilogue = request.functions.raw
    arithmetic = request.arithmetic

    def launch(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar
    ) -> None:
        # A launch is given memory as it lies; that it stands for its conjugate is in the request.
        contract(
            request.notation,
            a.conj() if request.conjugate[0] else a,
            b.conj() if request.conjugate[1] else b,
            c=c,
            alpha=alpha,
            beta=beta,
            out=d,
            precision=arithmetic.product,
            accumulate=arithmetic.accumulate,
            a_fn=a_fn,
            b_fn=b_fn,
            c_fn=c_fn,
            epilogue=epilogue,
        )

    return launch


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
    x = torch.as_tensor(x)
    if isinstance(equation, str):
        equation = parse(equation, new_labels=True)
    elif not isinstance(equation, Notation):
        equation = from_sequences(*equation, new_labels=True)
    notation = expand(equation, [x.ndim])
    found = permutation_extents(notation, x.shape, extents or {}, None if out is None else out.shape)
    computed = fn is not None or alpha != 1 or beta != 0
    # The labels of extent 1 that this drops come back where the values are expanded.
    operand = _operand(notation.inputs[0], x, None, fn)
    values = operand.read(operand.stored) if computed else operand.stored
    kept = [label for label in notation.output if label in operand.term]
    values = values.permute([operand.term.index(label) for label in kept])
    values = values[tuple(slice(None) if label in kept else None for label in notation.output)]
    values = values.expand([found[label] for label in notation.output])
    if computed:
        values = _times(alpha, values)
    if beta != 0:
        assert out is not None, "beta adds to out"
        values = values + _times(beta, wide(out))
    if out is not None:
        return out.copy_(values)
    return values.to(out_dtype or values.dtype, copy=True).resolve_conj().contiguous()


def permute_launcher(request: PermuteRequest) -> PermutationLaunch:
    """The oracle as a backend for permutations."""
    extents = dict(request.extents)

    def launch(x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        x = x.conj() if request.conjugate else x
        permute(request.notation, x, extents=extents, fn=request.raw, alpha=alpha, beta=beta, out=d)

    return launch


def square_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Square matrices (batch, n, n) transposed in place and scaled, by way of a copy."""
    values = matrices.transpose(1, 2)
    matrices.copy_(_times(alpha, wide(values)) if alpha != 1 else values.clone())


def rectangular_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """The same for dense row-major matrices (batch, rows, columns), which leave (batch, columns, rows) behind."""
    batch, rows, columns = matrices.shape
    step = matrices.stride(2)
    values = matrices.transpose(1, 2)
    values = _times(alpha, wide(values)) if alpha != 1 else values.clone()
    strides = (matrices.stride(0), rows * step, step)
    matrices.as_strided((batch, columns, rows), strides, matrices.storage_offset()).copy_(values)


def wide(values: torch.Tensor) -> torch.Tensor:
    """The same values as float64, complex128 or int64."""
    if values.is_complex():
        return values.to(torch.complex128)
    return values.to(torch.float64 if values.is_floating_point() else torch.int64)


def reduced_extent(equation: Equation, a: torch.Tensor, b: torch.Tensor) -> int:
    """How many products are summed for each element of D: K, modes in one operand alone included."""
    notation = _read(equation, (a.ndim, b.ndim))
    extents = _extents(notation, (a.shape, b.shape))
    return math.prod(extent for label, extent in extents.items() if label not in notation.output)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A stored tensor with one label for each dimension, and how its values are read."""

    term: tuple[Label, ...]  # no label twice, no extent of 1: a broadcast label is a label that is not there
    stored: torch.Tensor
    read: Function

    @property
    def extents(self) -> dict[Label, int]:
        return dict(zip(self.term, self.stored.shape, strict=True))

    def part(self, label: Label, start: int, length: int) -> _Operand:
        if label not in self.term:
            return self
        return replace(self, stored=self.stored.narrow(self.term.index(label), start, length))


def _read(equation: Equation, ranks: Sequence[int]) -> Notation:
    if isinstance(equation, str):
        equation = parse(equation)
    elif not isinstance(equation, Notation):
        equation = from_sequences(*equation)
    return expand(equation, ranks)


def _extents(notation: Notation, shapes: Sequence[Sequence[int]]) -> dict[Label, int]:
    """The extent of each label: the one that is not 1, where there is one."""
    extents: dict[Label, int] = {}
    for term, shape in zip(notation.inputs, shapes, strict=True):
        for label, extent in zip(term, shape, strict=True):
            known = extents.get(label, 1)
            if extent != known and 1 not in (extent, known):
                raise ShapeError(f"label '{label_text(label)}' has extents {known} and {extent}")
            extents[label] = extent if known == 1 else known
    return extents


def _output_shape(notation: Notation, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    extents = _extents(notation, shapes)
    return tuple(extents[label] for label in notation.output)


def _operand(
    term: Sequence[Label], stored: torch.Tensor, precision: str | torch.dtype | None, function: Function | None
) -> _Operand:
    """Take diagonals and drop extents of 1."""
    labels = list(term)
    for label in dict.fromkeys(term):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if stored.shape[first] != stored.shape[second]:
                extents = f"{stored.shape[first]} and {stored.shape[second]}"
                raise ShapeError(f"label '{label_text(label)}' stands twice in '{term_text(tuple(term))}': {extents}")
            stored = stored.diagonal(0, first, second)
            labels = [*labels[:first], *labels[first + 1 : second], *labels[second + 1 :], label]
    kept = tuple(label for label, extent in zip(labels, stored.shape, strict=True) if extent != 1)
    stored = stored.squeeze()

    def read(values: torch.Tensor) -> torch.Tensor:
        if isinstance(precision, torch.dtype):
            values = values.to(precision if values.is_complex() else _REAL_OF.get(precision, precision))
        return _evaluated(function, wide(values))

    return _Operand(kept, stored, read)


def _evaluated(function: Function | None, values: torch.Tensor) -> torch.Tensor:
    return values if function is None else wide(function(values))


def _sum_of_products(x: _Operand, y: _Operand, output: tuple[Label, ...]) -> torch.Tensor:
    """D's labels in the order of `output`; all others are summed."""
    extents = x.extents | y.extents
    exact = all(not (o.stored.is_floating_point() or o.stored.is_complex()) for o in (x, y))
    if math.prod(extents.values()) <= _PRODUCTS:
        return _by_broadcasting(x, y, output)
    elements = x.stored.numel() + y.stored.numel() + math.prod(extents[label] for label in output)
    matrices = math.prod(extents[label] for label in output if label in x.term and label in y.term)
    if not exact and elements <= _ELEMENTS and matrices <= _MATRICES:
        return _by_matrix_product(x, y, output)
    label = max(extents, key=extents.__getitem__)
    middle = extents[label] // 2
    halves = [
        _sum_of_products(x.part(label, start, length), y.part(label, start, length), output)
        for start, length in ((0, middle), (middle, extents[label] - middle))
    ]
    return torch.cat(halves, output.index(label)) if label in output else halves[0] + halves[1]


def _by_broadcasting(x: _Operand, y: _Operand, output: tuple[Label, ...]) -> torch.Tensor:
    """The definition: every label a dimension, multiply, sum over those that D lacks."""
    summed = tuple(label for label in x.extents | y.extents if label not in output)
    labels = (*output, *summed)
    products = _aligned(x, labels) * _aligned(y, labels)
    return products.sum(tuple(range(len(output), len(labels)))) if summed else products


def _aligned(operand: _Operand, labels: tuple[Label, ...]) -> torch.Tensor:
    """The operand's values with one dimension for each of `labels`, of extent 1 where it lacks one."""
    values = operand.read(operand.stored)
    values = values.permute([operand.term.index(label) for label in labels if label in operand.term])
    return values[tuple(slice(None) if label in operand.term else None for label in labels)]


def _by_matrix_product(x: _Operand, y: _Operand, output: tuple[Label, ...]) -> torch.Tensor:
    """The same through one batched matrix product: what stands in one operand alone is summed there first."""
    batch = [label for label in output if label in x.term and label in y.term]
    rows = [label for label in output if label not in y.term]
    columns = [label for label in output if label not in x.term]
    inner = [label for label in x.term if label in y.term and label not in output]
    left = _as_matrices(x, batch, rows, inner)
    right = _as_matrices(y, batch, inner, columns)
    dtype = torch.promote_types(left.dtype, right.dtype)
    product = torch.matmul(left.to(dtype), right.to(dtype))
    extents = x.extents | y.extents
    product = product.reshape([extents[label] for label in (*batch, *rows, *columns)])
    have = [*batch, *rows, *columns]
    return product.permute([have.index(label) for label in output])


def _as_matrices(operand: _Operand, *groups: list[Label]) -> torch.Tensor:
    """The operand's values with each group of labels as one dimension, summed over all others."""
    kept = [label for group in groups for label in group]
    values = operand.read(operand.stored)
    alone = tuple(at for at, label in enumerate(operand.term) if label not in kept)
    values = values.sum(alone) if alone else values
    left = [label for label in operand.term if label in kept]
    values = values.permute([left.index(label) for label in kept])
    extents = operand.extents
    return values.reshape([math.prod(extents[label] for label in group) for group in groups])


def _times(factor: Scalar, values: torch.Tensor) -> torch.Tensor:
    """Integers stay integers under an integral factor."""
    if not (values.is_floating_point() or values.is_complex()) and factor == int(factor.real):
        factor = int(factor.real)
    return values * factor


def _integer_accumulator(a: torch.Tensor, b: torch.Tensor, precision: str | torch.dtype | None) -> torch.dtype:
    types = {precision} if isinstance(precision, torch.dtype) else {a.dtype, b.dtype}
    return torch.int64 if torch.int64 in types else torch.int32
