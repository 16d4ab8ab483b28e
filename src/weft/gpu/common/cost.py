"""The cost model of kernels that gather: the slowest of six pipes, on the busiest SM.

    memory     compulsory bytes, and lines that tiles take in part, over the rate of device memory
    L2         every tile's sectors over the rate of L2
    hot lines  those of an operand so small that all programs read the same ones, over the rate of the few slices of L2
    access     one cycle for each 128-byte line that a warp touches, at least one for each instruction
    arithmetic flops, lanes past the extents included, over the rate of the unit
    latency    what one program after the other waits for, step by step

Pipes overlap the better the more programs an SM holds at once. The model ranks schedules of one contraction on one
device. Its constants (see `coefficients`) were fitted to 380 timed schedules of the TCCG suite on an H200, those of
hot lines, of lines taken in part and of TF32 to 1190 (none over 2.4 times the best of its case). Predictions of the
latter are off by 12 % on average, and the first choice among those timed is 3 % slower than the best. As pipes overlap,
no rate is that of the pipe alone. Elsewhere they scale alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from weft.gpu.common import constraints
from weft.gpu.common.constraints import GROUP_ROWS, LEAST_COPY, LINE, REGISTERS, SECTOR, SHARED_MEMORY, VECTOR, WARPS
from weft.gpu.common.tiling import MAX_DIVISOR, A, B, C, D, KernelAxis, nearest
from weft.planner.coefficients import Coefficients, coefficients, fitted
from weft.planner.schedule import Target
from weft.planner.split_schemes import BF16X6, FEW_STEPS, IN_REGISTERS, OTHER_TILES, SHALLOW, STEPS
from weft.spec import Contraction, Layout, Role
from weft.spec.dtypes import dtype_name

_fit = fitted("common")

# reduce_rate, reduce_seconds: bytes per second that split-K partials are written and read at, mostly in L2, and
#   seconds of the kernel that adds them: fitted with the numbers of `warp_specialized.cost`.
# tall: times that products take whose groups of warps have more rows: each instruction reads the columns anew.
# issue_rate: lanes of instructions per second
# function_rate: the same of functions, which wait for what else a kernel issues
# reading_slots: issue slots of reading an element of an operand into registers, for its function, and passing it on.
# right_seconds: that a step along k waits for each slot of the right operand's function, between barriers.
# elementary_slots: issue slots of an exponential or its like
# partial_sector: times that a sector moves that is written in part
# kept_bytes: of an operand that stay in L2 until the tile that takes the rest of a line
# part_lines: of the bytes beyond them that move again, the less of a line a tile takes
# hot_rate: bytes per second of an operand of at most `hot_bytes` where rows do not start at whole sectors.
# hot_bytes: more spread over as many more slices of L2
# transpose_rate: instructions of TF32 read shared memory along k. A stored across it is transposed via registers and
#   stays there, at no cost that was seen. B returns to shared memory where instructions of warp groups take it from
#   there: elements of B per second that are read, transposed and written back, between barriers.
# Instructions of warp groups take B from shared memory in the type of products. Where it is stored in another, it
# returns there converted: from float8 to float16, in products of 4096^3 with 64 indices of k a step.
# cast_rate: elements of B per second that are converted, once for each program that reads them
# across_k: of the rate of three products of TF32 where an operand is stored across k
# single_along_k: IEEE products in float32 are made without matrix instructions, and read B across k: what they take
#   longer by where it is stored along k. Sums of 15 and 45 products in 144 and 60 columns took 1.6 times as long.
# ragged: of the bytes of short runs that move again, for each run that two lines hold besides the first.
# far: times that a line takes to be read where the next one is on another page
# smaller: cycles of a copy of less than `LEAST_COPY` bytes, by registers, over an asynchronous one
# least_launch: seconds of a kernel that does next to nothing

# matrix_rate: flops per second, by product type and precision; of one-byte types twice that of two bytes, by data
#   sheet.


PAGE = 2 << 20  # bytes

_recording: list[tuple[Contraction, Target, KernelWork]] | None = None


class Access(NamedTuple):
    """One tensor's accesses: bytes in all, bytes that one instruction can take, bytes contiguous along one axis
    of a tile, and in the whole tile; and bytes that one can take wherever the rows of the tile start. `far`: neighbours
    that no sector holds together are on different pages."""

    bytes: int
    width: int
    stretch: int
    together: int
    copied: int = VECTOR
    again: float = 1.0  # times that a sector is read while the first cache still has it
    far: bool = False

    @property
    def sector_bytes(self) -> float:
        return self.bytes * max(1.0, SECTOR / self.together) / self.again

    @property
    def cycles(self) -> float:
        lines = self.bytes / min(LINE, self.stretch) * (_fit("far") if self.far else 1.0)
        return max(self.bytes / (32 * min(VECTOR, self.width)), lines)

    @property
    def copy_cycles(self) -> float:
        """Cycles of copies to shared memory, which are asynchronous from four bytes on."""
        smaller = _fit("smaller") * self.bytes / (32 * self.copied) if self.copied < LEAST_COPY else 0.0
        return max(self.cycles, smaller)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """The work that a schedule makes the device do."""

    accesses: tuple[Access, ...]
    blocks: int
    steps: int  # along k, in each program
    tile: tuple[int, int, int]  # (M, N, K)
    warps: int
    stage_bytes: int  # of shared memory
    matrix: bool = True  # on matrix units
    rearranged: bool = False  # an operand is shuffled in registers on its way
    function_seconds: float = 0.0  # of the functions, were all SMs equally busy
    transposed: int = 0  # elements of B transposed on their way through shared memory, in all programs and steps
    finish_seconds: float = 0.0  # in which a program stores its sums, neither loading nor multiplying

    @property
    def flops(self) -> float:
        return 2.0 * self.blocks * self.steps * math.prod(self.tile)

    @property
    def cycles(self) -> float:
        """Cycles of the load-store units; operands of matrix units are copied."""
        operands, others = (self.accesses[:2], self.accesses[2:]) if self.matrix else ((), self.accesses)
        return sum([access.copy_cycles for access in operands]) + sum([access.cycles for access in others])

    @property
    def resident(self) -> int:
        """Programs that fit on one SM at a time."""
        registers = min(self.tile[0] * self.tile[1] // (32 * self.warps) + 72, 255) * 32 * self.warps
        return max(1, min(REGISTERS // registers, SHARED_MEMORY // max(self.stage_bytes, 1), WARPS // self.warps))


def tile_access(
    layout: Layout | None, tensor: int, tiles: int, axes: Sequence[KernelAxis], repeated: bool = False
) -> Access:
    """The accesses of `tiles` tiles over `axes` to a tensor; axes that it does not have cost nothing, but where a
    kernel reads the same element for each of their indices (`repeated`)."""
    if layout is None:
        return Access(0, VECTOR, LINE, LINE)
    size = layout.dtype.itemsize
    own = [axis for axis in axes if axis.present[tensor]]
    aligned = layout.alignment // size
    width, stretch, divisor, far = (0 if own else 1), 1, MAX_DIVISOR, False
    for axis in own:
        run = axis.runs[tensor]
        width = max(width, min(run.length, run.divisor, aligned))
        stretch = max(stretch, axis.stretches[tensor])
        divisor = min(divisor, run.divisor)
        far = far or (tensor in (A, B) and axis.tile > 1 and axis.strides[tensor][0] * size >= PAGE)
        tiles *= axis.tile
    if repeated:
        tiles *= math.prod([axis.tile for axis in axes if not axis.present[tensor]])
    together = max(stretch, run_of(modes_in_tile(own, tensor)))
    copied = min(width, divisor)
    return Access(
        tiles * size, max(width, 1) * size, stretch * size, together * size, max(copied, 1) * size,
        far=far and stretch * size < SECTOR,
    )  # fmt: skip


def gathered_accesses(
    contraction: Contraction, params: Any, loaded: int, repeated: bool = False
) -> tuple[Access, Access, Access, Access]:
    """The accesses to A and B of a kernel that loads so many tiles of each, and to C and D, once for each output tile;
    `params` has its `OutputTiles`, and k in the order of either."""
    of_d = (*params.m.axes, *params.n.axes)
    return (
        tile_access(contraction.a, A, loaded, (*params.m.axes, *params.k_of_a.axes), repeated),
        tile_access(contraction.b, B, loaded, (*params.n.axes, *params.k.axes), repeated),
        tile_access(contraction.c, C, params.blocks, of_d),
        tile_access(contraction.d, D, params.blocks, of_d),
    )


class ModeInTile(NamedTuple):
    """One mode of a tile as a tensor has it, in elements."""

    stride: int
    covered: int  # indices of it in the tile
    extent: int


def modes_in_tile(axes: Sequence[KernelAxis], tensor: int, on_average: bool = False) -> list[ModeInTile]:
    """The modes of a tile that a tensor has; `on_average` a run also ends where a tile does, if the tile and the modes
    that it spans do not divide one another."""
    found = []
    for axis in axes:
        rest = axis.tile
        # Where nothing is moved, a plan is still made.
        extents = [max(extent, 1) for extent in axis.extents] if on_average else axis.extents
        for at, (extent, stride) in enumerate(zip(extents, axis.strides[tensor], strict=True)):
            covered = min(rest, extent)
            if on_average and at + 1 < len(extents) and max(rest, extent) % covered:
                covered = max(1, rest * extent // (extent + rest - math.gcd(rest, extent)))
            if stride:
                found.append(ModeInTile(stride, covered, extent))
            rest = -(-rest // max(extent, 1))
    return found


def run_of(tile: Sequence[ModeInTile]) -> int:
    """Elements of a tile that are contiguous in a tensor, whichever axes they stand on."""
    run = 1
    for stride, covered, extent in sorted(tile):
        if stride != run:
            break
        run *= covered
        if covered < extent:
            break
    return run


def direct_seconds(
    contraction: Contraction, target: Target, work: KernelWork, fitted: Coefficients | None = None
) -> float:
    """Predicted time of a kernel that gathers its operands; `fitted` numbers, by default those known for the device."""
    return launched(busy_seconds(contraction, target, work, fitted), (fitted or coefficients(target)).launch)


def busy_seconds(
    contraction: Contraction, target: Target, work: KernelWork, fitted: Coefficients | None = None
) -> float:
    """Predicted time of such a kernel without its launch."""
    if _recording is not None:
        _recording.append((contraction, target, work))
    by = fitted or coefficients(target)
    sms = constraints.sm_count(target)
    blocks = max(work.blocks, 1)
    uneven = math.ceil(blocks / sms) * sms / blocks  # the busiest SM over the average
    waves = math.ceil(blocks / (sms * work.resident))
    own = own_bytes(contraction)
    step = by.step_seconds + _right_seconds(contraction, work)
    transposing = work.transposed / _fit("transpose_rate")
    pipes = (
        (sum(own) + _moved_again(own, work)) / by.memory_rate,
        uneven * sum([access.sector_bytes for access in work.accesses]) / by.l2_rate,
        uneven * work.cycles / (sms * by.clock),
        uneven * (work.flops / _rate(contraction, work, by) + work.function_seconds + transposing),
        waves * (work.steps * step + max(by.block_seconds, work.finish_seconds)),
        _hot_seconds(contraction, own, work) if work.matrix else 0.0,
    )
    norm = by.overlap(min(work.resident, math.ceil(blocks / sms)))
    slowest = max(pipes)
    return slowest * sum([(pipe / slowest) ** norm for pipe in pipes]) ** (1 / norm)


def launched(seconds: float, launch: float) -> float:
    """The time of a kernel whose work takes so long: its start and its end add as much again, and `launch` at most."""
    return seconds + min(launch, _fit("least_launch") + seconds)


@contextmanager
def recorded() -> Iterator[list[tuple[Contraction, Target, KernelWork]]]:
    """A list of the requests that `direct_seconds` serves within, for fitting its numbers."""
    global _recording
    found: list[tuple[Contraction, Target, KernelWork]] = []
    _recording = found
    try:
        yield found
    finally:
        _recording = None


def function_seconds(contraction: Contraction, a: int, b: int, d: int) -> float:
    """Seconds that functions take on so many elements of A, of B and of D, were all SMs equally busy."""
    slots: float = 0
    for elements, function in ((a, contraction.a_fn), (b, contraction.b_fn)):
        if function is not None:
            slots += elements * (_fit("reading_slots") + function.issue_slots)
    at_the_end: float = 0
    for function in (contraction.c_fn, contraction.epilogue):
        if function is not None:
            at_the_end += function.issue_slots
    return (slots + d * at_the_end) / _fit("function_rate")


def cast_seconds(contraction: Contraction, b: int) -> float:
    """Seconds that converting so many elements of B to the product's type takes, were all SMs equally busy."""
    return b / _fit("cast_rate") if contraction.b.dtype != contraction.arithmetic.product else 0.0


