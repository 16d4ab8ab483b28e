"""The cost model of kernels that gather: the slowest of five pipes, on the busiest processor.

    memory     compulsory bytes over the rate of device memory
    L2         every tile's sectors over the rate of L2
    access     one cycle for each 128-byte line that a warp touches, at least one for each instruction
    arithmetic flops, lanes past the extents included, over the rate of the unit
    latency    what one block after the other waits for, step by step

Pipes overlap the better the more blocks a processor holds at once. The model ranks schedules of one contraction on one
device. Its constants (see `coefficients`) were fitted to 380 timed schedules of the TCCG suite on an H200: predictions
are off by 14 % on average, and the first choice is 8 % slower than the best timed schedule. As pipes overlap, no rate
is that of the pipe alone. Elsewhere they scale alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from weft.kernels.coefficients import Coefficients, coefficients
from weft.kernels.geometry import A, Axis, B
from weft.plan.schedule import Target
from weft.spec import Contraction, Layout, Role

COMBINE_RATE = 6.3e12  # bytes per second that the parts of a split sum are written and read at, mostly in L2
COMBINE_SECONDS = 5e-6  # the second kernel of a split sum
PROCESSORS = 132  # of the device that the constants were fitted on
REGISTERS, SHARED_MEMORY, WARPS = 65536, 227 * 1024, 64  # of one processor
ISSUE_RATE = 2.6e13  # lanes of instructions per second
FUNCTION_RATE = 1.9e13  # the same of functions, which wait for what else a kernel issues
READING_SLOTS = 3  # issue slots of reading an element of an operand into registers, for its function, and passing it on
RIGHT_SECONDS = 0.025e-6  # that a step along k waits for each slot of the right operand's function, between barriers
ELEMENTARY_SLOTS = 20  # issue slots of an exponential or its like
PARTIAL_SECTOR = 3  # times that a sector moves that is written in part
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
    (torch.float64, "ieee"): 2.8e13,
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
    processors = target.processors if target.processors > 1 else PROCESSORS
    blocks = max(work.blocks, 1)
    uneven = math.ceil(blocks / processors) * processors / blocks  # the busiest processor over the average
    waves = math.ceil(blocks / (processors * work.resident))
    pipes = (
        (compulsory_bytes(contraction) + scattered_bytes(work.accesses[-1])) / by.memory_rate,
        uneven * sum(access.sector_bytes for access in work.accesses) / by.l2_rate,
        uneven * work.cycles / (processors * by.clock),
        uneven * (work.flops / _rate(contraction, work, by) + work.function_seconds),
        waves * (work.steps * (by.step_seconds + _right_seconds(contraction, work)) + by.block_seconds),
    )
    norm = by.overlap(work.resident)
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


def _right_seconds(contraction: Contraction, work: Work) -> float:
    """What each step waits longer where the right operand passes its function: matrix instructions take it from shared
    memory only, so that it is read from there, computed and written back before any warp may go on."""
    return RIGHT_SECONDS * contraction.b_fn.slots if contraction.b_fn is not None and work.matrix else 0.0


def scattered_bytes(stored: Access) -> float:
    """What memory moves besides where a result is stored in pieces: a sector that is written in part is read, merged
    and written, and runs shorter than two lines leave lines half done."""
    pieces = stored.bytes / stored.together
    merged = PARTIAL_SECTOR * SECTOR * pieces if stored.together % SECTOR else 0.0
    return merged + RAGGED * stored.bytes * max(0.0, 2 * LINE / stored.together - 1)


def combine_seconds(workspace_bytes: int, splits: int) -> float:
    """What splitting sums adds: parts written and read, mostly in L2, and a second kernel."""
    return 2 * workspace_bytes / COMBINE_RATE + COMBINE_SECONDS if splits > 1 else 0.0


def compulsory_bytes(contraction: Contraction) -> int:
    """Each distinct element of A, B and C once in, each of D once out."""
    layouts = (contraction.a, contraction.b, contraction.c, contraction.d)
    return sum(
        math.prod(mode.extent for mode in contraction.modes if mode.strides[at]) * layout.dtype.itemsize
        for at, layout in enumerate(layouts)
        if layout is not None
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
    if arithmetic.precision != "ieee" and not _both_along_k(contraction):
        rate *= _share_against(contraction, work)
    return rate / by.rearranged if work.rearranged else rate


def _share_against(contraction: Contraction, work: Work) -> float:
    """What is had of the rate of TF32 where an operand lies against the sum: instructions read shared memory along k.

    A is turned in registers and stays there. B returns to shared memory, but where the tile is too low for the
    instructions of a warp group and those of a warp take both from registers.
    """
    if contraction.arithmetic.precision != "tf32":
        return 0.14
    if _along_k(contraction, B):
        return 0.5
    return 0.2 if work.tile[0] >= 64 else 0.35


def _both_along_k(contraction: Contraction) -> bool:
    return _along_k(contraction, A) and _along_k(contraction, B)


def _along_k(contraction: Contraction, tensor: int) -> bool:
    return any(mode.strides[tensor] == 1 for mode in contraction.of_role(Role.K))
