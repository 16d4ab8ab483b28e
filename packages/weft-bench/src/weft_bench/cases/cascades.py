"""Cascades: attention, kernel sums, a step of Sinkhorn's iteration, a loss over a vocabulary.

A `CascadeCase` says what is computed and of which extents; `weft_bench.cascades` knows how.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

ATTENTION = "bhqd,bhkd->bhqk, bhqk,bhke->bhqe"
SUM = "id,jd->ij, ij,je->ie"
PAIRS = "id,jd->ij"  # whatever is left of them
LOSS = "td,wd->tw"
POINTS = 100_000


@dataclass(frozen=True)
class CascadeCase:
    """One cascade. Its operands are contiguous, the modes of the first two end in (rows, terms) and (columns, terms).

    attention  softmax over keys            causal     the same of the keys up to each query
    window     soft cap, ALiBi, and a causal window of 1024
    gauss      sum_j exp(-|x_i - y_j|^2 / d) b_j
    sinkhorn   -0.1 logsumexp_j 10 (g_j - |x_i - y_j|^2)
    loss       cross-entropy of a linear layer
    """

    name: str
    task: str
    equation: str
    extents: tuple[tuple[str, int], ...]
    dtype: torch.dtype = torch.float16
    precision: str | None = None
    backward: bool = False  # a forward and a backward pass, with gradients of A, B and C

    @property
    def group(self) -> str:
        """The cases that it is averaged with."""
        return self.name.partition("-")[0] + "-both" * self.backward

    @property
    def long(self) -> tuple[str, str]:
        """The modes that S has of A alone and of B alone: its rows and columns."""
        first = self.equation.partition("->")[0].split(",")
        rows, columns = (term[-2] for term in first)
        return rows, columns

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of A, B, and C where there is one."""
        first, _, second = self.equation.partition(", ")
        terms = [*first.partition("->")[0].split(","), *([second.partition("->")[0].split(",")[1]] if second else [])]
        sizes = dict(self.extents)
        return tuple(tuple(sizes[label] for label in term) for term in terms)

    @property
    def elements(self) -> int:
        """Elements of S, which nobody needs to have in memory."""
        sizes = dict(self.extents)
        return math.prod(sizes[label] for label in self.equation.partition(", ")[0].partition("->")[2])

    @property
    def work(self) -> int:
        """Multiply-adds of the forward pass."""
        sizes = dict(self.extents)
        return self.elements * (sizes["d"] + sizes.get("e", 0))

    def shrunk(self, work: int) -> CascadeCase:
        """The case with about so many multiply-adds at most: fewer rows and columns, as many where they were."""
        sizes, (rows, columns) = dict(self.extents), self.long
        if self.work <= work:
            return self
        count = sizes[rows] * sizes[columns] * work / self.work
        square = sizes[rows] == sizes[columns]
        sizes[rows] = max(2, int(math.sqrt(count))) if square else min(sizes[rows], max(8, int(math.sqrt(count))))
        sizes[columns] = sizes[rows] if square else max(2, int(count / sizes[rows]))
        return replace(self, extents=tuple(sizes.items()))


def cascades() -> tuple[CascadeCase, ...]:
    """The cases."""
    return tuple(_cases())


def _cases() -> Iterator[CascadeCase]:
    for n, heads in ((4096, 16), (16384, 4)):
        for task, said in (("attention", "full"), ("causal", "causal")):
            yield from _both(CascadeCase(f"attention-{n}-{said}", task, ATTENTION, _attention(heads, n, n)))
    yield from _both(CascadeCase("window-8192", "window", ATTENTION, _attention(8, 8192, 8192)))
    for n in (8192, 65536):  # eight heads of queries to each of eight
        yield CascadeCase(f"decode-{n}", "attention", ATTENTION, _attention(8, 8, n))
    for d, precision in ((3, "ieee"), (64, "ieee"), (64, "ieee_bound"), (64, "tf32x3")):
        points = (("i", POINTS), ("j", POINTS), ("d", d))
        said = f"{d}-{precision}"
        yield CascadeCase(f"gauss-{said}", "gauss", SUM, (*points, ("e", 1)), torch.float32, precision)
        yield CascadeCase(f"sinkhorn-{said}", "sinkhorn", PAIRS, points, torch.float32, precision)
    yield CascadeCase("loss-128000", "loss", LOSS, (("t", 8192), ("w", 128_000), ("d", 4096)), torch.bfloat16)


def _both(case: CascadeCase) -> tuple[CascadeCase, CascadeCase]:
    return case, replace(case, name=f"{case.name}-both", backward=True)


def _attention(heads: int, queries: int, keys: int) -> tuple[tuple[str, int], ...]:
    return (("b", 1), ("h", heads), ("q", queries), ("k", keys), ("d", 128), ("e", 128))
