"""Permutations at the speed of memory: which blocks are legal, and what they should cost.

A block spans a run of the source and a run of D, flattened over as many modes as it takes to fill whole memory lines
on both sides; where one run serves both, the block is that run and whatever comes next. Where both begin with the same
short modes (the two halves of a complex128, say), those are an axis of their own, and the runs go on from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from weft.gpu.common.launch import MOST_PROGRAMS, TRITON_TYPES, KernelLaunch, missing_type, wide, wide_index
from weft.gpu.common.tiling import TENSORS, A, C, D, TiledAxis, TiledDim, axes_text, rest, tiled_dim
from weft.gpu.common.triton_versions import ODD_RUNS_STATED
from weft.gpu.permute.cost import CARVEOUT, access_of, is_shared, line_share, seconds
from weft.gpu.permute.params import PermuteParams
from weft.gpu.permute.schedule import blocks, joined
from weft.planner.schedule import Candidates, Scalar, Target
from weft.spec import Layout, Mode, Role, Strides
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

NAME = "permute"

_ADDRESSES = 96  # of accesses that a thread should make at most

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PAIRS = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True, slots=True)
class PermuteSchedule:
    """The axes of a block: along the source's run, along D's, and whatever fills it up."""

    cuts: tuple[TiledAxis, ...]
    warps: int
    family: str = NAME
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.family} [{axes_text(self.cuts)}] warps={self.warps}"


def supports(permutation: Permutation, target: Target) -> str | None:
    complex_types = [layout.dtype for layout in _layouts(permutation) if layout.dtype.is_complex]
    if complex_types and permutation.fn is not None:
        return f"functions of {dtype_name(complex_types[0])} are for the family interleaved"
    if complex_types and permutation.scaled:
        return f"{dtype_name(complex_types[0])} is scaled by complex numbers, which is for the family interleaved"
    if complex_types and any(layout.dtype != permutation.x.dtype for layout in _layouts(permutation)):
        return f"{dtype_name(permutation.x.dtype)} to {dtype_name(permutation.d.dtype)} is for the family interleaved"
    if permutation.fn is not None and permutation.fn.is_complex:
        return "functions with complex values in them are for the family interleaved"
    if permutation.is_move:
        return None
    return next(filter(None, (missing_type(layout.dtype) for layout in _layouts(permutation))), None)


def schedules(permutation: Permutation, target: Target) -> Candidates:
    legal, excluded = _legal(permutation)
    return Candidates(tuple(legal), excluded)


def best(permutation: Permutation, target: Target) -> tuple[PermuteSchedule, float]:
    """The schedule of the least predicted time, and that time in seconds."""
    legal, _ = _legal(permutation)
    chosen = min(legal, key=lambda schedule: predict(permutation, schedule, target))
    return chosen, predict(permutation, chosen, target)


def _legal(permutation: Permutation) -> tuple[list[PermuteSchedule], tuple[str, ...]]:
    elements = elementwise(permutation)
    found: dict[PermuteSchedule, None] = {}
    excluded: dict[str, None] = {}
    for cuts in blocks(elements, most_axes=4):
        warps = 8 if math.prod([cut.tile for cut in cuts]) >= 8192 else 4
        schedule = PermuteSchedule(cuts, warps)
        if programs(elements, schedule) > MOST_PROGRAMS:
            excluded["a grid holds at most 2^31 - 1 blocks"] = None
        elif _accesses(elements, schedule) > _ADDRESSES:
            excluded["a thread holds so many addresses that they do not fit into registers"] = None
        else:
            found[schedule] = None
    return list(found), tuple(excluded)


def _accesses(elements: Permutation, schedule: PermuteSchedule) -> float:
    """Of a thread, each with an address of its own; few where a thread holds few elements."""
    held = math.prod([cut.tile for cut in schedule.cuts]) / (32 * schedule.warps)
    if 3 * held <= _ADDRESSES:
        return 0
    params = permute_params(elements, schedule)
    dims = ((A, elements.x), (D, elements.d))
    return sum([held * layout.dtype.itemsize / access_of(layout, tensor, params, 1).width for tensor, layout in dims])


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    """Seconds by the model of `permute_cost`."""
    return block_seconds(elementwise(permutation), schedule, target)


def block_seconds(
    elements: Permutation, schedule: PermuteSchedule, target: Target, read: int = 1, written: int = 1
) -> float:
    """The same of elements that a kernel moves as they are, reads and writes so many times."""
    params = permute_params(elements, schedule)
    return seconds(elements, params, programs(elements, schedule), schedule.warps, target, read, written)


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> PermuteLaunch:
    from weft.gpu.permute.kernel import permute_kernel

    elements = elementwise(permutation)
    scale = _PAIRS.get(permutation.scale, permutation.scale)
    constants = {
        "PARAMS": permute_params(elements, schedule),
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
        carveout=CARVEOUT,
    )
    return PermuteLaunch(launch, elements)


class PermuteLaunch:
    """A built permutation; tensors are seen as the elements that the kernel moves."""

    def __init__(self, launch: KernelLaunch, elements: Permutation) -> None:
        self.launch = launch
        self._types = tuple(layout and layout.dtype for layout in (elements.x, elements.c, elements.d))

    def __call__(self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        tensors = [seen_as(tensor, dtype) for tensor, dtype in zip((x, c, d), self._types, strict=True)]
        self.launch(tensors, _real(alpha), _real(beta))


def cuts_of(permutation: Permutation, schedule: PermuteSchedule) -> list[TiledAxis]:
    """Every mode of a permutation in some axis of a block."""
    cuts = [*rest(permutation.modes, schedule.cuts), *schedule.cuts]
    if all([cut.tile == 1 for cut in cuts]):  # noqa: C419
        cuts.append(TiledAxis((), 1, placed=True))  # a kernel stores blocks, not scalars
    return cuts


class Turn(NamedTuple):
    """A block as it is loaded and as it is stored."""

    source: TiledDim
    result: TiledDim
    turn: tuple[int, ...]  # of each dimension of the stored block, which one of the loaded block it is


def turn_of(
    permutation: Permutation,
    schedule: PermuteSchedule,
    tensors: int = TENSORS,
    backwards: bool = False,
    along_d: bool = False,
) -> Turn:
    """How a block lies on either side; stored with its dimensions the other way round where `backwards`, and numbered
    as D lies where `along_d`."""
    cuts = cuts_of(permutation, schedule)
    loaded, stored = _dimensions(cuts, backwards)
    source, result = tiled_dim(loaded, tensors=tensors), tiled_dim(stored, tensors=tensors)
    if along_d:
        pitches = _pitches_along(_ordered(cuts, D))
        source, result = _numbered(source, loaded, pitches), _numbered(result, stored, pitches)
    places = {id(cut): axis.place for cut, axis in zip(loaded, source.axes, strict=True)}
    turn = tuple([places[id(cut)] for cut, axis in zip(stored, result.axes, strict=True) if axis.place >= 0])
    return Turn(source, result, turn)


@lru_cache(maxsize=4096)
def permute_params(permutation: Permutation, schedule: PermuteSchedule) -> PermuteParams:
    params = _cut(permutation, schedule)
    # Blocks follow D, so that a line which two of them share is written at about the same time, unless it is the source
    # whose lines are shared the more.
    along_d = line_share(permutation.d, D, params) <= line_share(permutation.x, A, params)
    backwards = _spread_apart(permutation, params)
    return _cut(permutation, schedule, backwards, along_d) if backwards or along_d else params


def _cut(
    permutation: Permutation, schedule: PermuteSchedule, backwards: bool = False, along_d: bool = False
) -> PermuteParams:
    source, result, turn = turn_of(permutation, schedule, TENSORS, backwards, along_d)
    stored = (D,) if permutation.c is None else (C, D)
    return PermuteParams(
        r=joined(source, A),
        w=joined(result, *stored),
        tile=tuple([axis.tile for axis in result.axes if axis.place >= 0]),
        turn=turn,
        wide=wide(permutation.modes),
        wide_index=wide_index(schedule.cuts),
    )


def _spread_apart(permutation: Permutation, params: PermuteParams) -> bool:
    """Whether reads would be dealt out badly: the compiler gives every thread as many neighbours of a block as its
    writes take at once, if both have one shape and one order, even where each of them is read alone. Words of two bytes
    gain by that: their reads fill no line anyway, and threads compute fewer addresses."""
    if not is_shared(params) or permutation.x.dtype.itemsize < 4:
        return False
    return access_of(permutation.x, A, params, 1).width < access_of(permutation.d, D, params, 1).width


def _pitches_along(cuts: Sequence[TiledAxis]) -> dict[int, int]:
    """Blocks per step along each cut, by its identity, where the first cuts are the fastest."""
    pitches, pitch = {}, 1
    for cut in cuts:
        pitches[id(cut)] = pitch
        pitch *= max(cut.blocks, 1)
    return pitches


def _numbered(tiled_dim: TiledDim, cuts: Sequence[TiledAxis], pitches: dict[int, int]) -> TiledDim:
    axes = [axis._replace(pitch=pitches[id(cut)]) for axis, cut in zip(tiled_dim.axes, cuts, strict=True)]
    return tiled_dim._replace(axes=tuple(axes))


def _dimensions(cuts: Sequence[TiledAxis], backwards: bool) -> tuple[list[TiledAxis], list[TiledAxis]]:
    """The cuts as dimensions of the loaded and of the stored block, the fastest first; last in the stored one where
    `backwards`.

    The compiler finds the fastest by the run that is stated of it, and takes the last where none is. Where one side
    needs that, the fastest goes to the end on both, so that they still differ just where they should.
    """
    loaded, stored = _ordered(cuts, A), _ordered(cuts, D)
    last_loaded, last_stored = _unstated(loaded[0], A), _unstated(stored[0], D)
    if last_loaded or last_stored:
        loaded.append(loaded.pop(0))
        if backwards and not last_stored:  # threads that store single elements hold no neighbours to be spread apart
            stored[1:] = reversed(stored[1:])
        else:
            stored.append(stored.pop(0))
    elif backwards:
        stored.reverse()
    return loaded, stored


def _unstated(cut: TiledAxis, tensor: int) -> bool:
    """Whether a tensor's neighbours lie along a cut without the compiler being told so, see `ODD_RUNS_STATED`."""
    if ODD_RUNS_STATED:
        return False
    (axis,) = tiled_dim([cut]).axes
    return axis.runs[tensor].length == 1 < axis.stretches[tensor]


