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
from weft.gpu.complex.interleaved import Form, Transfer, TransferAux
from weft.spec import Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.dtypes import value_type

_OUTER = (Role.M, Role.N)  # of A and of B
Positions: TypeAlias = tuple[int, ...]  # in the auxiliary operands of a contraction


def transfer_aux(contraction: Contraction, *arguments: Positions) -> TransferAux:
    """Auxiliary operands of a step whose functions, of X, of C and of the sum, take these; and results after D."""
    places = tuple(sorted({at for each in arguments for at in each}))
    within = (tuple(places.index(at) for at in each) for each in arguments)
    return TransferAux(tuple(contraction.aux[at] for at in places), places, *within)


def aux_strides(mode: Mode, places: Positions) -> tuple[int, ...]:
    """Strides of a mode in some of the auxiliary operands."""
    return tuple(mode.strides.aux[at] for at in places)


class TensorView(NamedTuple):
    """A tensor of the product: as it lies, or a workspace. What is in real elements counts parts."""

    layout: Layout  # of complex elements where it holds such, also where each is a 2x2 real matrix
    strides: tuple[int, ...]  # of every mode of the contraction, in elements of the layout
    transfer: Transfer | None = None  # what writes the workspace, or writes D from it
    fn: Pointwise | None = None  # what the product still has to apply
    conjugate: bool = False  # and whether it has to conjugate
    # In real elements, of 2x2 matrices: strides of the pair that is summed over, and of the pair that is D's; of a
    # result of products of parts: of A's (re, im), and of B's.
    pairs: tuple[int, int] = (0, 0)
    planes: int = 0  # stride of the two planes re and im, of the three re, im and re + im, or of their products

    @property
    def factor(self) -> int:
        """Real numbers in one element."""
        return 2 if self.layout.dtype.is_complex else 1


class _Operand(NamedTuple):
    """A or B of a contraction, and what is applied to it."""

    layout: Layout
    fn: Pointwise | None
    conjugate: bool
    arguments: Positions  # of the function


def _operand(contraction: Contraction, operand: int) -> _Operand:
    if operand == A:
        return _Operand(contraction.a, contraction.a_fn, contraction.conjugate_a, contraction.a_args)
    return _Operand(contraction.b, contraction.b_fn, contraction.conjugate_b, contraction.b_args)


def values(contraction: Contraction, operand: int) -> torch.dtype:
    """The type in which an operand's values are multiplied: real ones stay real."""
    layout, function, *_ = _operand(contraction, operand)
    value = value_type(layout.dtype, contraction.arithmetic.product)
    result = function.result if function is not None else value
    assert isinstance(result, torch.dtype)
    return value if result.is_complex else value.to_real()


def both_complex(contraction: Contraction) -> bool:
    return all(values(contraction, operand).is_complex for operand in (0, 1))


def as_stored(contraction: Contraction, operand: int) -> TensorView | None:
    """An operand as it lies; None where a function that complex values enter is to be applied first."""
    layout, function, conjugate, _ = _operand(contraction, operand)
    if function is not None and function.is_complex:
        return None
    strides = strides_of(contraction, operand)
    return TensorView(layout, strides, fn=function, conjugate=conjugate and layout.dtype.is_complex)


def packed(contraction: Contraction, operand: int, k: Sequence[Mode], along_k: bool) -> TensorView | None:
    """An operand as ([batch,] outer, k) or ([batch,] k, outer), its function applied.

    None where nothing would change, and for a real operand whose function has no complex value in it.
    """
    layout, function, *_ = _operand(contraction, operand)
    if not layout.dtype.is_complex and as_stored(contraction, operand) is not None:
        return None
    view = in_form(contraction, operand, k, "plain", along_k=along_k)
    same = view.strides == strides_of(contraction, operand) and layout.dtype == view.layout.dtype
    return None if same and function is None and not view.transfer.conjugate else view  # type: ignore[union-attr]


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