def _right_seconds(contraction: Contraction, work: KernelWork) -> float:
    """The time that each step waits longer where the right operand passes its function: matrix instructions take it
    from shared memory only, so that it is read from there, computed and written back before any warp may go on."""
    return _fit("right_seconds") * contraction.b_fn.issue_slots if contraction.b_fn is not None and work.matrix else 0.0


def _moved_again(own: Sequence[int], work: KernelWork) -> float:
    """Bytes that memory moves besides compulsory ones: for lines of large operands that tiles take in part, at
    different times, and for results that are stored so."""
    if not (work.matrix or work.stage_bytes):
        return scattered_bytes(work.accesses[-1])  # lanes that take lines in part find the rest in the first cache
    in_part = 0.0
    for size, access in zip(own, work.accesses[:2], strict=False):
        in_part += max(0.0, size - _fit("kept_bytes")) * max(0.0, 1 - access.together / LINE)
    return _fit("part_lines") * in_part + scattered_bytes(work.accesses[-1])


def _hot_seconds(contraction: Contraction, own: Sequence[int], work: KernelWork) -> float:
    """Seconds where lines of a small operand are read by all programs at once, from few slices of L2.

    Measured to bind where its rows start within sectors.
    """
    seconds = 0.0
    for tensor, layout in enumerate((contraction.a, contraction.b)):
        steps = [mode.strides[tensor] * layout.dtype.itemsize for mode in contraction.modes if mode.strides[tensor] > 1]
        if any([step % SECTOR for step in steps]):  # noqa: C419
            seconds += work.accesses[tensor].bytes / (_fit("hot_rate") * max(1.0, own[tensor] / _fit("hot_bytes")))
    return seconds


