"""The problem of a flight's rungs: tensors of one call, its work, and whether a result is right.

    Product              D = A B, through the oracle's bounds:  run(a, b, d)
    LadderContraction    a case of the benchmarks, the same:    run(a, b, d)
    Transposition        bit for bit; or a copy, or in place:   run(x, d), run(x)
    Sums, Histogram      many numbers to few:                   run(x, d)
    TwoSite              Y = G X M, held against float64:       run(g, x, m, y)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from weft.errors import ShapeError
from weft.machine.ceilings import rate_name
from weft.machine.counts import Work
from weft.testing import assert_close, max_error_over_bound, poisoned, random_operand
from weft_bench.cases import Case
from weft_bench.checking import WrongResult
from weft_bench.problems import ContractionProblem
from weft_bench.profiling.subject import Arguments

Run = Callable[..., torch.Tensor]


class LadderProblem(Protocol):
    """The computation that rungs of a flight share."""

    @property
    def text(self) -> str:
        """The equation, its extents and its types, in words."""

    @property
    def rate(self) -> str:
        """The name of the device's rate that bounds its products (see `Ceilings.rate`); empty: it only moves."""

    @property
    def work(self) -> Work:
        """Flops and compulsory bytes of one call."""

    def tensors(self, device: torch.device) -> Arguments:
        """The arguments of one call."""

    def checker(self, device: torch.device) -> Callable[[Run], float]:
        """A function that returns the largest error of a run over its bound; `AssertionError` where that is over 1."""

    def call(self, run: Run) -> Run:
        """How `run` is called with `tensors`."""


@dataclass(frozen=True)
class LadderContraction:
    """A contraction of two operands."""

    case: Case

    @property
    def text(self) -> str:
        extents = " ".join(f"{label}={extent}" for label, extent in self.case.extents.items())
        a, _, d = (str(dtype).removeprefix("torch.") for dtype in self.case.dtypes)
        hooks = [f"{hook}={name}" for hook in ("a_fn", "b_fn", "epilogue") if (name := getattr(self.case, hook))]
        precision = f", products in {self.case.precision}" if self.case.precision is not None else ""
        return f"{self.case.notation} {extents}, {' '.join([*hooks, ''])}{a} -> {d}{precision}"

    @property
    def rate(self) -> str:
        precision = self.case.precision if isinstance(self.case.precision, str) else "ieee"
        stored = self.case.dtypes[0]
        return rate_name(stored, stored if stored is torch.float64 else torch.float32, precision)

    @property
    def work(self) -> Work:
        case = self.case
        sizes = [dtype.itemsize for dtype in case.dtypes]
        a, b, d = (math.prod(shape) * size for shape, size in zip((*case.shapes, case.d_shape), sizes, strict=True))
        return Work(2 * case.work, 0, a, b, 0, d)

    def tensors(self, device: torch.device) -> Arguments:
        given = ContractionProblem(self.case).inputs(device)
        return Arguments((given.a, given.b, given.d))

    def checker(self, device: torch.device) -> Callable[[Run], float]:
        problem = ContractionProblem(self.case)
        check = problem.check(problem.inputs(device))
        return lambda run: check.error(lambda a, b, c, d: run(a, b, d), None)

    def call(self, run: Run) -> Run:
        return run


def product(m: int, n: int, k: int, dtype: torch.dtype, precision: str | None = None) -> LadderContraction:
    """A product of matrices stored by rows, the result of the operands' type."""
    return LadderContraction(Case("product", "mk,kn->mn", ((m, k), (k, n)), (dtype,) * 3, precision=precision))


