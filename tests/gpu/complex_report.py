"""Cross-compile what complex contractions take besides real kernels, and print what it holds, as JSON.

Run by `test_complex_compile.py` in a process of its own: Triton compiles only where it was not told to interpret.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from compile_report import H200, TARGETS, contraction
from complex_ways import transfers

from weft.api.describe import hypothetical
from weft.fn import trace
from weft.gpu.common.inspect import compiled
from weft.gpu.complex import direct as complex_direct
from weft.gpu.complex import real_forms
from weft.gpu.complex.interleaved import Transfer
from weft.spec import Layout
from weft_bench.cases import tccg
from weft_bench.kernels.instructions import instructions

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
        found: dict[str, Any] = {}
        for schedule in real_forms.schedules(described, target).schedules:
            for _, step in transfers(schedule):
                found.setdefault(kind_of(step.description), step)
        for kind, step in found.items():
            built = compiled(step.build().launch, architecture)
            text = built.asm["amdgcn" if architecture.startswith("gfx") else "ptx"]
            results[f"{name} {architecture} {kind}"] = instructions(text)
    results |= dict(direct())
    results |= dict(aux_args())
    results |= dict(fused())
    json.dump(results, sys.stdout)


def kind_of(transfer: Transfer) -> str:
    """What a step is: the form that it packs an operand in, or how it writes D."""
    if transfer.text != "D":
        return transfer.form
    return "combine D" if transfer.planar_stride else "scatter D"


def direct() -> Iterator[tuple[str, object]]:
    """What the model's first schedules of products where operands lie hold."""
    gate = ("pqab,xaybz->xpyqz", {"p": 2, "q": 2, "a": 2, "b": 2, "x": 64, "y": 64, "z": 256})
    thin = (tccg()[0].equation, tccg()[0].extents)
    for name, (equation, extents), dtype, precision in (
        ("gate complex64", gate, torch.complex64, None),
        ("gate complex128", gate, torch.complex128, None),
        ("thin tf32", thin, torch.complex64, "tf32"),
        ("thin complex128", thin, torch.complex128, None),
    ):
        described = contraction(equation, extents, dtype, dtype, precision=precision)
        ranked = complex_direct.schedules(described, H200).schedules
        best = min(ranked, key=lambda schedule: complex_direct.predict(described, schedule, H200))
        built = compiled(complex_direct.build(described, best, H200).kernels[0], "sm_90")
        yield f"direct {name} sm_90", instructions(built.asm["ptx"])


def fused() -> Iterator[tuple[str, object]]:
    """Products where operands lie whose epilogue takes an operand as large as D and yields two results."""
    extents = {"p": 2, "q": 2, "a": 2, "b": 2, "x": 64, "y": 64, "z": 256}
    for name, dtype in (("complex64", torch.complex64), ("complex128", torch.complex128)):
        request = hypothetical(
            "pqab,xaybz->xpyqz", extents, dtype=dtype, target="sm_90", operands={"full": ("xpyqz", dtype)},
            epilogue=lambda x, full: (x * full, torch.abs(x)),
        )  # fmt: skip
        described = request.contraction(None, Layout.contiguous((64, 2, 64, 2, 256), dtype))
        ranked = complex_direct.schedules(described, H200).schedules
        best = min(ranked, key=lambda schedule: complex_direct.predict(described, schedule, H200))
        built = compiled(complex_direct.build(described, best, H200).kernels[0], "sm_90")
        yield f"fused {name} sm_90", instructions(built.asm["ptx"])


def aux_args() -> Iterator[tuple[str, object]]:
    """Steps whose functions take operands and coordinates, the last of which yields three results."""

    def gated(x: torch.Tensor, gate: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return x * gate + place

    def split(x: torch.Tensor, full: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> Any:
        x = x * full + row
        return x, torch.abs(x), torch.where(place > 3, x, full)

    extents = dict.fromkeys("mnkl", 64)
    for name, dtype in (("complex64", torch.complex64), ("complex128", torch.complex128)):
        request = hypothetical(
            "mlk,kn->nlm", extents, dtype=dtype, a_fn=gated, epilogue=split, target="sm_90",
            operands={"gate": ("kl", dtype), "full": ("nlm", dtype), "row": ("l", torch.float16)},
            indices={"place": "l"},
        )  # fmt: skip
        described = request.contraction(None, Layout.contiguous((64, 64, 64), dtype))
        found: dict[str, Any] = {}
        for schedule in real_forms.schedules(described, H200).schedules:
            for place, step in transfers(schedule):
                found.setdefault(place if place != "A" else f"A {step.description.form}", step)
        for kind, step in found.items():
            built = compiled(step.build().launch, "sm_90")
            yield f"aux {name} sm_90 {kind}", instructions(built.asm["ptx"])


if __name__ == "__main__":
    main()
