"""How A and B stand in the product: as they lie, or packed into a workspace in one of the forms of `Transfer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from weft.fn import Pointwise
from weft.gpu.common.complex_elements import real
from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.tiling import A, D, by_stride
from weft.gpu.complex.interleaved.transfer import Transfer
from weft.gpu.complex.real_forms import aux_operands
from weft.spec import Contraction, Layout, Mode, Role, Strides
from weft.spec.canonical import merged
from weft.spec.dtypes import value_type
from weft.spec.permutation import Permutation


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
    return value if result.is_complex else real(value)


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
    row, others = _row_and_others(contraction, operand, k, along_k)
    value = values(contraction, operand)
    steps, _, size = placed(row, others, value)
    transfer = _pack(contraction, operand, steps, value, size)
    same = all(mode.strides[operand] == steps[mode] for mode in steps) and layout.dtype == value
    if same and function is None and not transfer.permutation.conjugate:
        return None
    return TensorView(transfer.permutation.d, workspace_strides(contraction, steps), transfer)


def real_2x2(
    contraction: Contraction, operand: int, k: Sequence[Mode], along_k: bool, other_conjugated: bool
) -> TensorView:
    """A complex operand with each element as the 2x2 real matrix that multiplies a pair by it.

    `along_k`: rows run along k and that matrix's columns, else along the operand's own side and its rows.
    `other_conjugated`: the other operand is to be conjugated, which changes signs here.
    """
    row, others = _row_and_others(contraction, operand, k, along_k)
    value = values(contraction, operand)
    steps, length, size = placed(row, others, value, rows=2)
    plain = _pack(contraction, operand, steps, value, size)
    transfer = replace(
        plain, form="along_k" if along_k else "across_k", part_stride=length, other_conjugated=other_conjugated,
        permutation=replace(plain.permutation, scaled=True),
    )  # fmt: skip
    k_pair, d_pair = (1, 2 * length) if along_k else (2 * length, 1)
    strides = workspace_strides(contraction, steps)
    return TensorView(transfer.permutation.d, strides, transfer, k_pair=k_pair, d_pair=d_pair)


def planar(contraction: Contraction, operand: int, k: Sequence[Mode]) -> TensorView:
    """A complex operand as real rows along k, two for each index of the others: of re and of im."""
    row, others = _row_and_others(contraction, operand, k, along_k=True)
    value = real(values(contraction, operand))
    steps, length, size = placed(row, others, value, rows=2)
    transfer = replace(_pack(contraction, operand, steps, value, size), form="planar", part_stride=length)
    return TensorView(transfer.permutation.d, workspace_strides(contraction, steps), transfer, planes=length)


def three_m(contraction: Contraction, operand: int, k: Sequence[Mode], along_k: bool) -> TensorView:
    """A complex operand as three real ones, ([batch,] outer, k) or ([batch,] k, outer): re, im and re + im."""
    row, others = _row_and_others(contraction, operand, k, along_k)
    value = real(values(contraction, operand))
    steps, _, size = placed(row, others, value)
    transfer = replace(_pack(contraction, operand, steps, value, 3 * size), form="three_m", part_stride=size)
    return TensorView(transfer.permutation.d, workspace_strides(contraction, steps), transfer, three_planes=size)


def strides_of(contraction: Contraction, tensor: int) -> tuple[int, ...]:
    return tuple(mode.strides[tensor] for mode in contraction.modes)


def workspace_strides(contraction: Contraction, steps: dict[Mode, int]) -> tuple[int, ...]:
    """Strides of every mode of a contraction in a workspace, where it has some."""
    return tuple(steps.get(mode, 0) for mode in contraction.modes)


def placed(
    row: Sequence[Mode], others: Sequence[Mode], dtype: torch.dtype, rows: int = 1, padded: bool = True
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


def _source(contraction: Contraction, operand: int) -> tuple[Layout, Pointwise | None]:
    if operand == A:
        return contraction.a, contraction.a_fn
    return contraction.b, contraction.b_fn


def _row_and_others(
    contraction: Contraction, operand: int, k: Sequence[Mode], along_k: bool
) -> tuple[list[Mode], list[Mode]]:
    """The modes that a workspace's rows run along, and the others, each innermost first."""
    outer = by_stride(contraction.of_role(Role.M if operand == A else Role.N), D)
    batch = tuple(reversed(contraction.of_role(Role.BATCH)))
    row, others = (k, outer) if along_k else (outer, k)
    groups = (row, (*others, *batch))
    own = [[mode for mode in group if aux_operands.moves(contraction, operand, mode)] for group in groups]
    return own[0], own[1]


def _pack(contraction: Contraction, operand: int, steps: dict[Mode, int], value: torch.dtype, size: int) -> Transfer:
    """What writes an operand into a workspace, element by element."""
    layout, function = _source(contraction, operand)
    aux_args = aux_operands.of_operand(contraction, operand)
    modes = [
        Mode(
            mode.labels, mode.extent, Role.M,
            Strides(mode.strides[operand], 0, 0, step, *aux_operands.steps(mode, aux_args.places)),
        )
        for mode, step in steps.items()
    ]  # fmt: skip
    modes.sort(key=lambda mode: -mode.strides.d)
    stored = value_type(layout.dtype, contraction.arithmetic.product)
    permutation = Permutation(
        modes=tuple(merged(modes)), x=layout, c=None, d=Layout.contiguous((size,), value),
        compute=function.dtypes[0] if function is not None else stored, fn=function,
        conjugate=(contraction.conjugate_a, contraction.conjugate_b)[operand],
        text="·".join(mode.name for mode in modes),
    )  # fmt: skip
    return Transfer(permutation, size=size, aux_args=aux_args)
