"""TTGT on the CPU (transpose, transpose, GEMM, transpose): the library's product, and passes before and behind it.

Operands that are functions, are converted, or have the layout of no matrix are packed. torch's BLAS multiplies. C, the
epilogue with its operands and coordinates, and the cast are one more pass. Both passes go by the stages that GETT's
kernels apply to panels and register blocks, here to long rows; and all of it piece by piece of D, so that what one step
writes the next one reads from the caches. It pays where stages are much of the time, and where the library multiplies
faster than GETT's kernels do: bytes, long sums.

A family with the four doors of `weft.planner.schedule`.
"""

from __future__ import annotations

from weft.cpu import blas, jit
from weft.cpu.gett.family import AUX, LOADABLE
from weft.cpu.gett.stages import emittable
from weft.cpu.ttgt.cost import predict
from weft.cpu.ttgt.passes import scratch_bytes
from weft.cpu.ttgt.schedule import NAME, TtgtSchedule
from weft.cpu.ttgt.steps import pieces_of
from weft.cpu.ttgt.ways import SCATTER, Way, multiplied, ways
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction, Role
from weft.spec.dtypes import dtype_name

__all__ = ["NAME", "TtgtSchedule", "build", "predict", "schedules", "supports"]

LEAST_PRODUCTS = 1 << 18  # that are worth steps of their own,
LEAST_EXTENT = 4  # of matrices with so many rows and columns,
MOST_PIECES = 4096  # in so many pieces


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if target.kind != "cpu":
        return f"it runs on the CPU, the tensors are on a {target.kind} device"
    if (missing := jit.fault()) is not None:
        return missing
    if contraction.algebra is not None:
        return f"the library computes products and their sums, not {contraction.algebra.name}"
    if 0 in [mode.extent for mode in contraction.modes]:
        return "a mode is empty"
    if min(contraction.m, contraction.n, contraction.k) == 1:
        return "it is no product of matrices"
    if any(not (mode.strides.a and mode.strides.b) for mode in contraction.of_role(Role.K)):
        return "a mode is summed in one operand alone"
    return _types_fault(contraction) or _functions_fault(contraction) or _size_fault(contraction)


def _size_fault(contraction: Contraction) -> str | None:
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    worth = min(m, n, k) >= LEAST_EXTENT and batch * m * n * k >= LEAST_PRODUCTS
    return None if worth else "the product is too small to be worth steps of its own"


def _types_fault(contraction: Contraction) -> str | None:
    accumulate = contraction.arithmetic.accumulate
    if not blas.of_bytes(contraction) and accumulate not in blas.TYPES:
        return f"the library has no sums in {dtype_name(accumulate)}"
    if contraction.a.dtype.is_complex != contraction.b.dtype.is_complex:
        return "the library multiplies no real with a complex matrix"
    layouts = [contraction.a, contraction.b, contraction.c, contraction.d, *(each.layout for each in contraction.aux)]
    for layout in layouts:
        if layout is not None and layout.dtype not in LOADABLE:
            return f"kernels do not read {dtype_name(layout.dtype)}"
    return None


def _functions_fault(contraction: Contraction) -> str | None:
    return f"functions take more than {AUX} operands" if len(contraction.aux) > AUX else emittable(contraction)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found: list[TtgtSchedule] = []
    excluded: dict[str, None] = {}
    for way in ways(contraction):
        count = contraction.batch * way.cut.count(way.order)
        if count <= MOST_PIECES:
            found.append(schedule_of(contraction, way, target))
        else:
            excluded[f"it would go in {count} pieces, more than {MOST_PIECES}"] = None
    none = "it is a product of matrices as they lie, with nothing to be applied"
    return Candidates(tuple(found), tuple(excluded) if found or excluded else (none,))


def schedule_of(contraction: Contraction, way: Way, target: Target) -> TtgtSchedule:
    first, threads = pieces_of(contraction, way)[0], max(target.processors, 1)
    (product,) = blas.schedules(first.product, target).schedules
    assert isinstance(product, blas.CpuBlasSchedule)
    packed = [(name, matrix) for name, matrix in zip("AB", first.packed, strict=True) if matrix is not None]
    workspace = sum(matrix.size for _, matrix in packed) * multiplied(contraction).itemsize
    workspace += first.d.size * contraction.arithmetic.accumulate.itemsize if way.last == SCATTER else 0
    workspace += threads * scratch_bytes(contraction)
    return TtgtSchedule(way, tuple(f"{name} as {matrix.name}" for name, matrix in packed), product, threads, workspace)


def build(contraction: Contraction, schedule: TtgtSchedule, target: Target) -> Launch:
    from weft.cpu.ttgt.launch import TtgtLaunch

    return TtgtLaunch(contraction, schedule, target)
