"""Compile one schedule of each kernel in Gluon, and say in the last line of output what came of it.

A process of its own, which `gluon_probe` starts, because a compiler may crash.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from weft.fn import trace
from weft.gpu.common.inspect import compiled
from weft.gpu.warp_specialized import family
from weft.machine.shortage import is_shortage
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve

M, N, K = 8192, 80, 64  # extents for which each kernel has a schedule


def main() -> None:
    """Compile, and say in the last line what came of it."""
    error, passing = None, False
    try:
        compile_each_kernel(int(sys.argv[1]))
    except Exception as raised:
        error, passing = _first_line(raised), is_shortage(raised)
    print(json.dumps({"error": error, "passing": passing}), flush=True)


def compile_each_kernel(capability: int) -> None:
    """Compile one schedule of each kernel of the family, with functions of both operands."""
    target = Target("cuda", name="a GPU that is not here", capability=capability, processors=132, shared_memory=232448)
    contraction = _contraction()
    of_kernel: dict[Any, Any] = {}
    schedules: Any = family.schedules(contraction, target).schedules
    for schedule in schedules:
        launch: Any = family.build(contraction, schedule, target)
        of_kernel.setdefault(launch.kernels[0].kernel, launch)
    for launch in of_kernel.values():
        compiled(launch.kernels[0], f"sm_{capability}")


def _contraction() -> Contraction:
    """A contraction of one tall operand and a small one, with functions of both."""
    half = torch.float16
    a, b, d = Layout.contiguous([M, K], half), Layout.contiguous([N, K], half), Layout.contiguous([M, N], torch.float32)
    modes = class_modes(parse("ik,jk->ij"), a, b, None, d, {"i": M, "j": N, "k": K})
    relu = trace(torch.relu, (half,))
    return canonical(Contraction(modes, a, b, None, d, resolve(half, half, None), a_fn=relu, b_fn=relu))


def _first_line(error: BaseException) -> str:
    """The first line of the error at the bottom: the compiler's own say where it met it."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


if __name__ == "__main__":
    main()