def in_form(
    contraction: Contraction, operand: int, k: Sequence[Mode], form: Form, other_conjugated: bool = False,
    along_k: bool = True,
) -> TensorView:  # fmt: skip
    """An operand in a workspace of rows along k, or along its own side, in one of the forms that `interleaved` writes.

    along_k, across_k: two rows of 2x2 matrices for each index that rows do not run along. planar: two real rows, of re
    and of im. three_m: three real matrices. `other_conjugated`: the other operand is to be conjugated, which changes
    signs here.
    """
    layout, function, conjugate, arguments = _operand(contraction, operand)
    outer = by_stride(contraction.of_role(_OUTER[operand]), D)
    batch = tuple(reversed(contraction.of_role(Role.BATCH)))
    row, others = (k, outer) if along_k and form != "across_k" else (outer, k)
    own = [
        [mode for mode in group if mode.strides[operand] or any(aux_strides(mode, arguments))]
        for group in (row, (*others, *batch))
    ]
    value = values(contraction, operand)
    value = value.to_real() if form in ("planar", "three_m") else value
    of_matrices, planes = form in ("along_k", "across_k"), 3 if form == "three_m" else 1
    steps, length, size = _workspace(own[0], own[1], value, 2 if of_matrices or form == "planar" else 1)
    aux_args = transfer_aux(contraction, arguments)
    strides = [
        (mode, Strides(mode.strides[operand], 0, 0, step, *aux_strides(mode, aux_args.places)))
        for mode, step in steps.items()
    ]
    stored = value_type(layout.dtype, contraction.arithmetic.product)
    moved = moving(
        strides, layout, Layout.contiguous((planes * size,), value),
        function.dtypes[0] if function is not None else stored, fn=function, conjugate=conjugate, scaled=of_matrices,
        text="·".join(mode.name for mode in sorted(steps, key=lambda mode: -steps[mode])),
    )  # fmt: skip
    apart = {"plain": 0, "three_m": size}.get(form, length)
    transfer = replace(
        Transfer.of(moved), form=form, part_stride=apart, other_conjugated=other_conjugated, aux_args=aux_args
    )
    pairs = (0, 0) if not of_matrices else (1, 2 * length) if form == "along_k" else (2 * length, 1)
    view = TensorView(moved.d, workspace_strides(contraction, steps), transfer, pairs=pairs)
    return view if of_matrices else view._replace(planes=apart)


# Names of the modes of extent 2, and of the one of extent 3.
_PAIR = "re·im"
_PAIR_OF_A, _PAIR_OF_B, _PAIR_OF_D = "re·im of A", "re·im of B", "re·im of D"
_THREE = "re·im·sum"


def product(
    contraction: Contraction, pair: tuple[TensorView, TensorView], result: TensorView | None, of_reals: bool
) -> tuple[Contraction, Positions]:
    """The product of these operands that is left of a contraction, into `result` or into D itself; and which auxiliary
    operands it takes. `of_reals`: a product of real numbers, (re, im) are modes."""
    arithmetic = replace(contraction.arithmetic, three=False)
    arguments = [_operand(contraction, at).arguments if view.fn is not None else () for at, view in enumerate(pair)]
    taken = transfer_aux(contraction, *arguments)
    c, d, c_strides = contraction.c, contraction.d, strides_of(contraction, C)
    if result is not None:
        c, d, c_strides = None, result.layout, (0,) * len(c_strides)
    layouts, counts = [pair[A].layout, pair[B].layout, c, d], [1] * 4
    if of_reals:
        counts = [2 if layout is not None and layout.dtype.is_complex else 1 for layout in layouts]
        layouts = [layout and _as_real(layout) for layout in layouts]
        arithmetic = real_arithmetic(arithmetic)
    d_strides = result.strides if result is not None else strides_of(contraction, D)
    modes = [
        mode._replace(strides=Strides(
            *(count * stride for count, stride in zip(counts, own, strict=True)), *aux_strides(mode, taken.places)
        ))
        for mode, *own in zip(contraction.modes, pair[A].strides, pair[B].strides, c_strides, d_strides, strict=True)
    ]  # fmt: skip
    if of_reals:
        none = (0,) * len(taken.aux)
        further = _modes_of_parts(*pair, result, c is not None)
        modes += [mode._replace(strides=Strides(*mode.strides, *none)) for mode in further]
    tensors: dict[str, Any] = dict(zip("abcd", layouts, strict=True))
    left = replace(
        contraction, modes=tuple(modes), arithmetic=arithmetic, **tensors,
        a_fn=pair[A].fn, b_fn=pair[B].fn, c_fn=None, epilogue=None, aux=taken.aux, a_args=taken.fn, b_args=taken.c_fn,
        c_args=(), epilogue_args=(), conjugate_a=not of_reals and pair[A].conjugate,
        conjugate_b=not of_reals and pair[B].conjugate,
    )  # fmt: skip
    return canonical(left), taken.places


