"""How far a result may lie from the exact one: for each element a bound, from the magnitudes that went into it.

What each step adds is said in `weft.oracle.rounding`. What a function does to an error is found by evaluating it: see
`through`. A reduction in another algebra has a bound where that is known:

max_plus, min_plus, max_times, min_max, max_min: `reduce` picks one of the combined values and rounds nothing, so the
result is off by no more than the worst of them: `u |combine(a_k, b_k)|`, and what the operands' own errors come to.

log: L = log sum exp(x_k). To first order an error d_k of x_k moves L by w_k d_k with w_k = exp(x_k - L), and
sum w_k |x_k| <= |L| + log K, since sum w_k (L - x_k) is the entropy of the weights. A partial sum P enters with the
weight exp(P - L), and exp(P - L) |P| <= |L| + 1/e: each of K steps loses a few units of |L| + 1 at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from weft import algebra as ready
from weft.algebra import Algebra, find
from weft.base.arguments import addition, describe_call, is_zero
from weft.errors import DTypeError, UnsupportedError, call_context
from weft.oracle.arguments import called, factor_of, operand, read_aux, read_pair, several
from weft.oracle.judgement import distance
from weft.oracle.reference import (
    Careful,
    Equation,
    Function,
    Names,
    contract,
    label_extents,
    read_equation,
    wide,
)
from weft.oracle.rounding import (
    NUDGES,
    SHORTENED,
    addend_bound,
    epsilon,
    function_bound,
    magnitude_of,
    rounded_bound,
    shortening,
    sum_bound,
)
from weft.oracle.sums import Factor, reduced, source, sum_of_products
from weft.spec import Arithmetic
from weft.spec.arguments import read_flag
from weft.spec.dtypes import read_types, resolve, results_of, storage_type, value_type
from weft.spec.notation import Label

_PICKING = (ready.max_plus, ready.min_plus, ready.max_times, ready.min_max, ready.max_min, ready.or_and)
_LOG_ULPS = 4.0  # of one logaddexp, in units of the larger of its result and 1

Bounds: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]


def error_bound(
    equation: Equation,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float | complex = 1.0,
    beta: float | complex | None = None,
    out_dtype: Any = None,
    precision: str | torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    a_fn: Function | None = None,
    b_fn: Function | None = None,
    c_fn: Function | None = None,
    epilogue: Function | None = None,
    operands: Mapping[str, tuple[Any, Any]] | None = None,
    indices: Mapping[str, Label] | None = None,
    algebra: str | Algebra = "plus_times",
    promote: bool = False,
) -> Bounds:
    """The most by which each element of `weft.contract` with these arguments may differ from the exact one.

    A float64 tensor in D's shape; a tuple of such for an epilogue that yields several values. The bound of an element::

        alpha * ((K + 2) eps S + (S' - S) + K t) + 3 alpha eps S + beta * (off_c + 3 eps |c|)

    carried through the epilogue and rounded to D's type: ``+ eps_D / 2 * (|D| + bound) + t_D``. S is the sum of
    ``|a_k b_k|`` and S' the same with each factor as far off as its function and a shortened product type ("tf32",
    "tf32x3") leave it; eps is the accumulator's machine epsilon, eps_D and t_D the epsilon and the smallest positive
    value of D's type. A complex product counts as four. Products in fp8 on tensor cores add ``FP8_LOSS S``. Of
    "ieee_bound" the bound is the same, but for factors of 2^127 and more and for S of half of float32's range, where it
    is infinite, and for factors below 2^-110, which may be off by 2^-133. Sources: `weft.oracle.rounding`. It is a
    worst case, and grows with K as the error's worst case does; typical errors grow with the square root of K.

    A function's own error is taken as four times that of the same function in eager PyTorch, at the worst of seven
    near arguments, plus four units in the last place. What it does to an error that it is given is found by evaluating
    it at the value plus and minus half and whole that error: exact for functions that rise or fall throughout, an
    estimate for others, infinite where the function leaves its domain. Results of integers and truth values are exact,
    and so is their bound.

    Memory and time are those of the contraction in float64 several times over; `weft.contract(..., validate=True)`
    does it for a sample. Raises `UnsupportedError` for an algebra of your own on floating types, for which no bound is
    known, and the errors of `weft.contract` for arguments that do not fit.

    >>> import torch, weft
    >>> a, b = torch.full((1, 1000), 0.1), torch.full((1000, 1), 0.1)
    >>> bound = weft.error_bound("ik,kj->ij", a, b)
    >>> bool((a @ b - 10.0).abs() <= bound + 1e-6) and float(bound) < 0.01
    True
    """
    with call_context(lambda: describe_call("error_bound", equation, a=a, b=b, c=c)):
        return expectation(
            equation, a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, precision=precision,
            accumulate=accumulate, a_fn=a_fn, b_fn=b_fn, c_fn=c_fn, epilogue=epilogue, operands=operands,
            indices=indices, algebra=algebra, promote=promote,
        )[1]  # fmt: skip


def expectation(
    equation: Equation,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    c: torch.Tensor | None = None,
    alpha: float | complex = 1.0,
    beta: float | complex | None = None,
    out_dtype: Any = None,
    precision: str | torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    a_fn: Function | None = None,
    b_fn: Function | None = None,
    c_fn: Function | None = None,
    epilogue: Function | None = None,
    operands: Mapping[str, tuple[Any, Any]] | None = None,
    indices: Mapping[str, Label] | None = None,
    algebra: str | Algebra = "plus_times",
    promote: bool = False,
) -> tuple[Any, Any]:
    """The oracle's D, and for each of its elements the most by which a correct result may differ: see `error_bound`.

    Both are tuples where the epilogue yields several values. The oracle's own rounding, in float64, is in the bound.
    """
    a, b = operand("a", a), operand("b", b)
    c, beta = addition(c, beta, None)
    c = operand("c", c) if c is not None else None
    alpha, beta = factor_of("alpha", alpha), factor_of("beta", beta)
    promote, operands, indices = read_flag("promote", promote), read_aux(operands), read_aux(indices)
    other = find(algebra)
    out_dtype, precision, accumulate = read_types(out_dtype, precision, accumulate)
    stored = storage_type(a.dtype, b.dtype, other is not None, promote)
    hooks = {"a_fn": a_fn, "b_fn": b_fn, "c_fn": c_fn, "epilogue": epilogue}
    reading = _BoundReading.of(equation, a, b, hooks, operands, indices)
    arithmetic = resolve(
        a.dtype, b.dtype, precision, accumulate, other.name if other else None, promote,
        results=results_of(out_dtype, stored), count=reading.count,
    )  # fmt: skip
    total = arithmetic.accumulate
    if promote and a.dtype != b.dtype:
        precision = precision or arithmetic.product  # what the oracle would not guess from the operands alone
    inner = {name for hook in ("a_fn", "b_fn", "c_fn") for name in reading.names.of(hook)}
    value = contract(
        equation, a, b, c=c, alpha=alpha, beta=beta, precision=precision, accumulate=total,
        a_fn=a_fn, b_fn=b_fn, c_fn=c_fn, algebra=algebra,
        operands={name: operands[name] for name in operands if name in inner},
        indices={name: indices[name] for name in indices if name in inner},
    )  # fmt: skip
    if not (total.is_floating_point or total.is_complex):
        bound = torch.zeros(value.shape, dtype=torch.float64, device=a.device)
    else:
        x, y = (reading.factor(at, x, arithmetic) for at, x in enumerate((a, b)))
        addend = reading.addend(c, total) if c is not None and beta != 0 else None
        if other is None:
            bound = _sum_bound(reading, x, y, arithmetic, stored, alpha)
            if addend is not None:
                bound = bound + addend_bound(*addend, total, beta)
        else:
            bound = reduction_bound(other, x, y, reading.output, reading.count, epsilon(total), value, reading.shape)
            if addend is not None:
                bound = reduced_addend_bound(other, bound, addend[1], epsilon(total), value)
        bound = bound.expand(value.shape)
    return reading.finished(value, bound, total, stored, out_dtype)


@dataclass(frozen=True, slots=True)
class _BoundReading:
    """A contraction read: its labels, and what each function takes beside the value."""

    terms: tuple[tuple[Label, ...], ...]  # of A, B and D
    extents: Mapping[Label, int]
    hooks: Mapping[str, Function | None]
    names: Names
    narrow: Mapping[str, torch.dtype]  # in which an operand is stored

    @classmethod
    def of(
        cls, equation: Equation, a: torch.Tensor, b: torch.Tensor, hooks: Any, operands: Any, indices: Any
    ) -> _BoundReading:
        notation = read_equation(equation, (a.ndim, b.ndim))
        extents = label_extents(notation, (a.shape, b.shape))
        narrow = {name: read_pair(name, pair)[1].dtype for name, pair in operands.items()}
        names = Names(hooks, operands, indices, extents, a.device)
        return cls((*notation.inputs, notation.output), extents, hooks, names, narrow)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.extents[label] for label in self.terms[2])

    @property
    def output(self) -> tuple[Label, ...]:
        return tuple(label for label in self.terms[2] if self.extents[label] != 1)

    @property
    def count(self) -> int:
        """Products in one sum."""
        return math.prod(extent for label, extent in self.extents.items() if label not in self.terms[2])

    def factor(self, at: int, stored: torch.Tensor, arithmetic: Arithmetic) -> Factor:
        hook = ("a_fn", "b_fn")[at]
        dtype = value_type(stored.dtype, arithmetic.product)
        there = source(self.terms[at], stored, _as_it_is, self.names.of(hook), self.extents)
        values, off = self._behind(hook, wide(there.stored.to(dtype)), dtype, there.aux_args)
        off = (off + shortening(arithmetic, values)).expand(values.shape)
        exact = self.hooks[hook] is None and arithmetic.precision not in SHORTENED and not arithmetic.split
        return Factor(replace(there, stored=values, aux_args={}), replace(there, stored=off, aux_args={}), exact)

    def addend(self, c: torch.Tensor, total: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Values of C behind their function, and how far each may be off."""
        values = wide(c.to(total)).expand(self.shape)  # what its function takes besides may be longer
        return self._behind("c_fn", values, total, self.names.along("c_fn", self.terms[2]))

    def _behind(
        self, hook: str, values: torch.Tensor, dtype: torch.dtype, aux_args: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values behind the function of a hook, where there is one, and how far each may be off."""
        off = torch.zeros((), dtype=torch.float64, device=values.device).expand(values.shape)
        if (function := self.hooks[hook]) is not None:
            [(values, off, _)] = through(function, values, off, dtype, aux_args, self._stored(aux_args))
        return values, off

    def finished(
        self, value: torch.Tensor, bound: torch.Tensor, total: torch.dtype, stored: torch.dtype, out_dtype: Any
    ) -> tuple[Any, Any]:
        """Through the epilogue, and rounded to the results' types."""
        function = self.hooks["epilogue"]
        if function is None and isinstance(out_dtype, tuple):
            raise DTypeError(f"out_dtype names {len(out_dtype)} types, and there is no epilogue that returns a tuple")
        if function is None:
            return value, rounded_bound(value, bound, out_dtype or _default_result(stored, value))
        aux_args = self.names.along("epilogue", self.terms[2])
        found = through(function, value, bound, total, aux_args, self._stored(aux_args))
        asked = out_dtype if isinstance(out_dtype, tuple) else (out_dtype, *(None for _ in found[1:]))
        first = _default_result(stored, found[0][0])
        defaults = (first, *(dtype for _, _, dtype in found[1:]))
        bounds = tuple(
            rounded_bound(result, off, wanted or default)
            for (result, off, _), wanted, default in zip(found, asked, defaults, strict=True)
        )
        results = tuple(result for result, _, _ in found)
        return (results, bounds) if len(found) > 1 else (results[0], bounds[0])

    def _stored(self, aux_args: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Operands in the types that they are stored in, which the oracle has widened."""
        return {name: x.to(self.narrow.get(name, x.dtype)) for name, x in aux_args.items()}


def _sum_bound(
    reading: _BoundReading, x: Factor, y: Factor, arithmetic: Arithmetic, stored: torch.dtype, alpha: float | complex
) -> torch.Tensor:
    """The bound of alpha times the sum of products."""
    if is_zero(alpha):
        device = x.value.stored.device
        return torch.zeros(reading.shape, dtype=torch.float64, device=device)
    magnitude = sum_of_products(x.size, y.size, reading.output).reshape(reading.shape)
    furthest = magnitude
    if not (x.exact and y.exact):
        furthest = sum_of_products(x.furthest, y.furthest, reading.output).reshape(reading.shape)
    return sum_bound(magnitude, furthest, reading.count, arithmetic, stored.is_complex, alpha)


def through(
    function: Function,
    values: torch.Tensor,
    off: torch.Tensor,
    dtype: torch.dtype,
    aux_args: Mapping[str, torch.Tensor] | None = None,
    stored: Mapping[str, torch.Tensor] | None = None,
) -> list[tuple[torch.Tensor, torch.Tensor, torch.dtype]]:
    """`function` of wide values that may each be `off` by so much, and how far its results may be off in `dtype`.

    One entry for each value that it yields: results, bounds, and the type in which it yields them. `aux_args` is
    what it takes after the value, in wide types; `stored` the same as it is stored.
    """
    aux_args, stored = aux_args or {}, stored or {}
    inexact = dtype.is_floating_point or dtype.is_complex

    def wide_results(at: torch.Tensor) -> list[torch.Tensor]:
        at = at if inexact else at.to(dtype)  # whole numbers wrap around as those of the type do
        with Careful():
            return [wide(one) for one in several(called(function, at, aux_args), values)]

    results = wide_results(values)
    moved = [torch.zeros_like(one.real, dtype=torch.float64) for one in results]
    directions = (-1, -0.5, 0.5, 1, -1j, 1j) if values.is_complex() else (-1, -0.5, 0.5, 1)
    for direction in directions if inexact else ():
        for at, one in enumerate(wide_results(values + direction * off)):
            moved[at] = torch.maximum(moved[at], distance(one, results[at]))
    # Eager PyTorch is inexact by luck at any one value; its worst over near neighbours is its measure.
    eager = [torch.zeros_like(one) for one in moved]
    dtypes = [one.dtype for one in several(called(function, values.to(dtype), stored), values)]
    for nudge in (*NUDGES, 0) if inexact else ():
        near = (values * (1 + nudge * epsilon(dtype))).to(dtype)
        exact = wide_results(wide(near))
        for at, one in enumerate(several(called(function, near, stored), values)):
            eager[at] = torch.maximum(eager[at], distance(wide(one), exact[at]))
    work = dtype if inexact else torch.float32  # a function of whole numbers may yield others
    found = []
    for result, own, by_eager, kind in zip(results, moved, eager, dtypes, strict=True):
        if kind.is_floating_point or kind.is_complex:
            own = own + function_bound(by_eager, magnitude_of(result), work)
        found.append((result, own, kind))
    return found


def _default_result(stored: torch.dtype, result: torch.Tensor) -> torch.dtype:
    """D's type where none is asked for: the operands', its real part where an epilogue made complex real."""
    return stored if result.is_complex() else stored.to_real()


def _as_it_is(values: torch.Tensor, aux_args: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return values


def reduction_bound(
    algebra: Algebra,
    x: Factor,
    y: Factor,
    output: tuple[Label, ...],
    count: int,
    eps: float,
    value: torch.Tensor,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """The bound of a reduction of `count` values each, on a floating accumulator of machine epsilon `eps`."""
    check_known(algebra)
    if algebra is ready.or_and:
        return torch.zeros(shape, dtype=torch.float64, device=value.device)
    if algebra is ready.log:
        size = _finite(value)
        bound = eps * (size + math.log(max(count, 1)))
        bound = bound + _LOG_ULPS * eps * count * (size + 1)
    else:
        sizes = _largest(algebra.combine, x, y, ("value", "value"), output)
        bound = eps * sizes.reshape(shape)
    if x.exact and y.exact:
        return bound
    if algebra is ready.max_times:
        moved = _largest(torch.mul, x, y, ("off", "size"), output) + _largest(torch.mul, x, y, ("size", "off"), output)
        moved = moved + _largest(torch.mul, x, y, ("off", "off"), output)
    else:
        # The smaller of two numbers, as the larger, moves no more than the one of them that moves most.
        join = torch.maximum if algebra in (ready.min_max, ready.max_min) else torch.add
        moved = _largest(join, x, y, ("off", "off"), output)
    return bound + moved.reshape(shape)


def reduced_addend_bound(
    algebra: Algebra, bound: torch.Tensor, off: torch.Tensor, eps: float, value: torch.Tensor
) -> torch.Tensor:
    """The bound once C, which may be `off`, is reduced into values that may be off by `bound`."""
    worst = torch.maximum(bound, off.expand(bound.shape))
    return worst + _LOG_ULPS * eps * (_finite(value) + 1) if algebra is ready.log else worst


def check_known(algebra: Algebra) -> None:
    """`UnsupportedError` for an algebra of floating values of which no bound is known."""
    if algebra not in _PICKING and algebra is not ready.log:
        raise UnsupportedError(
            f"no error bound is known for the algebra {algebra.name} on floating types: only for "
            f"{', '.join(one.name for one in (*_PICKING, ready.log))}, and for any algebra on integers, which is exact"
        )


def _largest(
    join: ready.Binary, x: Factor, y: Factor, parts: tuple[str, str], output: tuple[Label, ...]
) -> torch.Tensor:
    """max over k of |join(part of a_k, part of b_k)|; infinities, which are exact, count nothing."""

    def finite(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return _finite(join(p, q))

    largest = Algebra(finite, torch.maximum, 0.0, "largest")
    sources = []
    for factor, part in ((x, parts[0]), (y, parts[1])):
        one = getattr(factor, part)
        sources.append(replace(one, stored=one.stored.double()))
    return reduced(sources[0], sources[1], output, largest, torch.float64)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values.abs().double().nan_to_num(nan=0.0, posinf=0.0)
