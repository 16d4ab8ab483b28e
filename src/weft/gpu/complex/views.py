"""How the tensors of a complex contraction stand in the product that is left to be made: see `real_forms`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from weft.fn import Pointwise
from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.tiling import by_stride
from weft.gpu.complex import aux_operands
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.canonical import merged
from weft.spec.dtypes import REAL_OF, value_type
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.gpu.complex.pairs import Task

A, B, C, D = range(4)

_PAIR = "re·im"  # names of the modes of extent 2
_PAIR_OF_A, _PAIR_OF_B, _PAIR_OF_D = "re·im of A", "re·im of B", "re·im of D"
_THIRDS = "re·im·sum"  # name of the mode of extent 3


class Seen(NamedTuple):
    """A tensor of the product: as it lies, or a workspace."""

    layout: Layout  # of complex elements where it holds such, also where each is expanded to two rows
    strides: tuple[int, ...]  # of every mode of the contraction, in elements of the layout
    task: Task | None = None  # what writes the workspace, or writes D from it
    fn: Pointwise | None = None  # what the product still has to apply
    conjugate: bool = False  # and whether it has to conjugate
    rows: int = 0  # of an expanded operand, in real elements: stride of the pair that it sums over
    columns: int = 0  # and of the pair that is D's
    pairs: tuple[int, int] = (0, 0)  # of products of parts, in real elements: strides of A's pair and of B's
    halves: int = 0  # stride of the real parts re and im, each a row of its own
    thirds: int = 0  # stride of the three real parts re, im and re + im, or of their products

    @property
    def factor(self) -> int:
        """Real numbers in one element."""
        return 2 if self.layout.dtype.is_complex else 1


def values(contraction: Contraction, operand: int) -> torch.dtype:
    """The type in which an operand's values are multiplied: real ones stay real."""
    layout, function = _source(contraction, operand)
    product = contraction.arithmetic.product
    value = value_type(layout.dtype, product)
    result = function.result if function is not None else value
    assert isinstance(result, torch.dtype)
    return value if result.is_complex or not value.is_complex else REAL_OF[value]


def as_it_lies(contraction: Contraction, operand: int) -> Seen | None:
    """None where a function that complex values enter is to be applied first."""
    layout, function = _source(contraction, operand)
    if function is not None and function.is_complex:
        return None
    conjugate = (contraction.conjugate_a, contraction.conjugate_b)[operand] and layout.dtype.is_complex
    return Seen(layout, _strides(contraction, operand), fn=function, conjugate=conjugate)


def staged(contraction: Contraction, operand: int, sums: Sequence[Mode], along_k: bool) -> Seen | None:
    """An operand as ([batch,] outer, k) or ([batch,] k, outer), its function applied.

    None where nothing would change, and for a real operand whose function has no complex value in it.
    """
    layout, function = _source(contraction, operand)
    if not layout.dtype.is_complex and as_it_lies(contraction, operand) is not None:
        return None
    row, others = _row_and_others(contraction, operand, sums, along_k)
    value = values(contraction, operand)
    steps, _, size = _placed(row, others, value, rows=1)
    task = _operand_task(contraction, operand, steps, value, size)
    same = all(mode.strides[operand] == steps[mode] for mode in steps) and layout.dtype == value
    if same and function is None and not task.permutation.conjugate:
        return None
    return Seen(task.permutation.d, tuple(steps.get(mode, 0) for mode in contraction.modes), task)


