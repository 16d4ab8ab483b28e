#!/usr/bin/env python3
"""Products of terms in one kernel on a GPU: are they right, and how fast are they?

    PYTHONPATH=src:packages/weft-bench/src python tools/terms_gpu.py [--out FILE] [--parts checks,times] [--seconds 140]

checks  contractions against float64: the largest error over the proven bound of the terms in one kernel
times   milliseconds of IEEE products by cuBLAS, of precision="ieee_bound" as planned now, of terms by cuBLAS, of terms
        in one kernel, and of that kernel alone by each scheme

Prints a row as soon as it is measured. A row that fails says why, and the next one is measured. What is not begun after
`--seconds` is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

import weft
from weft.gpu.terms import model
from weft.gpu.terms.launch import TermsProduct
from weft.gpu.terms.packing import new_words
from weft.library import scheme as library_scheme
from weft.library import split, split_family
from weft.library.family import LibrarySchedule
from weft.planner.split_schemes import BF16X6, FP16X3, U
from weft.planner.target import target_of
from weft_bench.cases import suite

SWITCH = "WEFT_TRY_TERMS"
Row = dict[str, Any]
MOST_ROWS = 1 << 16  # of a product whose parts are timed as well
MADE = {"products": 0}  # in one kernel
_multiply = TermsProduct.__call__


def _counted(product: TermsProduct, *given: Any) -> None:
    MADE["products"] += 1
    _multiply(product, *given)


TermsProduct.__call__ = _counted  # type: ignore[method-assign]


@contextmanager
def tried(on: bool) -> Iterator[None]:
    """Whether terms are multiplied in one kernel."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1" if on else "0"
    try:
        yield
    finally:
        os.environ.pop(SWITCH) if before is None else os.environ.__setitem__(SWITCH, before)


