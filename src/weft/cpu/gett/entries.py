"""The kernels' C callbacks: macro-kernels by number type, micro-kernels by type and operation, the scan of panels.

Micro-kernels of other algebras are written: their two functions inlined in loops that LLVM makes vectors of. The sums
of a register block stand in the first cache, and each is loaded and stored once for a few steps of k. Where the
functions take more than that, little is lost against sums in registers.

Sums of exponentials have loops of their own, log(sum over k of exp(x + y - m)) + m, with m the largest of x + y: one
exponential for each pair, and the rounding of the plain form (see `weft.oracle.bounds`). The family
`exponentials` takes fewer; it leaves tiny sums to these loops, and those that its products do not tell.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from weft.cpu.gett.params import BLOCK_ROWS, OPERATIONS, Operation
from weft.cpu.gett.stages import HEAD, memory_functions
from weft.cpu.jit import compiled, compiled_kernel
from weft.fn.algebra import TracedAlgebra
from weft.fn.numba.writer import NumbaWriter
from weft.fn.pointwise import inlined
from weft.fn.writer import Held
from weft.planner.exponentials import Exponent, exponent_of
from weft.spec.dtypes import dtype_name


def macro_kernel(kind: str) -> int:
    """Address of the macro-kernel of a number type, by numba's name of it."""
    return compiled_kernel("weft.cpu.gett.macro_kernel.run", kind)


def micro_kernel(kind: str, operation: Operation) -> int:
    """Address of a micro-kernel."""
    words = "k, rows, row_step, first, second, slot_step, start, to_first, to_second, to_rows"
    place = OPERATIONS.index(operation)
    return compiled_kernel("weft.cpu.gett.micro_kernel.micro_kernel", kind, place, words=words)


def scan(kind: str, operation: Operation | None) -> int:
    """Address of what looks for values that need the exact micro-kernel; 0 where none do."""
    if operation is None or kind not in ("float32", "float64") or operation.reduce not in ("max", "min"):
        return 0
    tests = {
        ("add", "max"): "above", ("add", "min"): "below", ("mul", "max"): "infinite", ("max", "min"): "nan",
        ("min", "max"): "nan",
    }  # fmt: skip
    test = tests[operation.combine, operation.reduce]
    return compiled_kernel(f"weft.cpu.gett.pack.special_{test}", kind, words="values, count, to")


AT_ONCE = 4  # steps of k for one load and store of a sum

_FRAME = HEAD + '''
from weft.cpu.gett.vector import load_word, stack
{memory}

@cfunc("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)", error_model="numpy")
def entry(k, rows, row_step, first, second, slot_step, start, to_first, to_second, to_rows):
    count = slot_step // {item}  # lanes of both vectors, which are stored side by side
    sums = stack({bytes})
    for i in range({height}):
        row = load_word(rows + 8 * i)
{body}
    for i in range({height}):
        to = load_word(to_rows + 8 * i)
        for j in range(count // 2):
            store_{kind}(to_first + to, j, load_{kind}(sums, i * count + j))
            store_{kind}(to_second + to, j, load_{kind}(sums, i * count + count // 2 + j))
'''

_PLAIN = '''\
        if start:
            for j in range(count):
                store_{kind}(sums, i * count + j, load_{kind}(start, i * count + j))
        else:
            for j in range(count):
                store_{kind}(sums, i * count + j, {identity})
        for p in range(0, k - {last}, {several}):
            {row_several}
            for j in range(count):
                total = load_{kind}(sums, i * count + j)
                {step_several}
                store_{kind}(sums, i * count + j, total)
        for p in range(k // {several} * {several}, k):
            {row_one}
            for j in range(count):
                total = load_{kind}(sums, i * count + j)
                {step_one}
                store_{kind}(sums, i * count + j, total)
'''