def scattered_bytes(stored: Access) -> float:
    """Bytes that memory moves besides where a result is stored in short runs: a sector that is written in part is read,
    merged and written, and runs shorter than two lines leave lines half done."""
    runs = stored.bytes / stored.together
    merged = _fit("partial_sector") * SECTOR * runs if stored.together % SECTOR else 0.0
    return merged + _fit("ragged") * stored.bytes * max(0.0, 2 * LINE / stored.together - 1)


def reduce_seconds(workspace_bytes: int, splits: int) -> float:
    """The cost of split sums: partials written and read, mostly in L2, and a second kernel."""
    return 2 * workspace_bytes / _fit("reduce_rate") + _fit("reduce_seconds") if splits > 1 else 0.0


def compulsory_bytes(contraction: Contraction) -> int:
    """Each distinct element of A, B and C once in, each of D once out."""
    return sum(own_bytes(contraction))


def own_bytes(contraction: Contraction) -> tuple[int, ...]:
    """Bytes of the distinct elements of A, B, C and D; none of a C that there is not."""
    found = []
    for tensor, layout in enumerate((contraction.a, contraction.b, contraction.c, contraction.d)):
        size = layout.dtype.itemsize if layout is not None else 0
        for mode in contraction.modes:
            size *= mode.extent if mode.strides[tensor] else 1
        found.append(size)
    return tuple(found)