def expanded(contraction: Contraction, operand: int, sums: Sequence[Mode], along_k: bool, negate: bool) -> Seen:
    """A complex operand with each element as the matrix that multiplies a pair by it.

    `along_k`: rows run along k and that matrix's rows, else along the operand's own side and its columns. `negate`: the
    other operand is to be conjugated.
    """
    row, others = _row_and_others(contraction, operand, sums, along_k)
    value = values(contraction, operand)
    steps, jump, size = _placed(row, others, value, rows=2)
    plain = _operand_task(contraction, operand, steps, value, size)
    task = replace(
        plain, form="along" if along_k else "across", jump=jump, negate=negate,
        permutation=replace(plain.permutation, scaled=True),
    )  # fmt: skip
    strides = tuple(steps.get(mode, 0) for mode in contraction.modes)
    rows, columns = (1, 2 * jump) if along_k else (2 * jump, 1)
    return Seen(task.permutation.d, strides, task, rows=rows, columns=columns)


def in_halves(contraction: Contraction, operand: int, sums: Sequence[Mode]) -> Seen:
    """A complex operand as real rows along k, two for each index of the others: of re and of im."""
    row, others = _row_and_others(contraction, operand, sums, along_k=True)
    value = REAL_OF[values(contraction, operand)]
    steps, jump, size = _placed(row, others, value, rows=2)
    task = replace(_operand_task(contraction, operand, steps, value, size), form="halves", jump=jump)
    return Seen(task.permutation.d, tuple(steps.get(mode, 0) for mode in contraction.modes), task, halves=jump)


def in_thirds(contraction: Contraction, operand: int, sums: Sequence[Mode], along_k: bool) -> Seen:
    """A complex operand as three real ones, ([batch,] outer, k) or ([batch,] k, outer): re, im and re + im."""
    row, others = _row_and_others(contraction, operand, sums, along_k)
    value = REAL_OF[values(contraction, operand)]
    steps, _, size = _placed(row, others, value, rows=1)
    plain = _operand_task(contraction, operand, steps, value, 3 * size)
    return Seen(
        plain.permutation.d, tuple(steps.get(mode, 0) for mode in contraction.modes),
        replace(plain, form="thirds", jump=size), thirds=size,
    )  # fmt: skip


def result_matrix(contraction: Contraction, pair: Sequence[Seen], folded: bool = False, paired: bool = False) -> Seen:
    """A workspace for the product, a matrix for each batch, and the task that writes D from it.

    Its rows run along the side that has D's pair, else along the one that D runs along. `folded`: it holds the products
    of both parts of A with both parts of B, two rows for each. Of operands in thirds it holds the three products.
    """
    from weft.gpu.complex.pairs import Task

    total = contraction.arithmetic.accumulate
    complex_values = [view.layout.dtype.is_complex for view in pair]
    if not any(complex_values) and not folded:
        total = REAL_OF.get(total, total)
    roles = [Role.M, Role.N]
    if any(view.columns for view in pair):
        inner = A if pair[A].columns else B
    elif complex_values[A] != complex_values[B]:
        inner = A if complex_values[A] else B
    else:
        nearest = by_stride(contraction.of_role(*roles), D)[:1]
        inner = A if nearest and nearest[0].role is Role.M else B
    order: list[list[Mode]] = []
    for tiled_dim in (inner, 1 - inner):
        own = contraction.of_role(roles[tiled_dim])
        lies = dict(zip(contraction.modes, pair[tiled_dim].strides, strict=True))
        order.append(
            list(by_stride(own, D) if pair[tiled_dim].task else sorted(own, key=lambda mode: lies[mode] or math.inf))
        )
    order[1] += by_stride(contraction.of_role(Role.BATCH), D)
    steps, length, size = _placed(order[0], order[1], total, rows=2 if folded else 1, padded=False)
    c = contraction.c
    aux_args = aux_operands.of_result(contraction)
    modes = [
        Mode(
            mode.labels,
            mode.extent,
            Role.M,
            Strides(
                step, 0, int(c is not None) * mode.strides.c, mode.strides.d,
                *aux_operands.steps(mode, aux_args.places),
            ),
        )
        for mode, step in steps.items()
    ]
    modes.sort(key=lambda mode: (-mode.strides.d, -mode.strides.a))
    thirds = size if any(view.thirds for view in pair) else 0
    layout = Layout.contiguous((max(size, 3 * thirds),), total)
    compute = contraction.arithmetic.accumulate if thirds else total
    permutation = Permutation(
        modes=tuple(merged(modes)), x=layout, c=c, d=contraction.d, compute=compute, scaled=True, text="D"
    )
    task = Task(permutation, thirds=thirds, c_fn=contraction.c_fn, epilogue=contraction.epilogue, aux_args=aux_args)
    pairs = (0, 0)
    if folded:
        permutation = replace(permutation, conjugate=pair[inner].conjugate)
        task = replace(task, permutation=permutation, fold=length, negate=pair[1 - inner].conjugate)
        pairs = (1, 2 * length) if inner == A else (2 * length, 1)
    return Seen(layout, tuple(steps.get(mode, 0) for mode in contraction.modes), task, pairs=pairs, thirds=thirds)


