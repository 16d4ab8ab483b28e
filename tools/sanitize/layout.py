"""The layout of a kernel's shared memory, read from the compiler's own intermediate code.

    python -m sanitize.layout JOB sm_90

prints, as JSON, for each kernel of a job its regions. Run in a process of its own, which compiles without a GPU: the
compiler is told to print every module between its passes, and of those the last one that still names allocations is
read. A hazard's address less `BASE` is an offset among them.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

BASE = 1024  # bytes of each block's shared memory that CUDA keeps for itself; a kernel's begin behind them
_PASS = "IR Dump Before ConvertTritonGPUToLLVM"
_FUNCTION = re.compile(r"tt\.func public @(\w+)\(.*attributes \{(.*)\}")
_OFFSET = re.compile(r"allocation\.offset = (\d+)")
_RESULT = re.compile(r"^\s*%([\w.]+)(?::\d+)? = \"?([\w.]+)")
_MEMORY = re.compile(r"memdesc<([\dx]+)x(\w+),")
_BITS = re.compile(r"\d+$")


class Region(NamedTuple):
    """Some bytes of shared memory. Regions overlap where one is no longer needed when the other comes."""

    name: str
    offset: int
    size: int | None  # bytes; None where the code does not say


def regions(lines: Iterable[str]) -> dict[str, list[Region]]:
    """The regions of every kernel whose compilation was printed."""
    found: dict[str, list[Region]] = {}
    reading, kernel = False, ""
    for line in lines:
        if "IR Dump" in line:
            reading = _PASS in line
        elif reading and "allocation.offset" in line:
            if function := _FUNCTION.search(line):
                kernel = function[1]
                found[kernel] = []
                line = function[2]
                name = "roles of warps"  # what each warp is to run next
            elif "ttg.warp_specialize" in line:
                name = "captures of roles"
            elif result := _RESULT.match(line):
                name = result[1] if "local_alloc" in line else result[2]
            else:
                name = line.split()[0]
            if offset := _OFFSET.search(line):
                found[kernel].append(Region(name, int(offset[1]), _size(line)))
        elif reading and (function := re.search(r"tt\.func public @(\w+)\(", line)):
            kernel = function[1]
            found[kernel] = []
    return found


def _size(line: str) -> int | None:
    memory = _MEMORY.search(line.rpartition("->")[2])
    bits = _BITS.search(memory[2]) if memory else None
    if memory is None or bits is None:
        return None
    return math.prod(map(int, memory[1].split("x"))) * int(bits[0]) // 8


def name_of(address: int, known: list[Region]) -> str:
    """The regions that an address of a report lies in."""
    offset = address - BASE
    named = []
    for region in known:
        later = [other.offset for other in known if other.offset > region.offset]
        end = region.offset + region.size if region.size is not None else min(later, default=1 << 30)
        if region.offset <= offset < end:
            named.append(region.name)
    return " or ".join(sorted(set(named))) or f"unknown (offset {offset})"


def of_job(job: str, architecture: str) -> dict[str, list[Region]]:
    """The regions of a job's kernels, compiled in another process; nothing where that fails."""
    with tempfile.TemporaryDirectory() as cache:
        settings = {"MLIR_ENABLE_DUMP": "1", "TRITON_CACHE_DIR": cache, "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "sanitize.layout", "--print", job, architecture]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, errors="replace", env=os.environ | settings
        ) as process:
            assert process.stderr is not None
            return regions(process.stderr)


def _compile(name: str, architecture: str) -> None:
    from sanitize.jobs import jobs, small_target
    from weft.api.describe import TARGETS
    from weft.gpu.common.inspect import compiled
    from weft.gpu.common.launch import collected

    target = small_target(TARGETS[architecture])
    for job in jobs(target, lambda family: True, {name}):
        with collected() as launches:
            job.build(target)
        for launch in launches:
            compiled(launch, architecture)


if __name__ == "__main__":
    if sys.argv[1] == "--print":
        _compile(*sys.argv[2:])
    else:
        named = of_job(*sys.argv[1:])
        json.dump({kernel: [each._asdict() for each in found] for kernel, found in named.items()}, sys.stdout, indent=1)
