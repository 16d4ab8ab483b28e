"""Cross-compile the kernels of one contraction for two GPUs, and print what they say of themselves, as JSON.

Run by `test_kernels.py` in a process of its own: Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json

import torch

from weft.api.describe import choice_for, hypothetical, kernels_for
from weft.plans.kernels.machine_code import block_barriers
from weft.plans.kernels.text import code_text

EQUATION, EXTENTS = "ecbfa,fd->abcde", {"a": 16, "b": 16, "c": 16, "d": 64, "e": 16, "f": 256}


def main() -> None:
    found = {}
    for target in ("sm_90", "a100", "rtx4090"):
        request = hypothetical(EQUATION, EXTENTS, dtype=torch.float16, target=target)
        kernels = kernels_for(request, choice_for(request)[1])
        kernel = kernels[-1]
        found[target] = kernel.to_dict() | {
            "ptx": kernel.ptx, "sass": kernel.sass, "ttgir": kernel.ttgir, "barriers": block_barriers(kernel.ptx),
            "ptx text": code_text(kernels, "ptx", 5), "sass text": code_text(kernels, "sass", 5),
        }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
