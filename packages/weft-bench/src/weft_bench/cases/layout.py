"""Permutations, transpositions and dense matrix products: what tests and the suites `permute` and `dense` share.

    permutations(dtype)     30 of ranks 2 to 8 and the reversal of 2^25, each of about 32 Mi elements
    fused()                 some of them in float32, with a ReLU and with a cast to float16 besides
    transpositions(dtype)   the thesis's matrices, out of place: square, wide, tall and thin
    in_place(dtype)         matrices for `weft.transpose_`, square and rectangular
    dense(dtype)            the thesis's matrix products, as contractions: `weft_bench.cases.Case`
    dense_states(dtype)     one product in its four transposition states

The thesis: A. Krastenov, on kernels for dense matrices in TNL, Czech Technical University in Prague, 2024. Its shapes
grow as multiples of a smallest one; here stand the multiples that its tables show, squares up to 10000.

A `PermuteCase` makes its own tensors (`operand`, `result`). weft runs it as ``weft.permute(x, case.equation, out=d)``,
torch as ``d.copy_(x.permute(case.dims))``; both read and write `case.bytes` in all. An in-place case is run as
``weft.transpose_(x)`` on a matrix that may be used again and again: `x` keeps its shape, so that every call does the
same work on the same memory, whatever values have come to lie there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch

from weft.selftest.case import Case, PermuteCase, from_letters

# Multiples at which the thesis's tables sample its growing shapes.
_GROWTH = (1, 13, 25, 37, 50)
_THIN = (1, 12, 25, 36, 50)
_SQUARES = (*_GROWTH, 75, 100)
_SMALL_SQUARES = (2, 5, 10)  # up to 1000, where launches count

_PERMUTATIONS = (
    ("ab->ba", (8192, 4096)),
    ("ab->ba", (5791, 5793)),
    ("ab->ba", (32, 1048576)),
    ("abc->cba", (320, 320, 320)),
    ("abc->acb", (512, 256, 256)),
    ("abc->bac", (512, 256, 256)),
    ("abc->cab", (257, 353, 367)),
    ("abc->bca", (1024, 8, 4096)),
    ("abc->bac", (4096, 2048, 4)),
    ("abcd->dcba", (76, 76, 76, 76)),
    ("abcd->cdab", (64, 80, 72, 90)),
    ("abcd->acbd", (64, 64, 128, 64)),
    ("abcd->adbc", (32, 64, 64, 256)),
    ("abcd->acdb", (31, 96, 104, 105)),
    ("abcd->bdac", (61, 67, 89, 92)),
    ("abcd->dabc", (48, 48, 48, 301)),
    ("abcde->edcba", (32, 32, 32, 32, 32)),
    ("abcde->acebd", (32, 33, 31, 32, 32)),
    ("abcde->cadbe", (64, 8, 128, 64, 8)),
    ("abcde->ebdac", (24, 48, 16, 60, 30)),
    ("abcde->badce", (40, 25, 40, 56, 15)),
    ("abcdef->fedcba", (18, 18, 18, 18, 18, 18)),
    ("abcdef->dafbec", (16, 20, 18, 17, 19, 18)),
    ("abcdef->cdabef", (24, 24, 24, 24, 10, 10)),
    ("abcdef->defabc", (16, 16, 16, 20, 20, 20)),
    ("abcdefg->gfedcba", (12, 12, 12, 12, 12, 12, 12)),
    ("abcdefg->cfabged", (8, 16, 10, 12, 14, 12, 13)),
    ("abcdefgh->hgfedcba", (9, 8, 9, 8, 9, 9, 9, 9)),
    ("abcdefgh->badcfehg", (8, 8, 8, 8, 8, 8, 8, 16)),
    ("abcdefgh->ehafbgcd", (10, 9, 8, 8, 9, 8, 9, 9)),
)
_TWOS = "abcdefghijklmnopqrstuvwxy"
# One case or two of each rank, and the reversal of 2^25.
_FUSED = frozenset("permute-" + name for name in ("2a", "2b", "3a", "3d", "4b", "4f", "5d", "6b", "7b", "8c", "2^25"))
_IN_PLACE = (
    *((n, n) for n in (4096, 5000, 8192, 10000, 16384)),
    *((1000, 9000), (10000, 300), (4096, 12288)),
)


@cache
def permutations(dtype: torch.dtype = torch.float32) -> tuple[PermuteCase, ...]:
    """The suite for one type; 2, 4, 8 and 16 bytes behave differently."""
    ranks: dict[int, int] = {}
    found = []
    for equation, shape in _PERMUTATIONS:
        rank = len(shape)
        ranks[rank] = ranks.get(rank, 0) + 1
        name = f"permute-{rank}{'abcdefghij'[ranks[rank] - 1]}"
        found.append(PermuteCase(name, equation, shape, dtype, frozenset({"permute"})))
    twos = PermuteCase("permute-2^25", f"{_TWOS}->{_TWOS[::-1]}", (2,) * 25, dtype, frozenset({"permute", "many"}))
    return (*found, twos)


@cache
def fused() -> tuple[tuple[str, PermuteCase], ...]:
    """(what is fused, case): some permutations in float32, with a ReLU and with a cast to float16."""
    chosen = [case for case in permutations() if case.name in _FUSED]
    return tuple(
        (name, replace(case, **change))
        for case in chosen
        for name, change in (("relu", {"fn": "relu"}), ("cast", {"out_dtype": torch.float16}))
    )


@cache
def transpositions(dtype: torch.dtype = torch.float32) -> tuple[PermuteCase, ...]:
    """The thesis's transpositions, for its kernels 2.1 to 2.3; the square ones for 2.4 too."""
    series = {
        "square": [(100 * i, 100 * i) for i in _SQUARES],
        "wide": [(50 * i, 100 * i) for i in _SQUARES],
        "tall": [(100 * i, 50 * i) for i in _SQUARES],
        "thin": [(100 * i, i) for i in (*_THIN, 75, 100)],
    }
    return tuple(
        PermuteCase(f"transpose-{name}-{m}x{n}", "ab->ba", (m, n), dtype, frozenset({"transpose", name}))
        for name, shapes in series.items()
        for m, n in shapes
    )


