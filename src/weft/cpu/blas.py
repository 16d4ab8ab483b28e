"""Matrix products of operands in their own layout, computed by torch's BLAS: MKL, OpenBLAS or Accelerate.

    matrix product, batched or not     torch.mm, torch.bmm; of int8 torch._int_mm, where the host has VNNI
    matrix-vector, dot product         torch.mv, torch.dot
    no sum                             torch.mul, broadcast

A library's kernels for one shape and one type are better than ours where nothing is permuted, fused or converted, and
products with vectors are a matter of memory alone. A family with the four doors of `weft.planner.schedule`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from weft.cpu.host import HUGE, advise, costs, multiplies_bytes, reach
from weft.machine.exactness import exact_products, shortened
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Mode, Role, Strides
from weft.spec.dtypes import dtype_name

NAME = "blas"

TYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


class _BlasCost(NamedTuple):
    rate: dict[str, float]  # flops a second of one core, by type
    memory: float  # bytes a second of one core
    call: float  # seconds
    matrix: float  # seconds for each of a batch
    looped: float  # modes up to which torch.mul walks long runs,
    scattered: float  # and how many times as long it takes beyond
    narrow: float  # extent up to which matrices are narrow,
    narrowed: float  # and how many times as long their products take, which are packed for MKL's kernels
    half_extent: float  # an extent of this size runs at half of the rate
    vectors: float  # share of the rate that a batch of products with vectors gets


@lru_cache
def _cost() -> _BlasCost:
    found = costs("blas")
    return _BlasCost(found.table("rate"), *(found(name) for name in _BlasCost._fields[1:]))


@dataclass(frozen=True, slots=True)
class CpuBlasSchedule:
    """A call of torch."""

    call: str  # its name
    workspace_bytes: int = 0
    family: str = NAME

    def __str__(self) -> str:
        return f"blas: torch.{self.call}, where operands and D lie"


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    if contraction.algebra is not None or contraction.aux or contraction.c is not None:
        return "it computes products and their sums alone"
    if any((contraction.a_fn, contraction.b_fn, contraction.epilogue)):
        return "it applies no functions"
    if not of_bytes(contraction) and not _of_one_type(contraction):
        return "it computes in one floating type"
    if contraction.conjugate_a or contraction.conjugate_b:
        return "it conjugates nothing"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    return _shape_fault(contraction)


def _of_one_type(contraction: Contraction) -> bool:
    arithmetic, a = contraction.arithmetic, contraction.a.dtype
    return a in TYPES and {contraction.b.dtype, contraction.d.dtype, arithmetic.product, arithmetic.accumulate} == {a}


def of_bytes(contraction: Contraction) -> bool:
    """Whether it is a product of int8 matrices, summed in int32, that this host has instructions for.

    Of a single k `torch._int_mm` leaves what was in memory.
    """
    if contraction.k < 2:
        return False
    stored = {contraction.a.dtype, contraction.b.dtype, contraction.arithmetic.product}
    return stored == {torch.int8} and contraction.arithmetic.accumulate is torch.int32 and multiplies_bytes()


def _shape_fault(contraction: Contraction) -> str | None:
    sums = contraction.of_role(Role.K)
    if any(not (mode.strides.a and mode.strides.b) for mode in sums):
        return "a mode is summed in one operand alone"
    if not sums:
        return None
    if len(sums) > 1 or any(len(contraction.of_role(role)) > 1 for role in (Role.BATCH, Role.M, Role.N)):
        return "it is no matrix product as it lies"
    m, n, k = (_one(contraction, role) for role in (Role.M, Role.N, Role.K))
    for matrix, steps in (("A", (m.strides.a, k.strides.a)), ("B", (n.strides.b, k.strides.b)),
                          ("D", (m.strides.d, n.strides.d))):  # fmt: skip
        if 1 not in steps and any(steps):
            return f"{matrix} is no matrix with a contiguous side"
    if of_bytes(contraction) and not _writes_bytes(contraction):
        return "products of bytes are written to a whole matrix of int32"
    return None


def _writes_bytes(contraction: Contraction) -> bool:
    """Whether D is a whole contiguous matrix, which `torch._int_mm` requires."""
    m, n = (_one(contraction, role) for role in (Role.M, Role.N))
    steps = (m.strides.d or n.extent, n.strides.d or 1)
    whole = steps in ((n.extent, 1), (1, m.extent))
    return whole and not contraction.of_role(Role.BATCH) and contraction.d.dtype is torch.int32


def _one(contraction: Contraction, role: Role) -> Mode:
    """The only mode of a role, or one of extent 1."""
    found = contraction.of_role(role)
    return found[0] if found else Mode((), 1, role, Strides(0, 0, 0, 0))


def schedules(contraction: Contraction, target: Target) -> Candidates:
    return Candidates((CpuBlasSchedule(_call(contraction)),))


def _call(contraction: Contraction) -> str:
    if not contraction.of_role(Role.K):
        return "mul"
    if of_bytes(contraction):
        return "_int_mm"
    batch, m, n = (bool(contraction.of_role(role)) for role in (Role.BATCH, Role.M, Role.N))
    return "bmm" if batch else "mm" if m and n else "mv" if m or n else "dot"


def predict(contraction: Contraction, schedule: CpuBlasSchedule, target: Target) -> float:
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    cost, dtype, cores = _cost(), contraction.d.dtype, max(target.processors, 1)
    touched = batch * (m * k + n * k + m * n) * dtype.itemsize / cost.memory / min(cores, 2)
    if schedule.call == "mul":
        permuted = len(contraction.modes) > len(contraction.d.shape) or len(contraction.modes) > cost.looped
        return cost.call + touched * (cost.scattered if permuted else 1)
    flops = 2 * batch * m * n * k * (4 if dtype.is_complex else 1)
    thin, half = min(m, n), cost.half_extent
    slowed = 1.0 if thin == 1 else (1 + half / m) * (1 + half / n) * (1 + half / k)
    slowed *= cost.narrowed if thin <= cost.narrow else 1.0
    products = flops * slowed / cost.rate["int8" if of_bytes(contraction) else dtype_name(dtype)]
    if thin == 1:
        products = products / cost.vectors if batch > 1 else 0.0
    size = batch * m * n * dtype.itemsize
    stored = size / cost.memory / min(cores, 2) if size >= HUGE else 0.0  # no cache keeps it
    return cost.call + max(touched, stored + (products + (batch - 1) * cost.matrix) / cores)


def build(contraction: Contraction, schedule: CpuBlasSchedule, target: Target) -> Launch:
    multiply, size = _multiply(contraction, schedule), reach(contraction.d)
    may_shorten = contraction.d.dtype in (torch.float32, torch.complex64) and schedule.call != "mul"

    def launch(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar,
        aux: AuxTensors = (),
    ) -> None:  # fmt: skip
        if size >= HUGE:
            advise(d, size)
        if may_shorten and shortened():
            with exact_products():
                multiply(a, b, d)
        else:
            multiply(a, b, d)
        if alpha != 1:
            d.mul_(alpha)

    return launch


Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
View = Callable[[torch.Tensor], torch.Tensor]


def _multiply(contraction: Contraction, schedule: CpuBlasSchedule) -> Multiply:
    operation: Callable[..., object] = getattr(torch, schedule.call)
    a, b, d = _factors(contraction, schedule)
    first, second, result = _view(contraction, a, 0), _view(contraction, b, 1), _view(contraction, d, 3)
    if schedule.call == "_int_mm" and d and d[-1].strides.d > 1:  # D is contiguous the other way
        return lambda a, b, d: operation(second(b).t(), first(a).t(), out=result(d).t())
    if schedule.call == "mv" and len(a) == 1:  # torch takes the matrix first
        return lambda a, b, d: operation(second(b), first(a), out=result(d))
    return lambda a, b, d: operation(first(a), second(b), out=result(d))


def _factors(contraction: Contraction, schedule: CpuBlasSchedule) -> tuple[tuple[Mode, ...], ...]:
    """The modes of A, B and D as torch's operation has them."""
    if schedule.call == "mul":
        return (contraction.modes,) * 3
    batch, m, n, k = (_one(contraction, role) for role in (Role.BATCH, Role.M, Role.N, Role.K))
    if schedule.call == "dot":
        return (k,), (k,), ()
    if schedule.call == "mv":
        return ((m, k), (k,), (m,)) if contraction.of_role(Role.M) else ((k,), (n, k), (n,))
    if schedule.call in ("mm", "_int_mm"):
        return (m, k), (k, n), (m, n)
    return (batch, m, k), (batch, k, n), (batch, m, n)


def _view(contraction: Contraction, modes: tuple[Mode, ...], at: int) -> View:
    """A function that views a tensor along these modes; the identity where its layout is that already."""
    layout = {0: contraction.a, 1: contraction.b, 3: contraction.d}[at]
    shape = tuple(mode.extent for mode in modes)
    strides = _strides(modes, at)
    if (layout.shape, layout.strides) == (shape, strides):
        return lambda tensor: tensor
    return lambda tensor: tensor.as_strided(shape, strides)


def _strides(modes: tuple[Mode, ...], at: int) -> tuple[int, ...]:
    """A mode of extent 1 steps past the matrix's other side: what MKL takes is found out by strides."""
    sides = [mode for mode in modes if mode.labels and mode.role is not Role.BATCH]
    past = max((mode.strides[at] * mode.extent for mode in sides), default=1)
    return tuple(mode.strides[at] if mode.labels else past for mode in modes)
