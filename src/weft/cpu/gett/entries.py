"""The kernels' C callbacks: macro-kernels by number type, micro-kernels by type and operation, the scan of panels."""

from __future__ import annotations

from weft.cpu.gett.operations import OPERATIONS, Operation
from weft.cpu.jit import compiled

_MACRO = """\
from numba import cfunc, {kind}
from weft.cpu.gett.macro_kernel import run


@cfunc("void(int64)", error_model="numpy")
def entry(frame):
    run(frame, {kind}(0))
"""

_MICRO = """\
from numba import cfunc, int8, {kind}
from weft.cpu.gett.micro_kernel import micro_kernel


@cfunc("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def entry(k, rows, row_step, first, second, slot_step, start, to_first, to_second, to_rows):
    micro_kernel(
        k, rows, row_step, first, second, slot_step, start, to_first, to_second, to_rows, {kind}(0), ({operation})
    )
"""

_SCAN = """\
from numba import cfunc, {kind}
from weft.cpu.gett.pack import special_{test}
from weft.cpu.gett.vector import store_word


@cfunc("void(int64, int64, int64)", error_model="numpy")
def entry(values, count, found):
    store_word(found, special_{test}(values, count, {kind}(0)))
"""


def macro_kernel(kind: str) -> int:
    """Address of the macro-kernel of a number type, by numba's name of it."""
    return compiled(_MACRO.format(kind=kind), kernel=True)


def micro_kernel(kind: str, operation: Operation) -> int:
    """Address of a micro-kernel."""
    place = OPERATIONS.index(operation)
    return compiled(_MICRO.format(kind=kind, operation="int8(0), " * (place + 1)), kernel=True)


def scan(kind: str, operation: Operation | None) -> int:
    """Address of what looks for values that need the exact micro-kernel; 0 where none do."""
    if operation is None or kind not in ("float32", "float64") or operation.reduce not in ("max", "min"):
        return 0
    tests = {
        ("add", "max"): "above", ("add", "min"): "below", ("mul", "max"): "infinite", ("max", "min"): "nan",
        ("min", "max"): "nan",
    }  # fmt: skip
    return compiled(_SCAN.format(kind=kind, test=tests[operation.combine, operation.reduce]), kernel=True)
