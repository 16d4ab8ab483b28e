"""A complex product as real ones: views of operands, the products, the result.

A step knows only those auxiliary operands that it takes. The others have no strides in its modes, so that they keep no
modes apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch

from weft.fn import Pointwise
from weft.gpu.common.constraints import VECTOR
from weft.gpu.common.operation import real_arithmetic
from weft.gpu.common.tiling import A, B, C, D, by_stride, index_count, moving, placed
from weft.gpu.complex.interleaved import Transfer, TransferAux
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.dtypes import value_type

Positions: TypeAlias = tuple[int, ...]  # in the auxiliary operands of a contraction


class ProductAux(NamedTuple):
    """Auxiliary operands of a product, and its functions."""

    places: Positions
    fields: dict[str, Any]  # of the `Contraction` that the product is


def transfer_aux(contraction: Contraction, *arguments: Positions) -> TransferAux:
    """Auxiliary operands of a step whose functions, of X, of C and of the sum, take these; and results after D."""
    places = tuple(sorted({at for each in arguments for at in each}))
    within = (tuple(places.index(at) for at in each) for each in arguments)
    return TransferAux(tuple(contraction.aux[at] for at in places), places, *within)


def of_product(contraction: Contraction, functions: Sequence[Pointwise | None]) -> ProductAux:
    """Auxiliary operands of a product that applies these functions to A and B, and nothing to C and D."""
    arguments = [_arguments(contraction, at) if function is not None else () for at, function in enumerate(functions)]
    taken = transfer_aux(contraction, *arguments)
    fields = {
        "a_fn": functions[A], "b_fn": functions[B], "c_fn": None, "epilogue": None, "aux": taken.aux,
        "a_args": taken.fn, "b_args": taken.c_fn, "c_args": (), "epilogue_args": (),
    }  # fmt: skip
    return ProductAux(taken.places, fields)


def aux_strides(mode: Mode, places: Positions) -> tuple[int, ...]:
    """Strides of a mode in some of the auxiliary operands."""
    return tuple(mode.strides.aux[at] for at in places)


def moves(contraction: Contraction, operand: int, mode: Mode) -> bool:
    """Whether an operand's values change along a mode: as it lies, or by its function's auxiliary operands."""
    return bool(mode.strides[operand]) or any(aux_strides(mode, _arguments(contraction, operand)))


def _arguments(contraction: Contraction, operand: int) -> Positions:
    return (contraction.a_args, contraction.b_args)[operand]


class TensorView(NamedTuple):
    """A tensor of the product: as it lies, or a workspace. What is in real elements counts parts."""

    layout: Layout  # of complex elements where it holds such, also where each is a 2x2 real matrix
    strides: tuple[int, ...]  # of every mode of the contraction, in elements of the layout
    transfer: Transfer | None = None  # what writes the workspace, or writes D from it
    fn: Pointwise | None = None  # what the product still has to apply
    conjugate: bool = False  # and whether it has to conjugate
    k_pair: int = 0  # of 2x2 matrices, in real elements: stride of the pair that is summed over
    d_pair: int = 0  # and of the pair that is D's
    a_pair: int = 0  # of a result of products of parts, in real elements: stride of A's (re, im)
    b_pair: int = 0  # and of B's
    planes: int = 0  # stride of the two planes re and im
    three_planes: int = 0  # stride of the three planes re, im and re + im, or of their products

    @property
    def factor(self) -> int:
        """Real numbers in one element."""
        return 2 if self.layout.dtype.is_complex else 1


def values(contraction: Contraction, operand: int) -> torch.dtype:
    """The type in which an operand's values are multiplied: real ones stay real."""
    layout, function = _source(contraction, operand)
    value = value_type(layout.dtype, contraction.arithmetic.product)
    result = function.result if function is not None else value
    assert isinstance(result, torch.dtype)
    return value if result.is_complex else value.to_real()


def both_complex(contraction: Contraction) -> bool:
    return all(values(contraction, operand).is_complex for operand in (0, 1))


def as_stored(contraction: Contraction, operand: int) -> TensorView | None:
    """An operand as it lies; None where a function that complex values enter is to be applied first."""
    layout, function = _source(contraction, operand)
    if function is not None and function.is_complex:
        return None
    conjugate = (contraction.conjugate_a, contraction.conjugate_b)[operand] and layout.dtype.is_complex
    return TensorView(layout, strides_of(contraction, operand), fn=function, conjugate=conjugate)


