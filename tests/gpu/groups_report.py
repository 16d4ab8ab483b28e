"""Cross-compile the kernels for groups without a GPU and print what their code holds: a script of
`reporting`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from reporting import print_report

from weft.fn import trace
from weft.gpu.common.inspect import compiled
from weft.gpu.common.launch import collected
from weft.gpu.grouped.launch import GroupKernel, GroupLaunch
from weft.planner.schedule import Target
from weft.spec import parse
from weft.spec.dtypes import resolve
from weft.spec.group import contiguous_strides, group_form, group_table
from weft_bench.kernels.instructions import instructions

TARGETS = {
    "sm_80": Target("cuda", 0, "NVIDIA A100", 80, 108, 166912),
    "sm_90": Target("cuda", 0, "NVIDIA H200", 90, 132, 232448),
    "sm_100": Target("cuda", 0, "NVIDIA B200", 100, 148, 232448),
    "gfx942": Target("hip", 0, "AMD MI300X", 94, 304, 65536),
}
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
IN_GROUPS = (torch.complex64, torch.complex128, torch.int8, torch.int64)


class OnPaper(GroupLaunch):
    """A launch whose tables are sent nowhere."""

    def _sent(self, numbers: object) -> torch.Tensor:
        return torch.empty(0)


def group(target: Target, dtype: torch.dtype, most: int, equation: str = "mk,kn->mn", step: int = 1) -> None:
    form = group_form(parse(equation))
    extents = np.arange(step, most + 1, step)[:, None]
    shapes = [np.repeat(extents, len(term), 1) for term in form.notation.inputs]
    table, _ = group_table(form, shapes, [contiguous_strides(shape) for shape in shapes])
    arithmetic = resolve(dtype, dtype)
    last = trace(torch.square if dtype.is_complex else torch.relu, (arithmetic.accumulate,), hook="epilogue")
    kernel = GroupKernel(form.counts, arithmetic, (dtype,) * 3, (None, None, last), add=True)
    OnPaper(kernel, table, target)


def report(make: Callable[[], None], architecture: str) -> dict[str, object]:
    with collected() as made:
        make()
    built = compiled(made[0], architecture)
    text = built.asm["amdgcn" if architecture.startswith("gfx") else "ptx"]
    return {"shared": built.metadata.shared} | instructions(text)


def main() -> None:
    every_case: dict[str, Callable[[], object]] = {}
    for architecture, target in TARGETS.items():
        every = architecture == "sm_90"
        for dtype in (*(TYPES if every else TYPES[2:]), *(IN_GROUPS if every else IN_GROUPS[::3])):
            name = str(dtype).removeprefix("torch.")
            cases = {
                f"small {name}": partial(group, target, dtype, 16),
                f"mixed {name}": partial(group, target, dtype, 64),
                f"large {name}": partial(group, target, dtype, 1024, step=128),
            }
            if dtype in IN_GROUPS:
                cases = {f"mixed {name}": cases[f"mixed {name}"]}
            if dtype is torch.float64:
                cases["modes"] = partial(group, target, dtype, 3, "aibj,jcib->ca")
            every_case |= {
                f"{case} {architecture}": partial(report, make, architecture) for case, make in cases.items()
            }
    print_report(every_case)


if __name__ == "__main__":
    main()
