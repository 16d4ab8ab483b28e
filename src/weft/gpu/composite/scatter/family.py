"""A product as a plain matrix, then one pass into D."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from weft.errors import UnsupportedError
from weft.gpu.common.constraints import VECTOR
from weft.gpu.common.tiling import A, B, D, by_stride
from weft.planner.program import (
    SLOT_A,
    SLOT_B,
    SLOT_D,
    Program,
    ProgramStep,
    as_called,
    build,
    number_slot,
    predict,
    work,
)
from weft.planner.schedule import Candidates, Target
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.canonical import merged
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.planner.planner import Choice


NAME = "scatter"


class ScatterWay(NamedTuple):
    """The product into one workspace, and what writes D from there."""

    product: Contraction
    finish: Permutation | Contraction  # a contraction with the number one, where more is done than to move elements


def ways(contraction: Contraction) -> Iterator[ScatterWay]:
    """Workspaces as matrices, the side of D's innermost mode innermost; modes in the order of an operand or of D."""
    inner = min(_of_d(contraction), key=lambda mode: mode.strides[D]).role
    always = contraction.d.alignment < VECTOR or is_left_to_library(contraction)
    batch = by_stride(contraction.of_role(Role.BATCH), A)
    for rows in _orders(contraction, Role.M, A):
        for columns in _orders(contraction, Role.N, B):
            row, others = (rows, columns) if inner is Role.M else (columns, rows)
            steps = _steps(contraction, row, (*others, *batch))
            if always or any(mode.strides[D] != step for mode, step in steps.items()):
                yield ScatterWay(_product(contraction, steps), _finish(contraction, steps))


def is_matrix(contraction: Contraction) -> bool:
    """Whether D is written well by any product: one mode of m and of n, one of them contiguous, rows at whole words."""
    modes = _of_d(contraction)
    if not modes:
        return True
    inner = min(modes, key=lambda mode: mode.strides[D])
    if inner.strides[D] != 1 or inner.role is Role.BATCH:
        return False
    if max(len(merged(_alone(contraction, role))) for role in (Role.M, Role.N)) > 1:
        return False
    if contraction.arithmetic.product.itemsize > 2 and contraction.arithmetic.precision == "ieee":
        return True  # the fast kernels of wider types ask for no whole words
    size = contraction.d.dtype.itemsize
    words = all(mode.strides[D] * size % VECTOR == 0 for mode in modes if mode is not inner)
    return words and contraction.d.alignment >= VECTOR


def is_left_to_library(contraction: Contraction) -> bool:
    """Whether all that is fused stands behind the product, which the vendor's library is the fastest at."""
    arithmetic = contraction.arithmetic
    wide = arithmetic.product.itemsize > 2 and arithmetic.precision == "ieee"
    return wide and not _moves(contraction) and contraction.a_fn is None and contraction.b_fn is None


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
    words = max(1, VECTOR // _workspace_type(contraction).itemsize)
    steps: dict[Mode, int] = {}
    step = 1
    for group, unit in ((row, words if others else 1), (others, 1)):
        for mode in group:
            steps[mode] = step
            step *= mode.extent
        step = -(-step // unit) * unit
    return steps


def _moves(contraction: Contraction) -> bool:
    """Whether nothing is left for the last pass to compute."""
    return contraction.c is None and contraction.epilogue is None and not contraction.aux


def _workspace_type(contraction: Contraction) -> torch.dtype:
    return contraction.d.dtype if _moves(contraction) else contraction.arithmetic.accumulate


def _workspace(contraction: Contraction, steps: dict[Mode, int]) -> Layout:
    modes = sorted(steps, key=lambda mode: -steps[mode])
    shape, strides = tuple(mode.extent for mode in modes), tuple(steps[mode] for mode in modes)
    return Layout(shape, strides, _workspace_type(contraction))


def _product(contraction: Contraction, steps: dict[Mode, int]) -> Contraction:
    """The product into the workspace; nothing is added or applied there."""
    modes = [
        mode._replace(strides=Strides(mode.strides.a, mode.strides.b, 0, steps.get(mode, 0)))
        for mode in contraction.modes
    ]
    return canonical(
        replace(
            contraction, modes=tuple(modes), c=None, d=_workspace(contraction, steps), c_fn=None, epilogue=None,
            aux=(), c_args=(), epilogue_args=(),
        )
    )  # fmt: skip


def _finish(contraction: Contraction, steps: dict[Mode, int]) -> Permutation | Contraction:
    """The step that writes D from the workspace."""
    workspace = _workspace(contraction, steps)
    modes = [
        Mode(mode.labels, mode.extent, Role.M, Strides(step, 0, *mode.strides[2:])) for mode, step in steps.items()
    ]
    if _moves(contraction):
        modes.sort(key=lambda mode: -mode.strides.d)
        return Permutation(
            modes=tuple(merged(modes)), x=workspace, c=None, d=contraction.d, compute=contraction.d.dtype, text="D",
        )  # fmt: skip
    accumulate = contraction.arithmetic.accumulate
    return canonical(
        replace(
            contraction, modes=tuple(modes), a=workspace, b=Layout((), (), accumulate),
            arithmetic=Arithmetic(accumulate, accumulate), a_fn=None, b_fn=None, conjugate_a=False, conjugate_b=False,
        )
    )  # fmt: skip


__all__ = ["NAME", "build", "predict", "schedules", "supports"]

KEPT = 2  # schedules of the product that are proposed for each workspace
LEAST_FLOPS = 2**27  # of a product that is worth another launch
OTHERS = (NAME, "pre_reduce", "simt")  # families that the product is planned without
TILED = ("gett", "tma", "warp_specialized")  # those that could have fused what the last pass does


def supports(contraction: Contraction, target: Target) -> str | None:
    if contraction.algebra is not None:
        return f"the algebra {contraction.algebra.name} multiplies nothing that another layout of D would speed up"
    if contraction.arithmetic.product.is_complex:
        return f"D of {dtype_name(contraction.arithmetic.product)} is scattered by the family complex"
    if contraction.a_args or contraction.b_args:
        return "its product passes on no operands or coordinates of a_fn and b_fn"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if 2 * contraction.m * contraction.n * contraction.k * contraction.batch < LEAST_FLOPS:
        return "the product is too small to be worth another launch"
    if is_matrix(contraction) and not is_left_to_library(contraction):
        return "D lies as a matrix already"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.planner.planner import choose

    by_library = is_matrix(contraction) and is_left_to_library(contraction)
    without = (*OTHERS, *TILED) if by_library else OTHERS
    found: list[Program] = []
    excluded: dict[str, None] = {}
    for way in dict.fromkeys(ways(contraction)):
        try:
            product = choose(way.product, "triton", target, without=without)
            finish = choose(way.finish, "triton", target, without=(NAME, "pre_reduce", "ttgt"))
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        found += [program_of(each, finish) for each in product.led_by_each(product.ranked[:KEPT])]
    return Candidates(tuple(found), tuple(excluded))


def program_of(product: Choice, finish: Choice) -> Program:
    """Multiply into a workspace, then write D from there."""
    workspace, space = product.description.d, work(0)
    if isinstance(finish.description, Permutation):  # which scales nothing
        multiply = ProgramStep(product, (SLOT_A, SLOT_B), writes=space, factors=None)
        last = ProgramStep(finish, (space,), writes=SLOT_D)
    else:
        multiply = ProgramStep(product, (SLOT_A, SLOT_B), writes=space)
        last = as_called(finish, space, number_slot(1, workspace.dtype))
    return Program(NAME, (multiply, last), 0, f"{NAME} D; {{0}}", (workspace,))
