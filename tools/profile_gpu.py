#!/usr/bin/env python3
"""Profiles on a GPU: do they repeat, does the driver agree on occupancy, does the energy sensor agree with itself?

    PYTHONPATH=src python tools/profile_gpu.py [--parts profile,occupancy,energy,micro] [--case tccg-04]

profile    a TCCG case profiled twice with counters: seconds of the second, and how far time and counters differ
occupancy  the calculator against cuOccupancyMaxActiveBlocksPerMultiprocessor, for every kernel of a list of plans
energy     ten seconds of matrix products: the card's counter against integrated power, and what a call draws
micro      the microbenchmarks, their figures alone

Prints one line for each figure, with what is asked of it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


def said(what: str, value: object, asked: str = "") -> None:
    print(f"{what:<58} {value!s:<32} {asked}", flush=True)


def profile(case: str) -> None:
    from weft_bench.profiling.profile import load

    with tempfile.TemporaryDirectory() as folder:
        seconds = []
        for name in ("one", "two"):
            start = time.perf_counter()
            command = [sys.executable, "-m", "weft", "profile", case, "--out", f"{folder}/{name}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
            seconds.append(time.perf_counter() - start)
            if done.returncode:
                said(f"profile {case}", (done.stderr or done.stdout).strip()[-300:])
                return
        print(done.stdout)
        first, second = (load(Path(folder) / name)[0] for name in ("one", "two"))
    said(f"seconds of weft profile {case}, warm", f"{seconds[1]:.1f}", "at most 30")
    apart = abs(first.seconds.value / second.seconds.value - 1)
    said("two profiles: time differs by", f"{apart:.2%}", "at most 2 %")
    if not first.counters or not second.counters:
        said("counters", first.missing.get("counters") or second.missing.get("counters"))
        return
    for one, two in zip(first.counters, second.counters, strict=True):
        differ = {key: abs(one.values[key] - two.values[key]) / max(abs(one.values[key]), 1e-9)
                  for key in one.values if key in two.values}  # fmt: skip
        worst = sorted(differ, key=lambda key: differ[key])[-3:]
        said(f"two profiles: counters of {one.kernel[:24]} differ by", f"{max(differ.values()):.2%}", "at most 3 %")
        said("  most", ", ".join(f"{key} {differ[key]:.1%} of {one.values[key]:.3g}" for key in reversed(worst)))


def plans() -> Iterator[Any]:
    """Plans whose kernels are of every family."""
    import weft
    from weft.errors import WeftError
    from weft_bench.cases import operands, tccg

    device = torch.device("cuda")
    for case in [each for each in tccg() if each.name in ("tccg-01", "tccg-09", "tccg-20", "tccg-31")]:
        a, b, _ = operands(case, device=device)
        first = weft.plan(case.equation, a, b, out_dtype=torch.float32, specialize="now")
        yield first
        seen = set()
        for candidate in first.report().candidates:
            if candidate.family in seen:
                continue
            seen.add(candidate.family)
            try:
                yield weft.plan(case.equation, a, b, out_dtype=torch.float32, schedule=candidate.schedule)
            except WeftError as error:
                said(f"  {candidate.text[:50]}", f"does not build: {error}"[:100])
    x = torch.randn(512, 512, device=device)
    yield weft.plan("ik,kj->ij", x, x, algebra="max_plus", specialize="now")
    yield weft.plan("ik,kj->ij", x + 0j, x + 0j, specialize="now")
    yield weft.plan("ik,kj->ij", x.double(), x.double(), epilogue=torch.relu, specialize="now")
    yield weft.plan_permute(torch.randn(64, 33, 128, device=device), "abc->cab", specialize="now")


def occupancy() -> None:
    agree, differ = 0, []
    names = set()
    for plan in plans():
        for kernel in plan.kernels:
            names.add(kernel.name)
            mine, theirs = kernel.occupancy.blocks, kernel.blocks_by_driver()
            if mine == theirs:
                agree += 1
            else:
                differ.append(f"{kernel.name}: {mine}, the driver {theirs} ({kernel.to_dict()})")
    said(f"kernels on which the driver agrees ({', '.join(sorted(names))})", f"{agree} of {agree + len(differ)}", "all")
    for line in differ:
        print(" ", line)


def energy() -> None:
    import weft

    a = torch.randn(4096, 4096, device="cuda").half()
    found = weft.energy(weft.plan("ij,jk->ik", a, a), a, a, seconds=2.0)
    print(found)
    said("sensor against integrated power over 5 x 2 s", f"{found.agreement - 1:+.2%}", "within 5 %")
    said("the sensor changes every", f"{1e3 * found.update_seconds:.0f} ms")


def micro() -> None:
    from weft_bench.micro.suite import run

    for each in run(["all"], torch.device("cuda"), 0.03):
        if each.missing:
            said(each.name, each.missing)
        for name, value in each.figures.items():
            said(f"{each.name}: {name}", f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="profile,occupancy,energy,micro")
    parser.add_argument("--case", default="tccg-04")
    options = parser.parse_args()
    parts = {"profile": lambda: profile(options.case), "occupancy": occupancy, "energy": energy, "micro": micro}
    for name in options.parts.split(","):
        print(f"--- {name}", flush=True)
        start = time.perf_counter()
        parts[name]()
        print(f"--- {name} took {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
