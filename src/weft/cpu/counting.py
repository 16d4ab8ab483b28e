"""Truth values counted by torch's product of int8 matrices, where the host has VNNI.

The GETT kernels count in float32, where an instruction takes as many pairs as a vector has numbers of four bytes; one
of VNNI takes four times as many. Operands are written to matrices of their own, in which every byte that is not zero is
1, their modes in the order of a matrix product; D is written from the counts, in its own layout. What is counted, and
why that is exact: `weft.planner.counting`. A family with the four doors of `weft.planner.schedule`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from weft.cpu import blas
from weft.cpu.host import costs, multiplies_bytes
from weft.planner.counting import COUNT, FACTOR, of_counts, refusal
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides

NAME = "counting"

A, B, D = 0, 1, 3  # places of their strides
_PRODUCT = blas.CpuBlasSchedule("_int_mm")


@dataclass(frozen=True, slots=True)
class CountingSchedule:
    workspace_bytes: int  # of operands as bytes, of counts, and of what they make of each
    family: str = NAME

    def __str__(self) -> str:
        return "counting pairs: torch._int_mm of A and B as bytes of 0 and 1; D from counts"


class _Matrix(NamedTuple):
    """How the modes of a tensor make a matrix: those of its rows, then those along a row, each outermost first."""

    roles: tuple[Role, Role]  # of its rows, and along a row
    modes: tuple[Mode, ...]
    shape: tuple[int, int]

    def layout_in(self, at: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides along these modes in the tensor's own layout."""
        return tuple(mode.extent for mode in self.modes), tuple(mode.strides[at] for mode in self.modes)

    def step(self, role: Role) -> int:
        """The stride along a role's modes in the matrix itself."""
        return {self.roles[0]: self.shape[1], self.roles[1]: 1}.get(role, 0)


class _CountingCost(NamedTuple):
    call: float  # seconds of one pass over a tensor, however small
    memory: float  # bytes a second of one core
    scattered: float  # seconds for each element whose neighbour in the matrix is stored elsewhere


@lru_cache
def _cost() -> _CountingCost:
    found = costs("counting")
    return _CountingCost(*(found(name) for name in _CountingCost._fields))


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    if (reason := refusal(contraction)) is not None:
        return reason
    if contraction.aux or contraction.c is not None or contraction.a_fn or contraction.b_fn or contraction.epilogue:
        return "it applies no functions and adds no C"
    if not multiplies_bytes():
        return "the host has no products of bytes (VNNI)"
    if contraction.of_role(Role.BATCH):
        return "torch multiplies one pair of int8 matrices at a time"
    if any(not (mode.strides.a and mode.strides.b) for mode in contraction.of_role(Role.K)):
        return "a mode is summed in one operand alone"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if contraction.k == 1:
        return "nothing is summed"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    m, n, k = contraction.m, contraction.n, contraction.k
    return Candidates((CountingSchedule((m + n) * k + m * n * (COUNT.itemsize + 1)),))


def predict(contraction: Contraction, schedule: CountingSchedule, target: Target) -> float:
    """Seconds of the product and of one pass over each tensor."""
    cost, cores = _cost(), min(max(target.processors, 1), 2)
    seconds = blas.predict(product_of(contraction), _PRODUCT, target)
    for at, matrix in matrices_of(contraction).items():
        elements = matrix.shape[0] * matrix.shape[1]
        size = COUNT.itemsize + contraction.d.dtype.itemsize if at == D else 2
        scattered = bool(matrix.modes) and matrix.modes[-1].strides[at] != 1
        seconds += cost.call + elements * (size / cost.memory + scattered * cost.scattered) / cores
    return seconds


def build(contraction: Contraction, schedule: CountingSchedule, target: Target) -> Launch:
    result = of_counts(contraction)
    shapes = {at: matrix.shape for at, matrix in matrices_of(contraction).items()}
    places = {at: matrix.layout_in(at) for at, matrix in matrices_of(contraction).items()}
    multiply = blas.build(product_of(contraction), _PRODUCT, target)

    def factor(x: Tensor, at: int) -> Tensor:
        values = x.view(torch.uint8).as_strided(*places[at])
        truth = torch.empty(values.shape, dtype=torch.uint8, device=x.device)
        return torch.clamp(values, max=1, out=truth).view(FACTOR).view(shapes[at])

    def launch(
        a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        counts = torch.empty(shapes[D], dtype=COUNT, device=d.device)
        multiply(factor(a, A), factor(b, B), None, counts, 1, 0)
        d.as_strided(*places[D]).copy_(result(counts).view(places[D][0]))

    return launch


@lru_cache(maxsize=256)
def matrices_of(contraction: Contraction) -> dict[int, _Matrix]:
    """The matrices that A, B and D become, each as near to its own layout as can be."""
    sides = ((A, (Role.M, Role.K)), (B, (Role.N, Role.K)), (D, (Role.M, Role.N)))
    return {at: _matrix(contraction, at, *roles) for at, roles in sides}


def _matrix(contraction: Contraction, at: int, rows: Role, row: Role) -> _Matrix:
    nearest = min(contraction.of_role(rows, row), key=lambda mode: mode.strides[at], default=None)
    if nearest is not None and nearest.role is rows:
        rows, row = row, rows
    modes = (*_in_order(contraction, rows), *_in_order(contraction, row))
    return _Matrix((rows, row), modes, (contraction.extent_of(rows), contraction.extent_of(row)))


def _in_order(contraction: Contraction, role: Role) -> list[Mode]:
    """The modes of a role, outermost first: as A has them, or those of D as D does."""
    return sorted(contraction.of_role(role), key=lambda mode: -mode.strides[A if role is Role.K else D])


def product_of(contraction: Contraction) -> Contraction:
    """The product of those matrices."""
    matrices = matrices_of(contraction)
    a, b, d = (Layout.contiguous(matrix.shape, FACTOR) for matrix in matrices.values())
    modes = [
        Mode((role.value,), contraction.extent_of(role), role,
             Strides(*(matrices[at].step(role) if at in matrices else 0 for at in range(4))))
        for role in (Role.M, Role.N, Role.K)
    ]  # fmt: skip
    return Contraction(tuple(modes), a, b, None, d._replace(dtype=COUNT), Arithmetic(FACTOR, COUNT))
