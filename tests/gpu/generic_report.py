"""Cross-compile shape-generic kernels without a GPU and print what their code holds: a script of `reporting`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from reporting import print_report

import weft
from weft.gpu.common.inspect import compiled, instructions
from weft.gpu.common.launch import collected
from weft.gpu.generic import family as contracting
from weft.gpu.permute import generic as moving
from weft.planner.schedule import Target
from weft.tune.compile_worker import in_place_of_the_driver

TARGETS = {
    "sm_80": Target("cuda", 0, "NVIDIA A100", 80, 108, 166912),
    "sm_90": Target("cuda", 0, "NVIDIA H200", 90, 132, 232448),
    "sm_100": Target("cuda", 0, "NVIDIA B200", 100, 148, 232448),
    "gfx942": Target("hip", 0, "AMD MI300X", 94, 304, 65536),
}
# Name, equation, shapes, type, and what the schedule's text begins with.
CASES = (
    ("small", "ab,bc->ac", ((20, 30), (30, 20)), torch.float32, "at_hand dot m[a:16]"),
    ("modes", "abecfdgh,hgdfcie->aib", ((3,) * 8, (3,) * 7), torch.float32, "at_hand lanes swapped m[i:4]"),
    ("large", "ab,bc->ac", ((2048, 2048), (2048, 2048)), torch.float16, "at_hand dot m[a:128]"),
    ("strips", "abc,dcef->aebfd", ((96, 96, 128), (64, 128, 32, 64)), torch.float16, "at_hand dot"),
    ("double", "ba,bc->ac", ((64, 64), (64, 64)), torch.float64, "at_hand dot"),
)
MOVES = (
    ("transposed", "abc->cba", (64, 256, 256), torch.float16),
    ("rows", "abc->bac", (512, 512, 64), torch.float32),
    ("odd", "abc->bac", (17, 30, 3), torch.float16),
)


def found(launches: list[object], architecture: str, schedule: object) -> dict[str, object]:
    built = compiled(launches[0], architecture)  # type: ignore[arg-type]
    text = built.asm["amdgcn" if architecture.startswith("gfx") else "ptx"]
    return {"schedule": str(schedule), "shared": built.metadata.shared, "lines": text.count("\n")} | instructions(text)


def contracted(
    architecture: str, equation: str, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, wanted: str
) -> dict[str, object]:
    a, b = (torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
    contraction = weft.plan(equation, a, b, backend="reference", epilogue=torch.relu).contraction
    target = TARGETS[architecture]
    offered = contracting.schedules(contraction, target).schedules
    chosen = next(each for each in reversed(offered) if str(each).startswith(wanted) and each.splits == 1)  # type: ignore[attr-defined]
    with collected() as made:
        contracting.build(contraction, chosen, target)  # type: ignore[arg-type]
    return found(made, architecture, chosen)  # type: ignore[arg-type]


def moved(architecture: str, equation: str, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, object]:
    x = torch.empty(shape, dtype=dtype, device="meta")
    permutation = weft.plan_permute(x, equation, backend="reference").permutation
    schedule = moving.schedules(permutation, TARGETS[architecture]).schedules[0]
    with collected() as made:
        moving.build(permutation, schedule, TARGETS[architecture])  # type: ignore[arg-type]
    return found(made, architecture, schedule)  # type: ignore[arg-type]


def main() -> None:
    cases: dict[str, Callable[[], object]] = {"keys": keys}
    for architecture in TARGETS:
        cases |= {f"{name} {architecture}": partial(contracted, architecture, *given) for name, *given in CASES}
        cases |= {f"{name} {architecture}": partial(moved, architecture, *given) for name, *given in MOVES}
    print_report(cases)


def keys() -> dict[str, int]:
    """Kernels that Triton compiles for shapes of one structure, extents of 1 and multiples of 16 among them."""
    target = TARGETS["sm_90"]
    in_place_of_the_driver(target)
    hashes = set()
    for equation, shapes in (
        ("ab,bc->ac", ((33, 40), (40, 29))),
        ("ab,bc->ac", ((16, 16), (16, 16))),
        ("ba,bc->ca", ((48, 32), (48, 64))),
        ("ab,bc->ac", ((2, 3), (3, 2))),
    ):
        a, b = (torch.empty(shape, device="meta") for shape in shapes)
        contraction = weft.plan(equation, a, b, backend="reference").contraction
        offered = contracting.schedules(contraction, target).schedules
        dot = next(each for each in offered if each.kernel == "dot")  # type: ignore[attr-defined]
        with collected() as made:
            contracting.build(contraction, dot, target)  # type: ignore[arg-type]
        hashes.add(made[0].compile().hash)
    return {"kernels": len(hashes), "local": 0}


if __name__ == "__main__":
    main()
