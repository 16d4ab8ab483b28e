"""Build the pack: `python -m weft_kernels.build [80 86 89 90 100]`. Needs Triton, and no GPU.

Kernels are compiled by other processes, as many at once as there are cores, into weft's own store, and from there
gathered into a file for each compute capability. What the store has already is not compiled again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

from weft.base.version import __version__
from weft.gpu.common import cubins
from weft.gpu.common.cubin import Cubin
from weft.machine import pack
from weft.machine.stamp import package_version
from weft.planner.code_digest import of_kernel
from weft.tune.compile_pool import Compiler
from weft_kernels.catalogue import DEVICES, Task, tasks


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m weft_kernels.build", description="Build the pack of kernels.")
    parser.add_argument("capabilities", nargs="*", type=int, metavar="CAPABILITY", help=f"of {[*DEVICES]}; all")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent, help="the folder of the pack")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once")
    parser.add_argument("--few", action="store_true", help="only the kernels of the most ordinary shapes")
    given = parser.parse_args(arguments)
    if unknown := sorted({*given.capabilities} - {*DEVICES}):
        parser.error(f"kernels are built for {[*DEVICES]}, not for {unknown}")
    os.environ["WEFT_KERNELS"] = "0"  # what is built here comes from no pack
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # the same machine code, in a third of the bytes
    return sum([built(each, given.into, given.jobs, given.few) for each in given.capabilities or DEVICES])


def built(capability: int, into: Path, jobs: int, few: bool = False) -> int:
    """Build one shelf; the number of kernels that are missing."""
    began, target = time.perf_counter(), DEVICES[capability]
    wanted = tasks(target, sampled=not few)
    reasons = compiled(wanted, capability, jobs)
    found = {key: cubin for task in wanted for key in task.kernels if (cubin := _kept(key, capability)) is not None}
    into.mkdir(parents=True, exist_ok=True)
    place = into / f"{cubins.shelf(capability)}.pack"
    pack.write_shelf(place, {key: cubin.to_bytes() for key, cubin in found.items()}, about(wanted, found))
    place.chmod(0o644)
    missing = {key for task in wanted for key in task.kernels} - {*found}
    said = f"{place.name}: {len(found)} kernels, {place.stat().st_size / 1e6:.1f} MB"
    print(f"{said}, in {time.perf_counter() - began:.0f} s; {len(missing)} missing", flush=True)
    for reason, count in Counter(reasons).most_common(3):
        print(f"  {count} schedules: {reason}", file=sys.stderr)
    return len(missing)


def compiled(wanted: Sequence[Task], capability: int, jobs: int) -> list[str]:
    """Have the kernels of these in the store; what went wrong."""
    left = [task for task in wanted if any(_kept(key, capability) is None for key in task.kernels)]
    with Compiler(DEVICES[capability], "triton", jobs) as compiler:
        futures = [compiler.submit(task.description, task.rank) for task in left]
        return [reason for future in as_completed(futures) if (reason := future.result()) is not None]


def about(wanted: Sequence[Task], found: dict[str, Cubin]) -> dict[str, Any]:
    """The compiler's version, and the code that kernels are made of, with how many there are of each file."""
    modules = {key: launch.function.module for task in wanted for key, launch in task.kernels.items() if key in found}
    return {
        "weft": __version__,
        "triton": package_version("triton"),
        "code": {name: [of_kernel(name), count] for name, count in sorted(Counter(modules.values()).items())},
    }


def _kept(key: str, capability: int) -> Cubin | None:
    """A kernel of the store."""
    return next((cubin for _, cubin in cubins.found(key, capability)), None)


if __name__ == "__main__":
    sys.exit(main() > 0)
