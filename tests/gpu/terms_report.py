"""Cross-compile products of terms for Hopper and print what they hold: a script of `reporting`."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import partial

import torch
from compile_report import H200
from reporting import print_report
from triton.backends.nvidia.compiler import get_ptxas
from uniform_registers import unwritten

from weft.gpu.common.contraction_launch import KERNEL as REDUCTION
from weft.gpu.common.inspect import compiled
from weft.gpu.common.launch import collected
from weft.gpu.terms.launch import KERNEL, TermsProduct
from weft.planner.split_schemes import BF16X6, FP16X3, SplitScheme
from weft.spec import Layout
from weft_bench.kernels.instructions import instructions

OTHERS = (KERNEL, REDUCTION)  # than the passes over operands


def report(scheme: SplitScheme, m: int, n: int, k: int, turned: bool = False) -> dict[str, object]:
    """Of the kernel of one scheme; and what the assembler spills, or runs one by one."""
    shapes = ((m, k), (k, n), (m, n))
    a, b, d = (Layout.contiguous(shape, torch.float32) for shape in shapes)
    if turned:
        a, b = (Layout.contiguous(shape[::-1], torch.float32).transposed for shape in shapes[:2])
    with collected() as launches:
        product = TermsProduct(a, b, d, (FP16X3, BF16X6), H200)
    beside = [compiled(each, "sm_90") for each in launches if each.function not in OTHERS]
    kernel = product._by_scheme[(FP16X3, BF16X6).index(scheme)]
    built = compiled(kernel.multiply, "sm_90")
    text = built.asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        command = [get_ptxas(90).path, "-v", "-arch=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "schedule": str(kernel.schedule),
        "products": len([0 for i in range(scheme.terms) for j in range(scheme.terms) if i + j < scheme.orders]),
        "depth": kernel.schedule.tile[2],
        "shared": built.metadata.shared,
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        "serialized": "serialized" in said,
        "passes": len(beside),
        "unwritten": unwritten(built.asm["cubin"]),
        **instructions(text),
    }


def main() -> None:
    print_report(
        {
            "bf16x6": partial(report, BF16X6, 4096, 4096, 4096),
            "fp16x3": partial(report, FP16X3, 4096, 4096, 4096),
            "bf16x6 turned": partial(report, BF16X6, 1801, 1703, 1601, turned=True),
            "fp16x3 split_k": partial(report, FP16X3, 96, 48, 100001),
        }
    )


if __name__ == "__main__":
    main()
