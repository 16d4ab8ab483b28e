"""Contractions built straight from `weft.spec`, run in every way, and held against `numpy.einsum`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.cpu.gett import family as gett
from weft.cpu.gett.forms import form_of
from weft.cpu.level import vector_bytes
from weft.fn import Pointwise, trace
from weft.library import family as library
from weft.planner.schedule import Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Layout, canonical, parse
from weft.spec.contraction import class_modes, mode_extents, output_shape
from weft.spec.dtypes import resolve, value_type
from weft.spec.notation import expand
from weft.testing import poisoned, random_operand

Function = Callable[[torch.Tensor], torch.Tensor]

TARGET = Target("cpu", name="CPU", processors=2)
# Blocks far too small to be chosen, so that a few elements take many: register blocks of rows and lanes, and k.
TINY = ((1, 1, 2), (2, 1, 5), (1, 2, 64))
FEW = "it has too few rows and columns for register blocks"  # which is about speed


class Way(NamedTuple):
    """A family and one of its schedules."""

    family: Any
    schedule: Any

    def build(self, contraction: Contraction) -> Launch:
        launch: Launch = self.family.build(contraction, self.schedule, TARGET)
        return launch

    @property
    def name(self) -> str:
        return str(self.family.__name__.removeprefix("weft.").removeprefix("cpu.").removesuffix(".family"))


@dataclass
class Problem:
    """One contraction with its tensors; D is made anew, poisoned and guarded, for each schedule.

    `by_kernels`: whether `gett` serves it as well as torch's operations, which serve every one.
    """

    equation: str
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None = None
    alpha: Scalar = 1
    beta: Scalar = 1
    out_dtype: torch.dtype | None = None
    out_layout: str = "contiguous"
    precision: str | torch.dtype | None = None
    accumulate: torch.dtype | None = None
    functions: dict[str, Function] = field(default_factory=dict)
    conjugate: tuple[bool, bool] = (False, False)
    by_kernels: bool = True

    @property
    def arithmetic(self) -> Arithmetic:
        return resolve(self.a.dtype, self.b.dtype, self.precision, self.accumulate)

    @property
    def shape(self) -> tuple[int, ...]:
        notation = expand(parse(self.equation), (self.a.dim(), self.b.dim()))
        return output_shape(notation, mode_extents(notation, (self.a.shape, self.b.shape)))

    @property
    def dtype(self) -> torch.dtype:
        return self.out_dtype or torch.promote_types(self.a.dtype, self.b.dtype)

    def contraction(self, d: torch.Tensor) -> Contraction:
        notation = expand(parse(self.equation), (self.a.dim(), self.b.dim()))
        extents = mode_extents(notation, (self.a.shape, self.b.shape))
        a, b, d_layout = Layout.of(self.a), Layout.of(self.b), Layout.of(d)
        c = Layout.of(self.c) if self.c is not None else None
        return canonical(
            Contraction(
                class_modes(notation, a, b, c, d_layout, extents),
                a,
                b,
                c,
                d_layout,
                self.arithmetic,
                text=self.equation,
                conjugate_a=self.conjugate[0],
                conjugate_b=self.conjugate[1],
                **{name: self.traced(name) for name in self.functions},
            )
        )

    def traced(self, hook: str) -> Pointwise:
        product, accumulate = self.arithmetic.product, self.arithmetic.accumulate
        operand = {"a_fn": self.a, "b_fn": self.b}.get(hook)
        seen = accumulate if operand is None else value_type(operand.dtype, product)
        return trace(self.functions[hook], (seen,), hook=hook)

    def launch(self, way: Way, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
        c = self.c if c is None else c
        way.build(self.contraction(d))(self.a, self.b, c, d, self.alpha, self.beta)

    def results(self, every: bool = True) -> Iterator[tuple[Way, torch.Tensor]]:
        """D in each way that is offered, and with `every` in tiny blocks."""
        sources = [tensor.clone() for tensor in (self.a, self.b)]
        guarded = poisoned(self.shape, self.dtype, layout=self.out_layout)
        contraction = self.contraction(guarded.tensor)
        for way in all_ways(contraction, every, by_kernels=self.by_kernels):
            guarded = poisoned(self.shape, self.dtype, layout=self.out_layout)
            self.launch(way, guarded.tensor)
            guarded.check_guards()
            for source, kept in zip((self.a, self.b), sources, strict=True):
                assert torch.equal(source.nan_to_num(), kept.nan_to_num()), "an operand was written"
            yield way, guarded.tensor


def all_ways(contraction: Contraction, every: bool = True, *, by_kernels: bool = True) -> list[Way]:
    """What each family offers; with `every` the engine's tiny blocks as well, all operands packed, in several parts.

    Fails where `gett` serves what it should not, or the other way round.
    """
    ways = list(_offered(contraction, every))
    assert {way.name for way in ways} == ({"gett", "library"} if by_kernels else {"library"})
    return ways


def _offered(contraction: Contraction, every: bool) -> Iterator[Way]:
    assert library.supports(contraction, TARGET) is None
    yield from (Way(library, schedule) for schedule in library.schedules(contraction, TARGET).schedules)
    if gett.supports(contraction, TARGET) not in (None, FEW):
        return
    (best,) = gett.schedules(contraction, TARGET).schedules
    assert isinstance(best, gett.CpuGettSchedule)
    yield Way(gett, best)
    form = form_of(contraction)
    lanes, k = 2 * vector_bytes() // form.item, form.axes.counts[3]
    for rows, pairs, depth in TINY if every else ():
        blocks = (rows * form.height, pairs * lanes, min(k, depth))
        yield Way(gett, replace(best, blocks=blocks, direct=(False, False), parts=(2, 2), threads=2))


def numpy_einsum(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The result in fp64, complex128 or Python-like integers, and the sum of magnitudes that its error scales with."""
    product = problem.arithmetic.product
    factors = []
    for name, operand, conjugate in zip(("a_fn", "b_fn"), (problem.a, problem.b), problem.conjugate, strict=True):
        values = operand.resolve_conj().resolve_neg().to(value_type(operand.dtype, product))
        values = values.conj().resolve_conj() if conjugate else values
        if name in problem.functions:
            values = problem.functions[name](values).to(values.dtype)
        factors.append(wide(values))
    total = problem.alpha * np.einsum(problem.equation, *factors)
    size = abs(problem.alpha) * np.einsum(problem.equation, *(np.abs(factor) for factor in factors))
    if problem.c is not None and problem.beta != 0:
        addend = problem.c.resolve_conj().to(problem.arithmetic.accumulate)
        addend = problem.functions["c_fn"](addend) if "c_fn" in problem.functions else addend
        total = total + problem.beta * wide(addend)
        size = size + abs(problem.beta) * np.abs(wide(addend))
    if "epilogue" in problem.functions:
        total = wide(problem.functions["epilogue"](torch.from_numpy(np.array(total))))
    return total, size


