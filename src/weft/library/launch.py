"""The launch: one part, or parts one after the other so that the workspace is bounded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from weft.library.algebras import joining
from weft.library.part import LibraryPart
from weft.library.scheme import LibraryScheme
from weft.library.views import DIMS, LONGEST, A, B, D, Frame
from weft.planner.schedule import AuxTensors, Scalar, Target
from weft.spec import Role

Extents = tuple[int, ...]  # how much of each mode a part has


_KEPT = 16  # parts that are built once; of more the functions run as torch's operations


class SummedParts(NamedTuple):
    """The parts along k of a part of D, and the first of them."""

    frames: list[Frame]
    first: LibraryPart


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
        for part in self._parts or ():
            part.first.prepare(target, apart=len(part.frames) > 1)

    @property
    def state(self) -> str | None:
        """A sentence on what serves behind the sums of a part."""
        return self._parts[0].first.state if self._parts else None

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        for frames, part in self._parts or self._cut():
            if len(frames) == 1:
                part(a, b, c, d, alpha, beta, aux)
            else:
                part.finish(self._total(frames, a, b, alpha, aux), c, d, beta, aux)

    def _cut(self) -> Iterator[SummedParts]:
        for kept in self._frames(self._kept, Frame.whole(self._scheme.contraction)):
            frames = list(self._frames(self._summed, kept))
            yield SummedParts(frames, LibraryPart(self._scheme, frames[0]))

    def _total(self, frames: list[Frame], a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        """The sums of parts along k."""
        join = self._join or Tensor.add_
        total = LibraryPart(self._scheme, frames[0]).made(a, b, alpha, aux)
        for frame in frames[1:]:  # no name holds the sums of a part while those of the next are made
            total = join(total, LibraryPart(self._scheme, frame).made(a, b, alpha, aux))
        return total

    def _frames(self, modes: list[int], around: Frame) -> Iterator[Frame]:
        """Frames of the surrounding one, cut along these modes."""
        for corner in itertools.product(*(range(0, around.extents[at], self._extents[at]) for at in modes)):
            starts, extents = list(around.starts), list(around.extents)
            for at, start in zip(modes, corner, strict=True):
                starts[at], extents[at] = start, min(self._extents[at], around.extents[at] - start)
            yield Frame(around.modes, tuple(starts), tuple(extents))


class PartCut(NamedTuple):
    extents: Extents | None  # None where nothing is cut
    part: LibraryPart  # the first
    workspace_bytes: int


def cut(scheme: LibraryScheme, part: LibraryPart, most: int) -> PartCut:
    """How much of each mode a part has so that a run takes at most so many bytes; `part` is all.

    No part has more modes than torch's operations take. Then the longest mode is halved first, of those that make it
    take less. Where a mode is empty there is nothing to cut.
    """
    frame = _of_few_modes(scheme)
    if frame == Frame.whole(scheme.contraction):
        found = PartCut(None, part, part.workspace_bytes)
    else:
        part = LibraryPart(scheme, frame)
        found = PartCut(frame.extents, part, part.workspace_bytes)
    while all(frame.extents) and (found.workspace_bytes > most or _is_long(scheme, frame)):
        if (smaller := _halved(scheme, frame, part)) is None:
            break
        frame, part = smaller
        added = 2 * part.total_bytes if _is_summed(frame) else 0  # sums of parts along k are added up
        found = PartCut(frame.extents, part, part.workspace_bytes + added)
    return found


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


def _is_long(scheme: LibraryScheme, frame: Frame) -> bool:
    """Whether a matrix is longer than libraries count."""
    roles = scheme.roles
    groups = (roles.batch, roles.m, roles.n, roles.k)
    return scheme.form == "product" and any(frame.size(group) >= LONGEST for group in groups)


def _halved(scheme: LibraryScheme, frame: Frame, part: LibraryPart) -> tuple[Frame, LibraryPart] | None:
    modes = [at for at, extent in enumerate(frame.extents) if extent > 1]
    modes.sort(key=lambda at: (-frame.extents[at], scheme.contraction.modes[at].role is Role.K))
    first = None
    for at in modes:
        extents = tuple([-(-extent // 2) if i == at else extent for i, extent in enumerate(frame.extents)])
        smaller = frame._replace(extents=extents)
        found = smaller, LibraryPart(scheme, smaller)
        if found[1].workspace_bytes < 0.8 * part.workspace_bytes:
            return found
        first = first or found
    return first
