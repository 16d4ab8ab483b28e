"""Launches of a contraction: one kernel, or a second one that adds the partial sums of the first.

Sums are split over programs in equal parts, or by Stream-K.

Split-K: where output tiles are too few to fill the device, several programs share the sum of each. Each leaves a
*partial* tile in a workspace, and a second kernel adds them in a fixed order.

Where output tiles are few and no divisor of the number of SMs, equal parts of whole sums leave some SMs without work.
Stream-K lays all sums end to end and divides them into equal work ranges, one for each program, or for each consumer
with a pipeline of its own. A range ends in the middle of one sum, and the next begins there. The sum of an output tile
then has a partial for each range that it meets (M. Osama and others, "Stream-K: Work-Centric Parallel Decomposition for
Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import sm_count
from weft.gpu.common.launch import KernelLaunch, pointer_layouts
from weft.gpu.common.operation import operation
from weft.planner.schedule import AuxTensors, Make, NewTensor, Scalar, Target
from weft.spec import Contraction, Layout

# Where bits are not to depend on extents: programs that the sums of one row are to have, output elements of each, and
# the fewest products of a run, or of one where rows are short. None of them is the device's, so that no bit is.
PROGRAMS, WIDTH, FEWEST, OF_SHORT = 64, 64, 1024, 256
SHORT = 4 * WIDTH
RUN_DEPTH = {1: 128, 2: 64, 4: 32, 8: 16}  # products that a run is a multiple of, by their bytes


def product_bytes(contraction: Contraction) -> int:
    """Bytes of an element as matrix units take it."""
    arithmetic = contraction.arithmetic
    return 8 if arithmetic.accumulate is torch.float64 else arithmetic.product.itemsize


def run_count(contraction: Contraction) -> int:
    """Runs of each sum where bits are not to depend on extents: programs may share them, where rows are few."""
    tiles = -(-contraction.invariant // WIDTH)
    fewest = OF_SHORT if contraction.invariant < SHORT else FEWEST
    return max(min(-(-PROGRAMS // tiles), contraction.k // fewest), 1)


def runs_of(contraction: Contraction, depth: int) -> int:
    """Runs of each sum, of whole tiles of so many products along k."""
    steps = -(-contraction.k // depth)
    return -(-steps // -(-steps // run_count(contraction)))


class StreamK(NamedTuple):
    """Work tiles of so many steps along k, and the work ranges that these are divided into."""

    steps: int  # of each work tile
    base: int  # steps of each range
    longer: int  # ranges, the first ones, that have one step more
    n_tiles: int  # output tiles in a work tile, next to each other along n


def stream(tiles: int, steps: int, ranges: int, n_tiles: int) -> StreamK:
    """Stream-K over so many work tiles of so many steps along k."""
    return StreamK(steps, *divmod(tiles * steps, ranges), n_tiles)


def most_splits(tiles: int, ranges: StreamK) -> int:
    """The most work ranges that one of so many work tiles meets."""

    def range_with(step: int) -> int:
        short = step - ranges.longer * (ranges.base + 1)
        return step // (ranges.base + 1) if short < 0 else ranges.longer + short // ranges.base

    met = [range_with((at + 1) * ranges.steps - 1) - range_with(at * ranges.steps) + 1 for at in range(tiles)]
    return max(met)


def split_over(
    contraction: Contraction, schedule: Any, tiles: int, target: Target, full: int, fills: Sequence[int], least: int
) -> Iterator[Any]:
    """The schedule with every sum split over programs, where so many output tiles leave SMs without `full` of them.

    The parts of all sums fill the device so many times; no part is empty, and none has fewer than `least` steps.
    """
    sms, steps = max(target.processors, 8), math.prod([axis.blocks for axis in schedule.k])
    if tiles < full * sms:
        for wanted in dict.fromkeys([-(-fill * sms // max(tiles, 1)) for fill in fills]):
            part = -(-steps // wanted)
            if part >= least and -(-steps // part) > 1:
                yield with_splits(contraction, schedule, tiles, -(-steps // part))


def with_splits(contraction: Contraction, schedule: Any, tiles: int, splits: int) -> Any:
    """The schedule with so many parts of every sum, and the workspace that they need."""
    held = math.prod(schedule.computed) * contraction.arithmetic.accumulate.itemsize
    return replace(schedule, splits=splits, workspace_bytes=splits * tiles * held)


KERNEL = DeviceFunction("weft.gpu.common.tiles", "reduce_splits_kernel")

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
