"""Cross-compile warp-specialized kernels for Hopper and print what they hold: a script of `reporting`."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import partial
from typing import Any

import torch
from compile_report import H200, contraction
from reporting import print_report
from triton.backends.nvidia.compiler import get_ptxas
from uniform_registers import unwritten

from weft.api.describe import hypothetical
from weft.fn import trace
from weft.gpu.common.inspect import compiled
from weft.gpu.warp_specialized import family as warp_specialized
from weft.spec import Contraction, Layout
from weft_bench.kernels.instructions import instructions

FP8 = torch.float8_e4m3fn
EXTENTS = {"a": 312, "b": 296, "c": 296, "d": 312}  # of TCCG 15


def report(described: Contraction, part: str) -> dict[str, object]:
    """Of the first schedule with that text in it; and what the assembler spills, or runs one by one."""
    found = warp_specialized.schedules(described, H200).schedules
    schedule = next(schedule for schedule in found if re.search(part, str(schedule)))
    built = compiled(warp_specialized.build(described, schedule, H200).kernels[0], "sm_90")  # type: ignore[union-attr]
    text = built.asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        command = [get_ptxas(90).path, "-v", "-arch=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "schedule": str(schedule),
        "shared": built.metadata.shared,
        "warps": built.metadata.num_warps,
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        "serialized": "serialized" in said,
        "unwritten": unwritten(built.asm["cubin"]),
        "register roles": sorted(set(map(int, re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+)", text)))),
        **instructions(text),
    }


def described(adds: bool, **options: Any) -> Contraction:
    """TCCG 15 with functions of the sum, and a C that lies like D."""
    request = hypothetical("dca,bd->cba", EXTENTS, backend="triton", target="sm_90", dtype=torch.float16, **options)
    d = Layout.contiguous([EXTENTS[label] for label in "cba"], request.d_dtype)
    further = [Layout.contiguous(d.shape, dtype) for dtype in request.outputs or ()]
    return request.contraction(d if adds else None, d, further)


def main() -> None:
    half, single = torch.float16, torch.float32
    elu = torch.nn.functional.elu
    plain = contraction("dca,bd->cba", EXTENTS, half, single)
    fused = contraction("dca,bd->cba", EXTENTS, half, single, a_fn=trace(elu, (half,)), epilogue=trace(elu, (single,)))
    functions = {"a_fn": trace(elu, (half,)), "b_fn": trace(elu, (half,)), "epilogue": trace(elu, (single,))}
    twice = contraction("dca,bd->cba", EXTENTS, half, single, **functions)
    short = contraction("ae,dcbe->dcba", dict.fromkeys("abcde", 72), half, single, **functions)
    long_sum = contraction("dca,cbd->ba", EXTENTS, half, single)
    one_of_both = contraction("ceda,dbe->cba", dict.fromkeys("abcde", 72), half, single, **functions)
    of_one = {name: functions[name] for name in ("a_fn", "epilogue")}
    paired = contraction("ceda,bed->cba", dict.fromkeys("abcde", 72), half, single, **of_one)
    long_sum_twice = contraction("dca,cbd->ba", EXTENTS, half, single, **functions)
    bias = {"bias": ("b", half)}
    added = described(True, epilogue=lambda s, bias: torch.relu(s + bias), operands=bias, out_dtype=half)
    results = described(False, epilogue=lambda s, bias: (s * bias, s + bias), operands=bias, out_dtype=half)
    square = dict.fromkeys("ijk", 1024)
    byte = contraction("ik,jk->ij", square, torch.int8, torch.int32)
    eight = contraction("ik,jk->ij", {"i": 1024, "j": 1040, "k": 1024}, FP8, half, precision=FP8)
    odd = contraction("ik,jk->ij", {"i": 1024, "j": 1027, "k": 1024}, half, single)
    short_single = contraction("ik,jk->ij", square, single, single, precision="tf32")
    cases = {
        "cooperative": partial(report, plain, "ws.cooperative 128x256x64"),
        "pingpong": partial(report, plain, "ws.pingpong 64x256x64"),
        "split n": partial(report, plain, "ws.cooperative 128x320x64"),
        "split n pingpong": partial(report, plain, "ws.pingpong 64x320x64"),
        "swap_ab": partial(report, plain, "128x320x64.*swap_ab"),
        "fused": partial(report, fused, "ws.cooperative 128x256x64"),
        "fused pingpong": partial(report, fused, "ws.pingpong 64x256x64"),
        "fused split n": partial(report, fused, "ws.cooperative 128x320x64"),
        "stationary": partial(report, plain, "ws.stationary 64x320x64"),
        "stationary fused": partial(report, fused, "ws.stationary 64x320x64"),
        "stationary fused twice": partial(report, twice, "ws.stationary 64x320x64"),
        "stationary short": partial(report, short, "ws.stationary 64x80x64.*warps=4 pingpong stages=8 swap_ab"),
        "stationary by eight warps": partial(
            report, short, "ws.stationary 128x80x64.*warps=8 pipelines=2 stages=4 swap_ab"
        ),
        "transformers": partial(report, long_sum_twice, "ws.cooperative 128x160x64.*split_k="),
        "transformers pingpong": partial(report, one_of_both, "ws.pingpong 128x80x64.*split_k="),
        "transformers paired_n": partial(report, paired, "ws.paired_n 128x80x64.*split_k="),
        "stream_k": partial(report, paired, "ws.cooperative 128x80x64.*stream_k swap_ab"),
        "stream_k pingpong": partial(report, paired, "ws.pingpong 128x80x64.*stream_k"),
        "stream_k paired_n": partial(report, paired, "ws.paired_n 128x80x64.*stream_k"),
        "split": partial(report, long_sum, "128x256x64.*split_k="),
        "C and a bias": partial(report, added, "ws.cooperative 128x256x64"),
        "C and a bias pingpong": partial(report, added, "ws.pingpong 64x320x64"),
        "bias and its products": partial(report, results, "ws.cooperative 128x320x64"),
        "int8": partial(report, byte, "ws.cooperative 128x256x128"),
        "int8 pingpong": partial(report, byte, "ws.pingpong 64x256x128"),
        "rows at any word": partial(report, odd, "ws.cooperative 128x256x64"),
        "rows at any word pingpong": partial(report, odd, "ws.pingpong 64x256x64"),
        "e4m3": partial(report, eight, "ws.cooperative 128x128x128"),
        "e4m3 pingpong": partial(report, eight, "ws.pingpong 128x80x128"),
        "tf32": partial(report, short_single, "ws.cooperative 128x256x32"),
    }
    print_report(cases)


if __name__ == "__main__":
    main()
