"""The host's time of known calls, and of the parts that they go through, beside torch's own: python tools/host_times.py

call      the public call: it is known again, its result is allocated, its launch runs
run       that without knowing it again
launch    the launch alone, on a result that is there
torch     what a user of torch would write

Times are those of the thread, and the least of many short runs. On a GPU each run begins with an empty queue.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional

import weft
from weft.plans.known_call import KnownCall

RUNS, CALLS, FIRST = 15, 200, 60
Call = Callable[[], Any]


class Case(NamedTuple):
    name: str
    ours: Call
    torchs: Call


def cases(device: str, n: int) -> Iterator[Case]:
    """Calls on matrices of n rows and columns."""
    a, b, c = (torch.rand(n, n, device=device) for _ in range(3))
    bias, stack = torch.rand(n, device=device), torch.rand(4, n, n, device=device)
    z = torch.rand(n, n, device=device, dtype=torch.complex64)

    def layer(function: Callable[..., Any], beside: torch.Tensor, modes: str) -> Call:
        return lambda: weft.contract("mk,nk->mn", a, b, epilogue=function, operands={"x": (modes, beside)})

    yield Case("product", lambda: weft.contract("mk,kn->mn", a, b), lambda: a @ b)
    yield Case("batch", lambda: weft.contract("bmk,bkn->bmn", stack, stack), lambda: torch.bmm(stack, stack))
    yield Case("shared factor", lambda: weft.contract("bmk,kn->bmn", stack, b), lambda: stack @ b)
    yield Case("complex", lambda: weft.contract("mk,kn->mn", z, z), lambda: z @ z)
    yield Case("bias", layer(lambda s, x: s + x, bias, "n"), lambda: functional.linear(a, b, bias))
    yield Case(
        "bias, ReLU", layer(lambda s, x: torch.relu(s + x), bias, "n"),
        lambda: torch.relu(functional.linear(a, b, bias)),
    )  # fmt: skip
    yield Case(
        "bias, GELU", layer(lambda s, x: functional.gelu(s + x), bias, "n"),
        lambda: functional.gelu(functional.linear(a, b, bias)),
    )  # fmt: skip
    yield Case("residual", layer(lambda s, x: s + x, c, "mn"), lambda: functional.linear(a, b) + c)
    yield Case("C", lambda: weft.contract("mk,kn->mn", a, b, c=c), lambda: torch.addmm(c, a, b))
    yield Case("two results", lambda: weft.contract("mk,kn->mn", a, b, epilogue=_two), lambda: _two(a @ b))
    yield Case("sums of rows", lambda: weft.einsum("ij->i", a), lambda: a.sum(1))
    yield Case("trace", lambda: weft.einsum("ii->", a), lambda: torch.einsum("ii->", a))
    yield Case("dot", lambda: weft.einsum("i,i->", bias, bias), lambda: torch.dot(bias, bias))
    yield Case("elements", lambda: weft.contract("ij,ij->ij", a, b), lambda: a * b)
    yield Case("outer product", lambda: weft.einsum("i,j->ij", bias, bias), lambda: torch.outer(bias, bias))
    yield Case("permutation", lambda: weft.permute(stack, "abc->cab"), lambda: stack.permute(2, 0, 1).contiguous())
    yield Case(
        "max-plus", lambda: weft.contract("mk,kn->mn", a, b, algebra="max_plus"), lambda: (a[:, :, None] + b).amax(1)
    )


def _two(value: Any) -> Any:
    return value, value * value


def microseconds(call: Call, device: str) -> float:
    """Microseconds of one call."""
    least = float("inf")
    for _ in range(RUNS):
        if device != "cpu":
            torch.cuda.synchronize()
        begun = time.thread_time()
        for _ in range(CALLS):
            call()
        least = min(least, (time.thread_time() - begun) / CALLS)
    return 1e6 * least


def parts(call: Call, device: str) -> tuple[float, float]:
    """The times of `run` and of the launch; not a number where the call is not known so."""
    runs: list[tuple[KnownCall, Any]] = []
    launches: list[tuple[Any, ...]] = []
    usual = KnownCall.run

    def noted(known: KnownCall, *given: Any) -> Any:
        runs.append((known, given))
        return usual(known, *given)

    KnownCall.run = noted  # type: ignore[method-assign]
    try:
        call()
    finally:
        KnownCall.run = usual  # type: ignore[method-assign]
    if not runs or runs[-1][0].launch is None:
        return float("nan"), float("nan")
    known, given = runs[-1]
    known._replace(make=None, launch=lambda *arguments: launches.append(arguments)).run(*given)
    launch: Any = known.launch
    return microseconds(lambda: known.run(*given), device), microseconds(lambda: launch(*launches[0]), device)


def main() -> None:
    words = argparse.ArgumentParser(description="The host's time of known calls.")
    words.add_argument("only", nargs="*", help="cases with one of these in their name; all where there is none")
    words.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    words.add_argument("--size", type=int, default=8, help="rows and columns of matrices")
    asked = words.parse_args()
    torch.set_num_threads(1)
    print(f"{'us':16s}{'call':>8s}{'run':>8s}{'launch':>8s}{'torch':>8s}{'call/torch':>12s}")
    for case in cases(asked.device, asked.size):
        if asked.only and not any(word in case.name for word in asked.only):
            continue
        for _ in range(FIRST):
            case.ours()
        run, launch = parts(case.ours, asked.device)
        call, theirs = (microseconds(each, asked.device) for each in (case.ours, case.torchs))
        print(f"{case.name:16s}{call:8.2f}{run:8.2f}{launch:8.2f}{theirs:8.2f}{call / theirs:12.2f}")


if __name__ == "__main__":
    main()