@dataclass(frozen=True)
class Transposition:
    """A matrix and its transposed: `kind` "" into another one, "copy" without transposing, "in place"."""

    rows: int
    columns: int
    dtype: torch.dtype
    by_columns: bool = False  # how both matrices are stored
    kind: str = ""

    rate = ""

    @property
    def text(self) -> str:
        order = "columns" if self.by_columns else "rows"
        kind = f", {self.kind}" if self.kind else ""
        return f"{self.rows} x {self.columns} of {str(self.dtype).removeprefix('torch.')}, stored by {order}{kind}"

    @property
    def work(self) -> Work:
        moved = self.rows * self.columns * self.dtype.itemsize
        return Work(0, 0, moved, 0, 0, moved)

    def tensors(self, device: torch.device) -> Arguments:
        if self.kind == "in place" and self.rows != self.columns:
            raise ShapeError(f"a matrix of {self.rows} x {self.columns} is not square: it has no place for its own")
        x = self._stored(random_operand((self.rows, self.columns)[:: self._step], self.dtype, 1, device=device))
        if self.kind == "in place":
            return Arguments((x,))
        shape = x.shape if self.kind == "copy" else x.shape[::-1]
        return Arguments((x, self._stored(poisoned(tuple(shape)[:: self._step], self.dtype, device=device).tensor)))

    def checker(self, device: torch.device) -> Callable[[Run], float]:
        def error(run: Run) -> float:
            tensors = self.tensors(device)
            x = tensors[0].clone()
            expected = x if self.kind == "copy" else x.t()
            result = self.call(run)(*tensors)
            if result.shape != expected.shape or not torch.equal(result, expected):
                raise WrongResult(math.inf, "elements are not where they belong")
            return 0.0

        return error

    def call(self, run: Run) -> Run:
        """A matrix stored by columns is, as it lies, its transposed by rows: the same kernel moves it."""
        if not self.by_columns:
            return run
        return lambda *tensors: run(*(each.t() for each in tensors)).t()

    @property
    def _step(self) -> int:
        return -1 if self.by_columns else 1

    def _stored(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.t() if self.by_columns else memory


@dataclass(frozen=True)
class Sums:
    """d[m] = sum over n of X[m, n] in float32, within a rounding for each addition of the sum of magnitudes."""

    rows: int
    columns: int

    rate = ""

    @property
    def text(self) -> str:
        return f"sums of the rows of {self.rows} x {self.columns}, float32"

    @property
    def work(self) -> Work:
        return Work(self.rows * self.columns, 0, 4 * self.rows * self.columns, 0, 0, 4 * self.rows)

    def tensors(self, device: torch.device) -> Arguments:
        x = random_operand((self.rows, self.columns), torch.float32, 1, device=device)
        return Arguments((x, poisoned((self.rows,), torch.float32, device=device).tensor))

    def checker(self, device: torch.device) -> Callable[[Run], float]:
        x, d = self.tensors(device)
        bound = self.columns * torch.finfo(torch.float32).eps * x.double().abs().sum(1)
        return lambda run: held(run(x, d), x.double().sum(1), bound)

    def call(self, run: Run) -> Run:
        return run


@dataclass(frozen=True)
class Histogram:
    """d[v] = how many of x are v, for v from 0 to 255, exactly."""

    count: int
    bins: int = 256

    rate = ""

    @property
    def text(self) -> str:
        return f"a histogram of {self.count} elements in {self.bins} bins, int32"

    @property
    def work(self) -> Work:
        return Work(0, 0, 4 * self.count, 0, 0, 4 * self.bins)

    def tensors(self, device: torch.device) -> Arguments:
        generator = torch.Generator().manual_seed(1)
        x = torch.randint(0, self.bins, (self.count,), generator=generator, dtype=torch.int32)
        return Arguments((x.to(device), torch.full((self.bins,), -1, dtype=torch.int32, device=device)))

    def checker(self, device: torch.device) -> Callable[[Run], float]:
        x, d = self.tensors(device)
        expected = torch.bincount(x.long().cpu(), minlength=self.bins).double().to(device)
        return lambda run: held(run(x, d), expected, torch.zeros_like(expected))

    def call(self, run: Run) -> Run:
        return run


def held(result: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> float:
    """The largest error of a result over its bound; `WrongResult` where that is over 1."""
    try:
        assert_close(result, expected, bound)
    except AssertionError as found:
        raise WrongResult(max_error_over_bound(result, expected, bound), str(found)) from None
    return max_error_over_bound(result, expected, bound)


@dataclass(frozen=True)
class TwoSite:
    """Y[b, p, r] = sum over q, c of G[p, q] X[b, q, c] M[c, r] in float32: the update of two sites of a network."""

    batch: int
    physical: int  # p and q
    bond: int  # c and r

    rate = "float32"

    @property
    def text(self) -> str:
        b, d, chi = self.batch, self.physical, self.bond
        return f"Y = G X M, G {d} x {d}, X {b} x {d} x {chi}, M {chi} x {chi}, float32"

    @property
    def work(self) -> Work:
        b, d, chi = self.batch, self.physical, self.bond
        return Work(2 * b * d * chi * (d + chi), 0, 4 * b * d * chi, 4 * (d * d + chi * chi), 0, 4 * b * d * chi)

    def tensors(self, device: torch.device) -> Arguments:
        b, d, chi = self.batch, self.physical, self.bond
        shapes = (d, d), (b, d, chi), (chi, chi)
        given = [random_operand(shape, torch.float32, at, device=device) for at, shape in enumerate(shapes, 1)]
        return Arguments((*given, poisoned((b, d, chi), torch.float32, device=device).tensor))

    def checker(self, device: torch.device) -> Callable[[Run], float]:
        """The bound is that of sums in any order: a rounding for each of their steps, of the sum of all magnitudes."""
        tensors = self.tensors(device)
        g, x, m = (each.double() for each in tensors[:3])
        steps = self.physical + self.bond + 4
        bound = steps * torch.finfo(torch.float32).eps * _update(g.abs(), x.abs(), m.abs())
        expected = _update(g, x, m)

        def error(run: Run) -> float:
            result = run(*tensors[:3], poisoned(tuple(expected.shape), torch.float32, device=device).tensor)
            return held(result, expected, bound)

        return error

    def call(self, run: Run) -> Run:
        return run


def _update(g: torch.Tensor, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return (g @ x) @ m
