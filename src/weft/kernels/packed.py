"""The packed family: operands brought into matrices of whole memory lines first, then multiplied at full speed.

An operand that the tensor memory accelerator can read as it lies is not packed. Functions of A and B are applied while
packing, once for each element. D is stored in its own order. Pays where each element is used often: packing moves
every operand once more, at the speed of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.kernels import permute
from weft.kernels.cost import PROCESSORS, compulsory_bytes
from weft.kernels.geometry import A, B, Cut, D, Side, by_stride, run_orders, side
from weft.kernels.launch import Box, KernelLaunch, common_reasons, contraction_constants, wide, wide_index
from weft.plan.schedule import Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout, Mode, Role, Strides
from weft.spec.arithmetic import dtype_name
from weft.spec.canonical import together
from weft.spec.permutation import Permutation

NAME = "packed"

LAUNCH = 5e-6  # seconds, for each kernel
MEMORY_RATE = 3.2e12  # bytes per second
SHADOW = 0.4  # of the faster of arithmetic and memory that the slower does not hide
BOX_ALIGNMENT = 16  # bytes: of addresses and of every stride but the innermost
LEAST_SIDE = 64  # of m and n; smaller products are bound by memory

# Flops per second with 16-bit elements and with 32-bit ones shortened to TF32, fitted on an H200 to whole waves.
_RATE = {2: 7.4e14, 4: 4.0e14}
# Tiles (M, N, K), warps and stages, by bytes of an element.
_TILES = {
    2: ((128, 256, 64, 8, 4), (256, 128, 64, 8, 4), (128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4)),
    4: ((128, 256, 32, 8, 4), (256, 128, 32, 8, 4), (128, 256, 32, 8, 3), (128, 128, 32, 8, 4), (128, 128, 32, 4, 4)),
}


class PackedCut(NamedTuple):
    """All that the kernel takes of a schedule, as compile-time constants."""

    batch: Side
    m: Side  # of D's blocks
    n: Side  # of half blocks
    tile: tuple[int, int, int]
    rows: int  # blocks along m
    columns: int  # and along n
    blocks: int
    programs: int
    steps: int
    group: int
    batched: bool
    flatten: bool  # whether loads run ahead from block to block
    a_along_k: bool
    b_along_k: bool
    stored: tuple[int, int]
    wide: tuple[bool, bool, bool, bool]
    wide_index: bool


@dataclass(frozen=True, slots=True)
class Operand:
    """How one operand is read: as it lies, or packed first."""

    matrix: Layout  # ([batch,] outer, inner), the inner contiguous
    along_k: bool  # the inner dimension is k
    packing: Permutation | None  # None where it is read as it lies

    @property
    def workspace_bytes(self) -> int:
        return (
            math.prod(self.matrix.shape[:-1]) * self.matrix.strides[-2] * self.matrix.dtype.itemsize
            if self.packing
            else 0
        )


@dataclass(frozen=True, slots=True)
class PackedSchedule:
    """The order of k that both operands share, what is packed, and the tile."""

    a: Operand
    b: Operand
    tile: tuple[int, int, int]  # (M, N, K)
    warps: int
    stages: int
    group: int = 8
    family: str = NAME

    @property
    def workspace_bytes(self) -> int:
        return self.a.workspace_bytes + self.b.workspace_bytes

    def __str__(self) -> str:
        packed = [name for name, operand in (("A", self.a), ("B", self.b)) if operand.packing is not None]
        tile = "x".join(map(str, self.tile))
        return f"packed {tile} {' and '.join(packed) or 'nothing'} packed, warps={self.warps} stages={self.stages}"


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction)
    if reason is not None:
        return reason
    product, accumulate = contraction.arithmetic.product, contraction.arithmetic.accumulate
    if target.kind not in ("cuda", "interpreter") or target.capability < 90:
        return "the device has no tensor memory accelerator"
    if product not in (torch.float16, torch.bfloat16) and contraction.arithmetic.precision != "tf32":
        return f"{contraction.arithmetic.precision} products of {dtype_name(product)} gain nothing by packing"
    if accumulate is not torch.float32:
        return f"packed products are added in float32, not in {dtype_name(accumulate)}"
    if min(contraction.m, contraction.n) < LEAST_SIDE or contraction.k < 16:
        return f"m={contraction.m}, n={contraction.n} and k={contraction.k} are too short to be bound by arithmetic"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found: list[PackedSchedule] = []
    excluded: dict[str, None] = {}
    for k_modes in run_orders(contraction.of_role(Role.K), A, B):
        a, b = operand(contraction, A, k_modes), operand(contraction, B, k_modes)
        for m, n, k, warps, stages in _TILES[contraction.arithmetic.product.itemsize]:
            if m >= 2 * contraction.m or n >= 2 * contraction.n:
                excluded[f"a {m}x{n} tile is at least twice m={contraction.m} or n={contraction.n}"] = None
                continue
            found.append(PackedSchedule(a, b, (m, n, k), warps, stages))
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: PackedSchedule, target: Target) -> float:
    """Seconds of the packing permutations and of a product at the rate of the tensor cores, in whole waves."""
    cut = packed_cut(contraction, schedule, target)
    seconds = LAUNCH
    for packed in (schedule.a.packing, schedule.b.packing):
        if packed is not None:
            seconds += permute.best(packed, target)[1]
    processors = target.processors if target.processors > 1 else PROCESSORS
    tile_m, tile_n, tile_k = cut.tile
    waves = -(-cut.blocks // processors)
    flops = 2.0 * waves * processors * tile_m * tile_n * tile_k * cut.steps
    smaller = min(1.0, tile_m * tile_n / (128 * 256)) ** 0.1  # less reuse of what comes from L2
    busy = flops / (_RATE[contraction.arithmetic.product.itemsize] * smaller)
    stored = compulsory_bytes(contraction) / MEMORY_RATE
    return seconds + max(busy, stored) + SHADOW * min(busy, stored)


def build(contraction: Contraction, schedule: PackedSchedule, target: Target) -> Launch:
    from weft.kernels.packed_kernel import packed_kernel

    cut = packed_cut(contraction, schedule, target)
    constants = contraction_constants(contraction, cut)
    constants = {name: constants[name] for name in ("CUT", "C_FN", "EPILOGUE", "ACCUMULATE", "RESULT", "PRECISION")}
    boxes = (_box(schedule.a, cut.tile[0], cut), _box(schedule.b, cut.tile[1], cut))
    multiply = KernelLaunch(
        packed_kernel, (*boxes, contraction.c, contraction.d), constants, True, target, cut.programs, schedule.warps,
        schedule.stages,
    )  # fmt: skip
    packings = [
        permute.build(packed, permute.best(packed, target)[0], target) if packed is not None else None
        for packed in (schedule.a.packing, schedule.b.packing)
    ]
    return PackedLaunch(multiply, boxes, packings)


class PackedLaunch:
    """Pack what must be, then multiply."""

    def __init__(
        self, multiply: KernelLaunch, boxes: Sequence[Box], packings: Sequence[permute.PermuteLaunch | None]
    ) -> None:
        self.kernels = (multiply, *(packing.launch for packing in packings if packing is not None))
        self._multiply = multiply
        self._boxes = boxes
        self._packings = packings

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        matrices = []
        for tensor, box, packing in zip((a, b), self._boxes, self._packings, strict=True):
            if packing is not None:
                size = math.prod(box.layout.shape[:-1]) * box.layout.strides[-2]
                workspace = torch.empty(size, dtype=box.layout.dtype, device=tensor.device)
                packing(tensor, None, workspace, 1, 0)
                tensor = workspace
            matrices.append(box.descriptor(tensor))
        self._multiply(*matrices, c, d, alpha, beta)


def packed_cut(contraction: Contraction, schedule: PackedSchedule, target: Target) -> PackedCut:
    tile_m, tile_n, tile_k = schedule.tile
    rows, columns = -(-contraction.m // tile_m), -(-contraction.n // tile_n)
    batch = contraction.of_role(Role.BATCH)
    m, n = (
        Cut(by_stride(contraction.of_role(role), D), tile) for role, tile in ((Role.M, tile_m), (Role.N, tile_n // 2))
    )
    blocks = contraction.batch * rows * columns
    processors = target.processors if target.processors > 1 else PROCESSORS
    return PackedCut(
        batch=side([Cut(tuple(reversed(batch)), 1)] if batch else []),
        m=side([m]),
        n=_halved(side([n], first_place=1), columns, whole=contraction.n % tile_n == 0),
        tile=schedule.tile,
        rows=rows,
        columns=columns,
        blocks=blocks,
        programs=min(blocks, processors),
        steps=-(-contraction.k // tile_k),
        group=schedule.group,
        batched=bool(batch),
        flatten=target.kind != "interpreter",
        a_along_k=schedule.a.along_k,
        b_along_k=schedule.b.along_k,
        stored=(tile_m, tile_n // 2),
        wide=wide(contraction.modes),
        wide_index=wide_index((m, n)),
    )


def _halved(n: Side, columns: int, whole: bool) -> Side:
    """The side of half blocks: as many as whole blocks need, also where the last half lies past the end."""
    (axis,) = n.axes
    axis = axis._replace(blocks=2 * columns, exact=whole)
    return n._replace(axes=(axis,), blocks=2 * columns, exact=whole)


def operand(contraction: Contraction, tensor: int, k_modes: Sequence[Mode]) -> Operand:
    """How A or B is read: as it lies where it is a matrix of whole lines, else packed along k."""
    layout, function = (contraction.a, contraction.a_fn) if tensor == A else (contraction.b, contraction.b_fn)
    outer_modes = by_stride(contraction.of_role(Role.M if tensor == A else Role.N), D)
    batch_modes = tuple(reversed(contraction.of_role(Role.BATCH)))
    product = contraction.arithmetic.product
    groups = (k_modes, outer_modes, batch_modes)
    if function is None and layout.dtype == product and layout.alignment == 16:
        for along_k in (True, False) if product.itemsize == 2 else (True,):
            matrix = _as_it_lies(groups, tensor, product, along_k)
            if matrix is not None:
                return Operand(matrix, along_k, None)
    return _packed(contraction, tensor, layout, groups)


def _as_it_lies(groups: Sequence[Sequence[Mode]], tensor: int, dtype: torch.dtype, along_k: bool) -> Layout | None:
    """The operand as ([batch,] outer, inner) without a copy, or None where its modes do not lie together so."""
    steps = [_step(modes, tensor) for modes in groups]
    if any(step is None for step in steps):
        return None
    extents = [math.prod(mode.extent for mode in modes) for modes in groups]
    order: tuple[int, ...] = (1, 0) if along_k else (0, 1)
    if groups[2]:
        order = (2, *order)
    strides = [steps[at] or 0 for at in order]
    bytes_of = [stride * dtype.itemsize for stride in strides[:-1]]
    if strides[-1] != 1 or any(step <= 0 or step % BOX_ALIGNMENT for step in bytes_of):
        return None
    return Layout(tuple(extents[at] for at in order), tuple(strides), dtype)


def _step(modes: Sequence[Mode], tensor: int) -> int | None:
    """The one stride of modes that lie together, innermost first; None where they do not."""
    for inner, outer in pairwise(modes):
        if outer.strides[tensor] != inner.strides[tensor] * inner.extent:
            return None
    return modes[0].strides[tensor] if modes else 1


def _packed(contraction: Contraction, tensor: int, layout: Layout, groups: Sequence[Sequence[Mode]]) -> Operand:
    """The operand packed into ([batch,] outer, k) with rows of whole 16-byte words."""
    dtype = contraction.arithmetic.product
    k_modes, outer_modes, batch_modes = groups
    depth, outer, batch = (math.prod(mode.extent for mode in modes) for modes in groups)
    words = BOX_ALIGNMENT // dtype.itemsize
    row = -(-depth // words) * words
    modes = []
    for group, step in ((k_modes, 1), (outer_modes, row), (batch_modes, row * outer)):
        for mode in group:
            modes.append(Mode(mode.labels, mode.extent, Role.M, Strides(mode.strides[tensor], 0, 0, step)))
            step *= mode.extent
    modes.sort(key=lambda mode: -mode.strides.d)
    shape = (batch, outer, depth) if batch_modes else (outer, depth)
    strides = (outer * row, row, 1)[-len(shape) :]
    function = contraction.a_fn if tensor == A else contraction.b_fn
    packing = Permutation(
        modes=tuple(_merged(modes)), x=layout, c=None, d=Layout(shape, strides, dtype), compute=_value(function, dtype),
        fn=function, text=f"packing {'AB'[tensor]}",
    )  # fmt: skip
    return Operand(Layout(shape, strides, dtype), True, packing)


def _value(function: Any, product: torch.dtype) -> torch.dtype:
    return function.dtypes[0] if function is not None else product


def _merged(modes: Sequence[Mode]) -> Iterator[Mode]:
    """Outermost first: neighbours that lie together in both tensors as one mode."""
    pending: Mode | None = None
    for mode in modes:
        if pending is not None and together(pending, mode):
            pending = Mode(pending.labels + mode.labels, pending.extent * mode.extent, mode.role, mode.strides)
            continue
        if pending is not None:
            yield pending
        pending = mode
    if pending is not None:
        yield pending


def _box(read: Operand, side_tile: int, cut: PackedCut) -> Box:
    block = (side_tile, cut.tile[2]) if read.along_k else (cut.tile[2], side_tile)
    return Box(read.matrix, (1, *block) if cut.batched else block)
