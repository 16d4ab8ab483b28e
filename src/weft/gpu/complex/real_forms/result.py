"""Where a product goes that cannot be written into D as it lies: a workspace, from which a transfer writes D."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from weft.gpu.common.complex_elements import real
from weft.gpu.common.tiling import A, B, D, by_stride
from weft.gpu.complex.interleaved.transfer import Transfer
from weft.gpu.complex.real_forms import aux_operands
from weft.gpu.complex.real_forms.views import TensorView, placed, workspace_strides
from weft.spec import Contraction, Layout, Mode, Role, Strides
from weft.spec.canonical import merged
from weft.spec.permutation import Permutation

_OUTER = (Role.M, Role.N)  # of A and of B


def result_matrix(contraction: Contraction, pair: Sequence[TensorView]) -> TensorView:
    """A workspace for the product, a matrix for each batch, and the transfer that writes D from it.

    Of operands in three planes it holds the three products.
    """
    total = contraction.arithmetic.accumulate
    if not any(view.layout.dtype.is_complex for view in pair):
        total = real(total)
    steps, _, size = placed(*_rows(contraction, pair, _inner(contraction, pair)), total, padded=False)
    planes = size if any(view.three_planes for view in pair) else 0
    layout = Layout.contiguous((max(size, 3 * planes),), total)
    compute = contraction.arithmetic.accumulate if planes else layout.dtype
    transfer = replace(_to_d(contraction, steps, layout, compute), three_m_stride=planes)
    return TensorView(layout, workspace_strides(contraction, steps), transfer, three_planes=planes)


def result_of_parts(contraction: Contraction, pair: Sequence[TensorView]) -> TensorView:
    """The same for the products of both parts of A with both parts of B: two rows for each, added on the way to D."""
    inner = _inner(contraction, pair)
    total = contraction.arithmetic.accumulate
    steps, length, size = placed(*_rows(contraction, pair, inner), total, rows=2, padded=False)
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
    """What writes D from a workspace, C, C's function and the epilogue applied."""
    c = contraction.c
    aux_args = aux_operands.of_result(contraction)
    modes = []
    for mode, step in steps.items():
        aux = aux_operands.steps(mode, aux_args.places)
        in_c = mode.strides.c if c is not None else 0
        modes.append(Mode(mode.labels, mode.extent, Role.M, Strides(step, 0, in_c, mode.strides.d, *aux)))
    modes.sort(key=lambda mode: (-mode.strides.d, -mode.strides.a))
    permutation = Permutation(
        modes=tuple(merged(modes)), x=layout, c=c, d=contraction.d, compute=compute, scaled=True, text="D"
    )
    return Transfer(permutation, c_fn=contraction.c_fn, epilogue=contraction.epilogue, aux_args=aux_args)
