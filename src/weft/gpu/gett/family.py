"""GETT on matrix instructions: operands are gathered where they lie, nothing is copied first and nothing is padded.

A tile goes along one or two modes a side. D is stored in its own order; split-K fills the device where D is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product, starmap
from typing import NamedTuple

import torch

from weft.fn.pointwise import masked_operands
from weft.gpu.common import constraints, contraction_launch, cost, tiling
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import GROUP_ROWS, LEAST_DOT, LEAST_SPLIT_STEPS
from weft.gpu.common.contraction_launch import RUN_DEPTH, split_over
from weft.gpu.common.cost import KernelWork
from weft.gpu.common.launch import common_reasons, precision_reason, too_many
from weft.gpu.common.operation import operation
from weft.gpu.common.tiling import TENSORS, A, B, TiledAxis, TiledDim, TiledSchedule
from weft.planner.coefficients import fitted
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction, Mode, Role
from weft.spec.dtypes import dtype_name

NAME = "gett"

LEAST_DEPTH = 32  # bytes of k in a tile
FILLS = (1, 2, 4)  # times that split sums are to fill the device
FEW_SUMS = 32  # of a thread: several programs fit on an SM
_fit = fitted("gett")  # finish_seconds: for each further sum of a thread


@dataclass(frozen=True, slots=True)
class GettSchedule(TiledSchedule):
    """Tiles, the order in which programs take them, and how sums are split."""

    group: int  # output tiles along m that programs take before they go on along n; along n where it is negative
    splits: int = 1
    runs: int = 1  # of each sum: one program adds them up as `splits` programs would
    apart: bool = False  # the product of each step is added by a rounded sum, not within the matrix unit
    workspace_bytes: int = 0  # of split-K partials
    family: str = NAME

    @property
    def computed(self) -> tuple[int, int]:
        """The part of the tile that is computed, along m and n: all of it."""
        return self.tile[:2]

    def covered(self, contraction: Contraction) -> tuple[int, int, int]:
        """M, N and K of all tiles together: at least the contraction's."""
        m, n, k = (math.prod([axis.blocks * axis.tile for axis in dim]) for dim in (self.m, self.n, self.k))
        return m, n, k

    def __str__(self) -> str:
        m, n, k = self.tile
        dims = f"m[{tiling.axes_text(self.m)}] n[{tiling.axes_text(self.n)}] k[{tiling.axes_text(self.k)}]"
        split = f" split_k={self.splits}" if self.splits > 1 else f" runs={self.runs}" if self.runs > 1 else ""
        split += " apart" if self.apart else ""
        return f"gett {m}x{n}x{k} {dims} warps={self.warps} stages={self.stages} group={self.group}{split}"


class TileShape(NamedTuple):
    m: int
    n: int
    k: int
    warps: int
    stages: int


