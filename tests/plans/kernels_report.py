"""Cross-compile the kernels of one contraction for two GPUs, and print what they say of themselves, as JSON.

Run by `test_kernels.py` in a process of its own: Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from weft.api.describe import choice_for, hypothetical, kernels_for
from weft.gpu.common.cubins import block_barriers
from weft.gpu.common.inspect import TARGETS
from weft_bench.kernels.text import code_text
from weft_bench.micro.kernels import read_again_kernel, strided_copy_kernel

EQUATION, EXTENTS = "ecbfa,fd->abcde", {"a": 16, "b": 16, "c": 16, "d": 64, "e": 16, "f": 256}


MICRO = (
    (strided_copy_kernel, {"x": "*fp32", "y": "*fp32", "stride": "i32"}, {"ELEMENTS": 1 << 24, "BLOCK": 256}),
    (
        read_again_kernel,
        {"x": "*fp32", "out": "*fp32", "tiles": "i32", "passes": "i32"},
        {"PROGRAMS": 8, "BLOCK": 2048},
    ),
)


def _ptx(kernel: Any, signature: dict[str, str], constants: dict[str, int]) -> str:
    """A kernel of the microbenchmarks as PTX for Hopper, pointers and numbers aligned as torch's are."""
    every = signature | dict.fromkeys(constants, "constexpr")
    aligned = {(at,): [["tt.divisibility", 16]] for at, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(kernel, every, constants, aligned)
    return str(compile_kernel(source, target=TARGETS["sm_90"], options={"num_warps": 4}).asm["ptx"])


def main() -> None:
    found = {}
    for target in ("sm_90", "a100", "rtx4090"):
        request = hypothetical(EQUATION, EXTENTS, dtype=torch.float16, target=target)
        kernels = kernels_for(request, choice_for(request)[1])
        kernel = kernels[-1]
        found[target] = kernel.to_dict() | {
            "ptx": kernel.ptx, "sass": kernel.sass, "ttgir": kernel.ttgir, "barriers": block_barriers(kernel.ptx),
            "ptx text": code_text(kernels, "ptx", 5), "sass text": code_text(kernels, "sass", 5),
        }  # fmt: skip
    found["micro"] = {kernel.fn.__name__: _ptx(kernel, signature, constants) for kernel, signature, constants in MICRO}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
