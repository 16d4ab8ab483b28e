"""Which programs kernels serve, the tiles that they take, and from which call on compiled code serves.

The first call waits for no compiler. Loops that are on disk already serve from the second on. Other code is compiled in
a thread beside the calls, and serves from a call on that predicted times decide, as kernels of contractions do: two
runs of a program agree bit for bit, and nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

import torch

from weft.base.caches import cached_property
from weft.base.log import log
from weft.cascades.arguments import BOUND, BYTES, LEAST_ROWS, Sides, terms_for
from weft.cascades.frame import CascadeFrame, size_of
from weft.cascades.hopper import GROUPS, ROWS, STAGES, WARPS
from weft.cascades.program import CascadeProgram, Stage
from weft.cascades.rows import StageRows
from weft.cpu import jit
from weft.errors import UnsupportedError
from weft.gpu.common.constraints import power_of_two
from weft.planner.promotion import LIBRARY, SPECIALISED, Tier, begins_with_library, taken_over
from weft.planner.schedule import Target
from weft.planner.target import target_of
from weft.plans.arrival import LATE, Arrival
from weft.plans.side_by_side import is_noted, note

LEAST = 16  # of a side of `tl.dot`
FEW = 8  # terms of S that take less time one by one than as a matrix product of 16
_KINDS = ("product", "sum", "amax", "amin")
_LONGEST = 256  # of K and E in a tile that has all of either
_HOPPER_LONGEST = 128  # that registers of the warp-specialised kernels for gradients hold
_LEAST_SHARE, _MOST_SPLITS = 4, 64  # tiles of columns for a program that shares them, programs that share a row
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST_TERMS = 512  # of S in float64, whose product alone cuBLAS makes faster
_STAGE = 32  # terms of S of 4 and 8 bytes that come at once
_WORTH = 1 << 24  # elements of S that are worth a kernel's compilation
_LEAST_K, LEAST_E = 32, 64  # in shared memory that wgmma reads: narrower ones came out wrong on an H200
_SHARED = 226 << 10  # bytes of shared memory of a program, but for barriers
PER_ELEMENT = 2.5e-11  # seconds of blocks for an element of S, on an H200
_SECONDS, _LOADING = 5.0, 0.5  # that kernels of a cascade take to be compiled, and to be loaded that are
_BY_TORCH, _BY_ROWS = 3e-9, 1e-9  # seconds for an element of S on a CPU, products not counted
_COMPILING = 1.5  # seconds for a stage

Rows = Mapping[Stage, "StageRows | str"]


class CascadeTile(NamedTuple):
    """Rows and columns of a tile of S, warps, stages of loads, and programs that share the columns of a row.

    `k` and `e` are the indices of K and E that a tile has; `hopper`: the warp-specialised kernel; `maps`: stages of A
    and B come by tensor maps where they can; `terms`: of float32 values, whose products are made of those of terms.
    """

    m: int
    n: int
    warps: int
    stages: int
    splits: int = 1
    k: int = LEAST
    e: int = 1
    hopper: bool = False
    maps: bool = False
    terms: int = 0

    def __str__(self) -> str:
        kind = "warp-specialised" if self.hopper else "Triton"
        shared = f", the columns of a row shared by {self.splits} programs" if self.splits > 1 else ""
        return f"{kind}, tiles of {self.m} x {self.n}{shared}"


def unserved(program: CascadeProgram) -> str | None:
    """The reason why no kernel can run a program, in one sentence; None where one can."""
    frame, first, second = program.frame, program.frame.first, program.frame.second
    columns, rows = set(first.n), {*first.batch, *first.m}
    if len(program.stages) != 1 or program.whole:
        return f"the form is '{program.form}', and the kernel makes one pass"
    (stage,) = program.stages
    for target in stage.targets:
        if target.kind not in _KINDS:
            return f"the kernel has no '{target.kind}'"
        if target.kind == "product":
            continue
        if set(program.between.reduced(target.gives)) != columns:
            return "a reduction is not over the columns of S alone"
        if program.between.modes[target.gives] != rows:
            return "what is reduced lacks a mode of S"
    if any(set(program.between.reduced(peak)) != columns for peak in stage.peaks):
        return "a peak is not over the columns of S alone"
    if frame.meets and (second.batch, second.m, second.k) != (first.batch, first.m, first.n):
        return "the second contraction does not sum the columns of S alone"
    if frame.products.product not in _TYPES or frame.products.accumulate not in (torch.float32, torch.float64):
        return "the kernel multiplies float16, bfloat16, float32 and float64"
    if any(label not in (*first.batch, *first.m, *first.n) for label in frame.order) or not all(frame.extents.values()):
        return "an extent is 0"
    return None


def differentiates(program: CascadeProgram) -> bool:
    """Whether kernels make the gradients of A, B and C."""
    frame = program.frame
    if unserved(program) is not None or frame.products.accumulate != torch.float32:
        return False
    stored = not frame.meets or frame.stored == frame.products.product
    sums = all(target.kind in ("sum", "product") for target in program.stages[0].targets)
    return stored and sums and all(size_of(frame, labels) <= _LONGEST for labels in (frame.second.n, frame.first.k))


def tile_of(frame: CascadeFrame, processors: int = 1, hopper: bool = False) -> CascadeTile:
    """The tile for a frame: as large as registers hold two of its products; few rows have their columns shared.

    `hopper`: the warp-specialised kernel is at hand.
    """
    sides = Sides.of(frame)
    terms = _terms(frame, sides, hopper)
    tile = (_hopper_tile(frame, sides) or _sums_tile(frame, sides, terms) if hopper else None) or _usual_tile(
        frame, sides, terms
    )
    k, item = size_of(frame, sides.k), frame.products.product.itemsize
    tile = tile._replace(maps=hopper and item == 2 and k > tile.k and k * item % BYTES == 0)
    if tile.hopper:
        return tile
    pairs = ((sides.m, tile.m), (sides.e, tile.e))
    programs = size_of(frame, sides.batch) * math.prod(-(-size_of(frame, side) // tiles) for side, tiles in pairs)
    tiles = size_of(frame, sides.n) // tile.n
    if tile.m < LEAST_ROWS:
        processors *= 2  # that many programs of few rows run side by side
    splits = min(processors // max(programs, 1), tiles // _LEAST_SHARE, _MOST_SPLITS)
    return tile._replace(splits=max(splits, 1))


def tiles_for(program: CascadeProgram, asked: bool, hopper: bool) -> tuple[CascadeTile, CascadeTile | None] | None:
    """The tile of the kernel that serves a program, and that for operands which terms do not hold.

    None where blocks serve it. `asked`: the kernel is asked for by name, and `UnsupportedError` says why there is none.
    """
    frame, reason = program.frame, unserved(program)
    if frame.algebra is not None:
        reason = "the second contraction is in another algebra"
    if reason is not None:
        if asked:
            raise UnsupportedError(f"no Triton kernel runs this cascade: {reason}")
        return None
    processors = _processors(frame.device)
    tile = tile_of(frame, processors, hopper)
    if not (asked or is_default(frame, tile)):
        return None
    return tile, without_terms(frame, processors) if tile.terms == BOUND else None


def is_hopper(device: torch.device) -> bool:
    """Whether kernels in Gluon compile for a GPU, and it multiplies by warp groups."""
    from weft.gpu.warp_specialized.family import gluon_refusal

    return torch.cuda.get_device_capability(device) == (9, 0) and gluon_refusal(target_of("triton", device)) is None


def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def is_default(frame: CascadeFrame, tile: CascadeTile) -> bool:
    """Whether the kernel serves on a Hopper GPU unasked: where it was measured to be faster than blocks.

    Small cascades stay with blocks, as a kernel takes seconds to compile.
    """
    if size_of(frame, frame.order) < _WORTH:
        return False
    if is_quick(frame, tile):
        return True
    item, k = frame.products.product.itemsize, size_of(frame, frame.first.k)
    few = item == 4 and (k <= FEW or (tile.e == 1 and k <= _LONGEST))
    return tile.hopper or tile.maps or few or (item == 2 and tile.m < LEAST_ROWS)


def is_quick(frame: CascadeFrame, tile: CascadeTile) -> bool:
    """Whether one contraction and its reductions take less time than the product alone and passes over it: float64
    took 0.35 of it at 64 terms, 0.65 at 256 and 1.07 at 1024, tf32x3 0.35 to 0.66, IEEE single precision 1 at 64."""
    k, item = size_of(frame, frame.first.k), frame.products.product.itemsize
    if frame.meets or item < 4:
        return False
    if item == 8:
        return _STAGE < k <= _MOST_TERMS
    return k <= 2 * _STAGE or tile.hopper or (frame.products.precision == "tf32x3" and not tile.terms)


def _hopper_tile(frame: CascadeFrame, sides: Sides) -> CascadeTile | None:
    """The tile of the warp-specialised kernel; None for what it does not serve."""
    k, e, item = size_of(frame, sides.k), size_of(frame, sides.e), frame.products.product.itemsize
    rows = size_of(frame, sides.m)
    if item != 2 or not frame.meets or k * item % BYTES or e * item % BYTES or rows < LEAST_ROWS:
        return None
    if not LEAST <= max(k, e) <= _LONGEST:
        return None
    k, e = max(power_of_two(k), _LEAST_K), max(power_of_two(e), LEAST_E)
    for n in (128, 64, 32):
        shared = item * (GROUPS * ROWS * k + STAGES * n * (k + e) + ROWS * e)
        if shared <= _SHARED and e + n <= 256 + LEAST * 4:
            return CascadeTile(GROUPS * ROWS, n, WARPS, STAGES, k=k, e=e, hopper=True)
    return None


def _terms(frame: CascadeFrame, sides: Sides, hopper: bool) -> int:
    """The terms that kernels multiply: of float32, where S is one matrix and C a column, or there is none.

    `hopper`: it is known how the matrix units cut off sums.
    """
    k, e = (size_of(frame, each) for each in (sides.k, sides.e))
    types = frame.products
    if types.product != torch.float32 or types.accumulate != torch.float32 or e > 1 or sides.batch:
        return 0
    terms = terms_for(types.precision, k) if FEW < k <= 128 else 0
    return terms if hopper or types.precision != "ieee_bound" else 0


def _sums_tile(frame: CascadeFrame, sides: Sides, terms: int) -> CascadeTile | None:
    """The tile of the warp-specialised kernel of terms; None for what it does not serve."""
    k = max(power_of_two(size_of(frame, sides.k)), _LEAST_K)
    if not terms or size_of(frame, sides.m) < LEAST_ROWS:
        return None
    n = 128 if terms * k <= 256 else 64
    stages = (_SHARED // (2 * terms * k) - GROUPS * ROWS) // n
    return CascadeTile(GROUPS * ROWS, n, WARPS, min(stages, 4), k=k, hopper=True, terms=terms)


def without_terms(frame: CascadeFrame, processors: int) -> CascadeTile:
    """The tile for a frame whose values are multiplied as they are."""
    plain = replace(frame, products=copy(frame.products))
    plain.products.precision = "ieee"
    return tile_of(plain, processors)


def _usual_tile(frame: CascadeFrame, sides: Sides, terms: int) -> CascadeTile:
    k, e = (size_of(frame, each) for each in (sides.k, sides.e))
    item = frame.products.product.itemsize
    staged = k > _LONGEST
    deep = (64 if item == 2 else 32) if staged else max(power_of_two(k), LEAST)
    rows = max(power_of_two(size_of(frame, sides.m)), LEAST)
    least = LEAST_E if item == 2 and rows >= LEAST_ROWS else LEAST
    broad = 1 if e == 1 else min(max(power_of_two(e), least), _LONGEST if item < 8 else 64)
    widest = max(deep, broad)
    if terms:
        return CascadeTile(min(rows, 128), 128, 8 if rows >= 128 else 4, 2, k=deep, e=1, terms=terms)
    if item >= 4 and k <= FEW and e == 1:
        return CascadeTile(min(rows, 64), 64, 4, 2)
    if not frame.meets and k > _STAGE and (item == 8 or frame.products.precision == "tf32x3"):
        return CascadeTile(min(rows, 64), 64, 4, 3, k=_STAGE)
    if item == 4 and e == 1 and not staged:
        return CascadeTile(min(rows, 128), 64, 4, 3, k=LEAST, e=1)  # all of K would be in registers at once
    if item >= 4:
        return CascadeTile(min(rows, 64), 64 if staged and e == 1 else 32, 4, 3 if staged else 2, k=deep, e=broad)
    if staged:
        n = 256 if broad <= LEAST else 64
        return CascadeTile(min(rows, 128), n, 8 if rows >= 128 else 4, 3, k=deep, e=broad)
    m = min(rows, 128)
    n = 128 if widest <= 64 else 64 if widest <= 128 else 32
    return CascadeTile(m, n, 8 if m == 128 else 4, 3 if widest <= 128 else 2, k=deep, e=broad)


# -- gradients ---------------------------------------------------------------------------------------------------------


def hopper_tile(frame: CascadeFrame, widest: int) -> CascadeTile | None:
    """The tile of the warp-specialised kernel, which makes all gradients; None for what it does not serve."""
    if not frame.meets or frame.products.product.itemsize > 2 or widest > _HOPPER_LONGEST:
        return None
    return CascadeTile(ROWS, GROUPS * ROWS, WARPS, STAGES, hopper=True)


def backward_tiles(frame: CascadeFrame, widest: int) -> tuple[CascadeTile, CascadeTile]:
    """The tiles of the kernel of the rows, and of that of the columns."""
    if frame.products.product.itemsize > 2:
        side = 32 if widest > 64 else 64
        return CascadeTile(side, 32, 4, 2), CascadeTile(32, side, 4, 2)
    if widest > 128:
        return CascadeTile(64, 32, 8, 2), CascadeTile(32, 64, 8, 2)
    if widest > 64:
        return CascadeTile(128, 64, 8, 2), CascadeTile(64, 128, 8, 2)
    return CascadeTile(128, 128, 8, 2), CascadeTile(64, 128, 8, 3)


def sums_tiles(k: int) -> tuple[CascadeTile, CascadeTile]:
    """The tiles of the kernels of terms."""
    rows = CascadeTile(GROUPS * ROWS, 64 if k <= 64 else 32, WARPS, 4, hopper=True, terms=BOUND)
    return rows, rows._replace(m=rows.n, n=rows.m)


# -- the calls until compiled code serves ------------------------------------------------------------------------------


class Takeover:
    """Called with each call of a plan and with what compiles the code, it says whether that serves.

    It is compiled from the call `early` on, which takes so many `seconds`, and serves from the call `due` on.
    """

    def __init__(
        self, target: Target, seconds: float, early: float, due: float, then: Callable[[], None] = lambda: None
    ) -> None:
        """`then` is called once it serves."""
        self._target, self._seconds, self._early, self.due, self._then = target, seconds, early, due, then
        self._count = count(1)
        self._arrival: Arrival | None = None
        self.serves = False

    def __call__(self, compiled: Callable[[], Any], times: int = 1) -> bool:
        """`times`: how many times as long a call and its compilation take."""
        call = next(islice(self._count, times - 1, None))
        if self.serves or (self._target.kind != "cpu" and torch.cuda.is_current_stream_capturing()):
            return self.serves
        if self._arrival is None and call >= self._early:
            seconds = times * self._seconds
            self._arrival = Arrival(compiled, self._target, seconds, told=lambda built: "code of a cascade")
        if self._arrival is not None and call >= self.due:
            built = self._arrival.result()
            self.due = math.ceil(1.5 * call) if built == LATE else math.inf
            self.serves = not isinstance(built, str)
            if self.serves:
                self._then()
            elif built != LATE:
                log.info("compiled code of a cascade does not take over: %s", built)
        return self.serves


def kernel_takes_over(target: Target, elements: int, name: str) -> Takeover:
    """A kernel that takes the place of blocks of S, which has so many elements; `name` says all that it is made of."""
    seconds = _LOADING if is_noted(name, target) else _SECONDS
    due = 1 + math.ceil(seconds / (elements * PER_ELEMENT))
    return Takeover(target, seconds, 1, due, partial(note, name, target))


class Loops:
    """The compiled loops of a plan on a CPU; called with each call of it, it says whether they serve."""

    def __init__(self, make: Callable[[], Rows], elements: int, specialize: str) -> None:
        self._make, self._elements = make, elements
        self._serves, self._calls = False, 0
        self._never = specialize in ("never", "library")
        self._at_once = specialize == "now" or not begins_with_library("cpu")

    @cached_property
    def rows(self) -> Rows:
        """The loops of each stage, or why it has none."""
        return self._make()

    @cached_property
    def _wanted(self) -> list[StageRows]:
        return [each for each in self.rows.values() if isinstance(each, StageRows)]

    @cached_property
    def _takeover(self) -> Takeover:
        """The calls until the loops take over that are not on disk."""
        ready, tier = _COMPILING * len(self._wanted), Tier(LIBRARY, "loops are compiled for each function")
        tier = taken_over(tier, 1, self._elements * _BY_TORCH, SPECIALISED, self._elements * _BY_ROWS, ready)
        return Takeover(Target("cpu"), ready, tier.early, tier.switch_at or math.inf)

    def __call__(self) -> bool:
        self._calls += 1
        if self._serves or self._never or (self._calls == 1 and not self._at_once):
            return self._serves
        if self._at_once or all(jit.at_hand(each.text.source) for each in self._wanted):
            self._compile()
            self._serves = True
        else:
            self._serves = self._takeover(self._compile)
        return self._serves

    def _compile(self) -> None:
        for each in self._wanted:
            each.compile()
