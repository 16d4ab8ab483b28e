"""Cross-compile the kernel that keeps places, and print what its code holds, as JSON; run by `test_selection_compile`.

In a process of its own: Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from triton.compiler import ASTSource
from triton.compiler import compile as triton_compile

from weft.algebra import NAMED
from weft.gpu.common.inspect import TARGETS, pointer_type
from weft.gpu.common.launch import TRITON_TYPES
from weft.gpu.selection import selection_kernel
from weft.spec import Layout
from weft_bench.kernels.instructions import instructions


def code(algebra: str, dtype: torch.dtype, architecture: str) -> dict[str, Any]:
    element = pointer_type(Layout.contiguous((1,), dtype))
    pointers = {"a": element, "b": element, "values": element, "places": "*i64"}
    constants = {
        "COMBINE": NAMED[algebra].traced(dtype).combine.jit, "LARGEST": algebra.startswith("max"),
        "ACCUMULATE": TRITON_TYPES[dtype].meant, "TILE_M": 64, "TILE_N": 64,
    }  # fmt: skip
    signature = {**pointers, **dict.fromkeys("mnk", "i32"), **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(selection_kernel, signature, constants, {(at,): [["tt.divisibility", 16]] for at in range(4)})
    target = TARGETS[architecture]
    text = triton_compile(source, target=target, options={"num_warps": 4}).asm
    return instructions(text["ptx" if target.backend == "cuda" else "amdgcn"])


if __name__ == "__main__":
    found = {
        f"{algebra} {str(dtype)[6:]} {architecture}": code(algebra, dtype, architecture)
        for algebra, dtype, architecture in (
            ("max_plus", torch.float32, "sm_90"), ("min_plus", torch.float64, "sm_90"),
            ("max_times", torch.int32, "sm_80"), ("min_max", torch.int64, "sm_100"),
            ("max_min", torch.float32, "gfx942"),
        )
    }  # fmt: skip
    json.dump(found, sys.stdout)