@cache
def in_place(dtype: torch.dtype = torch.float32) -> tuple[PermuteCase, ...]:
    """Matrices to transpose in place."""
    return tuple(
        PermuteCase(
            f"in-place-{m}x{n}", "ab->ba", (m, n), dtype,
            frozenset({"in place", "square" if m == n else "rectangular"}),
        )
        for m, n in _IN_PLACE
    )  # fmt: skip


@cache
def dense(dtype: torch.dtype = torch.float32) -> tuple[Case, ...]:
    """The thesis's products for its kernels 1.1 to 1.6: C[m, n] = A[m, k] B[k, n]."""
    return tuple(
        from_letters(
            f"dense-{name}-{m}x{k}x{n}", "mk,kn->mn", f"dense {name}", m=m, k=k, n=n, dtypes=(dtype, dtype, dtype)
        )
        for name, m, k, n in _products()
    )


@cache
def dense_states(dtype: torch.dtype = torch.float32, extent: int = 1300) -> tuple[Case, ...]:
    """One square product with none, either and both factors transposed."""
    states = {"nn": "mk,kn->mn", "tn": "km,kn->mn", "nt": "mk,nk->mn", "tt": "km,nk->mn"}
    extents = dict.fromkeys("mkn", extent)
    return tuple(
        from_letters(f"dense-state-{state}-{extent}", equation, "dense state", dtypes=(dtype, dtype, dtype), **extents)
        for state, equation in states.items()
    )


def shrunk(case: PermuteCase, elements: int) -> PermuteCase:
    """`case` with at most `elements` elements, its extents shrunk by one factor; none falls from above 2 below 2.

    Where that is not enough, extents of 2 become 1, the last ones first.
    """
    factor = 1.0
    small = case
    while small.elements > elements and any(extent > 2 for extent in small.shape):
        factor *= 0.98
        small = replace(case, shape=tuple(e if e <= 2 else max(2, int(e * factor)) for e in case.shape))
    shape = list(small.shape)
    for at in reversed(range(len(shape))):
        if math.prod(shape) > elements:
            shape[at] = 1
    return replace(small, shape=tuple(shape))


def _products() -> Iterator[tuple[str, int, int, int]]:
    """(series, m, k, n)"""
    yield from (("square", 100 * i, 100 * i, 100 * i) for i in sorted((*_SQUARES, *_SMALL_SQUARES)))
    yield from (("wide", 100 * i, 50 * i, 100 * i) for i in _GROWTH)
    yield from (("tall", 50 * i, 100 * i, 50 * i) for i in _GROWTH)
    yield from (("growth", 20 * i, 80 * i, 60 * i) for i in _GROWTH)
    yield from (("thin-inside", i, 100 * i, i) for i in _THIN)
    yield from (("thin-outside", 100 * i, i, 100 * i) for i in _THIN)
