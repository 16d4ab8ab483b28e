"""Shapes of public benchmarks: facts of where they were recorded, the calls are this project's.

    TritonBench  github.com/meta-pytorch/tritonbench (BSD-3-Clause), input_configs/inductor_oss/h100, commits 7771a7cf
                 and 797954b0: products of models on PyTorch's dashboard
    DeepBench    github.com/baidu-research/DeepBench (Apache-2.0), code/kernels/gemm_problems.h, commit 02011985;
                 matrices are stored by columns there, which is by rows here with modes in another order
    feinsum      github.com/kaushikcfd/feinsum-evaluation (MIT), commits 4f119a51 and 1ec1fcfb: finite elements on
                 tetrahedra of degrees 1 to 4, in float64
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from weft_bench.cases.everyday.case import BRAIN, DOUBLE, HALF, EverydayCase, Fused, case

BIAS = Fused(lambda s, bias: s + bias, operands={"bias": "n"})
#: Rows, columns and terms of layers with a bias; the weight lies by columns of the result, or (True) by rows.
LAYERS = (
    (12544, 128, 672, False), (65536, 96, 256, False), (401408, 16, 16, False), (6272, 256, 1024, False),
    (4, 1000, 4096, False), (100352, 40, 144, False), (8192, 30528, 768, True), (2048, 3072, 1024, True),
)  # fmt: skip
#: The same of plain products, with the equation that they are stored for.
PRODUCTS = (
    ("mk,nk->mn", 200704, 128, 96), ("mk,nk->mn", 4096, 4096, 1024), ("mk,nk->mn", 4, 4096, 9216),
    ("mk,nk->mn", 6422528, 8, 16), ("km,kn->mn", 3072, 768, 128), ("km,kn->mn", 144, 144, 65536),
    ("km,kn->mn", 2304, 768, 12608), ("mk,kn->mn", 8192, 768, 50264),
)  # fmt: skip
BATCHED = (
    ("bmk,bkn->bmn", 96, 128, 64, 128), ("bmk,bkn->bmn", 768, 49, 49, 128), ("bmk,bkn->bmn", 16384, 56, 32, 56),
    ("bmk,bkn->bmn", 16, 1, 96, 20), ("bmk,bnk->bmn", 192, 512, 512, 64), ("mbk,nbk->bmn", 128, 512, 1024, 64),
)  # fmt: skip
#: m, n, k, and whether A and B are transposed.
DEEP = (
    (1760, 16, 1760, False, False), (2560, 64, 2560, False, False), (4096, 128, 4096, True, False),
    (4096, 7000, 4096, False, False), (2048, 7133, 2048, False, True), (5124, 9124, 1760, True, False),
    (35, 8457, 2560, False, False), (512, 8, 500000, False, False), (1024, 16, 500000, True, False),
    (7680, 24000, 2560, False, False), (8448, 1500, 2816, False, False), (128, 1500, 1280, False, False),
)  # fmt: skip
#: Points of an element, points of a face, and elements.
ELEMENTS = ((4, 3, 200_000), (10, 6, 200_000), (20, 10, 100_000), (35, 15, 80_000))


def public() -> Iterator[EverydayCase]:
    """All of them."""
    yield from _tritonbench()
    yield from _deepbench()
    yield from _feinsum()


def _tritonbench() -> Iterator[EverydayCase]:
    for m, n, k, by_rows in LAYERS:
        yield case("tritonbench", f"layer {m} x {n} x {k}", "mk,kn->mn" if by_rows else "mk,nk->mn", m=m, n=n, k=k,
                   dtype=BRAIN, fused=BIAS, plain=_addmm if by_rows else functional.linear)  # fmt: skip
    for equation, m, n, k in PRODUCTS:
        yield case("tritonbench", f"product {equation} {m} x {n} x {k}", equation, m=m, n=n, k=k, dtype=HALF)
    for equation, b, m, n, k in BATCHED:
        yield case("tritonbench", f"{b} products {equation} {m} x {n} x {k}", equation, b=b, m=m, n=n, k=k, dtype=HALF)


def _addmm(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, x, w)


def _deepbench() -> Iterator[EverydayCase]:
    for m, n, k, a_turned, b_turned in DEEP:
        a, b = "mk" if a_turned else "km", "kn" if b_turned else "nk"
        yield case("deepbench", f"{a},{b}->nm {m} x {n} x {k}", f"{a},{b}->nm", m=m, n=n, k=k, dtype=HALF)


def _feinsum() -> Iterator[EverydayCase]:
    for inner, face, count in ELEMENTS:
        extents: dict[str, Any] = {"e": count, "i": inner, "dtype": DOUBLE}
        directions = {"x": 3, "r": 3, "j": inner}
        yield case("feinsum", f"gradient, {inner} points", "xre,rij,ej->xei", **extents, **directions)
        yield case("feinsum", f"divergence, {inner} points", "xre,rij,xej->ei", **extents, **directions)
        yield case("feinsum", f"faces, {inner} points", "ifj,fe,fej->ei", **extents, f=4, j=face)
