"""Permutations by torch's own operations: where numba is missing, and for values that the kernels cannot compute with.

A family with the four doors of `weft.planner.schedule`; and transpositions in place by way of a copy.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch

from weft.fn.pointwise import TritonFunction
from weft.planner.schedule import Candidates, PermutationLaunch, Scalar, Target
from weft.spec.permutation import Permutation, scaling_type

NAME = "torch"

SLAB = 1 << 18  # elements that are computed at a time
CALL, RATE = 8e-6, 4e9  # seconds of a call, bytes that are moved in a second
_UNPROMOTED = (torch.uint16, torch.uint32, torch.uint64)  # torch adds nothing of another type to these, nor them to it


@dataclass(frozen=True, slots=True)
class PlainSchedule:
    """One copy by torch, or slabs of D's outermost modes, so that the workspace does not grow with the tensors."""

    slabs: bool
    workspace_bytes: int = 0
    family: str = NAME

    def __str__(self) -> str:
        return "torch: " + ("its operations, slab by slab" if self.slabs else "one strided copy")


def supports(permutation: Permutation, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    if isinstance(permutation.fn, TritonFunction):
        return f"{permutation.fn.jit.__name__} is a Triton function; the CPU needs it written with torch operations"
    return None


def schedules(permutation: Permutation, target: Target) -> Candidates:
    slabs = permutation.fn is not None or permutation.scaled
    size = max(permutation.x.dtype.itemsize, permutation.scale.itemsize)
    return Candidates((PlainSchedule(slabs, 3 * min(SLAB, permutation.size) * size if slabs else 0),))


def predict(permutation: Permutation, schedule: PlainSchedule, target: Target) -> float:
    """Seconds on `target`."""
    return CALL + permutation.size * (permutation.x.dtype.itemsize + permutation.d.dtype.itemsize) / RATE


def build(permutation: Permutation, schedule: PlainSchedule, target: Target) -> PermutationLaunch:
    return PlainLaunch(permutation, schedule)


class PlainLaunch:
    """Runs on new pointers; it keeps no state between calls."""

    def __init__(self, permutation: Permutation, schedule: PlainSchedule) -> None:
        self._permutation, self._slabs = permutation, schedule.slabs
        self._extents = [mode.extent for mode in permutation.modes]
        self._strides = [(mode.strides.a, mode.strides.d) for mode in permutation.modes]

    def __call__(self, x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        cut = 0  # modes that slabs are cut along, and the last of them into `step`
        while self._slabs and cut < len(self._extents) and math.prod(self._extents[cut:]) > SLAB:
            cut += 1
        step = max(SLAB // math.prod(self._extents[cut:]), 1) if cut else 1
        looped = [range(extent) for extent in self._extents[: cut - 1]] if cut else []
        looped += [range(0, self._extents[cut - 1], step)] if cut else []
        for corner in itertools.product(*looped):
            shape = list(self._extents[max(cut - 1, 0) :])
            if cut:
                shape[0] = min(step, shape[0] - corner[-1])
            in_x, in_d = (sum(at * s[side] for at, s in zip(corner, self._strides, strict=False)) for side in (0, 1))
            strides = self._strides[max(cut - 1, 0) :]
            source = x.as_strided(shape, [s[0] for s in strides], int(x.storage_offset()) + in_x)
            target, addend = (
                tensor.as_strided(shape, [s[1] for s in strides], int(tensor.storage_offset()) + in_d)
                for tensor in (d, d if c is None else c)  # C lies as D does
            )
            self._slab(source, addend, target, alpha, beta if c is not None else 0)

    def _slab(
        self, source: torch.Tensor, addend: torch.Tensor, target: torch.Tensor, alpha: Scalar, beta: Scalar
    ) -> None:
        permutation = self._permutation
        values: torch.Tensor = source.conj() if permutation.conjugate else source
        if permutation.fn is not None:
            values = permutation.fn(values.resolve_conj().contiguous())  # type: ignore[assignment]
        if permutation.scaled:
            scale = permutation.scale
            values = values.to(scale, copy=True).mul_(alpha)
            if beta != 0:
                values.add_(addend.to(scale) if addend.dtype in _UNPROMOTED else addend, alpha=beta)
        target.copy_(values)


def transpose_(matrices: torch.Tensor, alpha: Scalar) -> None:
    """Matrices (batch, rows, columns) in place, one after the other, each by way of a copy; see `transpose`."""
    for matrix in matrices:
        rows, columns = matrix.shape
        step = matrix.stride(1)
        target = matrix if rows == columns else matrix.as_strided(
            (columns, rows), (rows * step, step), int(matrix.storage_offset())
        )  # fmt: skip
        scale = scaling_type(matrix.dtype, matrix.dtype)
        target.copy_(matrix.T.to(scale, copy=True).mul_(alpha) if alpha != 1 else matrix.T.clone())
