"""The family for products that no matrix instruction makes: other algebras, and integers.

Each thread keeps a small tile of D in registers, so that an element that is loaded serves many products. Operands are
gathered where they lie, as in the matrix family.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.kernels.algebra_constants import algebra_constants, product_slots
from weft.kernels.cost import ISSUE_RATE, Work, combine_seconds, direct_seconds, function_seconds, tile_access
from weft.kernels.geometry import TENSORS, A, B, C, Cut, D, Side, by_stride, cuts_text, rest, run_orders, side
from weft.kernels.launch import (
    MOST_PROGRAMS,
    KernelLaunch,
    common_reasons,
    contraction_constants,
    finishing_constants,
    pointer_layouts,
    wide,
    wide_index,
)
from weft.kernels.matrix import STRIP, SplitLaunch, WholeLaunch
from weft.plan.schedule import Candidates, ExtendedLaunch, Launch, Target
from weft.spec import Contraction, Layout, Mode, Role
from weft.spec.arithmetic import dtype_name

NAME = "algebra"

LEAST_SIDE = 8  # of m and n: less has nothing to share
LEAST_STEPS = 8  # of a split reduction: fewer are not worth a second kernel


class AlgebraCut(NamedTuple):
    """All that the kernel takes of a schedule, as compile-time constants."""

    batch: Side
    m: Side
    n: Side
    k: Side
    k_of_a: Side  # the same
    stored: tuple[int, ...]  # extents of the stored tile: every axis longer than one index
    held: tuple[int, int, int, int]  # rows and columns of D that a thread holds, threads along m and n
    log_depth: int  # of the tile along k
    group: int
    blocks: int  # of D
    splits: int  # programs that share the reduction of each block
    steps: int  # along k, in each of them
    whole_steps: int  # that end within k
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do
    guard: tuple[int, int] = (0, 0)  # tensor and pointer of marks: only blocks with one are computed; 0 for none


@dataclass(frozen=True, slots=True)
class AlgebraSchedule:
    """Tiles along the modes of m, n and k, and what a thread holds of the block."""

    m: tuple[Cut, ...]
    n: tuple[Cut, ...]
    k: tuple[Cut, ...]
    registers: tuple[int, int]
    warps: int
    stages: int
    splits: int = 1
    workspace_bytes: int = 0
    group: int = 8
    family: str = NAME

    @property
    def tile(self) -> tuple[int, int, int]:  # (M, N, K)
        return tuple(math.prod(cut.tile for cut in cuts) for cuts in (self.m, self.n, self.k))  # type: ignore[return-value]

    def __str__(self) -> str:
        m, n, k = self.tile
        sides = f"m[{cuts_text(self.m)}] n[{cuts_text(self.n)}] k[{cuts_text(self.k)}]"
        split = f" splits={self.splits}" if self.splits > 1 else ""
        held = f"{self.registers[0]}x{self.registers[1]}"
        return f"algebra {m}x{n}x{k} {sides} threads of {held} warps={self.warps} stages={self.stages}{split}"


class Shape(NamedTuple):
    """A block, a step along k, and the share of a thread: the threads of all warps cover the block."""

    m: int
    n: int
    k: int
    rows: int
    columns: int
    warps: int
    stages: int = 3


# By bytes of the accumulator: 64 registers of it in each thread, fewer in small blocks.
_SHAPES = {
    4: (
        Shape(128, 128, 8, 8, 8, 8), Shape(128, 128, 4, 8, 8, 8), Shape(256, 64, 8, 8, 8, 8),
        Shape(64, 256, 8, 8, 8, 8), Shape(128, 64, 8, 8, 8, 4), Shape(64, 128, 8, 8, 8, 4),
        Shape(64, 64, 8, 8, 4, 4), Shape(32, 128, 8, 4, 8, 4),
        Shape(128, 32, 8, 8, 4, 4), Shape(32, 64, 8, 4, 4, 4), Shape(64, 32, 8, 4, 4, 4), Shape(32, 32, 8, 4, 2, 4),
        Shape(256, 16, 8, 8, 4, 4), Shape(16, 256, 8, 4, 8, 4), Shape(16, 64, 8, 2, 4, 4), Shape(64, 16, 8, 4, 2, 4),
        Shape(16, 16, 8, 2, 2, 2),
    ),
    8: (
        Shape(128, 64, 4, 8, 4, 8), Shape(64, 64, 8, 4, 4, 8), Shape(64, 64, 4, 4, 4, 8), Shape(64, 64, 4, 8, 4, 4),
        Shape(64, 32, 8, 4, 4, 4), Shape(32, 64, 8, 4, 4, 4), Shape(32, 32, 8, 4, 2, 4), Shape(128, 16, 8, 4, 4, 4),
        Shape(16, 128, 8, 4, 4, 4), Shape(16, 16, 8, 2, 2, 2),
    ),
}  # fmt: skip


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    product = contraction.arithmetic.product
    if contraction.algebra is None and product.is_floating_point:
        return f"matrix instructions and the vector family make {dtype_name(product)} products"
    if min(contraction.m, contraction.n) < LEAST_SIDE:
        return f"m={contraction.m} or n={contraction.n} is under {LEAST_SIDE}: nothing to share"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found: list[AlgebraSchedule] = []
    excluded: dict[str, None] = {}
    m_modes, n_modes, k_modes = (contraction.of_role(role) for role in (Role.M, Role.N, Role.K))
    for shape in _SHAPES[max(contraction.arithmetic.accumulate.itemsize, 4)]:
        reason = _misfit(contraction, shape)
        if reason is not None:
            excluded[reason] = None
            continue
        depth = min(shape.k, 1 << max(contraction.k - 1, 0).bit_length())
        for m in _orders(m_modes, A):
            for n in _orders(n_modes, B):
                for k in run_orders(k_modes, A, B):
                    cuts = (Cut(m, shape.m),), (Cut(n, shape.n),), (Cut(k, depth),)
                    schedule = AlgebraSchedule(*cuts, (shape.rows, shape.columns), shape.warps, shape.stages)
                    if _blocks(contraction, schedule) > MOST_PROGRAMS:
                        excluded["a grid holds at most 2^31 - 1 blocks"] = None
                    else:
                        found.append(schedule)
                        found.extend(_split(contraction, schedule, target))
    return Candidates(tuple(dict.fromkeys(found)), tuple(excluded))


def predict(contraction: Contraction, schedule: AlgebraSchedule, target: Target) -> float:
    """Seconds by the issue slots of all products, and by the pipes of `cost.direct_seconds`."""
    cut = algebra_cut(contraction, schedule)
    tile_m, tile_n, tile_k = schedule.tile
    programs, steps = cut.blocks * cut.splits, cut.steps
    d_axes = (*cut.m.axes, *cut.n.axes)
    held = math.prod(schedule.registers)
    loads = sum(schedule.registers) / (4 * held)  # from shared memory, four elements at a time
    products = programs * steps * tile_m * tile_n * tile_k
    slots = products * (product_slots(contraction) + loads + 20 / (tile_k * held))
    work = Work(
        accesses=(
            tile_access(contraction.a, A, programs * steps, (*cut.m.axes, *cut.k.axes)),
            tile_access(contraction.b, B, programs * steps, (*cut.n.axes, *cut.k.axes)),
            tile_access(contraction.c, C, cut.blocks, d_axes),
            tile_access(contraction.d, D, cut.blocks, d_axes),
        ),
        blocks=programs,
        steps=0,  # the next step is loaded while one computes
        tile=schedule.tile,
        warps=schedule.warps,
        stage_bytes=max(
            schedule.stages * (tile_m + tile_n) * tile_k * contraction.arithmetic.product.itemsize, tile_m * tile_n * 4
        ),
        matrix=False,
        function_seconds=slots / ISSUE_RATE
        + function_seconds(
            contraction,
            programs * steps * tile_m * tile_k,
            programs * steps * tile_n * tile_k,
            cut.blocks * tile_m * tile_n,
        ),
    )
    return direct_seconds(contraction, target, work) + combine_seconds(schedule.workspace_bytes, cut.splits)


def build(
    contraction: Contraction, schedule: AlgebraSchedule, target: Target, guard: int | None = None
) -> Launch | ExtendedLaunch:
    """`guard`: an operand among the extras, bool along D's modes. Only blocks of D where any of it is true are written,
    whole; the rest is left as it is."""
    from weft.kernels.algebra_kernel import algebra_kernel
    from weft.kernels.matrix_kernel import combine_kernel

    cut = algebra_cut(contraction, schedule)
    if guard is not None:
        before = sum(extra.layout is not None for extra in contraction.extras[:guard])
        cut = cut._replace(guard=(TENSORS + guard, before))
    algebra = algebra_constants(contraction)
    constants = contraction_constants(contraction, cut) | algebra | {"STAGES": schedule.stages}
    a, b, c, d = contraction.a, contraction.b, contraction.c, contraction.d
    accumulate = contraction.arithmetic.accumulate
    real, pointers = accumulate.is_floating_point, pointer_layouts(contraction)
    programs, warps = cut.blocks * cut.splits, schedule.warps

    def multiply(c: Layout | None, d: Layout | None, parts: Layout | None) -> KernelLaunch:
        return KernelLaunch(
            algebra_kernel, (a, b, c, d, parts), constants, real, target, programs, warps, schedule.stages, pointers
        )

    if cut.splits == 1:
        return WholeLaunch(multiply(c, d, None))
    parts = Layout.contiguous((programs, cut.m.tile, cut.n.tile), accumulate)
    rows = min(STRIP, cut.m.tile)
    finishing = finishing_constants(contraction, cut, rows)
    strips = cut.blocks * (cut.m.tile // rows)
    combine = KernelLaunch(combine_kernel, (parts, c, d), finishing, real, target, strips, 4, 1, pointers)
    return SplitLaunch(multiply(None, None, parts), combine, parts)


def algebra_cut(contraction: Contraction, schedule: AlgebraSchedule) -> AlgebraCut:
    tensors = TENSORS + len(contraction.extras)
    m = side(schedule.m, tensors=tensors)
    n = side(schedule.n, sum(axis.place >= 0 for axis in m.axes), tensors)
    k = side(schedule.k, tensors=tensors)
    steps = -(-k.blocks // schedule.splits)
    return AlgebraCut(
        batch=side(rest(contraction.of_role(Role.BATCH), ()), tensors=tensors),
        m=m,
        n=n,
        k=k,
        k_of_a=k,
        stored=tuple(axis.tile for axis in (*m.axes, *n.axes) if axis.place >= 0),
        held=(*schedule.registers, m.tile // schedule.registers[0], n.tile // schedule.registers[1]),
        log_depth=k.tile.bit_length() - 1,
        group=schedule.group,
        blocks=_blocks(contraction, schedule),
        splits=schedule.splits,
        steps=steps,
        whole_steps=contraction.k // k.tile,
        wide=wide(contraction.modes, tensors),
        wide_index=wide_index((*schedule.m, *schedule.n, *schedule.k)),
    )


def _orders(modes: Sequence[Mode], operand: int) -> list[tuple[Mode, ...]]:
    """The modes of m or n, innermost first: in D's order, or in the operand's."""
    return list(dict.fromkeys((by_stride(modes, D), by_stride(modes, operand))))


def _misfit(contraction: Contraction, shape: Shape) -> str | None:
    """Why a block should not be used here, in one sentence."""
    for name, tile, extent in (("m", shape.m, contraction.m), ("n", shape.n, contraction.n)):
        if tile > 16 and tile >= 2 * (1 << max(extent - 1, 0).bit_length()):
            return f"a tile of {tile} along {name} is at least twice its extent {extent}"
    for layout, rows in ((contraction.a, shape.m), (contraction.b, shape.n)):
        # The compiler would spread that layout over the products: each thread would hold a row of D, not a square.
        if min(16 // layout.dtype.itemsize, rows * shape.k // (32 * shape.warps)) >= shape.k:
            return f"each thread would load a whole row of a {rows}x{shape.k} tile of {dtype_name(layout.dtype)}"
    return None


def _split(contraction: Contraction, schedule: AlgebraSchedule, target: Target) -> Iterator[AlgebraSchedule]:
    """The same tiles with each reduction split over programs, where D alone cannot fill the device."""
    processors = max(target.processors, 8)
    blocks, steps = _blocks(contraction, schedule), math.prod(cut.blocks for cut in schedule.k)
    if blocks >= 2 * processors:
        return
    tile_m, tile_n, _ = schedule.tile
    for wanted in dict.fromkeys(-(-fill * processors // max(blocks, 1)) for fill in (1, 2, 4)):
        share = -(-steps // wanted)
        splits = -(-steps // share) if share >= LEAST_STEPS else 1  # none of them empty
        if splits > 1:
            size = splits * blocks * tile_m * tile_n * contraction.arithmetic.accumulate.itemsize
            yield replace(schedule, splits=splits, workspace_bytes=size)


def _blocks(contraction: Contraction, schedule: AlgebraSchedule) -> int:
    return contraction.batch * math.prod(cut.blocks for cut in (*schedule.m, *schedule.n))
