"""The cost model of kernels that gather: the slowest of six pipes, on the busiest processor.

    memory     compulsory bytes, and lines that come in pieces, over the rate of device memory
    L2         every tile's sectors over the rate of L2
    hot lines  those of an operand so small that all blocks read the same ones, over the rate of the few slices of L2
    access     one cycle for each 128-byte line that a warp touches, at least one for each instruction
    arithmetic flops, lanes past the extents included, over the rate of the unit
    latency    what one block after the other waits for, step by step

Pipes overlap the better the more blocks a processor holds at once. The model ranks schedules of one contraction on one
device. Its constants (see `coefficients`) were fitted to 380 timed schedules of the TCCG suite on an H200, those of
hot lines, of lines in pieces and of TF32 to 1190 (none over 2.4 times the best of its case): predictions of the latter
are off by 12 % on average, and the first choice among those timed is 3 % slower than the best. As pipes overlap, no
rate is that of the pipe alone. Elsewhere they scale alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from weft.gpu.common.tiling import A, Axis, B
from weft.planner.coefficients import Coefficients, coefficients
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, Role

# Bytes per second that the parts of a split sum are written and read at, mostly in L2, and seconds of the kernel that
# adds them: fitted with the numbers of `specialised_cost`.
REDUCE_RATE, REDUCE_SECONDS = 7.2e12, 2.6e-6
GROUP_ROWS = 64  # of an instruction of a group of four warps
TALL = 1.07  # times that products take whose groups of warps have more rows: each instruction reads the columns anew
SM_COUNT = 132  # of the device that the constants were fitted on
REGISTERS, SHARED_MEMORY, WARPS = 65536, 227 * 1024, 64  # of one processor
ISSUE_RATE = 2.6e13  # lanes of instructions per second
FUNCTION_RATE = 1.9e13  # the same of functions, which wait for what else a kernel issues
READING_SLOTS = 3  # issue slots of reading an element of an operand into registers, for its function, and passing it on
RIGHT_SECONDS = 0.025e-6  # that a step along k waits for each slot of the right operand's function, between barriers
ELEMENTARY_SLOTS = 20  # issue slots of an exponential or its like
PARTIAL_SECTOR = 3  # times that a sector moves that is written in part
KEPT_BYTES = 40e6  # of an operand that stay in L2 until the tile that takes the rest of a line
PIECES = 1.2  # of the bytes beyond them that move again as the pieces of a line that tiles take get short
HOT_RATE = 1.4e12  # bytes per second of an operand of at most `HOT_BYTES` where rows do not start at whole sectors
HOT_BYTES = 20e3  # more spread over as many more slices of L2
# Instructions of TF32 read shared memory along k. A that lies against it is turned in registers and stays there, at no
# cost that was seen. B returns to shared memory where instructions of warp groups take it from there.
TURN_RATE = 4.4e11  # elements of B per second that are read, turned and written back, between barriers
# Instructions of warp groups take B from shared memory in the type of products. Where it is stored in another, it
# returns there converted: from float8 to float16, in products of 4096^3 with 64 indices of k a step.
CAST_RATE = 5.3e12  # elements of B per second that are converted, once for each block that reads them
AGAINST = 0.14  # of the rate of three products of TF32 where an operand lies against k
RAGGED = 0.2  # of the bytes of short runs that move again, for each run that two lines hold besides the first
SECTOR, LINE, WIDEST = 32, 128, 16  # bytes
LEAST_COPY, SMALLER = 4, 10  # bytes of an asynchronous copy; cycles of a smaller one, by registers, over one of these
LEAST_LAUNCH = 1.2e-6  # seconds of a kernel that does next to nothing

# Flops per second, by product type and precision.
_MATRIX_RATE = {
    (torch.int8, "ieee"): 1.2e15,  # of one-byte types twice that of two bytes, by data sheet
    (torch.float8_e4m3fn, "ieee"): 1.2e15,
    (torch.float8_e5m2, "ieee"): 1.2e15,
    (torch.float16, "ieee"): 6.0e14,
    (torch.bfloat16, "ieee"): 6.0e14,
    (torch.float32, "tf32"): 2.0e14,
    (torch.float32, "tf32x3"): 0.7e14,
    (torch.float32, "ieee"): 1.7e13,
    (torch.float64, "ieee"): 2.9e13,
}


_recording: list[tuple[Contraction, Target, Work]] | None = None


class Access(NamedTuple):
    """One tensor's accesses: bytes in all, bytes that one instruction can take, bytes that lie together along one axis
    of a tile, and in the whole tile; and bytes that one can take wherever the rows of the tile start."""

    bytes: int
    width: int
    stretch: int
    together: int
    copied: int = WIDEST
    again: float = 1.0  # times that a sector is read while the first cache still has it

    @property
    def sector_bytes(self) -> float:
        return self.bytes * max(1.0, SECTOR / self.together) / self.again

    @property
    def cycles(self) -> float:
        return max(self.bytes / (32 * min(WIDEST, self.width)), self.bytes / min(LINE, self.stretch))

    @property
    def copy_cycles(self) -> float:
        """The same of copies to shared memory, which are asynchronous from four bytes on."""
        smaller = SMALLER * self.bytes / (32 * self.copied) if self.copied < LEAST_COPY else 0.0
        return max(self.cycles, smaller)


@dataclass(frozen=True, slots=True)
class Work:
    """What a schedule makes the device do."""

    accesses: tuple[Access, ...]
    blocks: int
    steps: int  # along k, in each block
    tile: tuple[int, int, int]  # (M, N, K)
    warps: int
    stage_bytes: int  # of shared memory
    matrix: bool = True  # on matrix units
    rearranged: bool = False  # an operand is shuffled in registers on its way
    function_seconds: float = 0.0  # of the functions, were all processors equally busy
    turned: int = 0  # elements of B that are turned on their way through shared memory, in all blocks and steps

    @property
    def flops(self) -> float:
        return 2.0 * self.blocks * self.steps * math.prod(self.tile)

    @property
    def cycles(self) -> float:
        """Cycles of the load-store units; operands of matrix units are copied."""
        operands, others = (self.accesses[:2], self.accesses[2:]) if self.matrix else ((), self.accesses)
        return sum(access.copy_cycles for access in operands) + sum(access.cycles for access in others)

    @property
    def resident(self) -> int:
        """Blocks that fit on one processor at a time."""
        registers = min(self.tile[0] * self.tile[1] // (32 * self.warps) + 72, 255) * 32 * self.warps
        return max(1, min(REGISTERS // registers, SHARED_MEMORY // max(self.stage_bytes, 1), WARPS // self.warps))


def tile_access(layout: Layout | None, tensor: int, tiles: int, axes: Sequence[Axis], repeated: bool = False) -> Access:
    """What `tiles` tiles over `axes` read or write of a tensor; axes that it does not have cost nothing, but where a
    kernel reads the same element for each of their indices (`repeated`)."""
    if layout is None:
        return Access(0, WIDEST, LINE, LINE)
    size = layout.dtype.itemsize
    own = [axis for axis in axes if axis.present[tensor]]
    tiles *= math.prod(axis.tile for axis in axes if repeated and not axis.present[tensor])
    width = max((min(*axis.runs[tensor], layout.alignment // size) for axis in own), default=1)
    stretch = max((axis.stretches[tensor] for axis in own), default=1)
    together = max(stretch, run_of(pieces(own, tensor)))
    copied = min((width, *(axis.runs[tensor].divisor for axis in own)))
    return Access(
        tiles * math.prod(axis.tile for axis in own) * size, max(width, 1) * size, stretch * size, together * size,
        max(copied, 1) * size,
    )  # fmt: skip


class Piece(NamedTuple):
    """One mode of a tile as a tensor has it, in elements."""

    stride: int
    covered: int  # indices of it in the tile
    extent: int


def pieces(axes: Sequence[Axis], tensor: int) -> list[Piece]:
    """The modes of a tile that a tensor has."""
    found = []
    for axis in axes:
        rest = axis.tile
        for extent, stride in zip(axis.extents, axis.strides[tensor], strict=True):
            if stride:
                found.append(Piece(stride, min(rest, extent), extent))
            rest = -(-rest // max(extent, 1))
    return found


def run_of(tile: Sequence[Piece]) -> int:
    """Elements of a tile that lie together in a tensor, whichever axes they stand on."""
    run = 1
    for stride, covered, extent in sorted(tile):
        if stride != run:
            break
        run *= covered
        if covered < extent:
            break
    return run


def direct_seconds(contraction: Contraction, target: Target, work: Work, fitted: Coefficients | None = None) -> float:
    """Predicted time of a kernel that gathers its operands; `fitted` numbers, by default those known for the device."""
    return launched(busy_seconds(contraction, target, work, fitted), (fitted or coefficients(target)).launch)


def busy_seconds(contraction: Contraction, target: Target, work: Work, fitted: Coefficients | None = None) -> float:
    """The same without what launching it adds."""
    if _recording is not None:
        _recording.append((contraction, target, work))
    by = fitted or coefficients(target)
    processors = target.processors if target.processors > 1 else SM_COUNT
    blocks = max(work.blocks, 1)
    uneven = math.ceil(blocks / processors) * processors / blocks  # the busiest processor over the average
    waves = math.ceil(blocks / (processors * work.resident))
    own = own_bytes(contraction)
    pipes = (
        (sum(own) + _moved_again(own, work)) / by.memory_rate,
        uneven * sum(access.sector_bytes for access in work.accesses) / by.l2_rate,
        uneven * work.cycles / (processors * by.clock),
        uneven * (work.flops / _rate(contraction, work, by) + work.function_seconds + work.turned / TURN_RATE),
        waves * (work.steps * (by.step_seconds + _right_seconds(contraction, work)) + by.block_seconds),
        _hot_seconds(contraction, own, work) if work.matrix else 0.0,
    )
    norm = by.overlap(min(work.resident, math.ceil(blocks / processors)))
    slowest = max(pipes)
    return slowest * sum((pipe / slowest) ** norm for pipe in pipes) ** (1 / norm)


def launched(seconds: float, launch: float) -> float:
    """The time of a kernel whose work takes so long: its start and its end add as much again, and `launch` at most."""
    return seconds + min(launch, LEAST_LAUNCH + seconds)


@contextmanager
def recorded() -> Iterator[list[tuple[Contraction, Target, Work]]]:
    """A list of what `direct_seconds` is asked within, for fitting its numbers."""
    global _recording
    found: list[tuple[Contraction, Target, Work]] = []
    _recording = found
    try:
        yield found
    finally:
        _recording = None


def function_seconds(contraction: Contraction, a: int, b: int, d: int) -> float:
    """Seconds that functions take on so many elements of A, of B and of D, were all processors equally busy."""
    slots = sum(
        elements * (READING_SLOTS + function.slots)
        for elements, function in ((a, contraction.a_fn), (b, contraction.b_fn))
        if function is not None
    )
    slots += d * sum(function.slots for function in (contraction.c_fn, contraction.epilogue) if function is not None)
    return slots / FUNCTION_RATE


def cast_seconds(contraction: Contraction, b: int) -> float:
    """Seconds that converting so many elements of B to the product's type takes, were all processors equally busy."""
    return b / CAST_RATE if contraction.b.dtype != contraction.arithmetic.product else 0.0


