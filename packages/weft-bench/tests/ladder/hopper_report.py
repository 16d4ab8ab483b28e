"""Compile the rungs in Triton and Gluon for Hopper, and print what they hold, as JSON.

Run by `test_compile.py` in a process of its own: Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.compiler import compile as triton_compile

HOPPER = GPUTarget("cuda", 90, 32)
COUNTED = ("wgmma.mma_async", "mma.sync", "cp.async.bulk.tensor", "cp.async.cg", "setmaxnreg", "st.global.v4")


def report(kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What one kernel compiles to; pointers, and extents M, N and K, are multiples of 16."""
    signature = types | dict.fromkeys(constants, "constexpr")
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name in "MNK"
    }
    source_type: Any = ASTSource
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as source_type
    built = triton_compile(source_type(kernel, signature, constants, aligned), target=HOPPER, options=options)
    text = built.asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        command = [get_ptxas(90).path, "-v", "-arch=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        **{name: text.count(name) for name in COUNTED},
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        "registers": max(map(int, re.findall(r"Used (\d+) registers", said))),
        "serialized": "serialized" in said,
        "shared": built.metadata.shared,
        "carried": re.findall(r"iter_args\((.*?)\) ->", built.asm["ttgir"]),
    }


def pointers(dtype: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, f"*{dtype}") | dict.fromkeys("MNK", "i32")


def main() -> None:
    """Each rung that is named, or all."""
    found = {}
    for name, make in RUNGS.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            found[name] = make()
    print(json.dumps(found))


def kernel(name: str) -> Any:
    return getattr(import_module(f"weft_bench.ladder.{name}"), name.rpartition(".")[2])


def by_pointers(name: str, dtype: str, tile: tuple[int, int, int], **options: Any) -> Any:
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    return lambda: report(kernel(name), pointers(dtype, "a", "b", "d"), constants, **options)


def by_tensor_maps() -> dict[str, Any]:
    types = {"a": "tensordesc<fp16[128, 64]>", "b": "tensordesc<fp16[64, 256]>", "d": "tensordesc<fp16[128, 256]>"}
    constants = {"TM": 128, "TN": 256, "TK": 64}
    return report(
        kernel("multiply.tensor_maps"), types | dict.fromkeys("MNK", "i32"), constants, num_warps=8, num_stages=3
    )


def specialized() -> dict[str, Any]:
    from triton.experimental.gluon import language as gl

    def spelled(tile: list[int]) -> str:
        layout = gl.NVMMASharedLayout.get_default_for(tile, gl.float16)
        return f"tensordesc<fp16{tile},{layout!r}>"

    types = {"a": spelled([128, 64]), "b": spelled([64, 256]), "d": spelled([64, 256])}
    return report(
        kernel("multiply.warp_specialization"), types | dict.fromkeys("MNK", "i32"), {"STAGES": 3}, num_warps=4
    )


def contraction(name: str, tile: tuple[int, int, int], **constants: int) -> Any:
    """A rung of TCCG 20: A, B and D by pointers, and six extents."""
    types = {"a": "*fp16", "b": "*fp16", "d": "*fp32"} | dict.fromkeys("BEFACD", "i32")
    sizes = dict(zip(("TM", "TN", "TK"), tile, strict=True)) | constants
    return lambda: report(kernel(name), types, sizes, num_warps=8, num_stages=3)


RUNGS: dict[str, Any] = {
    "tensor.gett": contraction("tensor.gett", (128, 128, 64)),
    "tensor.stated_runs": contraction("tensor.stated_runs", (128, 128, 64), RUN=8),
    "multiply.tf32": by_pointers("multiply.tf32", "fp32", (128, 128, 32), num_warps=8, num_stages=3),
    "multiply.warp_mma": by_pointers("multiply.warp_mma", "fp16", (64, 64, 32), num_warps=2, num_stages=3),
    "multiply.warpgroup_mma": by_pointers("multiply.warpgroup_mma", "fp16", (128, 256, 64), num_warps=8, num_stages=3),
    "multiply.tensor_maps": by_tensor_maps,
    "multiply.warp_specialization": specialized,
}


if __name__ == "__main__":
    main()