# Tiles by bytes of a product element. Wide tiles reuse more, narrow ones waste fewer lanes on a short dim.
_HALF = tuple(starmap(TileShape, (
    (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 32, 4, 4),
    (256, 64, 64, 8, 3), (64, 256, 64, 8, 3), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4),
    (256, 32, 64, 8, 3), (32, 256, 64, 8, 3), (128, 32, 64, 4, 4), (32, 128, 64, 4, 4), (64, 32, 64, 4, 4),
    (32, 64, 64, 4, 4), (32, 32, 64, 4, 4), (128, 16, 64, 4, 4), (16, 128, 64, 4, 4), (16, 16, 128, 4, 4),
    (64, 16, 64, 4, 4), (16, 64, 64, 4, 4), (512, 32, 32, 8, 4), (32, 512, 32, 8, 4), (256, 32, 32, 8, 4),
    (32, 256, 32, 8, 4), (256, 32, 16, 8, 5), (32, 256, 16, 8, 5), (256, 64, 32, 8, 4), (64, 256, 32, 8, 4),
    (128, 128, 16, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4), (64, 64, 32, 4, 4),
)))  # fmt: skip
_SINGLE = tuple(starmap(TileShape, (
    (128, 128, 32, 8, 3), (128, 64, 32, 4, 3), (64, 128, 32, 4, 3), (64, 64, 32, 4, 3), (128, 32, 32, 4, 3),
    (32, 128, 32, 4, 3), (64, 32, 32, 4, 3), (32, 64, 32, 4, 3), (32, 32, 32, 4, 3), (128, 16, 32, 4, 3),
    (16, 128, 32, 4, 3), (16, 16, 64, 4, 3), (256, 32, 32, 8, 3), (32, 256, 32, 8, 3), (256, 32, 16, 8, 4),
    (32, 256, 16, 8, 4), (256, 32, 16, 4, 4), (128, 128, 16, 4, 4), (128, 32, 16, 4, 4), (256, 64, 32, 8, 3),
    (64, 256, 32, 8, 3),
)))  # fmt: skip
_DOUBLE = tuple(starmap(TileShape, (
    (64, 128, 16, 8, 3), (128, 64, 16, 8, 3), (64, 64, 16, 4, 3), (128, 32, 16, 4, 3), (32, 128, 16, 4, 3),
    (64, 32, 16, 4, 3), (32, 64, 16, 4, 3), (32, 32, 16, 4, 3), (16, 128, 16, 4, 3), (128, 16, 16, 4, 3),
    (16, 16, 32, 4, 3), (256, 32, 16, 8, 3), (32, 256, 16, 8, 3),
)))  # fmt: skip
# As many bytes of k as with two; an instruction takes 32 of them.
_BYTE = tuple(dict.fromkeys(shape._replace(k=min(2 * shape.k, 128)) for shape in _HALF))
# Of an operand that is stored in fewer bytes than it is multiplied in: few rows, or columns, by weights of a byte each.
# A line of memory along k, and columns enough for all SMs without splitting sums.
_NARROW = tuple(starmap(TileShape, (
    (16, 32, 128, 2, 4), (16, 64, 128, 4, 4), (16, 64, 256, 4, 3), (32, 16, 128, 2, 4), (64, 16, 128, 4, 4),
    (64, 16, 256, 4, 3),
)))  # fmt: skip
_SHAPES = {1: _BYTE, 2: _HALF, 4: _SINGLE, 8: _DOUBLE}
RUNS = (16, 8, 32, 4)  # indices of A's (or B's) own run where a dim needs two axes


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates.of(dict.fromkeys(_proposals(contraction, target)))