def operands(equation: str, extents: dict[str, int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    left, right = equation.split("->")[0].split(",")
    return tuple(torch.randn([extents[label] for label in term], device="cuda") for term in (left, right))  # type: ignore[return-value]


# ---- checks


def cancels(a: torch.Tensor, b: torch.Tensor) -> None:
    half = a.shape[1] // 2
    a[:, half : 2 * half] = -a[:, :half]
    b[half : 2 * half] = b[:half]


def is_special(a: torch.Tensor, b: torch.Tensor) -> None:
    a[1, 3], a[2, 5], a[4, 0], b[7, 9] = torch.inf, -torch.inf, torch.nan, torch.inf


def spreads(a: torch.Tensor, b: torch.Tensor) -> None:
    a *= torch.empty_like(a).uniform_(-60, 0).exp2()


def falls(a: torch.Tensor, b: torch.Tensor) -> None:
    a *= torch.linspace(-40, 0, a.shape[0], device="cuda").exp2()[:, None]


def is_tiny(a: torch.Tensor, b: torch.Tensor) -> None:
    a *= 1e-30


def nothing(a: torch.Tensor, b: torch.Tensor) -> None:
    """Leave them as they are."""


CHECKS: list[tuple[str, str, dict[str, int], Callable[[torch.Tensor, torch.Tensor], None]]] = [
    ("square", "mk,kn->mn", {"m": 1024, "n": 1024, "k": 1024}, nothing),
    ("odd", "mk,kn->mn", {"m": 1801, "n": 1703, "k": 1601}, nothing),
    ("turned", "km,nk->mn", {"m": 1000, "n": 776, "k": 2056}, nothing),
    ("turned, odd, D too", "km,nk->nm", {"m": 1001, "n": 777, "k": 2051}, nothing),
    ("batch", "bmk,bkn->bmn", {"b": 5, "m": 520, "n": 392, "k": 700}, nothing),
    ("batch inside", "mbk,kbn->mnb", {"b": 3, "m": 200, "n": 300, "k": 500}, nothing),
    ("long sum", "mk,kn->mn", {"m": 130, "n": 96, "k": 100001}, nothing),
    ("bias and relu", "mk,kn->mn", {"m": 1024, "n": 1024, "k": 1024}, nothing),
    ("sigmoid", "mk,kn->mn", {"m": 1000, "n": 1024, "k": 1024}, nothing),
    ("cancellation", "mk,kn->mn", {"m": 512, "n": 640, "k": 4096}, cancels),
    ("infinities, NaN", "mk,kn->mn", {"m": 512, "n": 512, "k": 1024}, is_special),
    ("spread values", "mk,kn->mn", {"m": 1024, "n": 512, "k": 1024}, spreads),
    ("rows that fall", "mk,kn->mn", {"m": 1024, "n": 512, "k": 1024}, falls),
    ("tiny values", "mk,kn->mn", {"m": 1024, "n": 512, "k": 1024}, is_tiny),
]


@contextmanager
def served(looks: bool) -> Iterator[None]:
    """Have products of any size made of terms in one kernel, with float16 looked at or not."""
    kept = library_scheme.is_worth, split.prefers_float16
    library_scheme.is_worth = lambda batch, m, n, k: BF16X6.admitted(k, joined=True)
    split.prefers_float16 = lambda batch, m, n, k: looks
    try:
        with tried(True):
            yield
    finally:
        library_scheme.is_worth, split.prefers_float16 = kept


def check(name: str, equation: str, extents: dict[str, int], change: Callable[..., None]) -> Row:
    """The largest error over the bound, with float16 looked at and without, in three calls of each plan."""
    a, b = operands(equation, extents)
    change(a, b)
    options: dict[str, Any] = {}
    exact = torch.einsum(equation, a.double(), b.double())
    size = torch.einsum(equation, a.double().abs(), b.double().abs())
    if name == "bias and relu":
        bias = torch.randn(extents["n"], device="cuda")
        options = {"epilogue": lambda x, bias: torch.relu(x + bias), "operands": {"bias": ("n", bias)}}
        exact, size = torch.relu(exact + bias), size + bias.double().abs()
    aux = (bias,) if options else ()
    if name == "sigmoid":
        options, exact = {"epilogue": torch.sigmoid}, torch.sigmoid(exact)
    contraction = weft.plan(equation, a, b, precision="ieee_bound", **options).contraction
    k = extents["k"]
    row: Row = {}
    for looks in (True, False):
        schemes = [each for each in (FP16X3, BF16X6) if (looks or each is BF16X6) and each.admitted(k, joined=True)]
        bound = max(each.loss(k, joined=True) for each in schemes) * U * size + 4 * U * size.clamp(min=1e-37)
        before = MADE["products"]
        with served(looks):
            found = worst_of(contraction, (a, b), aux, exact, bound)
        if isinstance(found, str) or MADE["products"] == before:
            return {"failed": found if isinstance(found, str) else "the kernel did not serve"}
        row["looks" if looks else "bfloat16"] = found
    row["right"] = max(row.values()) <= 1
    return row


def worst_of(
    contraction: Any, operands: tuple[torch.Tensor, ...], aux: tuple[torch.Tensor, ...], exact: torch.Tensor,
    bound: torch.Tensor,
) -> float | str:  # fmt: skip
    """The largest error over the bound in three calls; or what is wrong with them."""
    launch = library_launch(contraction, target_of("triton", exact.device))
    if launch is None:
        return "no terms are offered"
    worst, there = 0.0, exact.isfinite()
    for _ in range(3):
        stored = torch.full(exact.shape, torch.nan, device="cuda")
        launch(*operands, None, stored, 1.0, 1.0, aux)
        d = stored.double()
        if not torch.equal(d.isnan(), exact.isnan()) or not torch.equal(d[exact.isinf()], exact[exact.isinf()]):
            return "infinities or NaN are not those of IEEE products"
        worst = max(worst, float(((d - exact).abs() / bound)[there].max()))
    return worst


# ---- times


def milliseconds(call: Callable[[], object]) -> float:
    """Time of a call: the least of three runs of calls one after the other."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(2, min(30, int(0.06 / (time.perf_counter() - start))))
    found = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / count)
    return min(found)


def library_launch(contraction: Any, target: Any) -> Any:
    """The launch of packed operands and terms; None where none is offered."""
    offered = split_family.schedules(contraction, target).schedules
    found = [each for each in offered if isinstance(each, LibrarySchedule)]
    return split_family.build(contraction, found[0], target) if found else None


def timed(equation: str, extents: dict[str, int], depths: dict[str, int] | None = None) -> Row:
    a, b = operands(equation, extents)
    d = torch.empty([extents[label] for label in equation.split("->")[1]], device="cuda")
    target = target_of("triton", a.device)
    plan = weft.plan(equation, a, b, precision="ieee_bound", backend="triton", specialize="now")
    row: Row = {"today's plan": plan.explain().strip().splitlines()[0][:120]}
    before = dict(model.DEPTHS)
    model.DEPTHS.update(depths or {})
    try:
        if depths is None:
            if is_matrices(equation):
                row["cublas ieee"] = milliseconds(lambda: torch.mm(a, b, out=d))
            else:
                row["einsum ieee"] = milliseconds(lambda: torch.einsum(equation, a, b))
            with tried(False):
                row["today"] = milliseconds(lambda: plan(a, b, out=d))
                launch = library_launch(plan.contraction, target)
                if launch is not None:
                    row["terms by cublas"] = milliseconds(lambda: launch(a, b, None, d, 1.0, 1.0))
        with tried(True):
            again = library_launch(plan.contraction, target)
            if again is not None:
                row["one kernel"] = milliseconds(lambda: again(a, b, None, d, 1.0, 1.0))
                row["state"] = again.state
        if is_matrices(equation):
            row |= alone(a, b, d, target)
    finally:
        model.DEPTHS.update(before)
    flops = 2.0 * plan.contraction.batch * plan.contraction.m * plan.contraction.n * plan.contraction.k
    names = ("cublas ieee", "einsum ieee", "today", "terms by cublas", "one kernel", "fp16x3 alone", "bf16x6 alone")
    row["tflops"] = {name: flops / row[name] / 1e9 for name in names if name in row}
    return row


def alone(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, target: Any) -> Row:
    """The kernel by each scheme, and what comes before it."""
    product = TermsProduct(a, b, d, (FP16X3, BF16X6), target)
    row: Row = {"looks and kernel": milliseconds(lambda: product(a, b, d))}
    single = TermsProduct(a, b, d, (BF16X6,), target)
    row["bf16x6 and kernel"] = milliseconds(lambda: single(a, b, d))
    if a.shape[0] > MOST_ROWS:
        return row
    rooms = [torch.zeros(side.room(3), dtype=torch.int16, device="cuda") for side in (product._left, product._right)]
    for room in rooms:
        room.view(torch.float16).normal_()
    for kernel, scheme in zip(product._kernels, product._schemes, strict=True):
        words = new_words(product._left, product._right, a.device)
        words[0], words[1] = model.number(scheme), 127 << 23
        if kernel.partials is None:
            terms = product._terms(rooms[0], rooms[1], scheme)
            row[f"{scheme.name} alone"] = milliseconds(lambda: kernel(*terms, words, d, 1.0))  # noqa: B023
            words[0] = 1 - model.number(scheme)
            row[f"{scheme.name} that ends at once"] = milliseconds(lambda: kernel(*terms, words, d, 1.0))  # noqa: B023
        row[f"{scheme.name} tiles"] = str(kernel.schedule)
    words = new_words(product._left, product._right, a.device)
    row["peak of A"] = milliseconds(lambda: product._left.peak(a, words))
    for scheme in (FP16X3, BF16X6):
        held = rooms[0][: scheme.terms].view(scheme.term)
        row[f"{scheme.name} of A"] = milliseconds(lambda: product._left.split(a, words, held, scheme))  # noqa: B023
    return row


def is_matrices(equation: str) -> bool:
    return equation == "mk,kn->mn"


def time_cases() -> Iterator[tuple[str, str, dict[str, int], dict[str, int] | None]]:
    matrices = "mk,kn->mn"
    for size in (8192, 4096, 2048):
        yield f"{size}^3", matrices, dict.fromkeys("mnk", size), None
    every = suite.tccg(torch.float32, torch.float32)
    sizes = [2.0 * flops(case) for case in every]
    largest = sorted(range(len(every)), key=lambda at: -sizes[at])[:5]
    for at in dict.fromkeys((*range(5), *largest)):
        yield every[at].name, every[at].equation, dict(every[at].extents), None
    for n in (16, 64):
        yield f"10^6x512x{n}", matrices, {"m": 10**6, "n": n, "k": 512}, None
    for depths in ({BF16X6.name: 64, FP16X3.name: 32},):
        yield f"4096^3 {depths}", matrices, dict.fromkeys("mnk", 4096), depths


def flops(case: Any) -> float:
    product = 1.0
    for extent in case.extents.values():
        product *= extent
    return product


# ---- rows


def short(row: Row) -> str:
    """A row's figures: milliseconds, or errors over the bound."""
    found = []
    for name, value in row.items():
        if isinstance(value, float):
            rate = row.get("tflops", {}).get(name)
            found.append(f"{name} {value:.4g}" + (f" ({rate:.0f} TF)" if rate else ""))
        elif name in ("failed", "right"):
            found.append(f"{name} {value}")
    return "  ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", default="checks,times")
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    given = parser.parse_args()
    begun = time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows: list[Row] = []

    def measure(part: str, name: str, call: Callable[[], Row]) -> None:
        if given.only not in name or part not in given.parts:
            return
        start = time.monotonic()
        if start - begun > given.seconds:
            row: Row = {"failed": "left out: no time"}
        else:
            try:
                row = call()
            except Exception as error:  # the next row may do
                row = {"failed": f"{type(error).__name__}: {str(error)[:300]}", "trace": traceback.format_exc()}
        rows.append({"part": part, "name": name, **row, "took": time.monotonic() - start})
        print(f"{part:7}{name:28}{rows[-1]['took']:5.1f} s  {short(row)}", flush=True)
        if given.out is not None:
            device = torch.cuda.get_device_name()
            given.out.write_text(json.dumps({"device": device, "torch": torch.__version__, "rows": rows}, indent=1))

    checks = [("checks", name, partial(check, name, *rest)) for name, *rest in CHECKS]
    times = [("times", name, partial(timed, *rest)) for name, *rest in time_cases()]
    for part, name, call in (*checks[:3], *times[:3], *checks[3:], *times[3:]):  # what matters most comes first
        measure(part, name, call)
        torch.cuda.empty_cache()
    wrong = [row["name"] for row in rows if row["part"] == "checks" and not row.get("right")]
    print(f"{time.monotonic() - begun:.0f} s; checks that failed: {', '.join(wrong) or 'none'}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
