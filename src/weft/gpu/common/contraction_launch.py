"""Launches of a contraction: one kernel, or a second one that adds the partial sums of the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import sm_count
from weft.gpu.common.launch import KernelLaunch, pointer_layouts
from weft.gpu.common.operation import operation
from weft.gpu.common.splits import StreamK
from weft.planner.schedule import AuxTensors, Make, NewTensor, Scalar, Target
from weft.spec import Contraction, Layout

KERNEL = DeviceFunction("weft.gpu.common.reduce_splits_kernel", "reduce_splits_kernel")

WARPS = 4
MOST_ELEMENTS = 4096  # that a program takes: 32 for each lane
LEAST_ELEMENTS = 128  # one for each lane
RESIDENT = 8  # programs that each SM should have: most of their time they wait for memory


def reduce_launch(
    contraction: Contraction,
    params: Any,
    partials: Layout,
    target: Target,
    stream: StreamK | None = None,
) -> KernelLaunch:
    """The launch for the output tiles of `params`.

    `partials` has a tile for each output tile and each part of its sum, or the rows and columns of it that there are.
    With a `stream` each output tile has as many of them as that says.
    """
    rows = subtile_rows(params.m.tile, params.n.tile, params.blocks, target)
    columns = subtile_columns(params.n.tile)
    programs = params.blocks * (params.m.tile // rows) * (params.n.tile // columns)
    constants = {"PARAMS": params, "ROWS": rows, "COLUMNS": columns, "STORED": tuple(partials.shape[1:])}
    constants |= {"STREAM_K": stream, "OP": operation(contraction).ending()}
    real = contraction.arithmetic.accumulate.is_floating_point
    tensors = (partials, contraction.c, contraction.d)
    return KernelLaunch(
        KERNEL, tensors, constants, real, target, programs, WARPS, 1, pointer_layouts(contraction)
    )  # fmt: skip


def subtile_columns(tile_n: int) -> int:
    """Columns of an output tile that one program takes: all of them, or a power of two that divides them."""
    return tile_n & -tile_n


def subtile_rows(tile_m: int, tile_n: int, tiles: int, target: Target) -> int:
    """Rows of an output tile that one program takes: as many as leave enough programs for the device. In the
    interpreter, which runs one after the other, as many as may be."""
    columns = subtile_columns(tile_n)
    across = tile_n // columns
    rows = min(tile_m, max(1, MOST_ELEMENTS // columns))
    if target.kind == "interpreter":
        return rows
    wanted = RESIDENT * sm_count(target)
    while rows > 1 and rows * columns > LEAST_ELEMENTS and tiles * (tile_m // rows) * across < wanted:
        rows //= 2
    return rows


PLAIN = A, B, C, D = 0, 1, 2, 3  # places of tensors, D or partial sums in its stead; as most kernels take them
ABSENT = 4  # in the place of a tensor that a kernel could take, and does not


class ContractionLaunch:
    """A kernel each of whose programs finishes its tile of D, or leaves a partial sum that the second one adds."""

    def __init__(
        self,
        multiply: KernelLaunch,
        order: tuple[int, ...] = PLAIN,  # in which the kernel takes the tensors
        reduce: KernelLaunch | None = None,
        partials: Layout | None = None,
    ) -> None:
        self.kernels: tuple[KernelLaunch, ...] = (multiply,) if reduce is None else (multiply, reduce)
        self._in_order, self._partials = itemgetter(*order), partials
        self._reads_c = C in order and multiply.layouts[order.index(C)] is not None

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        if self._partials is None:
            self.kernels[0](self._in_order((a, b, c, d, None)), alpha, beta, aux)
            return
        partials = torch.empty(self._partials.shape, dtype=self._partials.dtype, device=d.device)
        self.kernels[0](self._in_order((a, b, None, partials, None)), alpha, beta, aux)
        self.kernels[1]((partials, c, d), alpha, beta, aux)

    def bound(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> Callable[[], None]:
        """The launch on these tensors, whose addresses are taken now; partial sums get memory in each run."""
        if self._partials is not None:
            return partial(self, a, b, c, d, alpha, beta, aux)
        return self.kernels[0].bound(self._in_order((a, b, c, d, None)), alpha, beta, aux)

    def maker(self, new: NewTensor) -> Make | None:
        """The launch on a new D; None where C is read, or sums are split."""
        return None if self._reads_c or self._partials is not None else self.kernels[0].maker(new, self._in_order)


def gathering_launch(
    kernel: DeviceFunction, contraction: Contraction, constants: dict[str, Any], tiles: Any, schedule: Any,
    target: Target,
) -> ContractionLaunch:  # fmt: skip
    """The launch of a kernel of A, B, C, D and partial sums, by its `PARAMS`; sums are split in `tiles`."""
    params, accumulate = constants["PARAMS"], contraction.arithmetic.accumulate
    partials = Layout.contiguous((tiles.blocks * tiles.splits, tiles.m.tile, tiles.n.tile), accumulate)
    stored = (contraction.c, contraction.d, None) if params.splits == 1 else (None, None, partials)
    multiply = KernelLaunch(
        kernel, (contraction.a, contraction.b, *stored), constants, accumulate.is_floating_point, target,
        params.blocks * params.splits, schedule.warps, schedule.stages, pointer_layouts(contraction),
    )  # fmt: skip
    if params.splits == 1:
        return ContractionLaunch(multiply, (*PLAIN, ABSENT))
    reduce = reduce_launch(contraction, tiles, partials, target)
    return ContractionLaunch(multiply, (A, B, ABSENT, ABSENT, D), reduce, partials)
