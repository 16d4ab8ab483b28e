"""The text of `weft explain --ptx` and `--sass`: of every kernel what it takes, and the loop with its instructions."""

from __future__ import annotations

from collections.abc import Sequence

from weft.base.figures import counted, si
from weft_bench.kernels.kernel import Kernel
from weft_bench.kernels.machine_code import listing

LINES_SHOWN = 80


def facts(kernel: Kernel) -> list[str]:
    """Resources of an SM that a kernel takes, and how its programs run."""
    spills = f"{kernel.spills} B of spilled registers a thread" if kernel.spills else "nothing spilled"
    return [
        f"{counted(kernel.programs, 'program')} of {counted(kernel.warps, 'warp')}, "
        f"{kernel.registers} registers a thread, {spills}, "
        f"{si(kernel.shared, 'B')} of shared memory",
        str(kernel.occupancy),
        str(kernel.waves),
    ]


def code_text(kernels: Sequence[Kernel], of: str, most: int | None = LINES_SHOWN) -> str:
    """Each kernel's facts, the instructions of its loop by kind, and the loop's lines; `of` is "ptx" or "sass"."""
    if not kernels:
        return "no kernel of weft's own: what runs is a vendor's library, or compiled for a CPU"
    lines: list[str] = []
    for kernel in kernels:
        loop = kernel.loop(of=of)
        where = (
            f"no loop, all {len(loop.instructions)} instructions"
            if loop.whole
            else (f"the loop's {len(loop.instructions)} instructions")
        )
        kinds = ", ".join(f"{count} {kind}" for kind, count in loop.mix.items())
        lines += [kernel.name, *(f"  {line}" for line in facts(kernel)), f"  {where}: {kinds}", ""]
        lines += [f"    {line}" for line in listing(loop, most)] + [""]
    return "\n".join(lines).rstrip()