def packed(contraction: Contraction, operand: int, k: Sequence[Mode], along_k: bool) -> TensorView | None:
    """An operand as ([batch,] outer, k) or ([batch,] k, outer), its function applied.

    None where nothing would change, and for a real operand whose function has no complex value in it.
    """
    layout, function = _source(contraction, operand)
    if not layout.dtype.is_complex and as_stored(contraction, operand) is not None:
        return None
    value = values(contraction, operand)
    view, transfer, _ = _packed(contraction, operand, k, along_k, value)
    same = view.strides == strides_of(contraction, operand) and layout.dtype == value
    return None if same and function is None and not transfer.permutation.conjugate else view


def real_2x2(
    contraction: Contraction, operand: int, k: Sequence[Mode], along_k: bool, other_conjugated: bool
) -> TensorView:
    """A complex operand with each element as the 2x2 real matrix that multiplies a pair by it.

    `along_k`: rows run along k and that matrix's columns, else along the operand's own side and its rows.
    `other_conjugated`: the other operand is to be conjugated, which changes signs here.
    """
    view, plain, length = _packed(contraction, operand, k, along_k, values(contraction, operand), rows=2)
    transfer = replace(
        plain, form="along_k" if along_k else "across_k", part_stride=length, other_conjugated=other_conjugated,
        permutation=replace(plain.permutation, scaled=True),
    )  # fmt: skip
    k_pair, d_pair = (1, 2 * length) if along_k else (2 * length, 1)
    return view._replace(transfer=transfer, k_pair=k_pair, d_pair=d_pair)


def planar(contraction: Contraction, operand: int, k: Sequence[Mode]) -> TensorView:
    """A complex operand as real rows along k, two for each index of the others: of re and of im."""
    value = values(contraction, operand).to_real()
    view, transfer, length = _packed(contraction, operand, k, True, value, rows=2)
    return view._replace(transfer=replace(transfer, form="planar", part_stride=length), planes=length)


def three_m(contraction: Contraction, operand: int, k: Sequence[Mode], along_k: bool) -> TensorView:
    """A complex operand as three real ones, ([batch,] outer, k) or ([batch,] k, outer): re, im and re + im."""
    value = values(contraction, operand).to_real()
    view, transfer, _ = _packed(contraction, operand, k, along_k, value, planes=3)
    size = transfer.size // 3
    return view._replace(transfer=replace(transfer, form="three_m", part_stride=size), three_planes=size)


def strides_of(contraction: Contraction, tensor: int) -> tuple[int, ...]:
    return tuple(mode.strides[tensor] for mode in contraction.modes)


def workspace_strides(contraction: Contraction, steps: dict[Mode, int]) -> tuple[int, ...]:
    """Strides of every mode of a contraction in a workspace, where it has some."""
    return tuple(steps.get(mode, 0) for mode in contraction.modes)