def wide(values: torch.Tensor) -> np.ndarray:
    if values.is_complex():
        return values.resolve_conj().to(torch.complex128).numpy()
    return values.to(torch.float64 if values.is_floating_point() else torch.int64).numpy()


def reduced(problem: Problem) -> int:
    """K: products summed for each element of D."""
    notation = expand(parse(problem.equation), (problem.a.dim(), problem.b.dim()))
    extents = mode_extents(notation, (problem.a.shape, problem.b.shape))
    return int(np.prod([extent for label, extent in extents.items() if label not in notation.output]))


def check(problem: Problem, *, every: bool = True, steepest: float = 1.0) -> None:
    """D is in every way within the rounding of K products of `numpy.einsum` in fp64, D's own rounding added.

    `steepest` is the largest slope of the epilogue.
    """
    expected, size = numpy_einsum(problem)
    accumulate = problem.arithmetic.accumulate
    exact = not (accumulate.is_floating_point or accumulate.is_complex)
    unit = 0.0 if exact else torch.finfo(accumulate).eps
    store = problem.dtype
    rounding = torch.finfo(store).eps if store.is_floating_point or store.is_complex else 0.0
    factor = 4 if accumulate.is_complex else 1
    smallest = rounding * torch.finfo(store).smallest_normal if rounding else 0.0
    bound = steepest * factor * (reduced(problem) + 8) * unit * size + rounding * np.abs(expected) + smallest
    for way, d in problem.results(every):
        error = np.abs(wide(d) - expected)
        assert np.all(error <= bound), f"{way}: off by {np.max(error - bound)} beyond its bound"


def operands(
    equation: str,
    extents: dict[str, int],
    dtype: torch.dtype = torch.float32,
    dtype_b: torch.dtype | None = None,
    *,
    layouts: tuple[str, str] = ("contiguous", "contiguous"),
    integers: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random A and B of an equation, in poisoned memory; see `weft.testing.random_operand`."""
    term_a, term_b = equation.split("->")[0].split(",")
    a = random_operand(shape(term_a, extents), dtype, 1, layout=layouts[0], integers=integers)
    b = random_operand(shape(term_b, extents), dtype_b or dtype, 2, layout=layouts[1], integers=integers)
    return a, b


def shape(term: str, extents: dict[str, int]) -> tuple[int, ...]:
    return tuple(extents[label] for label in term)
