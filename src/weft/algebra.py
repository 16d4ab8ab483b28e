"""Algebras: what takes the place of product and sum in a contraction.

    D[m, n] = reduce over k of combine(A[m, k], B[k, n])

`combine` takes the place of the product and `reduce` that of the sum. Ready ones go by name: see `NAMED` and `ALIASES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from functools import lru_cache
from numbers import Number
from typing import Any, TypeAlias

import torch

from weft.base.figures import dtype_name, nearest
from weft.errors import DTypeError, FunctionError, UnsupportedError, WeftError
from weft.fn import fingerprint, trace
from weft.fn.algebra import Early, TracedAlgebra, early
from weft.fn.binding import parameters
from weft.fn.pointwise import is_triton_function

Binary: TypeAlias = Callable[..., Any]
Identity: TypeAlias = int | float | complex | str | Callable[[torch.dtype], int | float | complex]


@dataclass(frozen=True)
class Algebra:
    """An algebra of your own: `combine(x, y)` in place of the product, `reduce(p, q)` in place of the sum.

    Both are Python functions of two values, traced as a contraction's functions are. A's and B's values (after `a_fn`
    and `b_fn`) are converted to the accumulator's type first, and so is what each function yields. `reduce` must be
    associative and commutative: that is your promise, as the order of reduction is not fixed
    (`weft.testing.check_algebra` tries samples). `identity` is the value that `reduce` changes nothing with: it is the
    result of an empty reduction. It is a number, "lowest" or "highest" for the accumulator type's extreme value
    (infinite for floating types), or a function of the accumulator's dtype. `name` is for messages.

    Of three operands and more each meets what those before it were combined to. Labels are reduced on the way where
    `combine` distributes over `reduce`, as `(x + y) * z = x * z + y * z`; that is tried on samples once. Where it does
    not, all labels stay up to the last step, which takes memory for all of them.

    Integers wrap around as they do in torch, in `combine` as well.

    Where `reduce` is a sum, or the larger or smaller of two values, contractions have gradients. For others give `vjp`:
    a traced function of `(x, y, total, grad)`, where `total` is what all pairs were reduced to and `grad` its gradient;
    it returns what the pair (x, y) adds to the gradients of x and of y. Of `log` it would be
    ``lambda x, y, total, grad: (grad * torch.exp(x + y - total),) * 2``.

    `requires` may say, for an accumulator dtype, why the algebra does not work on it; None where it does.

    >>> import torch, weft
    >>> longest = weft.Algebra(torch.add, torch.maximum, identity="lowest",
    ...                        name="longest path")
    >>> a, b = torch.tensor([[1., 5.]]), torch.tensor([[4.], [1.]])
    >>> weft.contract("ik,kj->ij", a, b, algebra=longest)
    tensor([[6.]])
    """

    combine: Binary
    reduce: Binary
    identity: Identity
    name: str = "algebra"
    requires: Callable[[torch.dtype], str | None] | None = None
    vjp: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for part in ("combine", "reduce", *(("vjp",) if self.vjp is not None else ())):
            if not callable(given := getattr(self, part)):
                raise FunctionError(f"{part} of the algebra {self.name} is a function, not {type(given).__name__}")

    def __reduce__(self) -> tuple[Any, ...]:
        """A ready algebra is pickled by its name, so that it is the same object again; another one by its parts."""
        if NAMED.get(self.name) is self:
            return find_named, (self.name,)
        made = getattr(self.combine, "__qualname__", ""), getattr(self.combine, "__module__", "")
        if made == ("plus_times_mod.<locals>.combine", __name__):
            return plus_times_mod, (int(self.name.removeprefix("plus_times_mod(").removesuffix(")")),)
        return Algebra, (self.combine, self.reduce, self.identity, self.name, self.requires, self.vjp)

    def said(self) -> Hashable | None:
        """A key of all its fields, with what its functions compute now; None where one of them cannot be read.

        Functions are told apart by identity, too: whoever keeps something under the key may call them later.
        """
        if NAMED.get(self.name) is self:  # one of weft's own, which stays as it is
            return self.name
        parts = [_said(getattr(self, each.name)) for each in fields(self)]
        return None if None in parts else tuple(parts)

    def traced(self, dtype: torch.dtype) -> TracedAlgebra:
        """The algebra for values of one accumulator type.

        Raises `DTypeError` where it does not work on that type, `FunctionError` for functions that cannot be fused.
        """
        _check_type(dtype)
        if self.requires is not None and (reason := self.requires(dtype)) is not None:
            raise DTypeError(f"the algebra {self.name} does not work on {dtype_name(dtype)}: {reason}")
        combine, reduce = (self._trace(part, dtype) for part in ("combine", "reduce"))
        return TracedAlgebra(combine, reduce, self.identity_in(dtype), self.name)

    def early(self, dtype: torch.dtype) -> Early:
        """Whether what three operands and more are contracted to may be reduced before all of them have met."""
        return early(self.traced(dtype), dtype)

    def is_traced_as(self, traced: TracedAlgebra, dtype: torch.dtype) -> bool:
        """Whether a traced algebra of values of `dtype` computes what this one does, whatever it is called."""
        try:
            return traced == self.traced(dtype)
        except WeftError:  # which does not work on that type
            return False

    def identity_in(self, dtype: torch.dtype) -> int | float | complex | bool:
        """The identity as a Python number of the kind that `dtype` holds; `DTypeError` where it holds no such value."""
        _check_type(dtype)
        value = self.identity(dtype) if callable(self.identity) else self.identity
        if isinstance(value, str):
            value = _extreme(value, dtype)
        if not isinstance(value, Number):
            raise DTypeError(f"the identity of {self.name} is a number, not {type(value).__name__}")
        return _fitting(value, dtype, self.name)

    def _trace(self, part: str, dtype: torch.dtype) -> Any:
        function = getattr(self, part)
        hook = f"{part} of the algebra {self.name}"
        try:
            if is_triton_function(function):
                traced = trace(function, (dtype, dtype), names=(parameters(function) or ())[:1], hook=hook)
            else:
                traced = trace(_of_two(function), (dtype, dtype), names=("q",), hook=hook)
        except FunctionError as error:
            if "not implemented" in str(error.__cause__):  # torch has no such operation for this type
                raise DTypeError(f"the algebra {self.name} does not work on {dtype_name(dtype)}: {error}") from error
            raise
        if isinstance(traced.result, tuple):
            raise FunctionError(f"{hook}: it returns {len(traced.result)} values, not one")
        if not torch.can_cast(traced.result, dtype):
            raise DTypeError(f"{hook} returns {dtype_name(traced.result)}, which cannot be used as {dtype_name(dtype)}")
        return traced


def _said(value: Any) -> Hashable | None:
    if not callable(value):
        return repr(value)  # tells kinds of numbers and signs of zero apart
    found = fingerprint(value)
    return None if found is None else (id(value), found)


def _of_two(function: Binary) -> Binary:
    """`function` called by position, as its parameters may have any names or none."""

    def of_two(p: Any, q: Any) -> Any:
        return function(p, q)

    return of_two


def _check_type(dtype: object) -> None:
    named = dtype_name(dtype) if isinstance(dtype, torch.dtype) else "q"
    if named.startswith(("q", "bits")):  # quantized, and without numbers
        raise DTypeError(f"the values of an algebra are of a torch dtype that holds numbers, not {dtype!r}")


def _extreme(which: str, dtype: torch.dtype) -> int | float | bool:
    if which not in ("lowest", "highest"):
        raise DTypeError(f"the identity {which!r} is neither a number nor 'lowest' nor 'highest'")
    if dtype.is_complex:
        raise DTypeError(f"{dtype_name(dtype)} has no {which} value")
    if dtype is torch.bool:
        return which == "highest"
    if dtype.is_floating_point:
        return math.inf if which == "highest" else -math.inf
    return torch.iinfo(dtype).max if which == "highest" else torch.iinfo(dtype).min


def _fitting(value: Any, dtype: torch.dtype, name: str) -> int | float | complex | bool:
    refused = DTypeError(f"the identity {value!r} of {name} does not fit {dtype_name(dtype)}")
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        raise refused
    if dtype.is_floating_point:
        return float(value)
    if dtype is torch.bool:
        if value not in (0, 1):
            raise refused
        return bool(value)
    if not math.isfinite(value) or value != int(value):
        raise refused
    if not torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max:
        raise refused
    return int(value)


# -- the ready ones ----------------------------------------------------------------------------------------------------


def _real(dtype: torch.dtype) -> str | None:
    if dtype.is_complex:
        return "complex numbers have no order"
    return "it has no sum" if dtype is torch.bool else None


def _floating(dtype: torch.dtype) -> str | None:
    return None if dtype.is_floating_point else "it needs a floating type"


def _whole(dtype: torch.dtype) -> str | None:
    return "it needs an integer type or bool" if dtype.is_floating_point or dtype.is_complex else None


#: Products and sums; the default. As an argument it means `algebra="plus_times"`, alpha and beta included.
plus_times = Algebra(torch.mul, torch.add, 0, "plus_times")

#: Longest paths, Viterbi scores. Integers wrap around and have no infinity: absent edges need a floating type.
max_plus = Algebra(torch.add, torch.maximum, "lowest", "max_plus", _real)

#: Shortest paths. Of integers as for `max_plus`: the largest integer plus one is the smallest.
min_plus = Algebra(torch.add, torch.minimum, "highest", "min_plus", _real)

#: Most probable paths.
max_times = Algebra(torch.mul, torch.maximum, "lowest", "max_times", _real)

#: Bottlenecks: the smallest over all paths of the largest step.
min_max = Algebra(torch.maximum, torch.minimum, "highest", "min_max", lambda t: _real(t) if t.is_complex else None)

#: Widest paths: the largest over all paths of the smallest step.
max_min = Algebra(torch.minimum, torch.maximum, "lowest", "max_min", lambda t: _real(t) if t.is_complex else None)

#: Reachability: whether any pair is true (not zero) in both. Yields 0 and 1 in number types.
or_and = Algebra(torch.logical_and, torch.logical_or, 0, "or_and")

#: Products of probabilities held as logarithms: log(sum(exp(x + y))) without leaving the logarithms.
log = Algebra(torch.add, torch.logaddexp, "lowest", "log", _floating)

#: The field of two elements, for each bit: exclusive or of ands.
gf2 = Algebra(torch.bitwise_and, torch.bitwise_xor, 0, "gf2", _whole)


def plus_times_mod(p: int) -> Algebra:
    """Products and sums of integers modulo `p`, results from 0 to p - 1.

    Values of A and B may be any integers. C's values must leave room for a sum with p - 1 in the accumulator's type.
    `p` is at least 2, and (p - 1)^2 must fit the accumulator: up to 46341 in int32, the default for types of up to 32
    bits, and 3037000500 in int64 (`accumulate=torch.int64`); `DTypeError` beyond.
    """
    if isinstance(p, bool) or not isinstance(p, int) or p < 2:
        raise DTypeError(f"a modulus is an integer of at least 2, not {p!r}")

    def requires(dtype: torch.dtype) -> str | None:
        if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
            return "it needs an integer type"
        if (p - 1) ** 2 > torch.iinfo(dtype).max:
            return f"({p} - 1)^2 is past its largest value (accumulate=torch.int64 reaches p = 3037000500)"
        return None

    def combine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x % p) * (y % p)) % p

    def reduce(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y) % p

    return Algebra(combine, reduce, 0, f"plus_times_mod({p})", requires)


NAMED = {
    found.name: found for found in (plus_times, max_plus, min_plus, max_times, min_max, max_min, or_and, log, gf2)
}
#: Other names of the ready ones. "tropical" is min_plus, as most books have it; max_plus is "arctic".
ALIASES = {
    "sum_product": "plus_times", "real": "plus_times", "ordinary": "plus_times",
    "tropical": "min_plus", "min_sum": "min_plus", "shortest_path": "min_plus",
    "arctic": "max_plus", "max_sum": "max_plus", "longest_path": "max_plus",
    "max_product": "max_times", "viterbi": "max_times",
    "minimax": "min_max", "bottleneck": "min_max", "maximin": "max_min", "widest_path": "max_min", "fuzzy": "max_min",
    "boolean": "or_and", "bool": "or_and", "reachability": "or_and",
    "logsumexp": "log", "log_semiring": "log", "logaddexp": "log", "log_plus": "log",
    "xor_and": "gf2", "f2": "gf2",
}  # fmt: skip


def find_named(name: str) -> Algebra:
    """The ready algebra of that name or alias; `UnsupportedError` with the nearest one where there is none."""
    if not isinstance(name, str):
        raise UnsupportedError(f"an algebra is named by text, not by {type(name).__name__}")
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    plain = ALIASES.get(plain, plain)
    if plain not in NAMED:
        known = f": it is none of {', '.join(NAMED)}; see weft.Algebra for your own"
        hint = nearest(plain, (*NAMED, *ALIASES)) or known
        raise UnsupportedError(f"no algebra is called {name!r}{hint}")
    return NAMED[plain]


def find(algebra: Any) -> Algebra | None:
    """The algebra that an argument names; None for plus-times. Raises `UnsupportedError` for what is none."""
    if isinstance(algebra, str):
        algebra = find_named(algebra)
    if not isinstance(algebra, Algebra):
        raise UnsupportedError(f"an algebra is a name or a weft.Algebra, not {type(algebra).__name__}")
    return None if algebra is plus_times else algebra


# -- truth values ------------------------------------------------------------------------------------------------------


@lru_cache
def of_count(algebra: TracedAlgebra, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A function from the count of pairs whose values are both true to the result of an algebra of truth values.

    It says whether there is any pair (or_and), or an odd number (gf2 of bool). None of other algebras.

    An algebra is recognised by what it computes.
    """
    if or_and.is_traced_as(algebra, dtype):
        return _is_any
    if dtype is torch.bool and gf2.is_traced_as(algebra, dtype):
        return _is_odd
    return None


def _is_any(count: torch.Tensor) -> torch.Tensor:
    return count.to(torch.bool)


def _is_odd(count: torch.Tensor) -> torch.Tensor:
    return (count.to(torch.int32) & 1).to(torch.bool)
