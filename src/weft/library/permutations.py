"""Permutations by torch's operations, on every device.

A family with the four doors of `weft.planner.schedule`, and `choice`, by which it is chosen alone. What is only moved
is one strided copy. Where something is computed, it is one pass on an NVIDIA GPU (`weft.library.passes`), or passes
over slabs of D's outermost modes that follow one another, so that the workspace is bounded.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.fn.pointwise import RecordedFunction, TritonFunction
from weft.library import model
from weft.library.functions import live_bytes, value_of, writing
from weft.library.model import moving
from weft.library.scheme import fuses
from weft.library.views import DIMS, LONGEST
from weft.planner.planner import Choice
from weft.planner.schedule import Candidates, PermutationLaunch, Ranked, Scalar, Target
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.gpu.pointwise.launch import Pass

NAME = "library"

SLAB = {"cpu": 1 << 18, "gpu": 1 << 26}  # elements that are computed at a time; of a CPU, in its caches
_UNPROMOTED = (torch.uint16, torch.uint32, torch.uint64)  # torch adds nothing of another type to these, nor them to it


@dataclass(frozen=True, slots=True)
class PermutationSchedule:
    """One copy by torch, or slabs of D's outermost modes, of so many elements."""

    slab: int | None
    workspace_bytes: int = 0
    family: str = NAME

    def __str__(self) -> str:
        return "library: " + ("one strided copy" if self.slab is None else f"slabs of {self.slab} elements by torch")


