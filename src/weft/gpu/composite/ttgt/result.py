"""D by way of a workspace: a product as a plain matrix, then one pass that writes D.

For a D that no product writes well: a batch mode innermost, gaps, modes of A and B in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from weft.gpu.common.constraints import VECTOR
from weft.gpu.common.tiling import A, B, D, by_stride, index_count, placed
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.canonical import merged
from weft.spec.permutation import Permutation


class ResultWay(NamedTuple):
    """The product into one workspace, and what writes D from there."""

    product: Contraction
    finish: Permutation | Contraction  # a contraction with the number one, where more is done than to move elements
    by_library: bool  # whether the vendor's library alone gains by it


def ways(contraction: Contraction) -> Iterator[ResultWay]:
    """Workspaces as matrices, the side of D's innermost mode innermost; modes in the order of an operand or of D."""
    left, written_well = _is_left_to_library(contraction), _is_matrix(contraction)
    if not _of_d(contraction) or (written_well and not left):
        return
    if contraction.invariant or contraction.a_args or contraction.b_args:
        return  # the product is another one, and passes on no operands or coordinates of a_fn and b_fn
    inner = min(_of_d(contraction), key=lambda mode: mode.strides[D])
    always = contraction.d.alignment < VECTOR or left
    batch = by_stride(contraction.of_role(Role.BATCH), A)
    for rows in _orders(contraction, Role.M, A):
        for columns in _orders(contraction, Role.N, B):
            row, others = (rows, columns) if inner.role is Role.M else (columns, rows)
            steps = _steps(contraction, row, (*others, *batch))
            if always or any(mode.strides[D] != step for mode, step in steps.items()):
                yield _way(contraction, steps, written_well)


def _is_matrix(contraction: Contraction) -> bool:
    """Whether D is written well by any product: one mode of m and of n, one of them contiguous, rows at whole words."""
    modes = _of_d(contraction)
    if not modes:
        return True
    inner = min(modes, key=lambda mode: mode.strides[D])
    if inner.strides[D] != 1 or inner.role is Role.BATCH:
        return False
    if max(len(merged(_alone(contraction, role))) for role in (Role.M, Role.N)) > 1:
        return False
    if _is_wide(contraction):
        return True  # the fast kernels of wider types ask for no whole words
    size = contraction.d.dtype.itemsize
    words = all(mode.strides[D] * size % VECTOR == 0 for mode in modes if mode is not inner)
    return words and contraction.d.alignment >= VECTOR


def _is_wide(contraction: Contraction) -> bool:
    return contraction.arithmetic.product.itemsize > 2 and contraction.arithmetic.precision == "ieee"


def _is_left_to_library(contraction: Contraction) -> bool:
    """Whether all that is fused stands behind the product, which the vendor's library is the fastest at."""
    plain = contraction.a_fn is None and contraction.b_fn is None
    return _is_wide(contraction) and not _moves(contraction) and plain


def _moves(contraction: Contraction) -> bool:
    """Whether nothing is left for the last pass to compute."""
    return contraction.c is None and contraction.epilogue is None and not contraction.aux


def _alone(contraction: Contraction, role: Role) -> list[Mode]:
    """The modes of a role as D alone has them, outermost first."""
    modes = sorted(contraction.of_role(role), key=lambda mode: -mode.strides[D])
    return [mode._replace(strides=Strides(0, 0, 0, mode.strides[D])) for mode in modes]


def _of_d(contraction: Contraction) -> tuple[Mode, ...]:
    return contraction.of_role(Role.BATCH, Role.M, Role.N)


def _orders(contraction: Contraction, role: Role, operand: int) -> list[tuple[Mode, ...]]:
    """The modes of one side as an operand has them and as D has them, innermost first."""
    modes = contraction.of_role(role)
    return list(dict.fromkeys((by_stride(modes, operand), by_stride(modes, D))))


def _steps(contraction: Contraction, row: Sequence[Mode], others: Sequence[Mode]) -> dict[Mode, int]:
    """Strides of a workspace with its row contiguous and padded to whole words; both groups stand innermost first."""
    size = (contraction.d.dtype if _moves(contraction) else contraction.arithmetic.accumulate).itemsize
    words = max(1, VECTOR // size)
    return placed(row, others, -(-index_count(row) // words) * words)


def _way(contraction: Contraction, steps: dict[Mode, int], by_library: bool) -> ResultWay:
    """The product into a workspace of such strides, where nothing is added or applied, and the step from there to D."""
    accumulate = contraction.arithmetic.accumulate
    moves = _moves(contraction)
    outer_first = sorted(steps, key=lambda mode: -steps[mode])
    workspace = Layout(
        tuple(mode.extent for mode in outer_first), tuple(steps[mode] for mode in outer_first),
        contraction.d.dtype if moves else accumulate,
    )  # fmt: skip
    into = tuple(mode._replace(strides=Strides(*mode.strides[:2], 0, steps.get(mode, 0))) for mode in contraction.modes)
    product = canonical(
        replace(
            contraction, modes=into, c=None, d=workspace, c_fn=None, epilogue=None, aux=(), c_args=(), epilogue_args=(),
        )
    )  # fmt: skip
    out = [Mode(mode.labels, mode.extent, Role.M, Strides(step, 0, *mode.strides[2:])) for mode, step in steps.items()]
    if moves:
        out.sort(key=lambda mode: -mode.strides.d)
        dtype = contraction.d.dtype
        moved = Permutation(tuple(merged(out)), workspace, None, contraction.d, dtype, text="D")
        return ResultWay(product, moved, by_library)
    finish = canonical(
        replace(
            contraction, modes=tuple(out), a=workspace, b=Layout((), (), accumulate),
            arithmetic=Arithmetic(accumulate, accumulate), a_fn=None, b_fn=None, conjugate_a=False, conjugate_b=False,
        )
    )  # fmt: skip
    return ResultWay(product, finish, by_library)
