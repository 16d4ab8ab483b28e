"""Launches of a product by terms: of operands, of the verdict, of the kernel by each scheme, of split-K partials.

And its tiles, and what their kernel takes of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.gpu.common.constants import TRITON_TYPES, DeviceFunction
from weft.gpu.common.constraints import SHARED_MEMORY, VECTOR, is_short, sm_count
from weft.gpu.common.contraction_launch import reduce_launch
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.common.operation import operation
from weft.gpu.common.tiling import A, B
from weft.gpu.warp_specialized import schedule as schedules
from weft.gpu.warp_specialized.family import operand_maps, supports
from weft.gpu.warp_specialized.model import ws_params
from weft.gpu.warp_specialized.schedule import BARRIERS, COOPERATIVE, LEAST_STAGES, MOST_STAGES, WARPS, WsSchedule
from weft.gpu.warp_specialized.views import extent, tma_views
from weft.planner.schedule import Scalar, Target
from weft.planner.split_schemes import BF16X6, FP16X3, NEAR, RUN, SplitScheme
from weft.spec import Contraction, Layout, Role, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve

ROWS, COLUMNS = 128, (64, 128)  # of a tile: three sums of 64 x 128 are 192 registers of each thread
#: Indices of k in a tile, by scheme. Tiles of three terms are half as deep as lines of 128 bytes would have it: of
#: deeper ones there is room for two stages.
DEPTHS = {BF16X6.name: 32, FP16X3.name: 64}


class TermsParams(NamedTuple):
    """Constants of the kernel that a scheme gives."""

    number: int  # as verdicts name it
    terms: int  # of each operand
    small: tuple[tuple[int, int], ...]  # terms of A and of B whose products are small, the smallest first
    factor: float  # of the sum of these
    run: int  # steps along k that matrix units add up before their sum is added in float32
    scaled: bool  # terms are those of scaled values


def terms_params(scheme: SplitScheme, depth: int) -> TermsParams:
    """The constants of a scheme for tiles of so many indices of k."""
    places = range(scheme.terms)
    small = [(i, order - i) for order in range(scheme.orders - 1, 0, -1) for i in places if order - i in places]
    return TermsParams(
        number(scheme), scheme.terms, tuple(small), 2.0 ** -joined_shift(scheme), RUN // depth, scheme is FP16X3
    )


def number(scheme: SplitScheme) -> int:
    """The number of a scheme in a verdict."""
    return 1 if scheme is FP16X3 else 0


def joined_shift(scheme: SplitScheme) -> int:
    """Bits by which what is left of a value is scaled up: none where several orders are one sum."""
    return scheme.shift if scheme.orders == 2 else 0


def described(a: Layout, b: Layout, d: Layout, epilogue: Pointwise | None) -> Contraction:
    """The product of terms that lie like `a` (batch, m, k) and `b` (batch, k, n), or without batch, to D."""
    equation = "zmk,zkn->zmn" if len(a.shape) == 3 else "mk,kn->mn"
    notation = parse(equation)
    layouts = a, b, d
    extents = {
        label: size for term, x in zip((*notation.inputs, notation.output), layouts, strict=True)
        for label, size in zip(term, x.shape, strict=True)
    }  # fmt: skip
    modes = class_modes(notation, layouts[0], layouts[1], None, layouts[2], extents)
    arithmetic = resolve(a.dtype, b.dtype, None)
    return canonical(Contraction(modes, layouts[0], layouts[1], None, layouts[2], arithmetic, epilogue=epilogue))


def schedule_of(contraction: Contraction, scheme: SplitScheme, target: Target) -> WsSchedule | str:
    """The tiles of a product of terms, by the operands' views and with split-K where D alone cannot fill the device;
    or why there are none, in a sentence."""
    if (reason := supports(contraction, target)) is not None:
        return reason
    if not scheme.admitted(contraction.k, joined=True):
        return f"sums of {contraction.k} products are too short"
    sums = contraction.of_role(Role.K)
    views = [next(tma_views(contraction, operand, sums[0]), None) for operand in (A, B)] if len(sums) == 1 else [None]
    a, b = (views[0], views[-1])
    if a is None or b is None:
        return "terms do not lie as TMA reads them"
    if schedules.output_dimensions(contraction, a, b) is None:
        return "TMA cannot store D"
    depth = DEPTHS[scheme.name]
    width = next((each for each in COLUMNS if each >= extent(b.outer)), COLUMNS[-1])
    stage = scheme.terms * (ROWS + width) * depth * scheme.term.itemsize
    rows = ROWS // COOPERATIVE.m_parts
    room = (target.shared_memory or SHARED_MEMORY) - BARRIERS - schedules.staging_bytes(rows, COOPERATIVE.buffers)
    stages = min(MOST_STAGES, room // stage)
    if stages < LEAST_STAGES:
        return "the device has too little shared memory"
    whole = WsSchedule(a, b, sums[0], (ROWS, width, depth), WARPS, stages, consumers=COOPERATIVE)
    runs, wanted = -(-contraction.k // RUN), sm_count(target) // schedules.output_tiles(contraction, whole)
    splits = -(-runs // -(-runs // max(wanted, 1)))  # no more than runs, and as many by each scheme
    return replace(whole, splits=splits) if splits > 1 else whole


_ROOM = "weft.gpu.terms.packing_kernel"
CLEAR_KERNEL, PEAK_KERNEL, TERMS_KERNEL, VERDICT_KERNEL = (
    DeviceFunction(_ROOM, name) for name in ("clear_kernel", "peak_kernel", "terms_kernel", "verdict_kernel")
)
TILE, PACK_WARPS, RESIDENT = 64, 4, 8  # rows and indices of k, and the warps, of a packing program; such of each SM
FIRST_COUNT = 4  # word
RANGE = 30  # powers of two from 1 that peaks may be, so that scales multiplied are numbers
BLOCK = 4096  # counts that are looked at at once
SHARE = 0.75  # of a row's values that are near


class PackParams(NamedTuple):
    """An operand (batch, rows, k), the right one turned, and its terms."""

    rows: int
    k: int
    tile: int
    tiles: int
    programs: int
    read: tuple[int, ...]  # three strides of the operand
    written: tuple[int, ...]  # of a term
    apart: int  # elements from a term to the next
    terms: int
    term: Any  # type
    shift: float  # by which what a term leaves is multiplied
    scaled: bool
    near: float
    side: int  # 0 of A, 1 of B
    first_count: int  # the word that counts near values of the first row


class OperandTerms:
    """Splits operands that lie so: (batch, rows, k) or (rows, k), B's columns are its rows."""

    def __init__(self, x: Layout, side: int, first_count: int, target: Target) -> None:
        *batch, rows, k = x.shape
        self.side, self.rows, self._target, self._layout = side, math.prod(batch) * rows, target, x
        self._first_count = first_count
        self._turned = x.strides[-2] == 1 and x.strides[-1] != 1
        aligned = VECTOR // 2
        across, along = (k, rows) if self._turned else (rows, k)
        self._pitched = (*batch, across, -(-along // aligned) * aligned)
        self._shape = x.shape
        self._split: dict[str, KernelLaunch] = {}
        self._peak: KernelLaunch | None = None

    def prepare(self, schemes: Sequence[SplitScheme], words: Layout | None) -> None:
        """Make the launches: later calls may be captured. `words`: of the verdict, where there is one."""
        if words is not None:
            self._peak = self._launch(PEAK_KERNEL, (self._layout, words), self._params(FP16X3))
        for scheme in schemes:
            layouts = self._layout, words, Layout.contiguous(self.room(scheme.terms), scheme.term)
            self._split[scheme.name] = self._launch(TERMS_KERNEL, layouts, self._params(scheme))

    @property
    def kernels(self) -> tuple[KernelLaunch, ...]:
        """The launches."""
        return (*self._split.values(), *((self._peak,) if self._peak is not None else ()))

    def room(self, terms: int) -> tuple[int, ...]:
        """The shape of memory for so many terms, which begin at whole words."""
        return (terms, *self._pitched)

    def term(self, scheme: SplitScheme) -> Layout:
        """The layout of a term as a matrix that lies as the operand does."""
        pitched = Layout.contiguous(self._pitched, scheme.term)
        *outer, rows, k = self._shape
        if self._turned:
            return pitched._replace(shape=(*outer, k, rows)).transposed
        return pitched._replace(shape=self._shape)

    def views(self, room: Tensor) -> list[Tensor]:
        """Terms as matrices that lie as the operand does."""
        along = self._shape[-2] if self._turned else self._shape[-1]
        held = room[..., :along]
        return list(held.mT if self._turned else held)

    def peak(self, x: Tensor, words: Tensor) -> None:
        """Find the largest magnitude."""
        assert self._peak is not None, "there is a verdict"
        self._peak((x, words), 1, 1)

    def split(self, x: Tensor, words: Tensor | None, room: Tensor, scheme: SplitScheme) -> None:
        """Write the terms; those of bfloat16 unless the verdict is that others serve."""
        self._split[scheme.name]((x, words, room), 1, 1)

    def _params(self, scheme: SplitScheme) -> PackParams:
        rows, k = self._shape[-2:]
        tiles = self.rows // rows * -(-rows // TILE) * -(-k // TILE)
        pitch = self._pitched[-1]
        return PackParams(
            rows=rows, k=k, tile=TILE, tiles=tiles, programs=min(tiles, RESIDENT * sm_count(self._target)),
            read=(0, *self._layout.strides)[-3:],
            written=(self._pitched[-2] * pitch, *((1, pitch) if self._turned else (pitch, 1))),
            apart=math.prod(self._pitched), terms=scheme.terms, term=TRITON_TYPES[scheme.term],
            shift=2.0 ** joined_shift(scheme), scaled=scheme is FP16X3, near=NEAR, side=self.side,
            first_count=self._first_count,
        )  # fmt: skip

    def _launch(self, kernel: DeviceFunction, layouts: tuple[Layout | None, ...], params: PackParams) -> KernelLaunch:
        return KernelLaunch(kernel, layouts, {"PACK": params}, True, self._target, params.programs, PACK_WARPS, 1)


class TermsVerdict:
    """Says in the first of some words whether float16 terms serve."""

    def __init__(self, words: Layout, k: int, target: Target) -> None:
        (count,) = words.shape
        constants = {"COUNTS": count - FIRST_COUNT, "LEAST": math.ceil(SHARE * k), "RANGE": RANGE, "BLOCK": BLOCK}
        blocks, cleared = -(-count // BLOCK), {"COUNT": count, "BLOCK": BLOCK}
        self._clear = KernelLaunch(CLEAR_KERNEL, (words,), cleared, True, target, blocks, PACK_WARPS, 1)
        self._said = KernelLaunch(VERDICT_KERNEL, (words,), constants, True, target, 1, PACK_WARPS, 1)
        self.kernels = self._clear, self._said

    def clear(self, words: Tensor) -> None:
        """Begin: there are no peaks, and nothing is counted."""
        self._clear((words,), 1, 1)

    def __call__(self, words: Tensor) -> None:
        self._said((words,), 1, 1)


KERNEL = DeviceFunction("weft.gpu.terms.kernel", "terms_kernel")
MOST_TERMS = 3
WORD = VECTOR // 4  # elements of float32


class TermsKernel:
    """The kernel of one scheme on terms that lie so."""

    def __init__(
        self, a: Layout, b: Layout, d: Layout, words: Layout | None, scheme: SplitScheme, target: Target,
        epilogue: Pointwise | None = None,
    ) -> None:  # fmt: skip
        contraction = described(a, b, d, epilogue)
        schedule = schedule_of(contraction, scheme, target)
        if isinstance(schedule, str):
            raise UnsupportedError(schedule)
        self.schedule = schedule
        params = ws_params(contraction, schedule, target)
        map_a, map_b, _ = operand_maps(contraction, schedule)
        map_d = schedules.output_map(contraction, schedule, schedule.rows, params.tma.blocks).tensor
        left = [map_a if at < scheme.terms else None for at in range(MOST_TERMS)]
        right = [map_b if at < scheme.terms else None for at in range(MOST_TERMS)]
        constants = {"PARAMS": params, "OP": operation(contraction), "TERMS": terms_params(scheme, schedule.tile[2])}
        layouts = (*left, *right, words, map_d)
        self.multiply = KernelLaunch(
            KERNEL, layouts, constants, True, target, params.tma.programs, WARPS, 1, pdl=is_short(contraction)
        )  # fmt: skip
        self.partials: Layout | None = None
        if schedule.splits > 1:
            self.partials = schedules.partials_layout(contraction, schedule, params.tma.blocks)
            #: The launch that adds partials, once it is made.
            self.reduction = partial(reduce_launch, contraction, params.tma, self.partials, target)

    def __call__(
        self, a: Sequence[Tensor], b: Sequence[Tensor], words: Tensor | None, stored: Tensor, alpha: Scalar
    ) -> None:
        """Multiply, to D or to partials."""
        absent = (None,) * (MOST_TERMS - len(a))
        self.multiply((*a, *absent, *b, *absent, words, stored), alpha, 1)


class TermsProduct:
    """The epilogue of `alpha` times the product of float32 matrices that lie as `left` and `right`.

    These are (batch, m, k) and (batch, k, n), or without batch. The first scheme that serves makes it; bfloat16,
    which always does, is the last of them. `UnsupportedError` where the kernel does not take the matrices.
    """

    def __init__(
        self, left: Layout, right: Layout, place: Layout, schemes: Sequence[SplitScheme], target: Target,
        epilogue: Pointwise | None = None,
    ) -> None:  # fmt: skip
        self._left = OperandTerms(left, 0, FIRST_COUNT, target)
        self._right = OperandTerms(right.transposed, 1, FIRST_COUNT + self._left.rows, target)
        self.schemes = tuple(schemes)
        self._aside = not _is_stored_by_tma(place)
        self._words = Layout.contiguous((FIRST_COUNT + self._left.rows + self._right.rows,), torch.int32)
        words = self._words if len(schemes) > 1 else None
        for side in (self._left, self._right):
            side.prepare(self.schemes, words)
        d = _by_whole_words(place) if self._aside else place
        self._by_scheme = [
            TermsKernel(self._left.term(each), self._right.term(each).transposed, d, words, each, target, epilogue)
            for each in self.schemes
        ]
        last = self._by_scheme[-1]  # partials lie alike, whichever scheme serves
        self._reduce = last.reduction() if last.partials is not None else None
        self._verdict = TermsVerdict(self._words, left.shape[-1], target) if words is not None else None

    @property
    def kernels(self) -> tuple[KernelLaunch, ...]:
        """All launches of a call."""
        found = [*self._left.kernels, *self._right.kernels, *(each.multiply for each in self._by_scheme)]
        found += self._verdict.kernels if self._verdict is not None else ()
        return (*found, self._reduce) if self._reduce is not None else tuple(found)

    def _terms(self, x: Tensor, y: Tensor, scheme: SplitScheme) -> tuple[list[Tensor], list[Tensor]]:
        """Terms of A and B as matrices of the product."""
        left, right = (
            side.views(room[: scheme.terms].view(scheme.term))
            for side, room in ((self._left, x), (self._right, y))
        )  # fmt: skip
        return left, [each.mT for each in right]

    def __call__(self, left: Tensor, right: Tensor, place: Tensor, alpha: Scalar = 1) -> None:
        x, y = (
            torch.empty(side.room(MOST_TERMS), dtype=torch.int16, device=left.device)
            for side in (self._left, self._right)
        )  # fmt: skip
        operands = (self._left, left, x), (self._right, right.mT, y)
        words = None
        if self._verdict is not None:
            words = torch.empty(self._words.shape, dtype=torch.int32, device=left.device)
            self._verdict.clear(words)
            for side, operand, _ in operands:
                side.peak(operand, words)
        for scheme in self.schemes:
            for side, operand, room in operands:
                side.split(operand, words, room[: scheme.terms].view(scheme.term), scheme)
            if self._verdict is not None and words is not None and scheme is not BF16X6:
                self._verdict(words)
        last, d = self._by_scheme[-1], self._place(place)
        stored = d
        if last.partials is not None:
            stored = torch.empty(last.partials.shape, dtype=last.partials.dtype, device=left.device)
        for kernel, scheme in zip(self._by_scheme, self.schemes, strict=True):
            kernel(*self._terms(x, y, scheme), words, stored, alpha)
        if self._reduce is not None:
            self._reduce((stored, None, d), alpha, 1)
        if d is not place:
            place.copy_(d)

    def _place(self, place: Tensor) -> Tensor:
        """D, or memory of its own where TMA cannot store that."""
        if not self._aside:
            return place
        lies = _by_whole_words(Layout.of(place))
        room = place.new_empty((*lies.shape[:-1], lies.strides[-2]))
        return room[..., : lies.shape[-1]]


def _is_stored_by_tma(place: Layout) -> bool:
    """Whether rows or columns of a matrix are contiguous, and all others begin at whole words."""
    steps = sorted(stride for size, stride in zip(place.shape, place.strides, strict=True) if size > 1)
    whole = all(step > 0 and step % WORD == 0 for step in steps[1:])
    return 1 in place.strides[-2:] and whole and place.alignment % VECTOR == 0


def _by_whole_words(place: Layout) -> Layout:
    """The layout of rows that begin at whole words."""
    *outer, rows, columns = place.shape
    wide = Layout.contiguous((*outer, rows, -(-columns // WORD) * WORD), place.dtype)
    return wide._replace(shape=place.shape)
