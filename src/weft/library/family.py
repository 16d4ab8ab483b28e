"""Every contraction in torch's own operations, on every device: nothing is compiled, and nothing is waited for.

A family with the four doors of `weft.planner.schedule`, and `choice`, by which it is chosen alone. Where operands and D
are views of matrices a call is one product by the vendor's library; else each step is a pass over memory. Large tensors
are taken in parts, so that the workspace is bounded.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.fn.pointwise import TritonFunction
from weft.library import model
from weft.library.algebras import joining
from weft.library.functions import FoldedLaunch, folded
from weft.library.part import LibraryPart
from weft.library.scheme import LibraryScheme, scheme_of
from weft.library.views import DIMS, LONGEST, A, B, D, Frame
from weft.planner.planner import Choice
from weft.planner.schedule import AuxTensors, Candidates, Launch, Ranked, Scalar, Target
from weft.spec import Contraction, Role
from weft.spec.dtypes import dtype_name

NAME = "library"
MOST = {"cpu": 1 << 27, "gpu": 1 << 30}  # bytes of workspace where nobody says how much there is,
NEAR = 1 << 22  # and of a CPU's tables where no element meets several: passes over them stay in the caches
LEAST = 1 << 20  # bytes of the parts that are for those who have little
_KEPT = 16  # parts that are built once; of more the functions run as torch's operations

Extents = tuple[int, ...]  # how much of each mode a part has

_FORMS = {
    "product": "matrix products", "pairs": "products of elements", "algebra": "tables of pairs",
    "counts": "matrix products that count pairs", "exponentials": "matrix products of exponentials",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LibrarySchedule:
    """Torch's operations over whole tensors, or over parts of them."""

    form: str
    parts: tuple[int, ...] | None  # how much of each mode a part has; None for all
    workspace_bytes: int
    family: str = NAME

    def __str__(self) -> str:
        form = _FORMS[self.form]
        parts = "" if self.parts is None else f" of parts of {' x '.join(map(str, self.parts))}"
        return f"{self.family}: {form}{parts} by torch; workspace {self.workspace_bytes / 1024:.0f} KiB"


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not.

    "tf32" and "tf32x3" are served by IEEE float32 products, three products by four: they are at least as exact.
    """
    if target.kind not in ("cpu", "cuda", "hip"):
        return f"torch's operations are not for the {target.kind}"
    arithmetic, algebra = contraction.arithmetic, contraction.algebra
    if not torch.can_cast(arithmetic.product, arithmetic.accumulate):
        return f"products in {dtype_name(arithmetic.product)} do not add up in {dtype_name(arithmetic.accumulate)}"
    parts = () if algebra is None else (algebra.combine, algebra.reduce)
    for hook in (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue, *parts):
        if isinstance(hook, TritonFunction):
            return f"{hook.jit.__name__} is a Triton function; torch needs it written with its own operations"
    if algebra is None and torch.bool in (contraction.a.dtype, contraction.b.dtype):
        return "bool has no sum of products; convert the operands to an integer type"
    return None


def _whole(contraction: Contraction, target: Target, *, folds: bool = True) -> LibraryPart:
    """All of a contraction, in the scheme in which products compute the epilogue, where one call adds all of it.

    Parts of it, for which nothing `folds`, compute it behind their sums.
    """
    if folds and (fold := folded(contraction, target.kind)) is not None:
        scheme = scheme_of(fold.contraction, target.kind)._replace(fold=fold)
        part = LibraryPart(scheme, Frame.whole(fold.contraction))
        if scheme.form == "product" and not scheme.empty and (part.adds or fold.addend is None):
            return part
    return LibraryPart(scheme_of(contraction, target.kind), Frame.whole(contraction))


def _launch(part: LibraryPart, target: Target) -> Launch:
    part.prepare(target)
    return part if part.scheme.fold is None else FoldedLaunch(part, part.scheme.fold)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    usual, _ = _built(contraction, target)
    if usual.workspace_bytes <= LEAST:
        return Candidates((usual,))
    small, _ = _built(contraction, target, LEAST)
    return Candidates((usual, small) if small.workspace_bytes < usual.workspace_bytes else (usual,))


def _usual(scheme: LibraryScheme) -> int:
    """The most workspace, in bytes, of who has no limit."""
    if scheme.kind != "cpu":
        return max(MOST["gpu"], _packed_bytes(scheme) if scheme.form == "product" else 0)
    few = scheme.form == "algebra" and 1 in (scheme.contraction.m, scheme.contraction.n)
    return NEAR if few else MOST["cpu"]


def _packed_bytes(scheme: LibraryScheme) -> int:
    """Bytes of a product whose operands are both packed, and whose sums are moved to D afterwards."""
    contraction = scheme.contraction
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    a, b, result, _ = scheme.types
    return batch * (m * k * a.itemsize + k * n * b.itemsize + m * n * result.itemsize)


def _built(contraction: Contraction, target: Target, most: int | None = None) -> tuple[LibrarySchedule, LibraryPart]:
    """The schedule of at most so many bytes of workspace, as far as parts can be small, and its first part."""
    part = _whole(contraction, target)
    usual = _usual(part.scheme)
    most = usual if most is None else min(most, usual)
    schedule, first = cut(part, most)
    if schedule.parts is not None and part.scheme.fold is not None:
        return cut(_whole(contraction, target, folds=False), most)
    return schedule, first


def predict(contraction: Contraction, schedule: LibrarySchedule, target: Target) -> float:
    """Seconds on `target`: of a GPU's, those of the device."""
    parts = schedule.parts
    part, count = _whole(contraction, target, folds=parts is None), _count(contraction, parts)
    if target.kind == "cpu":
        return model.seconds(contraction, part, count, target)
    if parts is not None:
        part = LibraryPart(part.scheme, part.frame._replace(extents=parts))
    return model.contraction_seconds(part, count, target).device