def _modes_of_parts(a: TensorView, b: TensorView, result: TensorView | None, added: bool) -> list[Mode]:
    """The modes of extent 2 or 3 that the parts of complex elements are in a real product."""
    in_c = int(added)
    if result is not None and result.planes:
        return [Mode((_THREE,), 3, Role.BATCH, Strides(a.planes, b.planes, 0, result.planes))]
    if result is not None and any(result.pairs):
        return [
            Mode((_PAIR_OF_A,), 2, Role.M, Strides(a.planes or 1, 0, 0, result.pairs[A])),
            Mode((_PAIR_OF_B,), 2, Role.N, Strides(0, b.planes or 1, 0, result.pairs[B])),
        ]
    if any(a.pairs) or any(b.pairs):
        (a_k, a_d), (b_k, b_d) = a.pairs, b.pairs
        return [
            Mode((_PAIR,), 2, Role.K, Strides(a_k or 1, b_k or 1, 0, 0)),
            Mode((_PAIR_OF_D,), 2, Role.M if a_d else Role.N, Strides(a_d, b_d, in_c, 1)),
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


def result_matrix(contraction: Contraction, pair: Sequence[TensorView]) -> TensorView:
    """A workspace for the product, a matrix for each batch, and the transfer that writes D from it.

    Of operands in three planes it holds the three products.
    """
    total = contraction.arithmetic.accumulate
    if not any(view.layout.dtype.is_complex for view in pair):
        total = total.to_real()
    steps, _, size = _workspace(*_rows(contraction, pair, _inner(contraction, pair)), total, padded=False)
    planes = size if any(view.planes for view in pair) else 0
    layout = Layout.contiguous((max(size, 3 * planes),), total)
    compute = contraction.arithmetic.accumulate if planes else layout.dtype
    transfer = replace(_to_d(contraction, steps, layout, compute), three_m_stride=planes)
    return TensorView(layout, workspace_strides(contraction, steps), transfer, planes=planes)


def result_of_parts(contraction: Contraction, pair: Sequence[TensorView]) -> TensorView:
    """The result of products of both parts of A with both parts of B: two rows for each, added on the way to D."""
    inner = _inner(contraction, pair)
    total = contraction.arithmetic.accumulate
    steps, length, size = _workspace(*_rows(contraction, pair, inner), total, rows=2, padded=False)
    layout = Layout.contiguous((size,), total)
    transfer = replace(
        _to_d(contraction, steps, layout, total), conjugate=pair[inner].conjugate, planar_stride=length,
        other_conjugated=pair[1 - inner].conjugate,
    )  # fmt: skip
    pairs = (1, 2 * length) if inner == A else (2 * length, 1)
    return TensorView(layout, workspace_strides(contraction, steps), transfer, pairs=pairs)


def _inner(contraction: Contraction, pair: Sequence[TensorView]) -> int:
    """The operand whose side rows run along: that which has D's (re, im), else that of D's innermost mode."""
    if any(any(view.pairs) for view in pair):
        return A if any(pair[A].pairs) else B
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
    moved = moving(strides, layout, contraction.d, compute, c=c, scaled=True, text="D")
    return replace(Transfer.of(moved), c_fn=contraction.c_fn, epilogue=contraction.epilogue, aux_args=aux_args)