def _ordered(cuts: Sequence[TiledAxis], tensor: int) -> list[TiledAxis]:
    """The cuts as one tensor lies, its fastest first: neighbouring lanes go along the dimension of the longest run, and
    among equals, as where only a pair of words lies together, along the first."""

    strides = [(cut.modes[0].strides[tensor] if cut.modes else 0) or math.inf for cut in cuts]
    return [cuts[at] for at in sorted(range(len(cuts)), key=strides.__getitem__)]


def programs(permutation: Permutation, schedule: PermuteSchedule) -> int:
    blocks = math.prod([cut.blocks for cut in schedule.cuts])
    return blocks * math.prod([cut.extent for cut in rest(permutation.modes, schedule.cuts)])


def _layouts(permutation: Permutation) -> list[Layout]:
    return [layout for layout in (permutation.x, permutation.c, permutation.d) if layout is not None]


def elementwise(permutation: Permutation) -> Permutation:
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
        wider = [mode._replace(strides=Strides(*(pieces * stride for stride in mode.strides))) for mode in modes]
        added = int(permutation.c is not None)
        modes = (*wider, Mode(("re·im",), pieces, Role.M, Strides(1, 0, added, 1)))

    def seen(layout: Layout) -> Layout:
        return layout._replace(dtype=word)

    c = seen(permutation.c) if permutation.c is not None else None
    return replace(permutation, modes=modes, compute=word, x=seen(permutation.x), c=c, d=seen(permutation.d))


def seen_as(tensor: torch.Tensor | None, dtype: torch.dtype | None) -> Any:
    """The same memory as elements of another type; only its address and type matter to a kernel."""
    if tensor is None or dtype is None or tensor.dtype == dtype:
        return tensor
    if tensor.dtype.is_complex and dtype.itemsize < tensor.dtype.itemsize:
        tensor = torch.view_as_real(tensor)
    return tensor.view(dtype)


def _real(value: Scalar) -> Scalar:
    """A factor that is not applied here unless it is real."""
    return value.real if isinstance(value, complex) else value
