"""When calls become fast: workloads by name, each in a fresh process, first with empty caches, then with those it left.

    python tools/takeover_times.py [--seconds 12] [max_plus layer attention training network]

For each: milliseconds of the first calls and of the last ones, and the seconds from the first call until calls take at
most 1.3 times as long as the last. `network` needs weft-tensor-bench and cotengra.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import weft
from weft.base.interpreter import environment

HALF, SINGLE = torch.float16, torch.float32
ONE_BY_ONE, STEP, RECENT = 10, 5, 15  # calls that are waited for one by one; later ones so many at a time


def _tensor(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def max_plus() -> Callable[[], Any]:
    a, b = _tensor(2000, 2000, dtype=SINGLE), _tensor(2000, 2000, dtype=SINGLE)
    return lambda: weft.contract("ik,kj->ij", a, b, algebra="max_plus")


def layer() -> Callable[[], Any]:
    x, w, bias = _tensor(8192, 4096), _tensor(11008, 4096), _tensor(11008)

    def gelu(s: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(s + bias)

    return lambda: weft.contract("mk,nk->mn", x, w, epilogue=gelu, operands={"bias": ("n", bias)})


def attention(grads: bool = False) -> Callable[[], Any]:
    """Causal, with a soft cap: no softmax that torch has a kernel for."""
    q, k, v = (_tensor(4, 4096, 16, 128).requires_grad_(grads) for _ in range(3))

    def scores(s: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return weft.softmax(torch.where(j <= i, 30 * torch.tanh(s / 30), -torch.inf), "k")

    def call() -> torch.Tensor:
        found: torch.Tensor = weft.cascade(
            "bqhd,bkhd->bqhk, bqhk,bkhe->bqhe", q, k, v, between=scores, alpha=0.088, indices={"i": "q", "j": "k"}
        )
        if grads:
            found.backward(torch.ones_like(found))
        return found

    return call


def training() -> Callable[[], Any]:
    return attention(grads=True)


def network() -> Callable[[], Any]:
    from weft_bench.cases.networks import networks
    from weft_bench.networks import planned_network

    case = next(each for each in networks() if each.name == "randreg_200_3")
    operands = case.operands(device="cuda")
    planned = planned_network(case, operands)
    return lambda: planned(*operands)


WORKLOADS = {each.__name__: each for each in (max_plus, layer, attention, training, network)}


def measure(name: str, seconds: float) -> str:
    """A line on one workload in this process."""
    torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")
    call, steps = WORKLOADS[name](), list[tuple[float, float]]()
    torch.cuda.synchronize()
    start = time.perf_counter()
    while (begun := time.perf_counter()) < start + seconds:
        count = 1 if len(steps) < ONE_BY_ONE else STEP
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        now = time.perf_counter()
        steps.append((begun - start, 1e3 * (now - begun) / count))
    last = sorted(taken for _, taken in steps[-RECENT:])[min(RECENT, len(steps)) // 2]
    slow = max((at for at, (_, taken) in enumerate(steps) if taken > 1.3 * last), default=-1)
    fast = f"from {steps[slow + 1][0]:.2f} s on" if slow + 1 < len(steps) else "never"
    first = ", ".join(f"{taken:.2f}" for _, taken in steps[:3])
    return f"first {first} ms; last {last:.3f} ms, {fast}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*WORKLOADS, []], metavar="WORKLOAD")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--here", action="store_true", help="measure in this process")
    asked = parser.parse_args()
    if asked.here:
        print(measure(asked.names[0], asked.seconds))
        return
    for name in asked.names or WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            folders = {"WEFT_CACHE_DIR": str(Path(folder) / "weft"), "TRITON_CACHE_DIR": str(Path(folder) / "triton")}
            for caches in ("empty", "kept"):
                line = [sys.executable, __file__, name, "--here", "--seconds", str(asked.seconds)]
                said = subprocess.check_output(line, text=True, env=environment(**folders))
                print(f"{name:10} {caches:6} {said}", end="", flush=True)


if __name__ == "__main__":
    main()
