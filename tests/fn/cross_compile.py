"""Compile every case of `function_cases` for GPUs that need not be there. Run by `test_device_code`.

Arguments: TARGET:DTYPE,DTYPE... (targets sm_80, sm_90, gfx942, or `none` to make the functions only). Prints one line
of JSON: for each target and dtype what was compiled.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fn.function_cases import CASES

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def kernel_of_all(dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """One kernel that applies every function to the same tile, and the functions as its constants."""
    functions = [(case.arity, case.trace(dtype).jit) for case in CASES if dtype in case.dtypes]
    names = [f"FN{i}" for i in range(len(functions))]
    lines = ["@triton.jit", f"def kernel(a, b, out, {', '.join(f'{name}: tl.constexpr' for name in names)}):"]
    lines += ["    i = tl.arange(0, 128)", "    x = tl.load(a + i)", "    y = tl.load(b + i)"]
    for position, (arity, _) in enumerate(functions):
        call = f"FN{position}({'x' if arity == 1 else 'x, y'})"
        lines.append(f"    tl.store(out + {128 * position} + i, tl.reshape({call}, (128,)).to(tl.float64))")
    text = "\n".join(lines) + "\n"
    linecache.cache["<all>"] = (len(text), None, text.splitlines(keepends=True), "<all>")
    namespace: dict[str, Any] = {"triton": triton, "tl": tl}
    exec(compile(text, "<all>", "exec"), namespace)
    return namespace["kernel"], dict(zip(names, (function for _, function in functions), strict=True))


def compile_all(target: str, dtype: torch.dtype) -> dict[str, Any]:
    kernel, functions = kernel_of_all(dtype)
    facts: dict[str, Any] = {"keys": [function.cache_key for function in functions.values()]}
    if target != "none":
        signature = {
            "a": POINTERS[dtype],
            "b": POINTERS[dtype],
            "out": "*fp64",
            **dict.fromkeys(functions, "constexpr"),
        }
        source = ASTSource(fn=kernel, signature=signature, constexprs=functions)
        assembly = triton.compile(source, target=TARGETS[target]).asm
        facts["ptx"] = {text: assembly.get("ptx", "").count(text) for text in ("max.NaN.f32", "div.full", "call.uni")}
    return facts


if __name__ == "__main__":
    jobs = [job.partition(":") for job in sys.argv[1:]]
    done = {
        target: {dtype: compile_all(target, getattr(torch, dtype)) for dtype in dtypes.split(",")}
        for target, _, dtypes in jobs
    }
    print(json.dumps(done))
