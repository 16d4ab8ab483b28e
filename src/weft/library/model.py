"""Predicted seconds of torch's operations.

Those of a CPU are fitted. Those of a GPU are predictions: passes over memory and products at rates of its data sheet,
and a launch for each operation.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch

from weft.cpu.host import costs
from weft.gpu.pointwise.nvrtc import identity
from weft.library.products import clamps
from weft.library.scheme import LibraryScheme
from weft.machine.ceilings import rate_name
from weft.machine.datasheets import datasheet
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.planner.split_schemes import split_bytes, split_seconds

_CALLED, _LAUNCH = 14e-6, 6e-6  # seconds of the host: of a call, and of each operation that it launches on a GPU
_KERNEL = 2e-6  # seconds of a kernel that does next to nothing
_SHARE = 0.7  # of its data sheet's rates that torch's operations reach
_PASSES = 3  # over the table of pairs of an algebra
_CALL, _RATE = 8e-6, 4e9  # of permutations on a CPU: seconds of a call, bytes that are moved in a second
_UNKNOWN = (1e12, 1e13)  # bytes/s and flops/s where there is no data sheet


def seconds(
    scheme: LibraryScheme, parts: tuple[int, ...] | None, workspace: int, target: Target, *, alone: bool = False
) -> float:
    """Seconds of a call whose parts take so many bytes of workspace; `alone`: as the tier that runs first takes, and
    not as a candidate among kernels of a CPU.

    A candidate's constants are those of its slow cases, for which it is chosen.
    """
    count = 1
    if parts is not None:
        extents = [mode.extent for mode in scheme.contraction.modes]
        count = math.prod([-(-extent // part) for extent, part in zip(extents, parts, strict=True)])
    if target.kind != "cpu":
        return _on_a_gpu(scheme, count, workspace, target)
    return _alone(scheme, count, target) if alone else _on_a_cpu(scheme, count, target)


def _on_a_cpu(scheme: LibraryScheme, parts: int, target: Target) -> float:
    contraction = scheme.contraction
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    cost, cores = costs("library"), max(target.processors, 1)
    each = cost("byte" if scheme.types.way == "bytes" else "pair" if scheme.form == "algebra" else "product")
    return parts * cost("call") + batch * (cost("pass") * (m * k + k * n + m * n) + each * m * n * k) / cores


def _alone(scheme: LibraryScheme, parts: int, target: Target) -> float:
    """Seconds of the tier that runs first.

    Fitted to twelve products of float32 on one core, within a factor of 1.6 but for many tiny ones.
    """
    contraction = scheme.contraction
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    cost, cores = fitted("library", "cpu-64.json"), max(target.processors, 1)
    each = cost("pair") if scheme.form == "algebra" else cost("alone_product")
    wide = scheme.accumulate.itemsize / 4
    moved = cost("alone_pass") * (m * k + k * n + m * n) * wide
    return parts * cost("alone_call") + batch * (moved + each * m * n * k * wide) / cores


def moving(size: int, passes: int, slabs: int, target: Target) -> float:
    """Seconds of a permutation that reads and writes so many bytes."""
    if target.kind == "cpu":
        return _CALL + size / _RATE
    memory, _ = _rates(target.name, "float32")
    return max(_CALLED + slabs * passes * _LAUNCH, slabs * passes * _KERNEL + passes * size / memory)


class _Steps(NamedTuple):
    operations: int
    moved: int  # bytes
    between: int = 0  # bytes that fused passes move besides, before or after the product


def _on_a_gpu(scheme: LibraryScheme, parts: int, workspace: int, target: Target) -> float:
    contraction = scheme.contraction
    memory, rate = _rates(target.name, _rate_name(scheme))
    steps = _steps(scheme, fuses(target))
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    products = 2 * batch * m * n * k * (4 if scheme.accumulate.is_complex else 1)
    if contraction.algebra is not None:
        tables = 2 * _PASSES * 4 * batch * m * n * k
        products, steps = 0, steps._replace(operations=steps.operations + 4, moved=steps.moved + tables)
    if scheme.types.way == "limbs":
        products *= (scheme.accumulate.itemsize // 2) ** 2
    multiplied = split_seconds(batch, m, n, k) if scheme.types.way == "split" else products / rate
    host, device = _CALLED + parts * steps.operations * _LAUNCH, parts * steps.operations * _KERNEL
    if scheme.types.way == "split":  # whose terms are counted
        workspace -= split_bytes(batch, m, n, k)
    between = max(steps.between, 2 * parts * workspace)  # what stands in the workspace is written and read
    return max(host, device + max(steps.moved / memory, multiplied) + between / memory)


def fuses(target: Target) -> bool:
    """Whether functions run as one pass each, and not as one of torch's operations after the other."""
    return target.kind == "cuda" and identity() is not None


def _steps(scheme: LibraryScheme, fused: bool) -> _Steps:
    """Operations and bytes of a part that is all: a pass for each conversion, function and copy; `fused`: one for all
    that follows on the sums, and one for each operand's function."""
    contraction = scheme.contraction
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    sizes = batch * m * k * contraction.a.dtype.itemsize, batch * n * k * contraction.b.dtype.itemsize
    of_d = batch * m * n * contraction.d.dtype.itemsize
    operations, moved, between = 1, sum(sizes) + of_d, 0
    for at, function in enumerate((contraction.a_fn, contraction.b_fn)):
        if fused and function is not None:
            operations, between = operations + 1, between + 2 * sizes[at]
        elif not scheme.plain[at]:
            passes = 1 + (function.flops if function is not None else 0)
            operations, moved = operations + passes, moved + 2 * passes * sizes[at]
    behind = [function for function in (contraction.c_fn, contraction.epilogue) if function is not None]
    if fused and behind:
        of_sums = batch * m * n * scheme.accumulate.itemsize
        return _Steps(operations + 1, moved, between + 2 * of_sums + (of_d if contraction.c is not None else 0))
    for function in behind:
        operations, moved = operations + function.flops, moved + 2 * function.flops * of_d
    if contraction.c is not None:
        operations, moved = operations + scheme.follows, moved + of_d
    if scheme.clamps and not (contraction.c is not None and clamps(scheme.types, "cuda")):
        operations, between = operations + 1, between + 2 * of_d
    return _Steps(operations, moved, between)


def _rate_name(scheme: LibraryScheme) -> str:
    types = scheme.types
    if types.way == "limbs":
        return rate_name(torch.float64, torch.float64)
    return rate_name(types.a, scheme.accumulate)


@lru_cache(maxsize=64)
def _rates(name: str, products: str) -> tuple[float, float]:
    """Bytes and flops a second of a device by its name."""
    sheet = datasheet(name)
    if sheet is None:
        return _UNKNOWN
    return _SHARE * sheet.bandwidth, _SHARE * dict(sheet.matrix).get(products, _UNKNOWN[1])
