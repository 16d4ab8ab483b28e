"""The direct family of complex numbers: operands gathered where they lie, nothing written but D.

C's function and the epilogue are applied to D's blocks, with what they take beside the value.

It is for products that memory bounds: a small operand meets a large one, or k is short. Then what counts is that each
operand is read once and D written once; larger products go faster as real ones, see `real_forms`. Tiles are those
of the family `matrix`, over elements of 8 or 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.gpu.common.aux_operands import aux_bytes, aux_params
from weft.gpu.common.complex_elements import as_elements, kind_of, real, seen_as
from weft.gpu.common.constraints import LEAST_DOT
from weft.gpu.common.cost import Work, busy_seconds, compulsory_bytes, matrix_rate, tile_access
from weft.gpu.common.launch import MOST_PROGRAMS, TRITON_TYPES, precision_reason, wide
from weft.gpu.common.tiling import TENSORS, A, B, C, D, TiledAxis, axes_text
from weft.gpu.complex.pairs import ComplexKernelLaunch, function_reason, parts_of, yields_complex
from weft.gpu.complex.views import real_arithmetic
from weft.gpu.gett.params import GettParams, gett_params
from weft.gpu.gett.schedule import GettSchedule, TileShape, k_axes, outer_axes
from weft.planner.coefficients import fitted
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Role, Strides
from weft.spec.dtypes import dtype_name

NAME = "complex_direct"

_FITTED = fitted("complex_direct")

# Measured on an H200 with seven contractions.
LAUNCH = _FITTED("launch")  # seconds
MEMORY_RATE = _FITTED("memory_rate")  # bytes per second
OVERLAP = _FITTED("overlap")  # the norm that joins that of all tensors with what the general model predicts
# Flops per second of its four products, whichever way the operands lie: they come from registers.
RATE = _FITTED.table("rate")
LONGEST = 64  # k that goes one by one
UNROLLED = 16  # steps along k that are written out
MOST_LANES = 32  # elements of D in a thread, of two accumulators, beside operands that are in registers too

# One by one along k: a short side of D beside a long one, or both short.
_LANES = tuple(
    TileShape(m, n, 1, 4, 1)
    for m, n in (
        (1, 256), (1, 512), (2, 256), (4, 128), (4, 256), (8, 32), (8, 64), (8, 128), (16, 32), (16, 64),
        (16, 16), (32, 32), (32, 16), (64, 16), (128, 8), (64, 8), (32, 8), (256, 4), (128, 4), (256, 2), (512, 1),
        (256, 1),
    )
)  # fmt: skip
# By matrix instructions, by bytes of a real number.
_MATRIX = {
    4: (
        TileShape(128, 32, 32, 4, 2), TileShape(128, 32, 16, 4, 3), TileShape(64, 32, 32, 4, 3),
        TileShape(128, 64, 16, 8, 3), TileShape(64, 64, 32, 4, 2), TileShape(128, 16, 32, 4, 2),
        TileShape(64, 16, 32, 4, 3), TileShape(32, 64, 32, 4, 3), TileShape(64, 128, 16, 8, 3),
        TileShape(32, 128, 32, 4, 2), TileShape(16, 128, 32, 4, 2), TileShape(16, 64, 32, 4, 3),
        TileShape(128, 128, 16, 8, 3), TileShape(32, 32, 32, 4, 3), TileShape(16, 16, 32, 4, 3),
    ),
    8: (
        TileShape(64, 32, 16, 4, 2), TileShape(32, 32, 16, 4, 3), TileShape(64, 16, 16, 4, 3),
        TileShape(32, 64, 16, 4, 2), TileShape(16, 64, 16, 4, 3), TileShape(16, 16, 16, 4, 3),
        TileShape(64, 64, 16, 8, 2), TileShape(16, 32, 16, 4, 3), TileShape(32, 16, 16, 4, 3),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DirectSchedule:
    """Tiles as the family `matrix` has them."""

    tiles: GettSchedule
    family: str = NAME
    workspace_bytes: int = 0

    def __str__(self) -> str:
        m, n, k = self.tiles.tile
        dims = f"m[{axes_text(self.tiles.m)}] n[{axes_text(self.tiles.n)}] k[{axes_text(self.tiles.k)}]"
        return f"complex_direct {m}x{n}x{k} {dims} warps={self.tiles.warps} stages={self.tiles.stages}"


def supports(contraction: Contraction, target: Target) -> str | None:
    arithmetic = contraction.arithmetic
    if not arithmetic.product.is_complex or not contraction.a.dtype.is_complex or not contraction.b.dtype.is_complex:
        return "it is for two complex operands"
    if contraction.algebra is not None:
        return f"it does not compute in the algebra {contraction.algebra.name}"
    if contraction.a_fn is not None or contraction.b_fn is not None:
        return "functions of complex operands are applied by the family complex"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    reason = precision_reason(arithmetic, target)
    if reason is not None:
        return reason
    layouts = (contraction.c, contraction.d, *(each.layout for each in contraction.aux))
    return function_reason((contraction.c_fn, contraction.epilogue), layouts, target)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found: dict[DirectSchedule, None] = {}
    excluded: dict[str, None] = {}
    for shape in _shapes(contraction):
        reason = _misfit(contraction, shape)
        if reason is not None:
            excluded[reason] = None
            continue
        for tiles in _tilings(contraction, shape):
            if gett_params(contraction, tiles, target).blocks > MOST_PROGRAMS:
                excluded["a grid holds at most 2^31 - 1 blocks"] = None
            else:
                found[DirectSchedule(tiles)] = None
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: DirectSchedule, target: Target) -> float:
    """Seconds by `cost.busy_seconds`, of four real products and two accumulators."""
    params = direct_params(contraction, schedule, target)
    tile_m, tile_n, tile_k = schedule.tiles.tile
    steps, matrix = params.k.blocks, tile_k > 1
    element = real(contraction.arithmetic.accumulate).itemsize * 2
    work = Work(
        accesses=(
            tile_access(contraction.a, A, params.blocks * steps, (*params.m.axes, *params.k_of_a.axes)),
            tile_access(contraction.b, B, params.blocks * steps, (*params.n.axes, *params.k.axes)),
            tile_access(contraction.c, C, params.blocks, (*params.m.axes, *params.n.axes)),
            tile_access(contraction.d, D, params.blocks, (*params.m.axes, *params.n.axes)),
        ),
        blocks=params.blocks,
        steps=steps if matrix else max(1, steps // UNROLLED),
        tile=(2 * tile_m, tile_n, 2 * tile_k if matrix else 2 * min(steps, UNROLLED)),
        warps=schedule.tiles.warps,
        stage_bytes=element * schedule.tiles.stages * (tile_m + tile_n) * tile_k if matrix else 0,
        matrix=matrix,
    )
    of_parts = replace(contraction, arithmetic=real_arithmetic(contraction.arithmetic))
    rate = RATE.get(f"{dtype_name(of_parts.arithmetic.accumulate)} {of_parts.arithmetic.precision}")
    if matrix and rate is not None:
        work = replace(work, function_seconds=work.flops / rate - work.flops / matrix_rate(of_parts, work, target))
    seconds = busy_seconds(of_parts, target, work)
    least = (compulsory_bytes(contraction) + aux_bytes(contraction.aux, contraction.modes)) / MEMORY_RATE
    return LAUNCH + (seconds**OVERLAP + least**OVERLAP) ** (1 / OVERLAP)


def build(contraction: Contraction, schedule: DirectSchedule, target: Target) -> Launch:
    from weft.gpu.complex.direct_kernel import complex_direct_kernel

    layouts = (contraction.a, contraction.b, contraction.c, contraction.d)
    params = direct_params(contraction, schedule, target)
    arithmetic = real_arithmetic(contraction.arithmetic)
    constants = {
        "PARAMS": params,
        "KINDS": tuple(kind_of(layout) for layout in layouts),
        "CONJUGATE": (contraction.conjugate_a, contraction.conjugate_b),
        "PRODUCT": TRITON_TYPES[arithmetic.accumulate],
        "RESULT": TRITON_TYPES[real(contraction.d.dtype)],
        "PRECISION": arithmetic.precision,
        "UNROLLED": schedule.tiles.tile[2] == 1 and params.k.blocks <= UNROLLED,
        "C_FN": contraction.c_fn and contraction.c_fn.split_complex.jit,
        "C_COMPLEX": yields_complex(contraction.c_fn),
        "EPILOGUE": contraction.epilogue and contraction.epilogue.split_complex.jit,
        "PARTS": parts_of(contraction.epilogue),
        "AUX": aux_params(contraction),
    }
    pointers = [as_elements(each.layout) for each in contraction.aux if each.layout is not None]
    launch = ComplexKernelLaunch(
        complex_direct_kernel, [layout and as_elements(layout) for layout in layouts],
        constants, True, target, params.blocks, schedule.tiles.warps, schedule.tiles.stages, pointers,
    )  # fmt: skip
    return DirectLaunch(launch, constants["KINDS"], [kind_of(each.layout) for each in contraction.aux])


class DirectLaunch:
    """A built product: call it with complex tensors, factors, and auxiliary operands where the contraction has some."""

    def __init__(self, launch: ComplexKernelLaunch, kinds: Sequence[str], aux_args: Sequence[str]) -> None:
        self.kernels = (launch,)
        self._kinds = kinds
        self._aux = aux_args

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        tensors = [
            None if tensor is None else seen_as(tensor, kind)
            for tensor, kind in zip((a, b, c, d), self._kinds, strict=True)
        ]
        pointers = tuple(
            seen_as(tensor, kind) for tensor, kind in zip(aux, self._aux, strict=True) if tensor is not None
        )
        self.kernels[0](tensors, alpha, beta, pointers)


def direct_params(contraction: Contraction, schedule: DirectSchedule, target: Target) -> GettParams:
    """The cut of the tiles; offsets have room for both parts of an element."""
    doubled = [mode._replace(strides=Strides(*(2 * stride for stride in mode.strides))) for mode in contraction.modes]
    far = wide(doubled, TENSORS + len(contraction.aux))
    return gett_params(contraction, schedule.tiles, target)._replace(wide=far, transposed=(False, False))


def _shapes(contraction: Contraction) -> Iterator[TileShape]:
    arithmetic = real_arithmetic(contraction.arithmetic)
    if contraction.k <= LONGEST and arithmetic.precision == "ieee":
        yield from _LANES
    for shape in _MATRIX[arithmetic.accumulate.itemsize]:
        if arithmetic.accumulate is not torch.float32 or arithmetic.precision != "ieee":
            yield shape
        elif shape.m * shape.n <= MOST_LANES * 32 * shape.warps:
            yield shape._replace(k=min(shape.k, LEAST_DOT))  # no matrix unit: tiles of operands stay in registers


def _misfit(contraction: Contraction, shape: TileShape) -> str | None:
    """Why a tile should not be used here, in one sentence."""
    for name, tile, extent in (("m", shape.m, contraction.m), ("n", shape.n, contraction.n)):
        if tile > LEAST_DOT and tile >= 2 * extent:
            return f"a tile of {tile} along {name} is at least twice its extent {extent}"
    return None


def _tilings(contraction: Contraction, shape: TileShape) -> Iterator[GettSchedule]:
    m_modes, n_modes, k_modes = (contraction.of_role(role) for role in (Role.M, Role.N, Role.K))
    depth = min(shape.k, max(LEAST_DOT, 1 << (contraction.k - 1).bit_length()))
    for m in outer_axes(m_modes, A, shape.m):
        for n in outer_axes(n_modes, B, shape.n):
            for k in k_axes(k_modes, depth):
                yield GettSchedule(m, n, _single(k), shape.warps, shape.stages, group=8)


def _single(k: tuple[TiledAxis, ...]) -> tuple[TiledAxis, ...]:
    """k as one axis: both operands take its indices in one order."""
    if len(k) == 1:
        return k
    return (TiledAxis(tuple(mode for axis in k[::-1] for mode in axis.modes), k[0].tile * k[1].tile),)
