"""Cross-compile the kernels of transposition in place, and a permutation, and print what their code holds.

Run by `test_transpose_compile`: a process of its own, because Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json
import re
import sys

import torch
from permutations import H200, described

from weft.gpu.common.inspect import compiled
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.permute import family as permute
from weft.gpu.permute.schedule import WORDS
from weft.gpu.transpose.family import Slots, move_launch, square_launch
from weft.spec import Layout

COUNT = 4800  # slots
PATTERNS = {
    "ptx": {
        "accesses": r"(?:ld|st)\.global",
        "of 16 bytes": r"(?:ld|st)\.global\S*\.(?:v4\.b32|v2\.b64)",
        "spills": r"\.local",
        "stored in shared memory": r"st\.shared\S*\.v2\.b64",
    },
    "amdgcn": {
        "accesses": r"(?:global|buffer)_(?:load|store)",
        "of 16 bytes": r"(?:global|buffer)_(?:load|store)_dwordx4",
        "spills": r"scratch_(?:load|store)",
    },
}


def slots(size: int, side: int, gap: int = 0) -> dict[str, KernelLaunch]:
    """Both launches of a permutation of slots of some words, three to a row and a gap behind them."""
    found = Slots.of(COUNT // 3, 3 * side + gap, side)
    words = Layout.contiguous((COUNT // 3 * (3 * side + gap),), WORDS[size])
    save, move = (move_launch(words, found, side, 16, COUNT // 16, moves, H200) for moves in (COUNT // 16, COUNT))
    name = f"{side} of {size}{' with gaps' if gap else ''}"
    return {f"save {name}": save, f"move {name}": move}


def squares(size: int, n: int) -> dict[str, KernelLaunch]:
    """Three squares beside one another."""
    words, shape, strides = max(size // 8, 1), (1, 3, n, n), (3 * n * n, n, 3 * n, 1)
    layout = Layout(shape, strides, WORDS[min(size, 8)])
    if words > 1:
        layout = Layout((*shape, words), (*(words * stride for stride in strides), 1), torch.int64)
    return {f"squares {n} of {size}": square_launch(layout, False, H200)}


def permuted() -> dict[str, KernelLaunch]:
    """A matrix of complex128, by the schedule that is expected to be best."""
    permutation = described("ab->ba", (8192, 4096), torch.complex128)
    schedule, _ = permute.best(permutation, H200)
    return {"permute complex128": permute.build(permutation, schedule, H200).launch}


def accesses(launch: KernelLaunch, architecture: str) -> dict[str, int]:
    form = "amdgcn" if architecture.startswith("gfx") else "ptx"
    text = compiled(launch, architecture).asm[form]
    return {name: len(re.findall(pattern, text)) for name, pattern in PATTERNS[form].items()}


def main() -> None:
    launches = {}
    for size, side, gap in ((4, 1000, 0), (1, 4096, 0), (8, 300, 0), (2, 1024, 8), (4, 301, 0)):
        launches |= slots(size, side, gap)
    for size, n in ((1, 4096), (2, 4096), (4, 1000), (8, 100), (16, 1000)):
        launches |= squares(size, n)
    launches |= permuted()
    results = {f"{name} sm_90": accesses(launch, "sm_90") for name, launch in launches.items()}
    for architecture in ("sm_80", "gfx942"):
        for name in ("move 1000 of 4", "squares 1000 of 4"):
            results[f"{name} {architecture}"] = accesses(launches[name], architecture)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