def product_of(contraction: Contraction, pair: Sequence[Seen], result: Seen | None) -> Contraction:
    """What is left of a contraction with these operands, into `result` or into D itself."""
    a, b = pair
    left = aux_operands.of_product(contraction, (a.fn, b.fn))
    modes = [
        mode._replace(
            strides=Strides(x, y, 0 if result else mode.strides.c, to, *aux_operands.steps(mode, left.places))
        )
        for mode, x, y, to in zip(contraction.modes, a.strides, b.strides, _d_strides(contraction, result), strict=True)
    ]
    arithmetic = contraction.arithmetic
    return canonical(
        replace(
            contraction, modes=tuple(modes), a=a.layout, b=b.layout,
            arithmetic=Arithmetic(arithmetic.product, arithmetic.accumulate, arithmetic.precision),
            c=None if result else contraction.c, d=result.layout if result else contraction.d,
            conjugate_a=a.conjugate, conjugate_b=b.conjugate, **left.fields,
        )
    )  # fmt: skip


def real_product(contraction: Contraction, pair: Sequence[Seen], result: Seen | None) -> Contraction:
    """The same of real numbers: pairs are modes."""
    a, b = pair
    c = contraction.c if result is None else None
    d = result.layout if result else contraction.d
    wide_c, wide_d = (2 if layout is not None and layout.dtype.is_complex else 1 for layout in (c, d))
    left = aux_operands.of_product(contraction, (a.fn, b.fn))
    modes = [
        mode._replace(
            strides=Strides(
                a.factor * x, b.factor * y, wide_c * mode.strides.c if c else 0, wide_d * to,
                *aux_operands.steps(mode, left.places),
            ),
        )
        for mode, x, y, to in zip(contraction.modes, a.strides, b.strides, _d_strides(contraction, result), strict=True)
    ]  # fmt: skip
    in_c, none = int(c is not None), (0,) * len(left.places)
    if result is not None and result.thirds:
        modes.append(Mode((_THIRDS,), 3, Role.BATCH, Strides(a.thirds, b.thirds, 0, result.thirds, *none)))
    elif result is not None and any(result.pairs):
        modes.append(Mode((_PAIR_OF_A,), 2, Role.M, Strides(a.halves or 1, 0, 0, result.pairs[A], *none)))
        modes.append(Mode((_PAIR_OF_B,), 2, Role.N, Strides(0, b.halves or 1, 0, result.pairs[B], *none)))
    elif a.columns or b.columns:
        role = Role.M if a.columns else Role.N
        modes.append(Mode((_PAIR,), 2, Role.K, Strides(a.rows or 1, b.rows or 1, 0, 0, *none)))
        modes.append(Mode((_PAIR_OF_D,), 2, role, Strides(a.columns, b.columns, in_c, 1, *none)))
    elif a.factor != b.factor:
        role = Role.M if a.factor == 2 else Role.N
        modes.append(Mode((_PAIR,), 2, role, Strides(a.factor - 1, b.factor - 1, in_c, 1, *none)))
    arithmetic = contraction.arithmetic
    return canonical(
        replace(
            contraction, modes=tuple(modes), a=_as_real(a.layout), b=_as_real(b.layout),
            c=_as_real(c) if c is not None else None, d=_as_real(d),
            arithmetic=real_arithmetic(arithmetic), conjugate_a=False, conjugate_b=False, **left.fields,
        )
    )  # fmt: skip


