"""Cross-compile kernels of algebras and of functions with operands, and print what their code holds: a script of
`reporting`.
"""

from __future__ import annotations

import re
from functools import partial
from types import ModuleType
from typing import Any

import torch
from reporting import print_report

from weft.algebra import Algebra
from weft.api.describe import hypothetical
from weft.gpu.common.inspect import compiled
from weft.gpu.composite import counting, logsumexp
from weft.gpu.gett import family as gett
from weft.gpu.semiring import family as semiring
from weft.gpu.simt import family as simt
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout
from weft_bench.kernels.instructions import instructions

TARGETS = {
    "sm_90": Target("cuda", 0, "NVIDIA H200", 90, 132, 232448),
    "sm_80": Target("cuda", 0, "NVIDIA A100", 80, 108, 166912),
    "gfx942": Target("hip", 0, "AMD MI300X", 94, 304, 65536),
}


def described(equation: str, extents: dict[str, int], **options: Any) -> Contraction:
    request = hypothetical(equation, extents, backend="triton", target="sm_90", **options)
    shape = [extents[label] for label in request.notation.output]
    further = [Layout.contiguous(shape, dtype) for dtype in request.outputs or ()]
    return request.contraction(None, Layout.contiguous(shape, request.d_dtype), further)


def report(room: ModuleType, contraction: Contraction, architecture: str, split: bool = False) -> list[dict[str, Any]]:
    """Of every kernel of the family's first choice."""
    target = TARGETS[architecture]
    schedules = [s for s in room.schedules(contraction, target).schedules if (getattr(s, "splits", 1) > 1) == split]
    best = min(schedules, key=lambda schedule: room.predict(contraction, schedule, target))
    launch = room.build(contraction, best, target)
    found = []
    for kernel in getattr(launch, "kernels", (launch,)):
        text = compiled(kernel, architecture).asm["amdgcn" if architecture == "gfx942" else "ptx"]
        counts = {
            name: len(re.findall(name, text))
            for name in (
                r"add\.f32", r"fma\.rn\.f32", r"max\.NaN\.f32", r"ld\.shared\.v4", r"ex2\.approx", r"s32\.s8\.s8",
                r"setp\.ne",
            )
        }
        found.append({"schedule": str(best), **instructions(text), **counts})
    return found


def main() -> None:
    half, single, double = torch.float16, torch.float32, torch.float64
    square = dict.fromkeys("mnk", 4096)
    deep = {"m": 256, "n": 256, "k": 8192}
    cases: dict[str, Any] = {}
    types = {"float32": single, "float16": half, "float64": double, "int32": torch.int32}
    for name, dtype in types.items():
        for architecture in TARGETS:
            contraction = described("mk,nk->mn", square, dtype=dtype, algebra="max_plus")
            cases[f"max_plus {name} {architecture}"] = partial(report, semiring, contraction, architecture)
    for equation in ("mk,kn->mn", "km,nk->mn"):
        for architecture in TARGETS:
            contraction = described(equation, {"m": 4096, "n": 72, "k": 93})
            cases[f"products {equation} {architecture}"] = partial(report, semiring, contraction, architecture)
    deep_max = described("mk,nk->mn", deep, dtype=single, algebra="max_plus")
    cases["split sm_90"] = partial(report, semiring, deep_max, "sm_90", split=True)
    cases["ragged sm_90"] = partial(
        report, semiring, described("mk,nk->mn", {**square, "k": 4093}, algebra="max_plus"), "sm_90"
    )
    case = {"a": 312, "b": 312, "c": 24, "d": 312}
    cases["pieces sm_90"] = partial(report, semiring, described("adb,cd->cba", case, algebra="max_plus"), "sm_90")
    logarithms_sum = Algebra(lambda x, y: y + x, torch.logaddexp, "lowest")
    cases["exponentials sm_90"] = partial(
        report, semiring, described("mk,nk->mn", square, algebra=logarithms_sum), "sm_90"
    )
    for name in ("max_plus", "log", "or_and"):
        contraction = described("mk,k->m", {"m": 4096, "k": 4096}, algebra=name)
        cases[f"vector {name} sm_90"] = partial(report, simt, contraction, "sm_90")
    cases["log sm_90"] = partial(report, logsumexp, described("mk,nk->mn", square, algebra="log"), "sm_90")
    for architecture in TARGETS:
        truth = described("mk,kn->mn", square, dtype=torch.bool, algebra="or_and")
        cases[f"counting {architecture}"] = partial(report, counting, truth, architecture)
    fused: dict[str, Any] = {
        "dtype": half, "epilogue": lambda x, bias, m, n: (torch.where(m >= n, x + bias, 0.0), x > 0),
        "operands": {"bias": ("n", half), "gate": ("mk", half), "shift": ("k", half)}, "indices": {"m": "m", "n": "n"},
        "a_fn": lambda x, gate: x * gate, "b_fn": lambda x, shift: x + shift,
    }  # fmt: skip
    for room in (gett, simt):
        contraction = described("mk,nk->mn", square, **fused)
        cases[f"fused {room.NAME} sm_90"] = partial(report, room, contraction, "sm_90")
    cases["fused matrix gfx942"] = partial(report, gett, described("mk,nk->mn", square, **fused), "gfx942")
    cases["fused split sm_90"] = partial(report, gett, described("mk,nk->mn", deep, **fused), "sm_90", split=True)
    print_report(cases)


if __name__ == "__main__":
    main()