def supports(permutation: Permutation, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if target.kind not in ("cpu", "cuda", "hip"):
        return f"torch's operations are not for the {target.kind}"
    if isinstance(permutation.fn, TritonFunction):
        return f"{permutation.fn.jit.__name__} is a Triton function; torch needs it written with its own operations"
    return None


def schedules(permutation: Permutation, target: Target) -> Candidates:
    return Candidates((_schedule(permutation, target, None),))


def _schedule(permutation: Permutation, target: Target, limit: int | None) -> PermutationSchedule:
    if permutation.fn is None and not permutation.scaled:
        return PermutationSchedule(None)
    inner = math.prod([mode.extent for mode in permutation.modes[-DIMS.get(target.kind, LONGEST) :]])
    slab = min(SLAB["cpu" if target.kind == "cpu" else "gpu"], max(inner, 1))
    each = _bytes_of_each(permutation)
    if limit is not None:
        slab = max(min(slab, limit // each), 1)
    return PermutationSchedule(slab, slab * each)


def _bytes_of_each(permutation: Permutation) -> int:
    """Bytes that values take on their way, for each element: packed, through the function, scaled, with C converted."""
    size = permutation.x.dtype.itemsize
    if permutation.fn is not None:
        size += live_bytes(permutation.fn)
    return size + (2 * permutation.scale.itemsize if permutation.scaled else 0)


def predict(permutation: Permutation, schedule: PermutationSchedule, target: Target) -> float:
    """Seconds on `target`: of a GPU's, those of the device."""
    return _predicted(permutation, schedule, target).device


def _predicted(permutation: Permutation, schedule: PermutationSchedule, target: Target) -> model.Seconds:
    if target.kind == "cpu":
        size = permutation.size * (permutation.x.dtype.itemsize + permutation.d.dtype.itemsize)
        return model.Seconds(moving(size), 0.0)
    once = schedule.slab is None or (permutation.kind == "copy" and fuses(target))
    passes = 1 if once else 2 + (permutation.fn.flops if permutation.fn is not None else 0)
    slabs = 1 if once or schedule.slab is None else -(-permutation.size // schedule.slab)
    return model.permutation_seconds(permutation, passes, slabs, target)


def build(permutation: Permutation, schedule: PermutationSchedule, target: Target) -> PermutationLaunch:
    slab, most = schedule.slab, DIMS.get(target.kind, LONGEST)
    launch = _Copy(permutation, most) if slab is None else _Slabs(permutation, slab)
    if fuses(target):
        launch.prepare(target)
    return launch


def choice(permutation: Permutation, backend: str, target: Target, workspace_limit: int | None = None) -> Choice | str:
    """This family's schedule alone, or one sentence that says why there is none; quick, as nothing is compared."""
    if (reason := supports(permutation, target)) is not None:
        return reason
    schedule = _schedule(permutation, target, workspace_limit)
    if workspace_limit is not None and schedule.workspace_bytes > workspace_limit:
        return f"torch's operations take {schedule.workspace_bytes} bytes of workspace, the limit is {workspace_limit}"
    family: Any = sys.modules[__name__]
    predicted = _predicted(permutation, schedule, target)
    best = Ranked(schedule, predicted.device, family, host=predicted.host)
    return Choice(permutation, backend, target, best, (best,))


class _Passed:
    """Runs on new pointers. Between calls it keeps nothing but whether one pass serves."""

    _fused: Pass | None = None
    _reason: str | None = None  # why there is no pass, where it is asked for

    @property
    def state(self) -> str | None:
        """A sentence on what computes; None where there is nothing to choose."""
        return self._fused.state if self._fused is not None else self._reason


class _Copy(_Passed):
    """Elements moved by torch's copy, or in one pass."""

    def __init__(self, permutation: Permutation, most: int) -> None:
        """`most`: dimensions of one copy by torch."""
        self._permutation, self._most = permutation, most
        self._shape = tuple([mode.extent for mode in permutation.modes])
        self._in_x, self._in_d = (tuple([mode.strides[at] for mode in permutation.modes]) for at in (0, 3))
        self._conjugate = permutation.conjugate

    def prepare(self, target: Target) -> None:
        """Have a copy along many modes done in one pass, where a device can."""
        from weft.gpu.pointwise.source import PassTensor, is_scattered

        x, d = self._permutation.x, self._permutation.d
        if self._conjugate or x.dtype != d.dtype or not is_scattered(self._shape, self._in_x, self._in_d):
            return
        from weft.library.passes import moving_pass  # it brings all of CUDA C++

        tensors = [PassTensor(x.dtype, self._in_x, 0, x.alignment), PassTensor(d.dtype, self._in_d, 0, d.alignment)]
        made = moving_pass(self._shape, tensors, target)
        self._fused = None if isinstance(made, str) else made

    def __call__(self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        if self._fused is not None and self._fused.serves:
            self._fused([x, d])
            return
        source = x.as_strided(self._shape, self._in_x)
        if d.shape != self._shape or d.stride() != self._in_d:
            d = d.as_strided(self._shape, self._in_d)
        _copied(d, source.conj() if self._conjugate else source, self._most)


def _copied(place: Tensor, values: Tensor, most: int) -> None:
    """A copy by copies of no more dimensions."""
    if place.dim() <= most:
        place.copy_(values)
        return
    for each, of in zip(place, values, strict=True):
        _copied(each, of, most)


class _Slabs(_Passed):
    """Values computed on the way, in one pass or slab by slab."""

    def __init__(self, permutation: Permutation, slab: int) -> None:
        self._permutation = permutation
        self._extents = [mode.extent for mode in permutation.modes]
        self._strides = [(mode.strides.a, mode.strides.d) for mode in permutation.modes]
        cut = 0  # modes that slabs are cut along, and the last of them into `step`
        while cut < len(self._extents) and math.prod(self._extents[cut:]) > slab:
            cut += 1
        self._outer = max(cut - 1, 0)
        fn = permutation.fn
        # The function writes to D where X and D are contiguous along one mode: torch turns matrices faster than that.
        along = [min(self._strides, key=lambda each: each[side] or math.inf, default=None) for side in (0, 1)]
        alone = isinstance(fn, RecordedFunction) and not permutation.scaled and bool(self._extents)
        self._writes = alone and along[0] == along[1]
        self._step = max(slab // math.prod(self._extents[cut:]), 1) if cut else None

    def prepare(self, target: Target) -> None:
        """Have values computed in one pass, where a device can."""
        from weft.library.passes import permutation_pass

        made = permutation_pass(self._permutation, target)
        self._fused, self._reason = (None, made) if isinstance(made, str) else (made, None)

    def __call__(self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        fused, adds = self._fused, self._permutation.c is not None
        if fused is not None and (c is not None and beta != 0) == adds and fused.serves:
            factors = (alpha, beta) if adds else (alpha,) if self._permutation.scaled else ()
            fused([x, c, d] if c is not None and adds else [x, d], *factors)
            return
        strides = self._strides[self._outer :]
        in_x, in_d = ([each[side] for each in strides] for side in (0, 1))
        for shape, at_x, at_d in self._slabs():
            source = x.as_strided(shape, in_x, int(x.storage_offset()) + at_x)
            target = d.as_strided(shape, in_d, int(d.storage_offset()) + at_d)
            addend = None
            if c is not None and beta != 0:  # C has D's layout
                addend = c.as_strided(shape, in_d, int(c.storage_offset()) + at_d)
            self._slab(source, addend, target, alpha, beta)

    def _slabs(self) -> Iterator[tuple[list[int], int, int]]:
        """The shape of each slab, and where it begins in X and in D."""
        if self._step is None:
            yield self._extents, 0, 0
            return
        looped = [range(extent) for extent in self._extents[: self._outer]]
        looped.append(range(0, self._extents[self._outer], self._step))
        for corner in itertools.product(*looped):
            shape = self._extents[self._outer :]
            shape[0] = min(self._step, shape[0] - corner[-1])
            at_x, at_d = (sum(at * s[side] for at, s in zip(corner, self._strides, strict=False)) for side in (0, 1))
            yield shape, at_x, at_d

    def _slab(self, source: Tensor, addend: Tensor | None, target: Tensor, alpha: Scalar, beta: Scalar) -> None:
        permutation = self._permutation
        values = source.conj() if permutation.conjugate else source
        if self._writes:
            fn = permutation.fn
            assert isinstance(fn, RecordedFunction), "others make their results"
            with torch._C._DisableAutocast():
                writing(fn, (permutation.d.dtype,), False)(target, values)
            return
        if permutation.fn is not None:
            values = value_of(permutation.fn, values)
        if permutation.scaled:
            scale = permutation.scale
            values = values.to(scale, copy=True).mul_(alpha)
            if addend is not None:
                values.add_(addend.to(scale) if addend.dtype in _UNPROMOTED else addend, alpha=beta)
        target.copy_(values)