def matrix_rate(contraction: Contraction, work: KernelWork, target: Target) -> float:
    """Flops per second that the model gives matrix instructions for such tiles."""
    return _rate(contraction, work, coefficients(target))


def _rate(contraction: Contraction, work: KernelWork, by: Coefficients) -> float:
    if not work.matrix:
        return by.vector_rate
    arithmetic = contraction.arithmetic
    product = torch.float64 if arithmetic.accumulate is torch.float64 else arithmetic.product
    rate = by.matrix * _fit.table("matrix_rate")[f"{dtype_name(product)} {arithmetic.precision}"]
    if product is torch.float32 and arithmetic.precision == "ieee" and _along_k(contraction, B):
        rate /= _fit("single_along_k")
    if arithmetic.precision == "tf32x3" and not (_along_k(contraction, A) and _along_k(contraction, B)):
        rate *= _fit("across_k")
    if arithmetic.precision == BF16X6.name:
        rate *= _split_share(work)
    return rate / by.rearranged if work.rearranged else rate


def _split_share(work: KernelWork) -> float:
    """The share of the rate that tiles have which are split in registers: these leave room for few programs on an SM,
    which hide each other's loads and stores less. Of operands that are copied in whole vectors the first and the last
    ones count alone; tiles of few rows are not for warp groups, and those of many take two, which wait for each other.
    """
    rows, columns, depth = work.tile
    share = IN_REGISTERS.get(f"{rows}x{columns}", OTHER_TILES)
    of_vectors = min([access.width for access in work.accesses[:2]]) >= VECTOR
    if of_vectors and GROUP_ROWS <= rows <= 2 * GROUP_ROWS and work.steps > FEW_STEPS:
        share = 1 - (1 - share) * FEW_STEPS / work.steps
    return share * (SHALLOW if depth <= STEPS[0] else 1.0)


def _along_k(contraction: Contraction, tensor: int) -> bool:
    return nearest(contraction.of_role(Role.K), tensor) is not None
