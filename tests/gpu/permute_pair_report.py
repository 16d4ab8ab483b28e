"""Cross-compile permutations alone and two in one launch, and print what each kernel holds, as JSON.

Run by `test_permute_pair.py` in a process of its own: Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch
from permutations import H200, described

from weft.fn import trace
from weft.gpu.common.inspect import compiled
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.permute import family as permute
from weft.gpu.permute.family import PermuteMove, PermutePairLaunch
from weft_bench.kernels.instructions import instructions

HALF = torch.float16
CASES = {
    "two transpositions": (("abc->cab", (72, 72, 5184)), ("abc->bca", (72, 5184, 72))),
    "one that only copies": (("abcd->dacb", (24, 16, 24, 16)), ("ab->ab", (256, 384))),
}


def report(launch: KernelLaunch) -> dict[str, int]:
    built = compiled(launch, "sm_90")
    return {"shared": built.metadata.shared, **instructions(built.asm["ptx"])}


def main() -> None:
    elu = trace(torch.nn.functional.elu, (HALF,))
    results: dict[str, list[dict[str, int]]] = {}
    for name, pair in CASES.items():
        described_both = [replace(described(*each, HALF), fn=elu) for each in pair]
        moves = [PermuteMove(each, permute.best(each, H200)[0]) for each in described_both]
        launches = [permute.build(*move, H200).launch for move in moves]
        results[name] = [report(launch) for launch in (*launches, PermutePairLaunch(*moves, H200).launch)]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
