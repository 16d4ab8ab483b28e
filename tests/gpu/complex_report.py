"""Cross-compile what complex contractions take besides real kernels, and print what it holds: a script of
`reporting`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from compile_report import H200, TARGETS, contraction
from complex_ways import transfers
from reporting import print_report

from weft.api.describe import hypothetical
from weft.fn import trace
from weft.gpu.common.inspect import compiled
from weft.gpu.complex import direct as complex_direct
from weft.gpu.complex import real_forms
from weft.gpu.complex.interleaved import Transfer
from weft.spec import Contraction, Layout
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
    cases: dict[str, Callable[[], object]] = {}
    for name, architecture, dtype, given in wanted:
        cases[f"{name} {architecture}"] = partial(real_form_steps, architecture, dtype, given)
    for name in DIRECT:
        cases[f"direct {name} sm_90"] = partial(direct, name)
    for name, dtype in (("complex64", single), ("complex128", double)):
        cases[f"aux {name} sm_90"] = partial(aux_args, dtype)
        cases[f"fused {name} sm_90"] = partial(fused, dtype)
    print_report(cases)


def real_form_steps(architecture: str, dtype: torch.dtype, given: dict[str, Any]) -> dict[str, object]:
    """Of each kind of step around real products."""
    out = torch.float32 if "epilogue" in given else dtype
    described = contraction(CASE.equation, CASE.extents, dtype, out, **given)
    target = TARGETS[architecture]
    found: dict[str, Any] = {}
    for schedule in real_forms.schedules(described, target).schedules:
        for _, step in transfers(schedule):
            found.setdefault(kind_of(step.description), step)
    return {kind: of_step(step, architecture) for kind, step in found.items()}


def of_step(step: Any, architecture: str) -> object:
    text = compiled(step.build().launch, architecture).asm["amdgcn" if architecture.startswith("gfx") else "ptx"]
    return instructions(text)


def kind_of(transfer: Transfer) -> str:
    """What a step is: the form that it packs an operand in, or how it writes D."""
    if transfer.text != "D":
        return transfer.form
    return "combine D" if transfer.planar_stride else "scatter D"


GATE = ("pqab,xaybz->xpyqz", {"p": 2, "q": 2, "a": 2, "b": 2, "x": 64, "y": 64, "z": 256})
THIN = (tccg()[0].equation, tccg()[0].extents)
DIRECT = {
    "gate complex64": (GATE, torch.complex64, None),
    "gate complex128": (GATE, torch.complex128, None),
    "thin tf32": (THIN, torch.complex64, "tf32"),
    "thin complex128": (THIN, torch.complex128, None),
}


def direct(name: str) -> object:
    """What the model's first schedule of a product where operands lie holds."""
    (equation, extents), dtype, precision = DIRECT[name]
    return of_first(contraction(equation, extents, dtype, dtype, precision=precision))


def of_first(described: Contraction) -> object:
    ranked = complex_direct.schedules(described, H200).schedules
    best = min(ranked, key=lambda schedule: complex_direct.predict(described, schedule, H200))
    built = compiled(complex_direct.build(described, best, H200).kernels[0], "sm_90")
    return instructions(built.asm["ptx"])


def fused(dtype: torch.dtype) -> object:
    """A product where operands lie whose epilogue takes an operand as large as D and yields two results."""
    equation, extents = GATE
    request = hypothetical(
        equation, extents, dtype=dtype, target="sm_90", operands={"full": ("xpyqz", dtype)},
        epilogue=lambda x, full: (x * full, torch.abs(x)),
    )  # fmt: skip
    return of_first(request.contraction(None, Layout.contiguous((64, 2, 64, 2, 256), dtype)))


def aux_args(dtype: torch.dtype) -> dict[str, object]:
    """Steps whose functions take operands and coordinates, the last of which yields three results."""

    def gated(x: torch.Tensor, gate: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return x * gate + place

    def split(x: torch.Tensor, full: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> Any:
        x = x * full + row
        return x, torch.abs(x), torch.where(place > 3, x, full)

    request = hypothetical(
        "mlk,kn->nlm", dict.fromkeys("mnkl", 64), dtype=dtype, a_fn=gated, epilogue=split, target="sm_90",
        operands={"gate": ("kl", dtype), "full": ("nlm", dtype), "row": ("l", torch.float16)},
        indices={"place": "l"},
    )  # fmt: skip
    described = request.contraction(None, Layout.contiguous((64, 64, 64), dtype))
    found: dict[str, Any] = {}
    for schedule in real_forms.schedules(described, H200).schedules:
        for place, step in transfers(schedule):
            found.setdefault(place if place != "A" else f"A {step.description.form}", step)
    return {kind: of_step(step, "sm_90") for kind, step in found.items()}


if __name__ == "__main__":
    main()
