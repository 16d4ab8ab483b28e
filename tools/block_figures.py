"""Figures of block-sparse contractions beside cuTENSOR's and a loop of torch: JSON, and a table.

    python tools/block_figures.py --out FILE               # on a GPU; WEFT_CUTENSOR names the library
    python tools/block_figures.py --device cpu --small     # to see that it runs

Tensors conserve a U(1) charge. `device` is the time in a CUDA graph where the calls allow one, `call` that of calls
in a loop, with the host. The loop is one product of matrices for each pair of blocks, with views made beforehand.
`error`: the largest difference from the loop in float64, over the largest value.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from weft.blocks import U1, ChargedTensor, Leg, contract, meeting
from weft.machine.stamp import command, commit, device_stamp
from weft.machine.timing import measure
from weft.spec import parse

COMPUTE = {torch.float32: "32F", torch.float64: "64F"}


class Case(NamedTuple):
    """Two tensors that conserve charges, and how they meet."""

    name: str
    equation: str
    a: ChargedTensor
    b: ChargedTensor


def cases(small: bool, dtype: torch.dtype, device: str) -> Iterator[Case]:
    draw = random.Random(7)
    count, largest = (9, 12) if small else (250, 300)

    def leg(number: int, sign: int, extents: Callable[[float], int]) -> Leg:
        middle = number // 2
        return Leg(U1, {q - middle: max(1, extents((q - middle) / max(1, middle))) for q in range(number)}, sign=sign)

    def uneven(x: float) -> int:
        return draw.randint(4, largest)

    def bell(x: float) -> int:
        return max(4, round(largest * math.exp(-4 * x * x)))

    def tensor(*legs: Leg) -> ChargedTensor:
        return ChargedTensor.random(list(legs), dtype=dtype, device=device, seed=draw.randint(0, 99))

    rows, middle, columns = (leg(count, 1, uneven) for _ in range(3))
    yield Case("matrices", "ab,bc->ac", tensor(rows, middle.dual), tensor(middle, columns.dual))
    site = leg(4, 1, lambda _: 1)
    bond = leg(max(5, count // 4), 1, bell)
    yield Case("two sites", "lsx,xtr->lstr", tensor(bond, site, bond.dual), tensor(bond, site, bond.dual))
    state = tensor(bond, site, bond.dual)
    yield Case("density", "lsx,lsy->xy", state, state.conj())
    wide, narrow = leg(16, 1, bell), leg(16, 1, lambda _: draw.randint(4, 12))
    yield Case("three legs", "abx,xcd->abcd", tensor(narrow, narrow, wide.dual), tensor(wide, narrow.dual, narrow.dual))


def measured(case: Case, device: str, library: Any) -> dict[str, Any]:
    a, b = case.a, case.b
    d = contract(case.equation, a, b)
    made, loop = by_loop(case, d)
    exact = Case(case.name, case.equation, a.to(torch.float64), b.to(torch.float64))
    wide, loop64 = by_loop(exact, d.to(torch.float64))
    loop64()
    largest = float(wide.buffer.abs().max())
    calls = {"weft": (lambda: contract(case.equation, a, b)), "loop": loop}
    results = {"weft": d.buffer}
    loop()
    results["loop"] = made.buffer
    if library is not None:
        try:
            calls["cutensor"], out = by_cutensor(case, d, library)
            calls["cutensor"]()
            results["cutensor"] = out.buffer
        except Exception as error:
            print(f"  cuTENSOR: {error}", flush=True)
    row: dict[str, Any] = {
        "case": case.name, "equation": case.equation, "type": str(a.dtype).removeprefix("torch."),
        "blocks": [len(each.structure.keys) for each in (a, b, d)], "products": products(case),
        "flops": flops(case),
        "error": {name: float((each.double() - wide.buffer).abs().max()) / largest for name, each in results.items()},
    }  # fmt: skip
    for kind, capture in (("device", True), ("call", False)):
        row[kind] = {name: measure(call, [()], device=device, mode="hot", capture=capture, budget=0.3).seconds
                     for name, call in calls.items()}  # fmt: skip
        row[f"{kind}: over"] = {name: row[kind][name] / row[kind]["weft"] for name in calls if name != "weft"}
    return row


def pairs(case: Case, d: ChargedTensor | None = None) -> Iterator[tuple[Any, int, int]]:
    for key, each in meeting(parse(case.equation), case.a.structure, case.b.structure).items():
        for i, j in each:
            yield key, i, j


def products(case: Case) -> int:
    return sum(1 for _ in pairs(case))


def flops(case: Case) -> float:
    first, second = case.equation.split("->")[0].split(",")
    total = 0
    for _, i, j in pairs(case):
        extents = {**dict(zip(first, case.a.structure.shapes[i], strict=True)),
                   **dict(zip(second, case.b.structure.shapes[j], strict=True))}  # fmt: skip
        total += 2 * math.prod(extents.values())
    return float(total)


def by_loop(case: Case, like: ChargedTensor) -> tuple[ChargedTensor, Callable[[], Any]]:
    """The blocks of D by a product of matrices for each pair of blocks, in place."""
    (first, second), output = case.equation.split("->")[0].split(","), case.equation.split("->")[1]
    shared = [label for label in first if label in second]
    out = ChargedTensor.over(like.legs, like.charge, like.structure, torch.zeros_like(like.buffer))
    place = {key: at for at, key in enumerate(like.structure.keys)}
    steps, seen = [], set()
    for key, i, j in pairs(case):
        x, y = case.a.structure.block(case.a.buffer, i), case.b.structure.block(case.b.buffer, j)
        z = like.structure.block(out.buffer, place[key])
        k = math.prod(x.shape[first.index(label)] for label in shared)
        if output == "".join(label for label in first + second if label not in shared) and first[-1] in shared:
            left = x.reshape(-1, k)  # all views: the shared modes are the last of A, the first of B
            right = y.reshape(k, -1)
        else:
            left, right = x.reshape(k, -1).T, y.reshape(k, -1)
        steps.append((z.view(left.shape[0], right.shape[1]), left, right, 1.0 if key in seen else 0.0))
        seen.add(key)

    def call() -> None:
        for z, left, right, beta in steps:
            torch.addmm(z, left, right, beta=beta, out=z)

    return out, call


def by_cutensor(case: Case, like: ChargedTensor, library: Any) -> tuple[Callable[[], Any], ChargedTensor]:
    from weft_bench.peers.cutensor_blocks import BlockCall, BlockOperation

    out = ChargedTensor.over(like.legs, like.charge, like.structure, torch.zeros_like(like.buffer))
    inputs, output = case.equation.split("->")
    tensors = [(each, [leg.extents for leg in each.legs]) for each in (case.a, case.b, out)]
    operation = BlockOperation(library, (*inputs.split(","), output), tensors, COMPUTE[case.a.dtype])
    call = BlockCall(operation, case.a.device)
    return (lambda: call(case.a, case.b, out)), out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, help="a JSON file, too")
    given = parser.parse_args()
    library = None
    if given.device == "cuda":
        from weft_bench.peers.cutensor_library import load

        library = load()
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {
        "command": command(), "commit": commit(), "machine": device_stamp(given.device),
        "cutensor": getattr(library, "text", None), "found": [],
    }  # fmt: skip
    for dtype in COMPUTE:
        for case in cases(given.small, dtype, given.device):
            row = measured(case, given.device, library)
            found["found"].append(row)
            print(line(row), flush=True)
            if given.out is not None:
                given.out.parent.mkdir(parents=True, exist_ok=True)
                given.out.write_text(json.dumps(found, indent=1) + "\n")


def line(row: dict[str, Any]) -> str:
    times = "; ".join(
        f"{kind} {1e6 * row[kind]['weft']:.0f} us, "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in row[f"{kind}: over"].items())
        for kind in ("device", "call")
    )
    errors = ", ".join(f"{name} {error:.0e}" for name, error in row["error"].items())
    blocks = " x ".join(map(str, row["blocks"]))
    return f"{row['case']:12} {row['type']}  {blocks} blocks, {row['products']} products: {times}  (errors {errors})"


if __name__ == "__main__":
    main()
