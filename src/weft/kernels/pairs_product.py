"""Complex products of operands in halves: which tiles there are, and what they should cost.

Operands come from a workspace, real and imaginary parts as matrices of their own with rows along k; D is written where
it lies. Compared with one real product of an expanded operand it moves less through shared memory, and at large
sizes, where a GPU's power bounds products of doubles, that is what makes them faster.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.kernels.complex_direct import DirectLaunch, DirectSchedule, direct_cut
from weft.kernels.geometry import A, B
from weft.kernels.launch import MOST_PROGRAMS, TRITON_TYPES
from weft.kernels.matrix import MatrixSchedule, TileShape, _cuts, _depth_cuts, matrix_cut
from weft.kernels.pairs import ComplexKernelLaunch
from weft.kernels.pairs_elements import as_elements, kind_of, real
from weft.plan.complex_views import real_arithmetic
from weft.plan.schedule import Launch, Ranked, Target
from weft.spec import Contraction, Role

LAUNCH = 4e-6  # seconds
RATE = 5.6e13  # flops per second of four real products in double precision on an H200
RESIDENT = 2  # blocks that a processor holds
GROUP = 16  # rows of blocks that share operands in L2
SHAPES = (TileShape(64, 64, 16, 4, 3), TileShape(32, 64, 16, 4, 3))
LEAST = 64  # extent of each side, and of k


def ranked_products(contraction: Contraction, jumps: tuple[int, int], target: Target) -> tuple[Ranked, ...]:
    """Schedules of the product of two operands in halves, best first; none where it is not worth a kernel."""
    if real(contraction.arithmetic.accumulate) is not torch.float64 or contraction.arithmetic.precision != "ieee":
        return ()
    if min(contraction.m, contraction.n, contraction.k) < LEAST:
        return ()
    found = dict.fromkeys(
        DirectSchedule(tiles, jumps)
        for tiles in _tilings(contraction)
        if matrix_cut(contraction, tiles, target).blocks <= MOST_PROGRAMS
    )
    ranked = [Ranked(schedule, predict_product(contraction, schedule, target)) for schedule in found]
    return tuple(sorted(ranked, key=lambda each: each.seconds))


def predict_product(contraction: Contraction, schedule: DirectSchedule, target: Target) -> float:
    """Seconds of whole waves of blocks at the full rate."""
    cut = direct_cut(contraction, schedule, target)
    tile_m, tile_n, tile_k = schedule.tiles.tile
    together = RESIDENT * target.processors
    waves = -(-cut.blocks // together)
    return LAUNCH + waves * together * 8.0 * tile_m * tile_n * tile_k * cut.k.blocks / RATE


def build_product(contraction: Contraction, schedule: DirectSchedule, target: Target) -> Launch:
    from weft.kernels.pairs_product_kernel import pairs_product_kernel

    layouts = (contraction.a, contraction.b, contraction.c, contraction.d)
    cut = direct_cut(contraction, schedule, target)
    arithmetic = real_arithmetic(contraction.arithmetic)
    kinds = tuple(kind_of(layout) for layout in layouts)
    constants = {
        "CUT": cut,
        "KINDS": kinds,
        "JUMPS": schedule.jumps,
        "PRODUCT": TRITON_TYPES[arithmetic.accumulate],
        "RESULT": TRITON_TYPES[real(contraction.d.dtype)],
        "PRECISION": arithmetic.precision,
    }
    launch = ComplexKernelLaunch(
        pairs_product_kernel, [layout and as_elements(layout) for layout in layouts], constants, True, target,
        cut.blocks, schedule.tiles.warps, schedule.tiles.stages,
    )  # fmt: skip
    return DirectLaunch(launch, kinds, ())


def _tilings(contraction: Contraction) -> Iterator[MatrixSchedule]:
    m_modes, n_modes, k_modes = (contraction.of_role(role) for role in (Role.M, Role.N, Role.K))
    for shape in SHAPES:
        for m in _cuts(m_modes, A, shape.m):
            for n in _cuts(n_modes, B, shape.n):
                for k in _depth_cuts(k_modes, shape.k):
                    if len(k) == 1:
                        yield MatrixSchedule(m, n, k, shape.warps, shape.stages, group=GROUP)
