"""How a pass goes over its tensors: modes merged, and runs of elements along the innermost one.

A kernel is made for a form: how many modes are left, which types, and which tensors move along the innermost mode.
Extents and strides are numbers that it takes at run time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import torch

THREADS = 128  # of a program
_WIDEST = 8  # elements of a thread
_RUN, _LOAD = 32, 16  # bytes of a thread's run of the widest tensor; of one load
_FEW = 5  # modes that are left where a kernel is made for their number;
_MANY = (8, 12, 16, 20, 24, 28, 32)  # more of them, each short, are as many as one of these
_SECTOR = 32  # bytes
_MOST = 2**31 - 1


class Step(Enum):
    """How a tensor moves along the innermost mode."""

    RUN = "run"  # element after element
    SAME = "same"  # not at all
    APART = "apart"  # with a stride


class PassTensor(NamedTuple):
    """A tensor of a pass as its part sees it; or a coordinate, whose value moves as an offset would."""

    dtype: torch.dtype
    strides: tuple[int, ...]  # elements, along each mode
    start: int = 0  # the offset of the part's first element, or its coordinate
    alignment: int = 16  # bytes
    is_index: bool = False


class PassForm(NamedTuple):
    """Form that a kernel is made for."""

    modes: int
    width: int  # elements of a thread
    dtypes: tuple[torch.dtype, ...]  # of tensors that are read, then of those that are written
    steps: tuple[Step, ...]
    indices: tuple[bool, ...]  # which of them are coordinates
    written: int  # how many are written


class Passage(NamedTuple):
    """A form, and the numbers of one layout."""

    form: PassForm
    programs: int
    numbers: tuple[int, ...]  # see `parameters`
    starts: tuple[int, ...]  # bytes from each tensor's address on


def passage(extents: Sequence[int], tensors: Sequence[PassTensor], written: int) -> Passage | str:
    """Passage over tensors; the last ones are written. Or, in one sentence, why it had better not be.

    Where few modes are left, the first tensor and all that are written must lie alike, as far as their innermost mode
    goes. Of many, which are short, threads that are neighbours take a sector of the first result and one of the first
    tensor.
    """
    if 0 in extents:
        return "there is nothing to compute"
    modes = _merged(extents, [each.strides for each in tensors], tensors[-written].strides)
    if len(modes) > _MANY[-1]:
        return f"{len(modes)} modes are left after merging, a pass takes {_MANY[-1]}"
    if len(modes) > _FEW:
        modes = _many(modes, tensors, written)
    elif _turns(modes, (0, *range(len(tensors) - written, len(tensors)))):
        return "sums and results lie in other orders"
    inner = modes[-1].strides
    width = _width(modes, tensors)
    count = math.prod(mode.extent for mode in modes) // width
    if count > _MOST:
        return f"a pass takes at most {_MOST} runs of elements"
    form = PassForm(
        len(modes), width, tuple([each.dtype for each in tensors]), tuple([_step(stride) for stride in inner]),
        tuple([each.is_index for each in tensors]), written,
    )  # fmt: skip
    return Passage(
        form, -(-count // THREADS), _numbers(form, count, modes, tensors),
        tuple([0 if each.is_index else each.start * each.dtype.itemsize for each in tensors]),
    )  # fmt: skip


class _Mode(NamedTuple):
    extent: int
    strides: tuple[int, ...]  # in each tensor


def _merged(extents: Sequence[int], strides: Sequence[Sequence[int]], order: Sequence[int]) -> list[_Mode]:
    """As few modes as describe the same, outermost in the first result first; one of extent 1 where none is longer."""
    found: list[_Mode] = []
    for at in sorted(range(len(extents)), key=lambda at: -order[at]):
        if extents[at] == 1:
            continue
        mode = _Mode(extents[at], tuple([each[at] for each in strides]))
        last = found[-1] if found else None
        fits = last is not None and last.extent * mode.extent <= _MOST
        if last is not None and fits and all(
            outer == inner * mode.extent for outer, inner in zip(last.strides, mode.strides, strict=True)
        ):
            found[-1] = mode._replace(extent=last.extent * mode.extent)
        else:
            found.append(mode)
    return found or [_Mode(1, (1,) * len(strides))]


def is_scattered(extents: Sequence[int], source: Sequence[int], result: Sequence[int]) -> bool:
    """Whether a copy between two layouts has many modes, for which torch takes long."""
    return 0 not in extents and _FEW < len(_merged(extents, (source, result), result)) <= _MANY[-1]


def _turns(modes: Sequence[_Mode], tensors: Sequence[int]) -> bool:
    """Whether some of these tensors lie along another mode than the innermost one."""
    for tensor in tensors:
        inner = modes[-1].strides[tensor]
        if inner and inner != min([mode.strides[tensor] for mode in modes if mode.strides[tensor]]):
            return True
    return False


def _many(modes: Sequence[_Mode], tensors: Sequence[PassTensor], written: int) -> list[_Mode]:
    """Modes in the order in which threads take them, and others of one index before them.

    Innermost are those of a sector of the first result, then those of a sector of the first tensor.
    """
    rest, inward = list(modes), []
    for tensor in (len(tensors) - written, 0):
        count = 1
        while rest and count * tensors[tensor].dtype.itemsize < _SECTOR:
            nearest = min(rest, key=lambda mode: mode.strides[tensor] or math.inf)
            if not nearest.strides[tensor]:
                break
            rest.remove(nearest)
            inward.append(nearest)
            count *= nearest.extent
    ordered = [*rest, *reversed(inward)]
    count = next(each for each in _MANY if each >= len(ordered))
    return [_Mode(1, (0,) * len(tensors))] * (count - len(ordered)) + ordered


def _step(stride: int) -> Step:
    return {0: Step.SAME, 1: Step.RUN}.get(stride, Step.APART)


def _width(modes: Sequence[_Mode], tensors: Sequence[PassTensor]) -> int:
    """The most elements that a thread takes of each tensor by loads of 16 bytes, or of all bytes that it takes."""
    *outer, inner = modes
    runs = [at for at, each in enumerate(tensors) if inner.strides[at] == 1 and not each.is_index]
    width = _WIDEST
    while width > 1:
        if inner.extent % width == 0 and all(
            width * tensors[at].dtype.itemsize <= _RUN and _aligned(tensors[at], [m.strides[at] for m in outer], width)
            for at in runs
        ):
            break
        width //= 2
    return width


def _aligned(tensor: PassTensor, strides: Sequence[int], width: int) -> bool:
    size = tensor.dtype.itemsize
    load = min(width * size, _LOAD)
    return not (tensor.alignment % load or any(each * size % load for each in (tensor.start, *strides)))


def parameters(form: PassForm) -> list[tuple[str, str]]:
    """Type and name of each number that a kernel takes: runs, extents but the outermost, then strides.

    Of a tensor there are strides along all modes but the innermost one, and along that where it is neither 0 nor 1; of
    a coordinate those of all modes, and the first one.
    """
    found = [("uint32", "count"), *(("uint32", f"n{mode}") for mode in range(form.modes - 1))]
    for at, step in enumerate(form.steps):
        if form.indices[at]:
            found.append(("int64", f"first{at}"))
        if step is Step.APART or form.indices[at]:
            found.append(("int64", f"s{at}_0"))
        found += [("int64", f"s{at}_{mode}") for mode in range(1, form.modes)]
    return found


def _numbers(form: PassForm, count: int, modes: Sequence[_Mode], tensors: Sequence[PassTensor]) -> tuple[int, ...]:
    inward = list(reversed(modes))  # mode 0 is the innermost
    named = {"count": count, "n0": inward[0].extent // form.width}
    named |= {f"n{at}": mode.extent for at, mode in enumerate(inward) if at}
    for at, tensor in enumerate(tensors):
        named |= {f"s{at}_{mode}": each.strides[at] for mode, each in enumerate(inward)}
        named[f"first{at}"] = tensor.start
    return tuple([named[name] for _, name in parameters(form)])
