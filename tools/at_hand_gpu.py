#!/usr/bin/env python3
"""Kernels at hand on a GPU: are they right, how long do shapes take that are met for the first time, how fast are they?

    PYTHONPATH=src python tools/at_hand_gpu.py [--parts right,processes,small,tccg] [--count 150] [--seeds 3,4,5]

right      random contractions and permutations at hand against torch in float64
processes  seconds of many small contractions of different shapes: first process with empty caches, second process, all
           known; torch.einsum beside
small      kernel times at hand over those of kernels made to measure and of torch.einsum
tccg       the same of the 48 TCCG cases, fp16 to fp32, and the host's time of a first call

Prints one line for each figure, and the worst cases by name.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import torch

DEVICE = "cuda"


def shape(rng: random.Random) -> tuple[str, list[int], list[int]]:
    """A small contraction: equation and shapes of A and B."""
    modes = rng.sample("abcdefghijkl", rng.randint(5, 9))
    role = {mode: "mnk"[at] if at < 3 else rng.choice("mnkk") for at, mode in enumerate(modes)}
    extents = {mode: rng.choice([2, 2, 2, 3, 4, 8, 16]) for mode in modes}
    while math.prod(extents.values()) > 2**24:
        largest = max(extents, key=lambda mode: extents[mode])
        extents[largest] = max(1, extents[largest] // 2)
    terms = [[mode for mode in modes if role[mode] in roles] for roles in ("mk", "nk", "mn")]
    for term in terms:
        rng.shuffle(term)
    a, b, d = ("".join(term) for term in terms)
    return f"{a},{b}->{d}", [extents[mode] for mode in a], [extents[mode] for mode in b]


def contractions(seed: int, count: int) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    found = [shape(rng) for _ in range(count)]
    return [(equation, torch.randn(a, device=DEVICE), torch.randn(b, device=DEVICE)) for equation, a, b in found]


def process(seed: int, count: int) -> None:
    """The times that one process sees, printed as three numbers of seconds."""
    given = contractions(seed, count)
    expected = [torch.einsum(*one) for one in given]
    torch.cuda.synchronize()
    import weft

    found = []
    for call in (torch.einsum, weft.contract, weft.contract):
        start = time.perf_counter()
        results = [call(*one) for one in given]
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    worst = max(float((r - e).abs().max() / e.abs().max()) for r, e in zip(results, expected, strict=True))
    print(f"RESULT {found[0]} {found[1]} {found[2]} {worst}")


def processes(seeds: Sequence[int], count: int) -> None:
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {"TRITON_CACHE_DIR": f"{folder}/triton", "WEFT_CACHE_DIR": f"{folder}/weft"}
            for name in ("first process ", "second process"):
                command = [sys.executable, __file__, "--process", str(seed), "--count", str(count)]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
                if not lines:
                    print(f"{name} seed {seed}: FAILED\n{done.stderr[-3000:]}")
                    return
                einsum, first, again, worst = map(float, lines[0].split()[1:])
                print(f"{name} seed {seed}, {count} shapes: {first:8.4f} s; known {1e3 * again:6.2f} ms; torch "
                      f"{1e3 * einsum:6.2f} ms; largest difference {worst:.1e}", flush=True)  # fmt: skip


def right(count: int) -> None:
    """Random contractions of several types and kinds of functions, and permutations."""
    import weft

    rng, bad, tried = random.Random(11), 0, 0
    dtypes = [torch.float32, torch.float16, torch.float64, torch.bfloat16, torch.int32]
    for at in range(count):
        equation, a_shape, b_shape = shape(rng)
        dtype = dtypes[at % len(dtypes)]
        a, b = (torch.randint(-2, 3, each, device=DEVICE).to(dtype) for each in (a_shape, b_shape))
        options = {"epilogue": torch.relu} if at % 3 == 0 else {}
        out_dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else None
        result = weft.contract(equation, a, b, out_dtype=out_dtype, specialize="never", **options)
        wanted = torch.einsum(equation, a.double(), b.double())
        wanted = torch.relu(wanted) if options else wanted
        tried += 1
        if not torch.equal(result.double(), wanted):
            bad += 1
            print("WRONG", equation, a_shape, b_shape, dtype, float((result.double() - wanted).abs().max()))
    for _ in range(count):
        rank = rng.randint(1, 6)
        letters = "abcdef"[:rank]
        extents = [rng.choice([1, 2, 3, 5, 8, 16, 33, 64]) for _ in letters]
        while math.prod(extents) > 2**24:
            extents[extents.index(max(extents))] //= 2
        x = torch.randint(-99, 99, extents, device=DEVICE).to(rng.choice([torch.int8, torch.float16, torch.float32,
                                                                          torch.float64]))  # fmt: skip
        order = "".join(rng.sample(letters, rank))
        result = weft.permute(x, f"{letters}->{order}", specialize="never")
        tried += 1
        if not torch.equal(result, x.permute([letters.index(label) for label in order])):
            bad += 1
            print("WRONG permutation", f"{letters}->{order}", extents, x.dtype)
    print(f"right: {tried - bad} of {tried}", flush=True)


def kernel_seconds(call: object, given: Sequence[torch.Tensor]) -> float:
    """Seconds of one call in a CUDA graph, inputs from cold memory."""
    from weft.machine.timing import measure

    return measure(call, [tuple(given)], device=DEVICE, quick=True, budget=0.15).seconds  # type: ignore[arg-type]


def compared(name: str, rows: Sequence[tuple[str, float, float, float, str]]) -> None:
    """Rows: case, seconds at hand, made to measure, torch, schedule."""
    over = [hand / made for _, hand, made, _, _ in rows]
    torch_over = [hand / other for _, hand, _, other, _ in rows if other > 0]
    print(f"{name}: at hand over made to measure: geometric mean {statistics.geometric_mean(over):.2f}, worst "
          f"{max(over):.2f} ({len(rows)} cases); over torch: mean {statistics.geometric_mean(torch_over):.2f}, worst "
          f"{max(torch_over):.2f}")  # fmt: skip
    for case, hand, made, other, schedule in sorted(rows, key=lambda row: -row[1] / row[2])[:12]:
        print(f"   {hand / made:6.2f}  {1e6 * hand:9.2f} us, made {1e6 * made:9.2f}, torch {1e6 * other:9.2f}  {case}  "
              f"{schedule}", flush=True)  # fmt: skip


def timed(equation: str, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None) -> tuple[float, float, str]:
    import weft

    found = []
    for specialize in ("never", "now"):
        plan = weft.plan(equation, a, b, out_dtype=out_dtype, specialize=specialize)
        out = torch.empty(plan.shape, dtype=plan.dtype, device=DEVICE)
        found.append((kernel_seconds(lambda x, y, p=plan, o=out: p(x, y, out=o), (a, b)), str(plan.schedule)))
    return found[0][0], found[1][0], f"{found[0][1]}  |  {found[1][1]}"


def small(seeds: Sequence[int], count: int) -> None:
    for seed in seeds:
        rows = []
        for equation, a, b in contractions(seed, count):
            hand, made, schedule = timed(equation, a, b, None)
            other = kernel_seconds(lambda x, y, e=equation: torch.einsum(e, x, y), (a, b))
            rows.append((f"{equation} {list(a.shape)} {list(b.shape)}", hand, made, other, schedule))
        compared(f"small shapes, seed {seed}", rows)


def suite() -> None:
    import weft
    from weft_bench import cases

    rows, first = [], []
    for case in cases.tccg():
        a, b, _ = cases.operands(case, device=DEVICE)
        torch.cuda.synchronize()
        began = time.perf_counter()
        weft.contract(case.equation, a, b, out_dtype=case.dtypes[2], specialize="never")
        first.append(time.perf_counter() - began)
        torch.cuda.synchronize()
        hand, made, schedule = timed(case.equation, a, b, case.dtypes[2])  # type: ignore[arg-type]
        rows.append((case.name, hand, made, made, schedule))
        del a, b
    compared("TCCG fp16 to fp32", rows)
    print(f"first call at hand (kernels compiled or not): median {1e3 * statistics.median(first):.1f} ms, longest "
          f"{1e3 * max(first):.1f} ms")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="right,processes,small,tccg")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--timed", type=int, default=40, help="small shapes that are timed, of each seed")
    parser.add_argument("--seeds", default="3,4,5")
    parser.add_argument("--process", type=int, help="run as one process of `processes`, with this seed")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.process is not None:
        process(options.process, options.count)
        return
    parts = options.parts.split(",")
    if "right" in parts:
        right(100)
    if "processes" in parts:
        processes(seeds[:1], options.count)
    if "small" in parts:
        small(seeds[:1], options.timed)
    if "tccg" in parts:
        suite()


if __name__ == "__main__":
    main()