def _right_seconds(contraction: Contraction, work: Work) -> float:
    """What each step waits longer where the right operand passes its function: matrix instructions take it from shared
    memory only, so that it is read from there, computed and written back before any warp may go on."""
    return RIGHT_SECONDS * contraction.b_fn.slots if contraction.b_fn is not None and work.matrix else 0.0


def _moved_again(own: Sequence[int], work: Work) -> float:
    """What memory moves besides compulsory bytes: for lines of large operands that tiles take in pieces, at different
    times, and for results in pieces."""
    in_pieces = sum(
        max(0.0, size - KEPT_BYTES) * max(0.0, 1 - access.together / LINE)
        for size, access in zip(own, work.accesses[:2], strict=False)
    )
    return (PIECES * in_pieces if work.matrix else 0.0) + scattered_bytes(work.accesses[-1])


def _hot_seconds(contraction: Contraction, own: Sequence[int], work: Work) -> float:
    """The same lines of a small operand are read by all blocks at once, and lie in few slices of L2: measured to bind
    where its rows start within sectors."""
    seconds = 0.0
    for tensor, layout in enumerate((contraction.a, contraction.b)):
        steps = [mode.strides[tensor] * layout.dtype.itemsize for mode in contraction.modes if mode.strides[tensor] > 1]
        if any(step % SECTOR for step in steps):
            seconds += work.accesses[tensor].bytes / (HOT_RATE * max(1.0, own[tensor] / HOT_BYTES))
    return seconds


