"""Cross-compile the kernels of transposition in place, and a permutation, and print what their code holds.

Run by `test_transpose_compile`: a process of its own, because Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json
import re
import sys

import torch

from weft.gpu.common.inspect import compiled
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.permute import family as permute
from weft.gpu.transpose import chunks as transpose_chunks
from weft.gpu.transpose import family as transpose
from weft.gpu.transpose import slide as transpose_slide
from weft.planner.schedule import Target
from weft.spec import Layout, parse
from weft.spec.permutation import Permutation, canonical_modes

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
CHUNKS = 4800
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
PATTERNS = {
    "ptx": {
        "accesses": r"(?:ld|st)\.global",
        "of 16 bytes": r"(?:ld|st)\.global\S*\.(?:v4\.b32|v2\.b64)",
        "spills": r"\.local",
        "turned in shared memory": r"st\.shared\S*\.v2\.b64",
    },
    "amdgcn": {
        "accesses": r"(?:global|buffer)_(?:load|store)",
        "of 16 bytes": r"(?:global|buffer)_(?:load|store)_dwordx4",
        "spills": r"scratch_(?:load|store)",
    },
}


def chunks(size: int, length: int) -> dict[str, KernelLaunch]:
    """Both launches of a permutation of chunks of some words."""
    part = Layout.contiguous((CHUNKS, length), WORDS[size])
    width = 1024 // size
    keep, move = transpose_chunks._launches(part, 16, width, CHUNKS // 16, CHUNKS, H200)
    return {f"keep {length} of {size}": keep, f"move {length} of {size}": move}


def squares(size: int, n: int) -> dict[str, KernelLaunch]:
    """Three squares beside one another."""
    words, shape, strides = max(size // 8, 1), (1, 3, n, n), (3 * n * n, n, 3 * n, 1)
    layout = Layout(shape, strides, WORDS[min(size, 8)])
    if words > 1:
        layout = Layout((*shape, words), (*(words * stride for stride in strides), 1), torch.int64)
    return {f"squares {n} of {size}": transpose._square_launch(layout, False, H200)}


def slides(size: int) -> dict[str, KernelLaunch]:
    """Both launches, of rows that close up and that move apart."""
    found = {}
    for apart in (False, True):
        params = transpose_slide.slide_params(3000, 7000, 1, 1, size, 8 << 20, apart=apart)
        assert params is not None
        keep, move = transpose_slide._launches(16, WORDS[size], params, H200)
        name = f"{'apart' if apart else 'closing'} of {size}"
        found |= {f"keep ends {name}": keep, f"slide {name}": move}
    return found


def permuted() -> dict[str, KernelLaunch]:
    """A matrix of complex128, by the block that is expected to be best."""
    x, d = (Layout.contiguous(shape, torch.complex128) for shape in ((8192, 4096), (4096, 8192)))
    modes = canonical_modes(parse("ab->ba"), x, None, d, {"a": 8192, "b": 4096})
    permutation = Permutation(modes, x, None, d, x.dtype, text="ab->ba")
    schedule, _ = permute.best(permutation, H200)
    return {"permute complex128": permute.build(permutation, schedule, H200).launch}


def described(launch: KernelLaunch, architecture: str) -> dict[str, int]:
    form = "amdgcn" if architecture.startswith("gfx") else "ptx"
    text = compiled(launch, architecture).asm[form]
    return {name: len(re.findall(pattern, text)) for name, pattern in PATTERNS[form].items()}


def main() -> None:
    launches = {**chunks(4, 1000), **chunks(1, 4096), **chunks(8, 300), **chunks(4, 301)}
    for size, n in ((1, 4096), (2, 4096), (4, 1000), (8, 100), (16, 1000)):
        launches |= squares(size, n)
    launches |= slides(4) | slides(1) | permuted()
    results = {f"{name} sm_90": described(launch, "sm_90") for name, launch in launches.items()}
    for architecture in ("sm_80", "gfx942"):
        for name in ("move 1000 of 4", "squares 1000 of 4"):
            results[f"{name} {architecture}"] = described(launches[name], architecture)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