def _count(contraction: Contraction, parts: tuple[int, ...] | None) -> int:
    """How many parts there are."""
    if parts is None:
        return 1
    return math.prod([-(-mode.extent // part) for mode, part in zip(contraction.modes, parts, strict=True)])


def build(contraction: Contraction, schedule: LibrarySchedule, target: Target) -> Launch:
    part = _whole(contraction, target, folds=schedule.parts is None)
    return _launch(part, target) if schedule.parts is None else PartsLaunch(part.scheme, schedule.parts, target)


def choice(contraction: Contraction, backend: str, target: Target, workspace_limit: int | None = None) -> Choice | str:
    """This family's schedule alone, or one sentence that says why there is none; quick, as nothing is compared.

    Its parts are as small as `workspace_limit` requires. What it is built of is not made again.
    """
    if (reason := supports(contraction, target)) is not None:
        return reason
    schedule, part = _built(contraction, target, workspace_limit)
    if workspace_limit is not None and schedule.workspace_bytes > workspace_limit:
        return f"torch's operations take {schedule.workspace_bytes} bytes of workspace, the limit is {workspace_limit}"
    family: Any = _BuiltFamily(part) if schedule.parts is None else sys.modules[__name__]
    count = _count(contraction, schedule.parts)
    if target.kind == "cpu":
        predicted = model.Seconds(model.alone(part.scheme, count, target), 0.0)
    else:
        predicted = model.contraction_seconds(part, count, target)
    best = Ranked(schedule, predicted.device, family, host=predicted.host)
    return Choice(contraction, backend, target, best, (best,))


class _BuiltFamily:
    """This family for a contraction that is built already."""

    __name__ = __name__
    NAME = NAME

    def __init__(self, part: LibraryPart) -> None:
        self._part = part

    def build(self, contraction: Contraction, schedule: LibrarySchedule, target: Target) -> Launch:
        return _launch(self._part, target)


class PartsLaunch:
    """Runs on new pointers; of few parts it keeps what they are built of."""

    def __init__(self, scheme: LibraryScheme, extents: Extents, target: Target) -> None:
        self._scheme, self._extents = scheme, extents
        modes = scheme.contraction.modes
        self._summed = [at for at, mode in enumerate(modes) if mode.role is Role.K]
        self._kept = [at for at, mode in enumerate(modes) if mode.role is not Role.K]
        algebra = scheme.contraction.algebra
        self._join = joining(algebra, scheme.accumulate) if algebra is not None else None
        count = math.prod([-(-modes[at].extent // extents[at]) for at in self._kept])
        self._parts = tuple(self._cut()) if count <= _KEPT else None
        for frames, first in self._parts or ():
            first.prepare(target, apart=len(frames) > 1)

    @property
    def state(self) -> str | None:
        """A sentence on what serves behind the sums of a part."""
        return self._parts[0][1].state if self._parts else None

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        for frames, part in self._parts or self._cut():
            if len(frames) == 1:
                part(a, b, c, d, alpha, beta, aux)
            else:
                part.finish(self._total(frames, a, b, alpha, aux), c, d, beta, aux)

    def _cut(self) -> Iterator[tuple[list[Frame], LibraryPart]]:
        """The parts along k of each part of D, and the first of them."""
        for kept in self._frames(self._kept, Frame.whole(self._scheme.contraction)):
            frames = list(self._frames(self._summed, kept))
            yield frames, LibraryPart(self._scheme, frames[0])

    def _total(self, frames: list[Frame], a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        """The sums of parts along k."""
        join = self._join or Tensor.add_
        total = LibraryPart(self._scheme, frames[0]).sums(a, b, None, alpha, aux)
        for frame in frames[1:]:  # no name holds the sums of a part while those of the next are made
            total = join(total, LibraryPart(self._scheme, frame).sums(a, b, None, alpha, aux))
        return total

    def _frames(self, modes: list[int], around: Frame) -> Iterator[Frame]:
        """Frames of the surrounding one, cut along these modes."""
        for corner in itertools.product(*(range(0, around.extents[at], self._extents[at]) for at in modes)):
            starts, extents = list(around.starts), list(around.extents)
            for at, start in zip(modes, corner, strict=True):
                starts[at], extents[at] = start, min(self._extents[at], around.extents[at] - start)
            yield Frame(around.modes, tuple(starts), tuple(extents))


def cut(part: LibraryPart, most: int) -> tuple[LibrarySchedule, LibraryPart]:
    """How much of each mode a part has so that a run takes at most so many bytes, and the first; `part` is all.

    No part has more modes than torch's operations take. Then the longest mode is halved first, of those that make it
    take less. Where a mode is empty there is nothing to cut.
    """
    scheme, whole, added = part.scheme, part.frame, 0
    if (frame := _of_few_modes(scheme)) != whole:
        part = LibraryPart(scheme, frame)
    while all(part.frame.extents) and (part.workspace_bytes + added > most or is_long(scheme, part.frame)):
        if (smaller := _halved(part)) is None:
            break
        part = smaller
        added = 2 * part.total_bytes if _is_summed(part.frame) else 0  # sums of parts along k are added up
    extents = None if part.frame == whole else part.frame.extents
    return LibrarySchedule(scheme.form, extents, part.workspace_bytes + added), part


def _of_few_modes(scheme: LibraryScheme) -> Frame:
    """A part with one index of the shortest modes, so many that each tensor is left with those that torch takes."""
    frame, most = Frame.whole(scheme.contraction), DIMS.get(scheme.kind)
    if most is None or len(frame.modes) <= most or 0 in frame.extents:
        return frame
    extents = list(frame.extents)
    for at in sorted(range(len(extents)), key=lambda at: (frame.modes[at].role is Role.K, extents[at])):
        full = {
            place
            for place in (A, B, D)
            if most < sum(n > 1 and mode.strides[place] != 0 for n, mode in zip(extents, frame.modes, strict=True))
        }
        if any(frame.modes[at].strides[place] for place in full):
            extents[at] = 1
    return frame._replace(extents=tuple(extents))


def _is_summed(frame: Frame) -> bool:
    """Whether a part has not all of k."""
    return any(
        mode.role is Role.K and extent < mode.extent for mode, extent in zip(frame.modes, frame.extents, strict=True)
    )


def is_long(scheme: LibraryScheme, frame: Frame) -> bool:
    """Whether a matrix is longer than libraries count."""
    return scheme.form == "product" and any(frame.size(group) >= LONGEST for group in scheme.roles[:4])


def _halved(part: LibraryPart) -> LibraryPart | None:
    frame = part.frame
    modes = [at for at, extent in enumerate(frame.extents) if extent > 1]
    modes.sort(key=lambda at: (-frame.extents[at], frame.modes[at].role is Role.K))
    first = None
    for at in modes:
        extents = tuple([-(-extent // 2) if i == at else extent for i, extent in enumerate(frame.extents)])
        found = LibraryPart(part.scheme, frame._replace(extents=extents))
        if found.workspace_bytes < 0.8 * part.workspace_bytes:
            return found
        first = first or found
    return first
