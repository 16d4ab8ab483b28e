"""Cross-compile what complex contractions take beside real kernels, and print what it holds, as JSON.

Run by `test_complex_compile.py` in a process of its own: Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json
import sys

import torch
from compile_report import TARGETS, contraction

from weft.cases import tccg
from weft.fn import trace
from weft.kernels import pairs
from weft.kernels.inspect import compiled, instructions
from weft.plan import complex_pairs

CASE = tccg()[23]  # D is no matrix as it lies


def main() -> None:
    single, double = torch.complex64, torch.complex128
    squared = trace(lambda z: (z * z.conj()).real, (single,), hook="epilogue")
    ratio = trace(lambda z: torch.exp(z) / (z + 1j), (single,), hook="a_fn")
    wanted = [
        ("complex64", "sm_90", single, {}),
        ("complex128", "sm_90", double, {}),
        ("complex128", "gfx942", double, {}),
        ("complex64 tf32", "sm_80", single, {"precision": "tf32"}),
        ("functions", "sm_90", single, {"a_fn": ratio, "epilogue": squared}),
        ("conjugates", "sm_90", single, {"conjugate_a": True, "conjugate_b": True}),
    ]
    results: dict[str, object] = {}
    for name, architecture, dtype, given in wanted:
        out = torch.float32 if "epilogue" in given else dtype
        described = contraction(CASE.equation, CASE.extents, dtype, out, **given)
        target = TARGETS[architecture]
        found: dict[str, complex_pairs.Step] = {}
        for schedule in complex_pairs.schedules(described, target).schedules:
            for step in schedule.steps:
                if step is not None:
                    kind = "folded" if step.task.fold else "D" if step.task.permutation.text == "D" else step.task.form
                    found.setdefault(kind, step)
        for kind, step in found.items():
            built = compiled(pairs.built(step.task, step.schedule, target).launch, architecture)
            text = built.asm["amdgcn" if architecture.startswith("gfx") else "ptx"]
            results[f"{name} {architecture} {kind}"] = instructions(text)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
