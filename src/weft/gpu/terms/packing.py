"""Launches that split float32 operands into terms, and say on the device whether float16 terms may serve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from weft.gpu.common.constants import TRITON_TYPES, DeviceFunction
from weft.gpu.common.constraints import VECTOR, sm_count
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.terms.model import joined_shift
from weft.planner.schedule import Target
from weft.planner.split_schemes import FP16X3, NEAR, SplitScheme
from weft.spec import Layout

_ROOM = "weft.gpu.terms.packing_kernel"
CLEAR_KERNEL, PEAK_KERNEL, TERMS_KERNEL, VERDICT_KERNEL = (
    DeviceFunction(_ROOM, name) for name in ("clear_kernel", "peak_kernel", "terms_kernel", "verdict_kernel")
)
TILE, WARPS, RESIDENT = 64, 4, 8  # rows and indices of k; programs of each SM
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
        return KernelLaunch(kernel, layouts, {"PACK": params}, True, self._target, params.programs, WARPS, 1)


class Verdict:
    """Says in the first of some words whether float16 terms serve."""

    def __init__(self, words: Layout, k: int, target: Target) -> None:
        (count,) = words.shape
        constants = {"COUNTS": count - FIRST_COUNT, "LEAST": math.ceil(SHARE * k), "RANGE": RANGE, "BLOCK": BLOCK}
        blocks, cleared = -(-count // BLOCK), {"COUNT": count, "BLOCK": BLOCK}
        self._clear = KernelLaunch(CLEAR_KERNEL, (words,), cleared, True, target, blocks, WARPS, 1)
        self._said = KernelLaunch(VERDICT_KERNEL, (words,), constants, True, target, 1, WARPS, 1)
        self.kernels = self._clear, self._said

    def clear(self, words: Tensor) -> None:
        """Begin: there are no peaks, and nothing is counted."""
        self._clear((words,), 1, 1)

    def __call__(self, words: Tensor) -> None:
        self._said((words,), 1, 1)
