"""The family that reads its operands in boxes: whole lines of memory through the tensor memory accelerator.

A box spans a run along one side of the product and a run of k, and single indices of everything else; one of the two
runs must be contiguous, and every other stride a multiple of 16 bytes. Operands that do not lie so are brought there
by the family `staged`. D is stored in its own order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from weft.kernels.cost import (
    PROCESSORS,
    REGISTERS,
    SHARED_MEMORY,
    combine_seconds,
    compulsory_bytes,
    function_seconds,
    scattered_bytes,
    tile_access,
)
from weft.kernels.geometry import TENSORS, A, B, Cut, D, Side, by_stride, cuts_text, rest, side
from weft.kernels.launch import (
    Box,
    KernelLaunch,
    common_reasons,
    contraction_constants,
    finishing_constants,
    pointer_layouts,
    wide,
    wide_index,
)
from weft.kernels.matrix import STRIP, widened
from weft.plan.schedule import Candidates, ExtendedLaunch, Extras, Launch, Scalar, Target
from weft.spec import Contraction, Layout, Mode, Role
from weft.spec.arithmetic import MATRIX_SUMS, dtype_name

NAME = "boxes"

LAUNCH = 8.2e-6  # seconds
MEMORY_RATE = 5.3e12  # bytes per second
L2_RATE = 9.6e12
STEP_SECONDS = 0.37e-6  # that a program waits for at least, at each step along k
TASK_SECONDS = 2.3e-6  # and before the first and after the last
OVERLAP = 1.95  # the norm that joins arithmetic, L2, memory and waiting
BOX_ALIGNMENT = 16  # bytes: of addresses and of every stride but the innermost
MOST_DIMENSIONS = 5
STORE_CLOCK = 0.87e9  # lines of D that a processor stores in a second
LEAST_SIDE = 16  # of m, n and k: a matrix instruction takes no less
LEAST_STEPS = 4  # of a split sum: fewer are not worth a second kernel

# Flops per second with 16-bit elements and with 32-bit ones shortened to TF32. With the numbers above fitted on an H200
# to 333 timed schedules: predictions are off by 18 % on average.
# One-byte elements: twice the rate of two, by data sheet.
_RATE = {1: 28.0e14, 2: 14.0e14, 4: 7.6e14}
_ACROSS = 2  # bytes of an element that matrix instructions also read across k from shared memory
# Tiles (M, N, K), warps and stages, by bytes of an element.
_TILES = {
    1: (
        (128, 256, 128, 8, 4), (256, 128, 128, 8, 4), (128, 256, 128, 8, 3), (128, 128, 128, 8, 4),
        (128, 128, 128, 4, 4), (256, 64, 128, 8, 4), (64, 256, 128, 8, 4), (128, 64, 128, 4, 4), (64, 128, 128, 4, 4),
        (256, 32, 128, 8, 4), (128, 32, 128, 4, 5), (64, 64, 128, 4, 4), (128, 128, 64, 4, 4),
    ),
    2: (
        (128, 256, 64, 8, 4), (256, 128, 64, 8, 4), (128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4),
        (128, 128, 64, 4, 3), (256, 64, 64, 8, 4), (64, 256, 64, 8, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
        (256, 32, 64, 8, 4), (128, 32, 64, 4, 5), (64, 64, 64, 4, 4), (128, 256, 32, 8, 4), (256, 128, 32, 8, 4),
        (128, 128, 32, 4, 4),
    ),
    4: (
        (128, 256, 32, 8, 4), (256, 128, 32, 8, 4), (128, 256, 32, 8, 3), (128, 128, 32, 8, 4), (128, 128, 32, 4, 4),
        (256, 64, 32, 8, 4), (64, 256, 32, 8, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4), (64, 64, 32, 4, 4),
        (256, 32, 32, 8, 4), (128, 32, 32, 4, 4),
    ),
}  # fmt: skip


class Dimension(NamedTuple):
    """Where a box stands along one dimension of an operand."""

    role: int  # 0 batch, 1 the operand's own side, 2 k
    axis: int  # of that side


class BoxesCut(NamedTuple):
    """All that the kernels take of a schedule, as compile-time constants."""

    batch: Side
    m: Side
    n: Side
    k: Side
    k_of_a: Side  # the same: boxes of A and B hold the same run of k
    a_box: tuple[Dimension, ...]
    b_box: tuple[Dimension, ...]
    a_along_k: bool
    b_along_k: bool
    halves: HalvesCut
    blocks: int  # of D
    splits: int  # tasks that share the sum of each block
    steps: int  # along k, in each of them
    programs: int
    group: int
    flatten: bool  # whether loads run ahead from task to task
    widen: bool  # products are made in the accumulator's type
    wide: tuple[bool, ...]
    wide_index: bool


class HalvesCut(NamedTuple):
    """The same blocks of D, halved along n for storing."""

    batch: Side
    m: Side
    n: Side
    stored: tuple[int, int]
    wide: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """How one operand is read: its dimensions, outermost first, each of modes that lie together (innermost first)."""

    dimensions: tuple[tuple[Mode, ...], ...]
    outer: tuple[Mode, ...]  # the dimension that a box spans a run of on the operand's own side
    along_k: bool  # the innermost dimension is k


@dataclass(frozen=True, slots=True)
class BoxesSchedule:
    """How both operands are read, the mode of k that boxes run along, and the tile."""

    a: Reading
    b: Reading
    k: Mode
    tile: tuple[int, int, int]  # (M, N, K)
    warps: int
    stages: int
    splits: int = 1
    group: int = 8
    workspace_bytes: int = 0
    family: str = NAME

    def __str__(self) -> str:
        m, n, k = self.tile
        cuts = f"m[{cuts_text([Cut(self.a.outer, m)])}] n[{cuts_text([Cut(self.b.outer, n)])}] k[{self.k.name}:{k}]"
        split = f" splits={self.splits}" if self.splits > 1 else ""
        return f"boxes {m}x{n}x{k} {cuts} warps={self.warps} stages={self.stages}{split}"


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    if contraction.algebra is not None:
        return f"no matrix instruction computes in the algebra {contraction.algebra.name}"
    arithmetic = contraction.arithmetic
    product = arithmetic.product
    if target.kind not in ("cuda", "interpreter") or target.capability < 90:
        return "the device has no tensor memory accelerator"
    if {contraction.a.dtype, contraction.b.dtype} != {product}:
        return f"A and B are not stored as {dtype_name(product)}, which they are multiplied in"
    if product not in MATRIX_SUMS and arithmetic.precision != "tf32":
        return f"{arithmetic.precision} products of {dtype_name(product)} have no matrix instruction that takes boxes"
    if arithmetic.accumulate is not MATRIX_SUMS.get(product, torch.float32):
        return f"products of {dtype_name(product)} are not added in {dtype_name(arithmetic.accumulate)} there"
    if min(contraction.m, contraction.n, contraction.k) < LEAST_SIDE:
        return f"m={contraction.m}, n={contraction.n} or k={contraction.k} is shorter than a matrix instruction"
    if contraction.a.alignment < BOX_ALIGNMENT or contraction.b.alignment < BOX_ALIGNMENT:
        return f"A or B does not start at a multiple of {BOX_ALIGNMENT} bytes"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found: dict[BoxesSchedule, None] = {}
    excluded: dict[str, None] = {}
    size = contraction.arithmetic.product.itemsize
    for k in contraction.of_role(Role.K):
        readings_a, readings_b = (list(_readings(contraction, operand, k)) for operand in (A, B))
        for name, readings in (("A", readings_a), ("B", readings_b)):
            if not readings:
                excluded[f"{name} does not lie in boxes along {k.name}"] = None
        for a in readings_a:
            for b in readings_b:
                for tile in _TILES[size]:
                    reason = _misfit(a, b, tile)
                    if reason is not None:
                        excluded[reason] = None
                        continue
                    found.update(dict.fromkeys(_schedules(contraction, a, b, k, tile, target)))
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: BoxesSchedule, target: Target) -> float:
    """Seconds at the rate of the tensor cores in whole waves, of L2 for all boxes and of memory for all bytes."""
    cut = boxes_cut(contraction, schedule, target)
    processors = target.processors if target.processors > 1 else PROCESSORS
    tile_m, tile_n, tile_k = schedule.tile
    tasks = cut.blocks * cut.splits
    uneven = -(-tasks // processors) * processors / tasks  # the busiest processor over the average
    tiles = tasks * cut.steps * tile_k
    flops = 2.0 * uneven * tiles * tile_m * tile_n
    size = contraction.arithmetic.product.itemsize
    smaller = min(1.0, tile_m * tile_n / (128 * 256)) ** 0.1  # less reuse of what comes from L2
    shallow = 1.0 if tile_k * size >= 128 else 0.95  # more steps for the same work
    busy = flops / (_RATE[size] * smaller * shallow)
    full_m, full_n = (_full(group, tile) for group, tile in ((schedule.a.outer, tile_m), (schedule.b.outer, tile_n)))
    read = tiles * (tile_m * full_m + tile_n * full_n) * size / L2_RATE
    result = tile_access(contraction.d, D, 2 * cut.blocks, (*cut.m.axes, *cut.halves.n.axes))
    stored = (compulsory_bytes(contraction) + scattered_bytes(result)) / MEMORY_RATE
    stored = max(stored, uneven * result.cycles / (processors * STORE_CLOCK))
    busy *= (1.2 if contraction.a_fn is not None else 1.0) * (1.5 if contraction.b_fn is not None else 1.0)
    busy += uneven * function_seconds(contraction, tiles * tile_m, tiles * tile_n, cut.blocks * tile_m * tile_n)
    waiting = -(-tasks // cut.programs) * (cut.steps * STEP_SECONDS + TASK_SECONDS)
    joined = sum(pipe**OVERLAP for pipe in (busy, read, stored, waiting)) ** (1 / OVERLAP)
    return LAUNCH + joined + combine_seconds(schedule.workspace_bytes, schedule.splits)


def build(contraction: Contraction, schedule: BoxesSchedule, target: Target) -> Launch | ExtendedLaunch:
    from weft.kernels.boxes_kernel import boxes_kernel
    from weft.kernels.matrix_kernel import combine_kernel

    cut = boxes_cut(contraction, schedule, target)
    constants = contraction_constants(contraction, cut)
    tile_m, tile_n, tile_k = schedule.tile
    runs = {schedule.a.outer: tile_m, schedule.b.outer: tile_n, (schedule.k,): tile_k}
    boxes = (_box(contraction.a, A, schedule.a, runs), _box(contraction.b, B, schedule.b, runs))
    c, d, pointers = contraction.c, contraction.d, pointer_layouts(contraction)
    real = contraction.arithmetic.accumulate.is_floating_point
    if cut.splits == 1:
        multiply = KernelLaunch(
            boxes_kernel, (*boxes, c, d, None), constants, real, target, cut.programs, schedule.warps, schedule.stages,
            pointers,
        )  # fmt: skip
        return BoxesLaunch(boxes, multiply)
    parts = Layout.contiguous((cut.blocks * cut.splits, *schedule.tile[:2]), contraction.arithmetic.accumulate)
    multiply = KernelLaunch(
        boxes_kernel, (*boxes, None, None, parts), constants, real, target, cut.programs, schedule.warps,
        schedule.stages, pointers,
    )  # fmt: skip
    finishing = finishing_constants(contraction, cut, STRIP)
    strips = cut.blocks * (cut.m.tile // STRIP)
    combine = KernelLaunch(combine_kernel, (parts, c, d), finishing, real, target, strips, 4, 1, pointers)
    return BoxesLaunch(boxes, multiply, combine, parts)


class BoxesLaunch:
    """The kernel that multiplies, and the one that adds the parts of split sums."""

    def __init__(
        self,
        boxes: Sequence[Box],
        multiply: KernelLaunch,
        combine: KernelLaunch | None = None,
        parts: Layout | None = None,
    ) -> None:
        self.kernels: tuple[KernelLaunch, ...] = (multiply, combine) if combine is not None else (multiply,)
        self._boxes = boxes
        self._parts = parts

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, *extras: Extras
    ) -> None:
        x, y = (box.descriptor(tensor) for box, tensor in zip(self._boxes, (a, b), strict=True))
        if self._parts is None:
            self.kernels[0](x, y, c, d, None, alpha, beta, *extras)
            return
        parts = torch.empty(self._parts.shape, dtype=self._parts.dtype, device=d.device)
        self.kernels[0](x, y, None, None, parts, alpha, beta, *extras)
        self.kernels[1](parts, c, d, alpha, beta, *extras)


def boxes_cut(contraction: Contraction, schedule: BoxesSchedule, target: Target) -> BoxesCut:
    tile_m, tile_n, tile_k = schedule.tile
    batch = [Cut((mode,), 1) for mode in contraction.of_role(Role.BATCH)]
    k = [*rest(contraction.of_role(Role.K), [Cut((schedule.k,), tile_k)]), Cut((schedule.k,), tile_k)]
    m, n = _side_cuts(schedule.a, tile_m), _side_cuts(schedule.b, tile_n)
    tensors = TENSORS + len(contraction.extras)
    m_side, n_side, k_side = side(m, 0, tensors), side(n, 1, tensors), side(k, 0, tensors)
    steps = -(-k_side.blocks // schedule.splits)
    offsets, size = wide(contraction.modes, tensors), contraction.arithmetic.product.itemsize
    blocks = contraction.batch * m_side.blocks * n_side.blocks
    processors = target.processors if target.processors > 1 else PROCESSORS
    k_side = _padded(k_side, steps * schedule.splits)
    return BoxesCut(
        batch=side(batch, 0, tensors),
        m=m_side,
        n=n_side,
        k=k_side,
        k_of_a=k_side,
        a_box=_dimensions(schedule.a, batch, m, k),
        b_box=_dimensions(schedule.b, batch, n, k),
        a_along_k=schedule.a.along_k,
        b_along_k=schedule.b.along_k,
        halves=HalvesCut(side(batch, 0, tensors), m_side, _halved(n, n_side), (tile_m, tile_n // 2), offsets),
        blocks=blocks,
        splits=schedule.splits,
        steps=steps,
        programs=min(blocks * schedule.splits, _resident(schedule, size) * processors),
        group=schedule.group,
        flatten=target.kind != "interpreter",
        widen=widened(contraction, target),
        wide=offsets,
        wide_index=wide_index((*m, *n, *k)),
    )


def _readings(contraction: Contraction, operand: int, k: Mode) -> Iterator[Reading]:
    """Ways to read A or B in boxes that run along `k`."""
    own = contraction.of_role(Role.M if operand == A else Role.N)
    sums, batch = contraction.of_role(Role.K), contraction.of_role(Role.BATCH)
    size = contraction.arithmetic.product.itemsize
    for outer in _outer_runs(own, operand):
        others = [mode for mode in own if mode not in outer]
        groups = [outer, *_chains(others, operand), *((mode,) for mode in (*sums, *batch))]
        groups.sort(key=lambda group: -group[0].strides[operand])
        inner = groups[-1]
        steps = [group[0].strides[operand] for group in groups]
        if inner not in (outer, (k,)) or steps[-1] != 1 or len(groups) > MOST_DIMENSIONS:
            continue
        if any(step <= 0 or step * size % BOX_ALIGNMENT for step in steps[:-1]):
            continue
        if size != _ACROSS and inner == outer:
            continue  # other matrix instructions read both operands along k from shared memory only
        yield Reading(tuple(groups), outer, along_k=inner == (k,))


def _outer_runs(own: Sequence[Mode], operand: int) -> list[tuple[Mode, ...]]:
    """What a box may span on an operand's own side: modes that lie together, or D's innermost alone."""
    runs = _chains(own, operand)
    return list(dict.fromkeys([*runs, by_stride(own, D)[:1]]))


def _chains(modes: Sequence[Mode], tensor: int) -> list[tuple[Mode, ...]]:
    """Modes grouped as they lie together in a tensor, innermost first."""
    found: list[list[Mode]] = []
    for mode in by_stride(modes, tensor):
        if found and mode.strides[tensor] == found[-1][-1].strides[tensor] * found[-1][-1].extent:
            found[-1].append(mode)
        else:
            found.append([mode])
    return [tuple(group) for group in found]


def _misfit(a: Reading, b: Reading, tile: tuple[int, ...]) -> str | None:
    """Why a tile should not be used, in one sentence."""
    for name, group, length in (("m", a.outer, tile[0]), ("n", b.outer, tile[1])):
        extent = _extent(group)
        if length > LEAST_SIDE * 2 and length >= 2 * extent:
            return f"a tile of {length} along {name} is at least twice the {extent} that lie together"
    return None


def _schedules(
    contraction: Contraction, a: Reading, b: Reading, k: Mode, tile: tuple[int, ...], target: Target
) -> Iterator[BoxesSchedule]:
    """A tile with whole sums, and with split ones where D alone cannot fill the device."""
    tile_m, tile_n, tile_k, warps, stages = tile
    steps = -(-k.extent // tile_k) * (contraction.k // k.extent)
    stages = min(stages, max(2, steps))
    whole = BoxesSchedule(a, b, k, (tile_m, tile_n, tile_k), warps, stages)
    yield whole
    processors = target.processors if target.processors > 1 else PROCESSORS
    blocks = contraction.batch * _side_blocks(a, tile_m) * _side_blocks(b, tile_n)
    if blocks >= processors:
        return
    size = tile_m * tile_n * contraction.arithmetic.accumulate.itemsize
    for splits in _splits(steps, blocks, processors):
        yield BoxesSchedule(a, b, k, whole.tile, warps, stages, splits, workspace_bytes=splits * blocks * size)


def _splits(steps: int, blocks: int, processors: int) -> list[int]:
    """Numbers of shares of a sum that about fill the device once, or twice; none of them is empty."""
    found = set()
    for fill in (1, 2):
        share = max(LEAST_STEPS, -(-steps * blocks // (fill * processors)))
        found.add(-(-steps // share))
    return sorted(found - {1})


def _padded(k: Side, blocks: int) -> Side:
    """The side of k with room for so many blocks: those past its end read zeros, rather than its start again."""
    slowest = max(k.axes, key=lambda axis: (axis.pitch, axis.blocks))
    wanted = -(-blocks // slowest.pitch)
    if wanted == slowest.blocks:
        return k
    padded = slowest._replace(blocks=wanted, exact=False)
    return k._replace(axes=tuple(padded if axis is slowest else axis for axis in k.axes), exact=False)


def _side_cuts(reading: Reading, tile: int) -> list[Cut]:
    """The operand's own side: every other dimension one index at a time, the run last."""
    others = [
        group for group in reading.dimensions if group != reading.outer and group[0].role is reading.outer[0].role
    ]
    return [*(Cut(group, 1) for group in others), Cut(reading.outer, tile, placed=True)]