def scattered_bytes(stored: Access) -> float:
    """What memory moves besides where a result is stored in pieces: a sector that is written in part is read, merged
    and written, and runs shorter than two lines leave lines half done."""
    pieces = stored.bytes / stored.together
    merged = PARTIAL_SECTOR * SECTOR * pieces if stored.together % SECTOR else 0.0
    return merged + RAGGED * stored.bytes * max(0.0, 2 * LINE / stored.together - 1)


def reduce_seconds(workspace_bytes: int, splits: int) -> float:
    """What splitting sums adds: parts written and read, mostly in L2, and a second kernel."""
    return 2 * workspace_bytes / REDUCE_RATE + REDUCE_SECONDS if splits > 1 else 0.0


def compulsory_bytes(contraction: Contraction) -> int:
    """Each distinct element of A, B and C once in, each of D once out."""
    return sum(own_bytes(contraction))


def own_bytes(contraction: Contraction) -> tuple[int, ...]:
    """Bytes of the distinct elements of A, B, C and D; none of a C that there is not."""
    layouts = (contraction.a, contraction.b, contraction.c, contraction.d)
    return tuple(
        math.prod(mode.extent for mode in contraction.modes if mode.strides[at]) * layout.dtype.itemsize
        if layout is not None
        else 0
        for at, layout in enumerate(layouts)
    )


def matrix_rate(contraction: Contraction, work: Work, target: Target) -> float:
    """Flops per second that the model gives matrix instructions for such tiles."""
    return _rate(contraction, work, coefficients(target))


def _rate(contraction: Contraction, work: Work, by: Coefficients) -> float:
    if not work.matrix:
        return by.vector_rate
    arithmetic = contraction.arithmetic
    product = torch.float64 if arithmetic.accumulate is torch.float64 else arithmetic.product
    rate = by.matrix * _MATRIX_RATE[product, arithmetic.precision]
    if arithmetic.precision == "tf32x3" and not _both_along_k(contraction):
        rate *= AGAINST
    return rate / by.rearranged if work.rearranged else rate


def _both_along_k(contraction: Contraction) -> bool:
    return _along_k(contraction, A) and _along_k(contraction, B)


def _along_k(contraction: Contraction, tensor: int) -> bool:
    return any(mode.strides[tensor] == 1 for mode in contraction.of_role(Role.K))


def sm_count(target: Target) -> int:
    """SMs of a device; of the one that the constants were fitted on, where the target does not say."""
    return target.processors if target.processors > 1 else SM_COUNT