def real_arithmetic(arithmetic: Arithmetic) -> Arithmetic:
    """That of the real products that complex ones are made of."""
    product, total = (REAL_OF.get(dtype, dtype) for dtype in (arithmetic.product, arithmetic.accumulate))
    return Arithmetic(product, total, arithmetic.precision)


def _source(contraction: Contraction, operand: int) -> tuple[Layout, Pointwise | None]:
    if operand == A:
        return contraction.a, contraction.a_fn
    return contraction.b, contraction.b_fn


def _strides(contraction: Contraction, tensor: int) -> tuple[int, ...]:
    return tuple(mode.strides[tensor] for mode in contraction.modes)


def _d_strides(contraction: Contraction, result: Seen | None) -> tuple[int, ...]:
    return result.strides if result is not None else _strides(contraction, D)


def _row_and_others(
    contraction: Contraction, operand: int, sums: Sequence[Mode], along_k: bool
) -> tuple[list[Mode], list[Mode]]:
    """The modes that a workspace's rows run along, and the others, each innermost first."""
    outer = by_stride(contraction.of_role(Role.M if operand == A else Role.N), D)
    batch = tuple(reversed(contraction.of_role(Role.BATCH)))
    row, others = (sums, outer) if along_k else (outer, sums)
    groups = (row, (*others, *batch))
    own = [[mode for mode in group if aux_operands.moves(contraction, operand, mode)] for group in groups]
    return own[0], own[1]


def _placed(
    row: Sequence[Mode], others: Sequence[Mode], dtype: torch.dtype, rows: int, padded: bool = True
) -> tuple[dict[Mode, int], int, int]:
    """Strides in a workspace of `rows` rows for each index of the others; a row's length; elements in all."""
    words = max(VECTOR // dtype.itemsize, 1) if padded else 1
    steps: dict[Mode, int] = {}
    step = 1
    for mode in row:
        steps[mode] = step
        step *= mode.extent
    length = max(-(-step // words), 1) * words  # an empty row has its place too
    step = rows * length
    for mode in others:
        steps[mode] = step
        step *= mode.extent
    return steps, length, step


def _operand_task(
    contraction: Contraction, operand: int, steps: dict[Mode, int], value: torch.dtype, size: int
) -> Task:
    """What writes an operand into a workspace."""
    from weft.gpu.complex.pairs import Task

    layout, function = _source(contraction, operand)
    seen = value_type(layout.dtype, contraction.arithmetic.product)
    aux_args = aux_operands.of_operand(contraction, operand)
    modes = [
        Mode(
            mode.labels, mode.extent, Role.M,
            Strides(mode.strides[operand], 0, 0, step, *aux_operands.steps(mode, aux_args.places)),
        )
        for mode, step in steps.items()
    ]  # fmt: skip
    modes.sort(key=lambda mode: -mode.strides.d)
    permutation = Permutation(
        modes=tuple(merged(modes)), x=layout, c=None, d=Layout.contiguous((size,), value),
        compute=function.dtypes[0] if function is not None else seen, fn=function,
        conjugate=(contraction.conjugate_a, contraction.conjugate_b)[operand],
        text="·".join(mode.name for mode in modes),
    )  # fmt: skip
    return Task(permutation, size=size, aux_args=aux_args)


def _as_real(layout: Layout) -> Layout:
    """A complex tensor as the real one that it is in memory."""
    if not layout.dtype.is_complex:
        return layout
    strides = (*(2 * stride for stride in layout.strides), 1)
    return Layout((*layout.shape, 2), strides, REAL_OF[layout.dtype], layout.alignment)
