"""Permutations at the speed of memory: which blocks are legal, and what they should cost.

A block spans a run of the source and a run of D, flattened over as many modes as it takes to fill whole memory lines
on both sides; where one run serves both, the block is that run and whatever comes next. Where both begin with the same
short modes (the two halves of a complex128, say), those are an axis of their own, and the runs go on from there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from weft.kernels.cost import PROCESSORS, REGISTERS, SECTOR, SHARED_MEMORY, WARPS, WIDEST, Access, tile_access
from weft.kernels.geometry import A, Axis, C, Cut, D, Side, by_stride, cuts_text, rest, side
from weft.kernels.launch import MOST_PROGRAMS, TRITON_TYPES, KernelLaunch, wide, wide_index
from weft.plan.schedule import Candidates, Scalar, Target
from weft.spec import Layout, Mode, Role, Strides
from weft.spec.arithmetic import dtype_name
from weft.spec.permutation import Permutation

NAME = "permute"

_LINES = (128, 256, 512, 64, 32)  # bytes that a block's runs should reach on either side
_FULL = 2048  # elements that a block should hold
_LONG = 4096  # and where one run serves both sides
_SHORT = 128  # bytes of the modes that both sides begin with, up to which they are an axis of their own
_OVERHANG = 1.03  # times the elements of a run that its blocks may span

LAUNCH = 1.2e-6  # seconds
COPY_RATE = 3.95e12  # bytes per second
L2_RATE = 11.7e12
CLOCK = 2.45e9  # lines per second and processor that the load-store units take
WAVE_SECONDS = 0.18e-6  # until the first bytes of a wave of blocks are there, and for each 16 KiB of a block:
LOAD_SECONDS = 0.036e-6
OVERLAP = (1.6, 3.8, 2.6)  # the norms that join the pipes with 1, 2 and more blocks on a processor
ISSUE_SECONDS = 3.1 / (128 * 1.7e9)  # for the address of each access of a lane, on one processor
OWN_REGISTERS, LANE_REGISTERS = 40, 2.1  # of a thread, and for each element that it holds
STORED_AGAIN, READ_AGAIN = 3.0, 0.45  # times that a sector moves besides where a run starts or ends within it
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PAIRS = {torch.complex64: torch.float32, torch.complex128: torch.float64}


class PermuteCut(NamedTuple):
    """All that the kernel takes of a schedule, as compile-time constants."""

    r: Side  # in the order of the source, its fastest axis first
    w: Side  # the same axes in the order of D
    tile: tuple[int, ...]  # of `w`
    turn: tuple[int, ...]  # dimensions of the tile of `r` in the order of `w`
    wide: tuple[bool, ...]
    wide_index: bool


@dataclass(frozen=True, slots=True)
class PermuteSchedule:
    """The axes of a block: along the source's run, along D's, and whatever fills it up."""

    cuts: tuple[Cut, ...]
    warps: int
    family: str = NAME
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.family} [{cuts_text(self.cuts)}] warps={self.warps}"


def supports(permutation: Permutation, target: Target) -> str | None:
    complex_types = [layout.dtype for layout in _layouts(permutation) if layout.dtype.is_complex]
    if complex_types and permutation.fn is not None:
        return f"functions of {dtype_name(complex_types[0])} are for the family pairs"
    if complex_types and permutation.scaled:
        return f"{dtype_name(complex_types[0])} is scaled by complex numbers, which is for the family pairs"
    if complex_types and any(layout.dtype != permutation.x.dtype for layout in _layouts(permutation)):
        return f"{dtype_name(permutation.x.dtype)} to {dtype_name(permutation.d.dtype)} is for the family pairs"
    return None


def schedules(permutation: Permutation, target: Target) -> Candidates:
    legal, excluded = _legal(permutation)
    return Candidates(tuple(legal), excluded)


def best(permutation: Permutation, target: Target) -> tuple[PermuteSchedule, float]:
    """The schedule of the least predicted time, and that time in seconds."""
    legal, _ = _legal(permutation)
    chosen = min(legal, key=lambda schedule: predict(permutation, schedule, target))
    return chosen, predict(permutation, chosen, target)


def _legal(permutation: Permutation) -> tuple[list[PermuteSchedule], tuple[str, ...]]:
    elements = _elementwise(permutation)
    found: dict[PermuteSchedule, None] = {}
    excluded: dict[str, None] = {}
    for cuts in blocks(elements, most_axes=4):
        warps = 8 if math.prod(cut.tile for cut in cuts) >= 8192 else 4
        schedule = PermuteSchedule(cuts, warps)
        if programs(elements, schedule) > MOST_PROGRAMS:
            excluded["a grid holds at most 2^31 - 1 blocks"] = None
        else:
            found[schedule] = None
    return list(found), tuple(excluded)


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    """Seconds by the slowest of memory, L2 sectors, load-store lines, instructions and latency, as in `cost`.

    The constants were fitted to 1257 timed schedules of 31 permutations in four element sizes on an H200: predictions
    are off by 9 % on average, the first choice is 3.5 % slower than the best timed schedule.
    """
    return block_seconds(_elementwise(permutation), schedule, target)


def block_seconds(
    elements: Permutation, schedule: PermuteSchedule, target: Target, read: int = 1, written: int = 1
) -> float:
    """The same of elements that a kernel moves as they are, reads and writes so many times."""
    cut = permute_cut(elements, schedule)
    count = programs(elements, schedule)
    processors = target.processors if target.processors > 1 else PROCESSORS
    lanes = math.prod(cut.tile)
    tensors = [*[(A, elements.x)] * read, (C, elements.c), *[(D, elements.d)] * written]
    moved = [_moved(elements, tensor, layout, cut, count) for tensor, layout in tensors if layout is not None]
    tile_bytes = lanes * elements.d.dtype.itemsize
    registers = (OWN_REGISTERS + lanes / (32 * schedule.warps) * LANE_REGISTERS) * 32 * schedule.warps
    resident = max(1, min(SHARED_MEMORY // tile_bytes, WARPS // schedule.warps, int(REGISTERS // registers)))
    waves = math.ceil(max(count, 1) / (processors * resident))
    pipes = (
        sum(each.memory_bytes for each in moved) / COPY_RATE,
        sum(each.access.sector_bytes for each in moved) / L2_RATE,
        sum(each.access.cycles for each in moved) / (processors * CLOCK),
        sum(each.instructions for each in moved) * ISSUE_SECONDS / processors,
        waves * (WAVE_SECONDS + LOAD_SECONDS * resident * tile_bytes / 16384),
    )
    norm = OVERLAP[0 if resident < 2 else 1 if resident < 4 else 2]
    slowest = max(pipes)
    return LAUNCH + slowest * sum((pipe / slowest) ** norm for pipe in pipes) ** (1 / norm)


class _Moved(NamedTuple):
    """What one tensor of a permutation costs."""

    access: Access
    memory_bytes: float  # pieces of sectors included
    instructions: float  # of single lanes


def _moved(elements: Permutation, tensor: int, layout: Layout, cut: PermuteCut, count: int) -> _Moved:
    size = layout.dtype.itemsize
    axes = (cut.r if tensor == A else cut.w).axes
    access = tile_access(layout, tensor, count, axes)
    access = access._replace(stretch=_in_a_row(axes, tensor) * size)
    distinct = math.prod(mode.extent for mode in elements.modes if mode.strides[tensor]) * size
    divisor = min((axis.runs[tensor].divisor for axis in axes), default=1)
    ragged = divisor * size < SECTOR or access.together % SECTOR != 0
    # A sector that is written in part is read and merged; one that is read in part is mostly in L2 the second time.
    again = (STORED_AGAIN if tensor == D else READ_AGAIN) * SECTOR * distinct / access.together if ragged else 0.0
    return _Moved(access, distinct + again, access.bytes / access.width)


def _in_a_row(axes: Sequence[Axis], tensor: int) -> int:
    """Elements of a tile that lie together along its first axes: what neighbouring lanes take."""
    run = 1
    for axis in axes:
        rest = axis.tile
        for extent, stride in zip(axis.extents, axis.strides[tensor], strict=True):
            if rest == 1:
                break
            if stride != run:
                return run
            run *= min(rest, extent)
            if rest < extent:
                return run
            rest = -(-rest // extent)
    return run


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> PermuteLaunch:
    from weft.kernels.permute_kernel import permute_kernel

    elements = _elementwise(permutation)
    scale = _PAIRS.get(permutation.scale, permutation.scale)
    constants = {
        "CUT": permute_cut(elements, schedule),
        "FN": elements.fn and elements.fn.jit,
        "COMPUTE": TRITON_TYPES[elements.compute],
        "SCALE": TRITON_TYPES[scale] if elements.scaled else None,
        "RESULT": TRITON_TYPES[elements.d.dtype],
        "CONJUGATE": permutation.conjugate,
    }
    launch = KernelLaunch(
        permute_kernel,
        (elements.x, elements.c, elements.d),
        constants,
        scale.is_floating_point,
        target,
        programs(elements, schedule),
        schedule.warps,
        stages=1,
    )
    return PermuteLaunch(launch, elements)


class PermuteLaunch:
    """A built permutation; tensors are seen as the elements that the kernel moves."""

    def __init__(self, launch: KernelLaunch, elements: Permutation) -> None:
        self.launch = launch
        self._types = tuple(layout and layout.dtype for layout in (elements.x, elements.c, elements.d))

    def __call__(self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        tensors: list[Any] = [
            tensor if tensor is None or dtype is None or tensor.dtype == dtype else _seen_as(tensor, dtype)
            for tensor, dtype in zip((x, c, d), self._types, strict=True)
        ]
        self.launch(*tensors, _real(alpha), _real(beta))


def cuts_of(permutation: Permutation, schedule: PermuteSchedule) -> list[Cut]:
    """Every mode of a permutation in some axis of a block."""
    cuts = [*rest(permutation.modes, schedule.cuts), *schedule.cuts]
    if all(cut.tile == 1 for cut in cuts):
        cuts.append(Cut((), 1, placed=True))  # a kernel stores blocks, not scalars
    return cuts


def permute_cut(permutation: Permutation, schedule: PermuteSchedule) -> PermuteCut:
    cuts = cuts_of(permutation, schedule)
    loaded, stored = _ordered(cuts, A), _ordered(cuts, D)
    source, result = side(loaded), side(stored)
    places = {id(cut): axis.place for cut, axis in zip(loaded, source.axes, strict=True)}
    return PermuteCut(
        r=source,
        w=result,
        tile=tuple(axis.tile for axis in result.axes if axis.place >= 0),
        turn=tuple(places[id(cut)] for cut, axis in zip(stored, result.axes, strict=True) if axis.place >= 0),
        wide=wide(permutation.modes),
        wide_index=wide_index(schedule.cuts),
    )


def _ordered(cuts: Sequence[Cut], tensor: int) -> list[Cut]:
    """The cuts as one tensor lies, its fastest first: neighbouring lanes go along the dimension of the longest run, and
    among equals, as where only a pair of words lies together, along the first."""

    def stride(cut: Cut) -> float:
        return (cut.modes[0].strides[tensor] if cut.modes else 0) or math.inf

    return sorted(cuts, key=stride)


def blocks(permutation: Permutation, most_axes: int = 3) -> Iterator[tuple[Cut, ...]]:
    """Blocks whose runs reach whole lines of the source and of D."""
    sizes = (permutation.x.dtype.itemsize, permutation.d.dtype.itemsize)
    shared = _shared(permutation.modes)
    elements = math.prod(mode.extent for mode in shared)
    short = shared and elements * max(sizes) <= _SHORT
    for line_x in _LINES:
        for line_d in _LINES:
            for even in (False, True):
                x, d = (
                    _Want(line // size, even, max(WIDEST // size, 1))
                    for line, size in zip((line_x, line_d), sizes, strict=True)
                )
                within = _block_within(permutation.modes, shared, x, d) if short else ()
                usable = 0 < len(within) <= most_axes
                if usable:
                    yield within
                if not usable or elements & (elements - 1):
                    yield _block(permutation.modes, x, d)


def _shared(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    """The modes that both the source and D begin with."""
    pairs = zip(by_stride(modes, A), by_stride(modes, D), strict=True)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1] and pair[0].strides[A], pairs)
    return tuple(mode for mode, _ in same)


def _block_within(modes: Sequence[Mode], shared: tuple[Mode, ...], x: _Want, d: _Want) -> tuple[Cut, ...]:
    """A block of what is left of the modes when both sides begin with the same, and those as its last axis; none where
    nothing else is cut along both."""
    own = Cut(shared, _tile(shared, _LONG))
    others = [mode for mode in modes if mode not in shared]
    cuts = _block(others, x.of(own.tile), d.of(own.tile), own.tile)
    return (*cuts, own) if len(cuts) > 1 else ()


class _Want(NamedTuple):
    """How far a run should reach, in elements."""

    length: int  # a power of two
    even: bool  # over further modes where it would overhang those that it takes, or they end
    unit: int  # within so many elements that one access takes

    def of(self, tile: int) -> _Want:
        """The same in elements so many times larger."""
        return _Want(max(self.length // tile, 1), self.even, max(self.unit // tile, 1))

    def met(self, extent: int) -> bool:
        return extent >= self.length and not (self.even and self.ragged(extent))

    def ragged(self, extent: int) -> bool:
        return -(-extent // self.length) * self.length > _OVERHANG * extent or extent % self.unit != 0


def _block(modes: Sequence[Mode], x: _Want, d: _Want, deep: int = 1) -> tuple[Cut, ...]:
    """An axis along D's run, one along the source's, and a third where both together are short.

    `deep` is the number of elements that each lane of the block stands for.
    """
    by_d, by_x = by_stride(modes, D), by_stride(modes, A)
    along_d = _reach(by_d, d, by_x[:1] if by_d[:1] != by_x[:1] else ())
    along_x = _reach([mode for mode in by_x if mode.strides[A] or not x.even], x, (), but=along_d)
    want_d = d.length if along_x else max(d.length, _LONG * d.length // 256)
    cuts = [Cut(group, _tile(group, want)) for group, want in ((along_x, x.length), (along_d, want_d)) if group]
    room = _FULL // deep // math.prod(cut.tile for cut in cuts)
    others = tuple(mode for mode in by_d if mode not in along_d and mode not in along_x)
    if others and room > 1:
        cuts.insert(0, Cut(others, _tile(others, room)))
    return tuple(cuts)


def _reach(order: Sequence[Mode], want: _Want, stop: Sequence[Mode], but: Sequence[Mode] = ()) -> tuple[Mode, ...]:
    """The first modes of an order, as many as are wanted; those in `but` count and are left to another axis."""
    taken: list[Mode] = []
    for mode in order:
        extent = math.prod(other.extent for other in taken)
        if mode in stop or want.met(extent) or (mode in but and extent >= want.length):
            break
        taken.append(mode)
    return tuple(mode for mode in taken if mode not in but)


def _tile(group: Sequence[Mode], want: int) -> int:
    """The power of two that covers the group, or what is wanted of it."""
    extent = math.prod(mode.extent for mode in group)
    return min(want, 1 << max(extent - 1, 0).bit_length())


def programs(permutation: Permutation, schedule: PermuteSchedule) -> int:
    blocks = math.prod(cut.blocks for cut in schedule.cuts)
    return blocks * math.prod(cut.extent for cut in rest(permutation.modes, schedule.cuts))


def _layouts(permutation: Permutation) -> list[Layout]:
    return [layout for layout in (permutation.x, permutation.c, permutation.d) if layout is not None]


def _elementwise(permutation: Permutation) -> Permutation:
    """The same permutation over elements that Triton has a type for.

    What is only moved goes as integers, 8 bytes at most; complex numbers that are computed with go as pairs of reals,
    an innermost mode of extent 2.
    """
    if permutation.is_move:
        size = permutation.x.dtype.itemsize
        word, pieces = _WORDS[min(size, 8)], max(size // 8, 1)
    elif permutation.x.dtype.is_complex:
        word, pieces = _PAIRS[permutation.x.dtype], 2
    else:
        return permutation
    modes = permutation.modes
    if pieces > 1:
        wider = [replace(mode, strides=Strides(*(pieces * stride for stride in mode.strides))) for mode in modes]
        added = int(permutation.c is not None)
        modes = (*wider, Mode(("re·im",), pieces, Role.M, Strides(1, 0, added, 1)))

    def seen(layout: Layout) -> Layout:
        return layout._replace(dtype=word)

    c = seen(permutation.c) if permutation.c is not None else None
    return replace(permutation, modes=modes, compute=word, x=seen(permutation.x), c=c, d=seen(permutation.d))


def _seen_as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same memory as elements of another type; only its address and type matter to a kernel."""
    if tensor.dtype.is_complex and dtype.itemsize < tensor.dtype.itemsize:
        tensor = torch.view_as_real(tensor)
    return tensor.view(dtype)


def _real(value: Scalar) -> Scalar:
    """A factor that is not applied here unless it is real."""
    return value.real if isinstance(value, complex) else value
