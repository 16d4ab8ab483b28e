"""Cross-compile kernels with specialised warps for Hopper and print what they hold, as JSON.

Run by `test_warp_specialized.py` in a process of its own: Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile

import torch
from compile_report import H200, contraction
from triton.backends.nvidia.compiler import get_ptxas

from weft.fn import trace
from weft.gpu.common.inspect import compiled, instructions
from weft.gpu.warp_specialized import family as specialised
from weft.spec import Contraction

EXTENTS = {"a": 312, "b": 296, "c": 296, "d": 312}  # of TCCG 15


def report(described: Contraction, part: str) -> dict[str, object]:
    """Of the first schedule with that text in it; and what the assembler spills, or runs one by one."""
    found = specialised.schedules(described, H200).schedules
    schedule = next(schedule for schedule in found if re.search(part, str(schedule)))
    built = compiled(specialised.build(described, schedule, H200).kernels[0], "sm_90")  # type: ignore[union-attr]
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
        "register roles": sorted(set(map(int, re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+)", text)))),
        **instructions(text),
    }


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
    abreast = contraction("ceda,bed->cba", dict.fromkeys("abcde", 72), half, single, **of_one)
    long_sum_twice = contraction("dca,cbd->ba", EXTENTS, half, single, **functions)
    across = contraction("dca,cdb->ba", EXTENTS, half, single, **functions)
    results = {
        "together": report(plain, "128x256x64.*together"),
        "in turns": report(plain, "64x256x64.*in turns"),
        "parts": report(plain, "128x320x64.*together"),
        "parts in turns": report(plain, "64x320x64.*in turns"),
        "exchanged": report(plain, "128x320x64.*exchanged"),
        "fused": report(fused, "128x256x64.*together"),
        "fused in turns": report(fused, "64x256x64.*in turns"),
        "fused parts": report(fused, "128x320x64.*together"),
        "kept": report(plain, "64x320x64.*kept"),
        "kept fused": report(fused, "64x320x64.*kept"),
        "kept fused twice": report(twice, "64x320x64.*kept"),
        "kept short": report(short, "64x80x64.*kept warps=4 in turns stages=8 exchanged"),
        "kept by eight warps": report(short, "128x80x64.*kept warps=8 rings=2 stages=4 exchanged"),
        "appliers": report(long_sum_twice, "128x160x64.*together.*splits="),
        "appliers in turns": report(one_of_both, "128x80x64.*in turns.*splits="),
        "appliers side by side": report(abreast, "128x80x64.*side by side.*splits="),
        "in place": report(long_sum_twice, "128x320x64.*in place.*splits="),
        "in place, fewer shares": report(long_sum_twice, "128x320x64.*in place.*splits=[0-9]+/"),
        "in place, one part": report(long_sum_twice, "128x256x64.*in place.*splits="),
        "in place, across k": report(across, "128x320x64.*in place.*splits="),
        "streamed": report(abreast, "128x80x64.*together.*streamed exchanged"),
        "streamed in turns": report(abreast, "128x80x64.*in turns.*streamed"),
        "streamed side by side": report(abreast, "128x80x64.*side by side.*streamed"),
        "split": report(long_sum, "128x256x64.*splits="),
    }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