_EXPONENTIALS = '''\
        largest = sums + {height} * count * {item}
        for j in range(count):
            store_{kind}(largest, j, {sign}load_{kind}(start, i * count + j) if start else {kind}(-np.inf))
        for p in range(k):
            x = load_{kind}(row + p * row_step, 0)
            for j in range(count):
                value, most = {sign}(x + load_{kind}(first + p * slot_step, j)), load_{kind}(largest, j)
                store_{kind}(largest, j, most if most > value else value)
        for j in range(count):
            most = load_{kind}(largest, j)
            most = most if abs(most) < {kind}(np.inf) else {kind}(0.0)
            store_{kind}(largest, j, most)
            value = {sign}load_{kind}(start, i * count + j) - most if start else {kind}(0.0)
            store_{kind}(sums, i * count + j, {exp}({rate}value) if start else {kind}(0.0))
        for p in range(k):
            x = load_{kind}(row + p * row_step, 0)
            for j in range(count):
                value = {sign}(x + load_{kind}(first + p * slot_step, j)) - load_{kind}(largest, j)
                store_{kind}(sums, i * count + j, load_{kind}(sums, i * count + j) + {exp}({rate}value))
        for j in range(count):
            value = {log}(load_{kind}(sums, i * count + j)){over}
            store_{kind}(sums, i * count + j, {sign}(value + load_{kind}(largest, j)))
'''


def written_kernel(algebra: TracedAlgebra, accumulate: torch.dtype, dtype: torch.dtype, swapped: bool) -> int:
    """Address of the micro-kernel; `dtype` holds values of `accumulate`, rows are B's where `swapped`."""
    return compiled(source_of(algebra, accumulate, dtype, swapped))


@lru_cache(maxsize=64)
def source_of(algebra: TracedAlgebra, accumulate: torch.dtype, dtype: torch.dtype, swapped: bool) -> str:
    """Raises `UnsupportedError` where a function of the algebra has no code here."""
    kind = dtype_name(dtype)
    height = BLOCK_ROWS // 2 if dtype.is_complex else BLOCK_ROWS
    identity = NumbaWriter().constant(algebra.identity, dtype)
    names: dict[str, Any] = {"kind": kind, "item": dtype.itemsize, "height": height, "identity": identity}
    if (exponent := exponent_of(algebra, accumulate)) is not None:
        body = _EXPONENTIALS.format(**_exponential_names(exponent, dtype), **names)
    else:
        several, one = (_steps(algebra, accumulate, dtype, swapped, count) for count in (AT_ONCE, 1))
        body = _PLAIN.format(
            several=AT_ONCE, last=AT_ONCE - 1, row_several=several[0], step_several=several[1], row_one=one[0],
            step_one=one[1], **names,
        )  # fmt: skip
    size = (height + 1) * 128  # no vector is longer than 64 bytes
    memory = memory_functions([body, _FRAME.replace("{kind}", kind)])
    return _FRAME.format(body=body, bytes=size, memory=memory, **names)


def _steps(
    algebra: TracedAlgebra, accumulate: torch.dtype, dtype: torch.dtype, swapped: bool, count: int
) -> tuple[str, str]:
    """Lines that load items of a row, and lines that reduce as many combined values into `total`."""
    writer, kind = NumbaWriter(), dtype_name(dtype)
    total = Held(writer.cast("total", dtype, accumulate), accumulate)
    for at in range(count):
        here = writer.let(f"load_{kind}(first + (p + {at}) * slot_step, j)")
        x, y = (Held(writer.cast(name, dtype, accumulate), accumulate) for name in (f"x{at}", here))
        (pair,) = inlined(writer, algebra.combine, [y, x] if swapped else [x, y])
        pair = Held(writer.cast(pair.name, pair.dtype, accumulate), accumulate)
        (total,) = inlined(writer, algebra.reduce, [total, pair])
        total = Held(writer.cast(total.name, total.dtype, accumulate), accumulate)
    writer.line(f"total = {writer.cast(total.name, accumulate, dtype)}")
    rows = [f"x{at} = load_{kind}(row + (p + {at}) * row_step, 0)" for at in range(count)]
    return ("\n" + " " * 12).join(rows), ("\n" + " " * 16).join(writer.lines)


def _exponential_names(exponent: Exponent, dtype: torch.dtype) -> dict[str, str]:
    single, kind, rate = dtype is torch.float32, dtype_name(dtype), abs(exponent.rate)
    return {
        "exp": "vector.quick_exp" if single else "vector.quick_exp64", "log": "vector.log" if single else "np.log",
        "sign": "-" if exponent.rate < 0 else "", "rate": "" if rate == 1 else f"{kind}({rate!r}) * ",
        "over": "" if rate == 1 else f" * {kind}({1 / rate!r})",
    }  # fmt: skip