def _proposals(contraction: Contraction, target: Target) -> Iterator[GettSchedule | str]:
    m_modes, n_modes, k_modes = (contraction.of_role(role) for role in (Role.M, Role.N, Role.K))
    size = contraction_launch.product_bytes(contraction)
    shared = target.shared_memory or 64 * 1024
    apart = contraction.arithmetic.precision == "bf16x6"
    least = (GROUP_ROWS, 2 * LEAST_DOT) if contraction.invariant else (LEAST_DOT, LEAST_DOT)
    for shape in _tiles(contraction):
        reason = _misfit(contraction, shape, size, shared, least)
        if reason is not None:
            yield reason
            continue
        depth = min(shape.k, max(LEAST_DOT, LEAST_DEPTH // size, constraints.power_of_two(contraction.k)))
        stages = min(shape.stages, max(2, -(-contraction.k // depth)))  # no more than there are steps
        in_order = (TiledAxis(k_modes[::-1], depth),)
        k_orders = [in_order] if contraction.invariant else list(k_axes(k_modes, depth))
        sides = tiling.outer_axes(m_modes, A, shape.m, RUNS, 2), tiling.outer_axes(n_modes, B, shape.n, RUNS, 2)
        for m, n, k in product(*sides, k_orders):
            schedule = GettSchedule(m, n, k, shape.warps, stages, group=8, apart=apart)
            tiles = contraction.batch * tiling.tile_count(m_modes, m) * tiling.tile_count(n_modes, n)
            if (reason := too_many(tiles)) is not None:
                yield reason
            elif contraction.invariant:
                yield from _in_runs(contraction, schedule, tiles)
            else:
                yield schedule
                yield from split_over(contraction, schedule, tiles, target, 1, FILLS, LEAST_SPLIT_STEPS)


def k_axes(modes: Sequence[Mode], tile: int) -> Iterator[tuple[TiledAxis, ...]]:
    """Ways to lay a tile over the modes of k: flattened in an operand's order, or along both operands' runs."""
    near_a, near_b = tiling.nearest(modes, A), tiling.nearest(modes, B)
    for order in tiling.run_orders(modes, A, B):
        yield (TiledAxis(order, tile),)
    if near_a is not None and near_b is not None and near_a is not near_b and tile >= 64:
        others = tuple(mode for mode in tiling.by_stride(modes, A) if mode is not near_b)
        yield (TiledAxis(others, tile // 8), TiledAxis((near_b,), 8))


def _tiles(contraction: Contraction) -> Sequence[TileShape]:
    """Tiles that are tried, along m, n and k: all, or those that add as every other one does.

    Sums are rounded once for each instruction, whatever the tile. But three products for one are rounded once for each
    tile along k, runs of a sum end where tiles do, and for operands stored in fewer bytes than they are multiplied in
    an instruction for few rows takes k in an order of its own.
    """
    size = contraction_launch.product_bytes(contraction)
    narrow = min(contraction.a.dtype.itemsize, contraction.b.dtype.itemsize) < size
    shapes = (*_SHAPES[size], *(_NARROW if narrow and size == 2 else ()))
    if not contraction.invariant:
        return shapes
    in_runs = contraction_launch.run_count(contraction) > 1
    if contraction.arithmetic.precision in ("tf32x3", "bf16x6") or size == 1 or in_runs:
        shapes = tuple(shape for shape in shapes if shape.k == RUN_DEPTH[size])
    return tuple(shape for shape in shapes if shape.m >= GROUP_ROWS) if narrow else shapes


def _misfit(contraction: Contraction, shape: TileShape, size: int, shared: int, least: tuple[int, int]) -> str | None:
    """Why a tile shape cannot or should not be used here, in one sentence."""
    if size * shape.stages * (shape.m + shape.n) * shape.k > shared:
        return f"the stages of a {shape.m}x{shape.n}x{shape.k} tile exceed {shared} bytes of shared memory"
    return constraints.overhang(contraction, shape.m, shape.n, least)


def _in_runs(contraction: Contraction, schedule: GettSchedule, tiles: int) -> Iterator[GettSchedule]:
    """The tiles with every sum in runs of one length, added up by one program or shared by as many programs."""
    runs = contraction_launch.runs_of(contraction, schedule.tile[2])
    yield replace(schedule, runs=runs)
    if runs > 1:
        yield contraction_launch.with_splits(contraction, schedule, tiles, runs)


class GettParams(NamedTuple):
    """The output tiles, see `OutputTiles`, and how they are summed."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    stored: tuple[int, ...]
    group: int
    blocks: int
    splits: int
    wide: tuple[bool, ...]
    wide_index: bool
    k: TiledDim
    k_of_a: TiledDim  # the same axes of k in A's order
    swap_k: bool
    runs: int  # of each sum, which one program adds up
    steps: int  # along k, in each of them
    widen: bool  # products are made in the accumulator's type
    masked: tuple[bool, bool]  # what the functions of A and B make of the zeros past the end of k is masked
    apart: bool  # the product of each step is added by a rounded sum
    transposed: tuple[bool, bool]  # A and B are transposed via registers, see `_transposed`


def gett_params(contraction: Contraction, schedule: GettSchedule, target: Target) -> GettParams:
    tensors = TENSORS + len(contraction.aux)
    k, k_of_a = tiling.tiled_dim(schedule.k, tensors=tensors), tiling.tiled_dim(schedule.k[::-1], tensors=tensors)
    return GettParams(
        *tiling.tiled_output(contraction, schedule.m, schedule.n, schedule.k, schedule.splits, schedule.group),
        k=k,
        k_of_a=k_of_a,
        swap_k=len(schedule.k) > 1,
        runs=schedule.runs,
        steps=-(-k.blocks // max(schedule.splits, schedule.runs)),
        widen=constraints.widened(contraction, target),
        masked=(False, False) if k.exact else masked_operands(contraction.a_fn, contraction.b_fn),
        apart=schedule.apart,
        transposed=_transposed(contraction),
    )


def _transposed(contraction: Contraction) -> tuple[bool, bool]:
    """Which operands are contiguous along m or n, where a TF32 instruction reads shared memory along k.

    Left alone, the compiler transposes such an operand while it copies, four bytes at a time. Transposed via registers
    it is copied in runs, and A need not even return to shared memory.
    """
    if contraction.arithmetic.precision != "tf32":
        return False, False
    m_modes, n_modes = contraction.of_role(Role.M), contraction.of_role(Role.N)
    return tiling.nearest(m_modes, A) is not None, tiling.nearest(n_modes, B) is not None


def predict(contraction: Contraction, schedule: GettSchedule, target: Target) -> float:
    """Seconds, see `common.cost.direct_seconds`.

    Sums that take many registers leave room for few programs: one stores while none loads. Products of half types are
    too short to hide that.
    """
    params, size = gett_params(contraction, schedule, target), contraction_launch.product_bytes(contraction)
    programs, tiles, steps = params.blocks * params.splits, params.blocks, params.steps * params.runs
    tile_m, tile_n, tile_k = schedule.tile
    loaded, held = programs * steps, tile_m * tile_n // (32 * schedule.warps)  # tiles of A and B; sums of a thread
    elements = loaded * tile_m * tile_k, loaded * tile_n * tile_k, tiles * tile_m * tile_n  # of A, B and D
    work = KernelWork(
        accesses=cost.gathered_accesses(contraction, params, loaded, repeated=True),
        blocks=programs,
        steps=steps,
        tile=schedule.tile,
        warps=schedule.warps,
        stage_bytes=size * schedule.stages * (tile_m + tile_n) * tile_k,
        rearranged=params.swap_k,
        transposed=elements[B] if params.transposed[B] and tile_m >= GROUP_ROWS else 0,
        function_seconds=cost.function_seconds(contraction, *elements) + cost.cast_seconds(contraction, elements[B]),
        finish_seconds=_fit("finish_seconds") * max(0, held - FEW_SUMS) if size <= 2 else 0.0,
    )
    return cost.direct_seconds(contraction, target, work) + cost.reduce_seconds(schedule.workspace_bytes, params.splits)


KERNEL = DeviceFunction("weft.gpu.gett.kernel", "gett_kernel")

# Products of a sum: a longer one of int8 may leave int32, where `mma.sync` stops at the ends of its range.
LONGEST_INT8 = 2**31 // 128**2 - 1


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target) or precision_reason(contraction.arithmetic, target)
    if reason is not None:
        return reason
    if contraction.algebra is not None:
        return f"no matrix instruction computes in the algebra {contraction.algebra.name}"
    product = contraction.arithmetic.product
    if not product.is_floating_point and (product, contraction.arithmetic.accumulate) != (torch.int8, torch.int32):
        return f"{dtype_name(product)} products have no matrix instruction here"
    if product is torch.int8 and contraction.k > LONGEST_INT8:
        return (
            f"sums of more than {LONGEST_INT8} products could leave int32, where some matrix instructions do not wrap"
        )
    narrowest = min((contraction.a.dtype, contraction.b.dtype, product), key=lambda dtype: dtype.itemsize)
    if narrowest.itemsize < 4 and contraction.arithmetic.accumulate is torch.float64:
        return f"no matrix instruction adds products of {dtype_name(narrowest)} in float64"
    if contraction.invariant:
        return _unknown_bits(target)
    if constraints.is_product_of_vectors(contraction):
        return "m or n is 1 in a batch: nothing for a matrix instruction to share"
    if contraction.m == contraction.n == 1 and product.is_floating_point and contraction.arithmetic.precision == "ieee":
        return "a single sum has nothing for a matrix instruction to share"
    return None


def _unknown_bits(target: Target) -> str | None:
    """Why bits might depend on extents: Hopper's two kinds of matrix instructions were measured to add alike, earlier
    devices have one kind."""
    if target.kind in ("cuda", "interpreter") and target.capability <= 90:
        return None
    return "its matrix instructions are of several kinds, and whether these add alike was not measured"


def adds_in_order(contraction: Contraction, schedule: GettSchedule) -> bool:
    """Products enter a sum one instruction after the other, in runs of one length."""
    return True


def build(contraction: Contraction, schedule: GettSchedule, target: Target) -> Launch:
    params = gett_params(contraction, schedule, target)
    constants = {"PARAMS": params, "OP": operation(contraction)}
    return contraction_launch.gathering_launch(KERNEL, contraction, constants, params, schedule, target)
