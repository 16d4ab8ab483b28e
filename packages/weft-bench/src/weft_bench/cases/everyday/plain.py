"""Batches of small products, movements, sums, awkward memory, other algebras and groups."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from weft_bench.cases.everyday.case import (
    BRAIN,
    COMPLEX,
    COMPLEX_DOUBLE,
    DOUBLE,
    HALF,
    SINGLE,
    EverydayCase,
    Fused,
    case,
)

TYPES = {"half": HALF, "fp32": SINGLE, "fp64": DOUBLE}


def plain() -> Iterator[EverydayCase]:
    """All of them."""
    yield from _batches()
    yield from _movements()
    yield from _sums()
    yield from _memory()
    yield from _algebras()
    yield from _groups()


def _batches() -> Iterator[EverydayCase]:
    here = "small products"
    measured = {(8, "fp32"), (32, "fp32"), (32, "half")}
    for size in (4, 8, 16, 32, 64):
        for word, dtype in TYPES.items():
            yield case(here, f"1000 products {size}x{size}, {word}", "bij,bjk->bik", b=1000, i=size, j=size, k=size,
                       dtype=dtype, plain=torch.bmm, regret=(size, word) in measured)  # fmt: skip
    yield case(here, "1000 products 8x8, complex128", "bij,bjk->bik", b=1000, i=8, j=8, k=8, dtype=COMPLEX_DOUBLE)
    yield case(here, "1000 products 16x16, complex64", "bij,bjk->bik", b=1000, i=16, j=16, k=16, dtype=COMPLEX)
    yield case(here, "100000 rotations", "bij,bj->bi", b=100_000, i=3, j=3)
    yield case(here, "100000 products 3x3, fp64", "bij,bjk->bik", b=100_000, i=3, j=3, k=3, dtype=DOUBLE)
    yield case(here, "64 products 100x100, fp64", "bij,bjk->bik", b=64, i=100, j=100, k=100, dtype=DOUBLE)


def _movements() -> Iterator[EverydayCase]:
    here = "movements"
    images = {"n": 64, "c": 256, "h": 56, "w": 56}
    heads = {"b": 8, "s": 1024, "h": 16, "d": 64}
    yield case(here, "nhwc->ncwh", "nhwc->ncwh", n=64, h=128, w=128, c=8, dtype=HALF, regret=True)
    yield case(here, "nchw->nhwc, half", "nchw->nhwc", **images, dtype=HALF)
    yield case(here, "nhwc->nchw, fp32", "nhwc->nchw", **images)
    yield case(here, "images to channels last, 3 channels", "nchw->nhwc", n=64, c=3, h=224, w=224)
    yield case(here, "heads split", "bshd->bhsd", **heads, dtype=HALF)
    yield case(here, "heads merged", "bhsd->bshd", **heads, dtype=BRAIN)
    yield case(here, "keys transposed", "bhsd->bhds", **heads, dtype=HALF)
    yield case(here, "queries, keys and values apart", "bsthd->tbhsd", t=3, **heads, dtype=HALF)
    yield case(here, "image patches", "bcipjq->bijpqc", b=64, c=3, i=14, p=16, j=14, q=16)
    yield case(here, "pixels shuffled", "bcpqhw->bchpwq", b=16, c=64, p=2, q=2, h=64, w=64, dtype=HALF)
    yield case(here, "matrix transposed, fp64", "ij->ji", i=4096, j=4096, dtype=DOUBLE)
    yield case(here, "batch of small matrices transposed", "bij->bji", b=100_000, i=8, j=8)
    yield case(here, "integrals, chemists' to physicists'", "pqrs->prqs", **dict.fromkeys("pqrs", 58), dtype=DOUBLE)
    yield case(here, "modes reversed", "abcde->edcba", a=24, b=24, c=24, d=24, e=24)
    qubits: dict[str, Any] = dict.fromkeys("abcdefghijklmnopqrst", 2)
    yield case(here, "qubits reversed", "abcdefghijklmnopqrst->tsrqponmlkjihgfedcba", **qubits, dtype=COMPLEX)
    yield case(here, "ReLU and transposed", "nchw->nhwc", **images, fused=Fused(torch.relu),
               plain=lambda x: torch.relu(x).permute(0, 2, 3, 1).contiguous())  # fmt: skip


def _sums() -> Iterator[EverydayCase]:
    here = "sums"
    square = {"i": 4096, "j": 4096}
    yield case(here, "diagonal", "ii->i", i=4096, plain=lambda x: x.diagonal().contiguous())
    yield case(here, "trace", "ii->", i=4096, plain=torch.trace)
    yield case(here, "traces of a batch", "bii->b", b=4096, i=32)
    yield case(here, "diagonals of a batch", "bii->bi", b=4096, i=32)
    yield case(here, "outer product", "i,j->ij", **square, plain=torch.outer)
    yield case(here, "elementwise", "ij,ij->ij", **square, plain=torch.mul)
    yield case(here, "elementwise, transposed", "ij,ji->ij", **square, plain=lambda x, y: (x * y.T).contiguous())
    yield case(here, "row sums", "ij->i", **square, plain=lambda x: x.sum(1))
    yield case(here, "column sums, fp64", "ij->j", **square, dtype=DOUBLE, plain=lambda x: x.sum(0))
    yield case(here, "sum of all", "ij->", **square, plain=torch.sum)
    yield case(here, "dot", "i,i->", i=1 << 24, plain=torch.dot)
    yield case(here, "inner product of matrices", "ij,ij->", **square)
    yield case(here, "matrix by vector", "ij,j->i", **square, plain=torch.mv)
    yield case(here, "vector by matrix, fp64", "i,ij->j", **square, dtype=DOUBLE)
    yield case(here, "dots of a batch", "bi,bi->b", b=8192, i=512)
    yield case(here, "matrices by vectors", "bij,bj->bi", b=256, i=256, j=256)
    yield case(here, "quadratic forms", "bi,ij,bj->b", b=4096, i=64, j=64)


def _memory() -> Iterator[EverydayCase]:
    here = "memory and shapes"
    square = dict.fromkeys("mkn", 1024)
    for layout in ("permuted", "padded", "strided", "offset", "expanded"):
        yield case(here, f"product, A {layout}", "mk,kn->mn", **square, layouts=(layout, "contiguous"))
    yield case(here, "batch, B broadcast", "bmk,kn->bmn", b=64, m=256, k=256, n=256, dtype=HALF, plain=torch.matmul)
    for columns in (1, 2, 4, 8, 16, 20):
        yield case(here, f"{columns} columns, fp32", "mk,kn->mn", m=4096, k=4096, n=columns, plain=torch.mm)
    for depth in (1, 2, 4, 8):
        yield case(here, f"sums of {depth}", "mk,kn->mn", m=2048, k=depth, n=2048, plain=torch.mm)
    yield case(here, "odd extents", "mk,kn->mn", m=1001, k=777, n=1003, dtype=HALF, plain=torch.mm)
    yield case(here, "primes, fp64", "mk,nk->mn", m=509, k=211, n=307, dtype=DOUBLE)
    yield case(here, "long sums", "km,kn->mn", k=1 << 18, m=32, n=32)


def _max_plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = max(1, (1 << 26) // y.numel())
    return torch.cat([(x[at : at + rows, :, None] + y).amax(1) for at in range(0, x.shape[0], rows)])


def _algebras() -> Iterator[EverydayCase]:
    here = "algebras"
    yield case(here, "max-plus 2000", "ik,kj->ij", i=2000, k=2000, j=2000, options={"algebra": "max_plus"},
               plain=_max_plus, regret=True)  # fmt: skip
    yield case(here, "max-plus 128", "ik,kj->ij", i=128, k=128, j=128, options={"algebra": "max_plus"},
               plain=_max_plus)  # fmt: skip
    yield case(here, "shortest paths 256", "ik,kj->ij", i=256, k=256, j=256, options={"algebra": "min_plus"},
               plain=lambda x, y: (x[:, :, None] + y).amin(1))  # fmt: skip
    yield case(here, "logarithms 256", "ik,kj->ij", i=256, k=256, j=256, options={"algebra": "log"},
               plain=lambda x, y: torch.logsumexp(x[:, :, None] + y, 1))  # fmt: skip
    yield case(here, "forward step of hidden states", "bi,ij->bj", b=64, i=64, j=64, options={"algebra": "log"},
               plain=lambda x, y: torch.logsumexp(x[:, :, None] + y, 1))  # fmt: skip
    yield case(here, "Viterbi step", "bi,ij->bj", b=64, i=64, j=64, options={"algebra": "max_plus"},
               plain=lambda x, y: (x[:, :, None] + y).amax(1))  # fmt: skip


def _one_by_one(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [torch.mm(a, b) for a, b in zip(tensors[::2], tensors[1::2], strict=True)]


def _groups() -> Iterator[EverydayCase]:
    draw = random.Random(11)

    def group(name: str, parts: list[tuple[int, int, int]], dtype: torch.dtype) -> EverydayCase:
        ragged = tuple({"m": m, "k": k, "n": n} for m, k, n in parts)
        return case("groups", name, "mk,kn->mn", task="group", ragged=ragged, dtype=dtype, plain=_one_by_one)

    yield group("8 experts with rows of their own", [(draw.randint(1, 512), 1024, 2048) for _ in range(8)], HALF)
    yield group("64 experts with few rows", [(draw.randint(1, 32), 512, 512) for _ in range(64)], HALF)
    yield group("200 mixed products, fp64", [tuple(draw.randint(1, 32) for _ in range(3)) for _ in range(200)], DOUBLE)  # type: ignore[misc]
    yield group("100 sectors of a block matrix", [(size, size, size) for size in range(1, 101)], DOUBLE)
    yield group("16 equal products, fp32", [(128, 128, 128)] * 16, SINGLE)