def _workspace(
    row: Sequence[Mode], others: Sequence[Mode], dtype: torch.dtype, rows: int = 1, padded: bool = True
) -> tuple[dict[Mode, int], int, int]:
    """Strides in a workspace of `rows` rows for each index of the others; a row's length; elements in all."""
    words = max(VECTOR // dtype.itemsize, 1) if padded else 1
    length = max(-(-index_count(row) // words), 1) * words  # an empty row has its place too
    return placed(row, others, rows * length), length, rows * length * index_count(others)


def _source(contraction: Contraction, operand: int) -> tuple[Layout, Pointwise | None]:
    if operand == A:
        return contraction.a, contraction.a_fn
    return contraction.b, contraction.b_fn


def _packed(
    contraction: Contraction, operand: int, k: Sequence[Mode], along_k: bool, value: torch.dtype, rows: int = 1,
    planes: int = 1,
) -> tuple[TensorView, Transfer, int]:  # fmt: skip
    """A workspace of `rows` rows for each index that they do not run along, in so many planes; the step that writes an
    operand into the first of these, element by element; a row's length."""
    outer = by_stride(contraction.of_role(Role.M if operand == A else Role.N), D)
    batch = tuple(reversed(contraction.of_role(Role.BATCH)))
    row, others = (k, outer) if along_k else (outer, k)
    own = [
        [mode for mode in group if moves(contraction, operand, mode)] for group in (row, (*others, *batch))
    ]
    steps, length, size = _workspace(own[0], own[1], value, rows)
    layout, function = _source(contraction, operand)
    aux_args = transfer_aux(contraction, _arguments(contraction, operand))
    strides = [
        (mode, Strides(mode.strides[operand], 0, 0, step, *aux_strides(mode, aux_args.places)))
        for mode, step in steps.items()
    ]
    stored = value_type(layout.dtype, contraction.arithmetic.product)
    permutation = moving(
        strides, layout, Layout.contiguous((planes * size,), value),
        function.dtypes[0] if function is not None else stored, fn=function,
        conjugate=(contraction.conjugate_a, contraction.conjugate_b)[operand],
        text="·".join(mode.name for mode in sorted(steps, key=lambda mode: -steps[mode])),
    )  # fmt: skip
    transfer = Transfer(permutation, size=planes * size, aux_args=aux_args)
    return TensorView(permutation.d, workspace_strides(contraction, steps), transfer), transfer, length


# Names of the modes of extent 2, and of the one of extent 3.
_PAIR = "re·im"
_PAIR_OF_A, _PAIR_OF_B, _PAIR_OF_D = "re·im of A", "re·im of B", "re·im of D"
_THREE = "re·im·sum"


def complex_product(contraction: Contraction, pair: Sequence[TensorView], result: TensorView | None) -> Contraction:
    """The product of these operands that is left of a contraction, into `result` or into D itself."""
    arithmetic = contraction.arithmetic
    return canonical(
        replace(
            contraction, **_described(contraction, pair, result, (1, 1, 1, 1)),
            arithmetic=Arithmetic(arithmetic.product, arithmetic.accumulate, arithmetic.precision),
            conjugate_a=pair[0].conjugate, conjugate_b=pair[1].conjugate,
        )
    )  # fmt: skip


def real_product(contraction: Contraction, pair: Sequence[TensorView], result: TensorView | None) -> Contraction:
    """The product that is left, of real numbers: (re, im) are modes."""
    a, b = pair
    c = contraction.c if result is None else None
    d = result.layout if result is not None else contraction.d
    c_parts, d_parts = (2 if layout is not None and layout.dtype.is_complex else 1 for layout in (c, d))
    described = _described(contraction, pair, result, (a.factor, b.factor, c_parts, d_parts))
    none = (0,) * len(described["aux"])
    further = [
        mode._replace(strides=Strides(*mode.strides, *none)) for mode in _modes_of_parts(a, b, result, c is not None)
    ]
    described |= {name: _as_real(described[name]) for name in "abcd" if described[name] is not None}
    described["modes"] += tuple(further)
    return canonical(
        replace(
            contraction, **described, arithmetic=real_arithmetic(contraction.arithmetic),
            conjugate_a=False, conjugate_b=False,
        )
    )  # fmt: skip


def _described(
    contraction: Contraction, pair: Sequence[TensorView], result: TensorView | None, factors: tuple[int, int, int, int]
) -> dict[str, Any]:
    """Tensors, modes and functions of the product; strides of A, B, C and D multiplied by so much."""
    a, b = pair
    left = of_product(contraction, (a.fn, b.fn))
    d_strides = result.strides if result is not None else strides_of(contraction, D)
    c_strides = (0,) * len(d_strides) if result is not None or contraction.c is None else strides_of(contraction, C)
    modes = [
        mode._replace(
            strides=Strides(
                *(factor * stride for factor, stride in zip(factors, own, strict=True)),
                *aux_strides(mode, left.places),
            )
        )
        for mode, *own in zip(contraction.modes, a.strides, b.strides, c_strides, d_strides, strict=True)
    ]
    return {
        "modes": tuple(modes), "a": a.layout, "b": b.layout, "c": None if result is not None else contraction.c,
        "d": result.layout if result is not None else contraction.d, **left.fields,
    }  # fmt: skip


def _modes_of_parts(a: TensorView, b: TensorView, result: TensorView | None, added: bool) -> list[Mode]:
    """The modes of extent 2 or 3 that the parts of complex elements are in a real product."""
    in_c = int(added)
    if result is not None and result.three_planes:
        return [Mode((_THREE,), 3, Role.BATCH, Strides(a.three_planes, b.three_planes, 0, result.three_planes))]
    if result is not None and result.a_pair:
        return [
            Mode((_PAIR_OF_A,), 2, Role.M, Strides(a.planes or 1, 0, 0, result.a_pair)),
            Mode((_PAIR_OF_B,), 2, Role.N, Strides(0, b.planes or 1, 0, result.b_pair)),
        ]
    if a.d_pair or b.d_pair:
        role = Role.M if a.d_pair else Role.N
        return [
            Mode((_PAIR,), 2, Role.K, Strides(a.k_pair or 1, b.k_pair or 1, 0, 0)),
            Mode((_PAIR_OF_D,), 2, role, Strides(a.d_pair, b.d_pair, in_c, 1)),
        ]
    if a.factor != b.factor:
        role = Role.M if a.factor == 2 else Role.N
        return [Mode((_PAIR,), 2, role, Strides(a.factor - 1, b.factor - 1, in_c, 1))]
    return []


def _as_real(layout: Layout) -> Layout:
    """A complex tensor as the real one that it is in memory."""
    if not layout.dtype.is_complex:
        return layout
    strides = (*(2 * stride for stride in layout.strides), 1)
    return Layout((*layout.shape, 2), strides, layout.dtype.to_real(), layout.alignment)


_OUTER = (Role.M, Role.N)  # of A and of B


def result_matrix(contraction: Contraction, pair: Sequence[TensorView]) -> TensorView:
    """A workspace for the product, a matrix for each batch, and the transfer that writes D from it.

    Of operands in three planes it holds the three products.
    """
    total = contraction.arithmetic.accumulate
    if not any(view.layout.dtype.is_complex for view in pair):
        total = total.to_real()
    steps, _, size = _workspace(*_rows(contraction, pair, _inner(contraction, pair)), total, padded=False)
    planes = size if any(view.three_planes for view in pair) else 0
    layout = Layout.contiguous((max(size, 3 * planes),), total)
    compute = contraction.arithmetic.accumulate if planes else layout.dtype
    transfer = replace(_to_d(contraction, steps, layout, compute), three_m_stride=planes)
    return TensorView(layout, workspace_strides(contraction, steps), transfer, three_planes=planes)


def result_of_parts(contraction: Contraction, pair: Sequence[TensorView]) -> TensorView:
    """The result of products of both parts of A with both parts of B: two rows for each, added on the way to D."""
    inner = _inner(contraction, pair)
    total = contraction.arithmetic.accumulate
    steps, length, size = _workspace(*_rows(contraction, pair, inner), total, rows=2, padded=False)
    layout = Layout.contiguous((size,), total)
    plain = _to_d(contraction, steps, layout, total)
    transfer = replace(
        plain, permutation=replace(plain.permutation, conjugate=pair[inner].conjugate), planar_stride=length,
        other_conjugated=pair[1 - inner].conjugate,
    )  # fmt: skip
    a_pair, b_pair = (1, 2 * length) if inner == A else (2 * length, 1)
    return TensorView(layout, workspace_strides(contraction, steps), transfer, a_pair=a_pair, b_pair=b_pair)


def _inner(contraction: Contraction, pair: Sequence[TensorView]) -> int:
    """The operand whose side rows run along: that which has D's (re, im), else that of D's innermost mode."""
    if any(view.d_pair for view in pair):
        return A if pair[A].d_pair else B
    if pair[A].layout.dtype.is_complex != pair[B].layout.dtype.is_complex:
        return A if pair[A].layout.dtype.is_complex else B
    nearest = by_stride(contraction.of_role(*_OUTER), D)[:1]
    return A if nearest and nearest[0].role is Role.M else B


def _rows(contraction: Contraction, pair: Sequence[TensorView], inner: int) -> tuple[list[Mode], list[Mode]]:
    """The modes that rows run along, and the others, each innermost first: in D's order where the operand is packed,
    else in its own."""
    order: list[list[Mode]] = []
    for operand in (inner, 1 - inner):
        own, view = contraction.of_role(_OUTER[operand]), pair[operand]
        stride = dict(zip(contraction.modes, view.strides, strict=True))
        ordered = by_stride(own, D) if view.transfer else sorted(own, key=lambda mode: stride[mode] or math.inf)
        order.append(list(ordered))
    return order[0], [*order[1], *by_stride(contraction.of_role(Role.BATCH), D)]


def _to_d(contraction: Contraction, steps: dict[Mode, int], layout: Layout, compute: torch.dtype) -> Transfer:
    """The step that writes D from a workspace, C, C's function and the epilogue applied."""
    c = contraction.c
    aux_args = transfer_aux(contraction, (), contraction.c_args, contraction.epilogue_args, contraction.outputs)
    strides = []
    for mode, step in sorted(steps.items(), key=lambda each: -each[1]):
        aux = aux_strides(mode, aux_args.places)
        in_c = mode.strides.c if c is not None else 0
        strides.append((mode, Strides(step, 0, in_c, mode.strides.d, *aux)))
    permutation = moving(strides, layout, contraction.d, compute, c=c, scaled=True, text="D")
    return Transfer(permutation, c_fn=contraction.c_fn, epilogue=contraction.epilogue, aux_args=aux_args)