def _side_blocks(reading: Reading, tile: int) -> int:
    return math.prod(cut.blocks for cut in _side_cuts(reading, tile))


def _dimensions(reading: Reading, batch: Sequence[Cut], own: Sequence[Cut], k: Sequence[Cut]) -> tuple[Dimension, ...]:
    places = {
        cut.modes: Dimension(role, axis) for role, cuts in enumerate((batch, own, k)) for axis, cut in enumerate(cuts)
    }
    return tuple(places[group] for group in reading.dimensions)


def _halved(cuts: Sequence[Cut], whole: Side) -> Side:
    """The side of half blocks: twice as many as whole ones, also where the last half lies past the end."""
    *others, run = cuts
    half = side([*others, Cut(run.modes, run.tile // 2, placed=True)], 1, len(whole.runs))
    axes = [axis._replace(pitch=2 * axis.pitch) for axis in whole.axes[:-1]]
    last = half.axes[-1]._replace(blocks=2 * run.blocks, pitch=1, exact=whole.axes[-1].exact)
    return half._replace(axes=(*axes, last), blocks=2 * whole.blocks, exact=whole.exact)


def _box(layout: Layout, operand: int, reading: Reading, runs: dict[tuple[Mode, ...], int]) -> Box:
    """The operand as the box unit sees it."""
    shape = tuple(_extent(group) for group in reading.dimensions)
    strides = tuple(group[0].strides[operand] for group in reading.dimensions)
    block = tuple(runs.get(group, 1) for group in reading.dimensions)
    return Box(Layout(shape, strides, layout.dtype, layout.alignment), block)


def _extent(group: Sequence[Mode]) -> int:
    return math.prod(mode.extent for mode in group)


def _full(group: Sequence[Mode], tile: int) -> float:
    """The share of a run's boxes that lies within its extent, which alone is read."""
    extent = _extent(group)
    return extent / (-(-extent // tile) * tile)


def _resident(schedule: BoxesSchedule, size: int) -> int:
    """Programs that fit on one processor at a time."""
    tile_m, tile_n, tile_k = schedule.tile
    shared = schedule.stages * (tile_m + tile_n) * tile_k * size + tile_m * tile_n // 2 * 4
    registers = (tile_m * tile_n // (32 * schedule.warps) + 96) * 32 * schedule.warps
    return max(1, min(SHARED_MEMORY // shared, REGISTERS // registers))
