"""Cross-compile schedules without a GPU and print what their machine code holds: a script of `reporting`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from reporting import print_report
from uniform_registers import unwritten

import weft
from weft.fn import trace
from weft.gpu.common.inspect import compiled
from weft.planner.planner import choose
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve
from weft_bench.cases import tccg
from weft_bench.kernels.instructions import instructions

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)
A100 = Target("cuda", 0, "NVIDIA A100", 80, 108, 166912)
MI300 = Target("hip", 0, "AMD MI300X", 94, 304, 65536)
TARGETS = {"sm_90": H200, "sm_80": A100, "gfx942": MI300}


def contraction(
    equation: str, extents: dict[str, int], dtype: torch.dtype, out: torch.dtype, **given: object
) -> Contraction:
    notation = parse(equation)
    a, b = (Layout.contiguous([extents[label] for label in term], dtype) for term in notation.inputs)
    d = Layout.contiguous([extents[label] for label in notation.output], out)
    precision = given.pop("precision", None)
    modes = class_modes(notation, a, b, None, d, extents)
    return canonical(Contraction(modes, a, b, None, d, resolve(dtype, dtype, precision), text=equation, **given))  # type: ignore[arg-type]


def report(
    described: Contraction, architecture: str, *rooms: str, tile: tuple[int, ...] | None = None
) -> dict[str, object]:
    """Of the first choice for a contraction among some families, or of the first with a tile."""
    choice = choose(described, "triton", TARGETS[architecture])
    ranked = [each for each in choice.ranked if each.schedule.family in (rooms or ("gett", "simt"))]
    best = next(each for each in ranked if tile in (None, getattr(each.schedule, "tile", None)))
    launch = replace(choice, best=best).build()
    built = compiled(getattr(launch, "kernels", (launch,))[0], architecture)
    text = built.asm["amdgcn" if architecture.startswith("gfx") else "ptx"]
    types = sorted(set(re.findall(r"wgmma\.mma_async\S*?k\d+\.(\S+)", text)))
    converted = len(re.findall(r"cvt\.rn\S*\.s(?:8|16|32)\b", text))
    found = {"schedule": str(best.schedule), "shared": built.metadata.shared, "types": types, "late": late(text)}
    found |= {"converted integers": converted, "prmt": text.count("prmt.b32")}
    found["unwritten"] = unwritten(built.asm["cubin"]) if architecture == "sm_90" else []
    return found | instructions(text)


def late(text: str) -> int:
    """How many loads from memory stand in PTX after threads have met, and before the first product."""
    before, _, _ = text.partition("wgmma.mma_async")
    _, _, after = before.partition("bar.sync")
    return len(re.findall(r"ld\.global", after))


def main() -> None:
    half, single, double = torch.float16, torch.float32, torch.float64
    extents = {case.name: case.extents for case in tccg()}
    equations = {case.name: case.equation for case in tccg()}
    cases: dict[str, Callable[[], object]] = {}
    for name in list(equations)[::4]:
        described = contraction(equations[name], extents[name], half, single)
        cases[f"{name} sm_90"] = partial(report, described, "sm_90")
    first = next(iter(equations))
    square = dict.fromkeys("ijk", 1024)
    elu = trace(torch.nn.functional.elu, (half,), hook="b_fn")
    tanh = trace(torch.tanh, (single,), hook="epilogue")
    for architecture in ("sm_80", "gfx942"):
        cases[f"{first} {architecture}"] = partial(
            report, contraction(equations[first], extents[first], half, single), architecture
        )
    others = {
        "fused": contraction(equations[first], extents[first], half, single, b_fn=elu, epilogue=tanh),
        "tf32": contraction("ik,jk->ij", square, single, single, precision="tf32"),
        "ieee": contraction("ik,jk->ij", square, single, single),
        "double": contraction("ik,jk->ij", square, double, double),
        "simt": contraction("ij,j->i", {"i": 4096, "j": 4096}, single, single),
    }
    for name, described in others.items():
        cases[f"{name} sm_90"] = partial(report, described, "sm_90")
    for name in ("tccg-01", "tccg-11"):  # A against the sum, B against it
        against = contraction(equations[name], extents[name], single, single, precision="tf32")
        cases[f"tf32 {name} sm_90"] = partial(report, against, "sm_90", "gett")
    weights = weft.plan(
        "mk,nk->mn", torch.empty(16, 4096, dtype=half, device="meta"),
        torch.empty(11008, 4096, dtype=torch.int8, device="meta"), promote=True, backend="reference",
    ).contraction  # fmt: skip
    cases["int8 weights sm_90"] = partial(report, weights, "sm_90", "gett", tile=(16, 32, 128))
    bytes_wide = {
        "int8": contraction("ik,jk->ij", square, torch.int8, torch.int32),
        "e4m3": contraction("ik,jk->ij", square, torch.float8_e4m3fn, half, precision=torch.float8_e4m3fn),
        "e5m2": contraction("ik,jk->ij", square, torch.float8_e5m2, half, precision=torch.float8_e5m2),
    }
    for name, described in bytes_wide.items():
        cases[f"{name} in gett sm_90"] = partial(report, described, "sm_90", "gett")
    cases["int8 in ws sm_90"] = partial(report, bytes_wide["int8"], "sm_90", "warp_specialized")
    fp8 = contraction("ik,kj->ij", square, torch.float8_e4m3fn, half)
    cases["e4m3 as half sm_90"] = partial(report, fp8, "sm_90", "gett")
    both = {hook: trace(lambda x: 3 * x + 1, (half,), hook=hook) for hook in ("a_fn", "b_fn")}
    for k in (24, 72):  # a single step, more steps
        described = contraction("ik,jk->ij", {"i": 4096, "j": 512, "k": k}, half, single, **both)
        cases[f"masked {k} sm_90"] = partial(report, described, "sm_90", "gett")
    step = {"i": 4096, "j": 512, "k": 24}
    cases["step sm_90"] = partial(report, contraction("ik,jk->ij", step, half, single, a_fn=elu), "sm_90", "gett")
    cases["fused gfx942"] = partial(report, others["fused"], "gfx942")
    print_report(cases)


if __name__ == "__main__":
    main()
