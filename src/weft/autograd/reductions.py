"""Algebras that select (max-plus and its kin), whose gradient goes to the selected element, and those that add up.

The forward pass keeps the index of what was selected, the smallest where several are equal. The backward pass takes the
selected elements of A and B, and adds their gradients up where they came from. Nothing of the size of all pairs is
made. All is done by torch's operations, which have derivatives themselves.

Algebras of your own whose `reduce` is a sum, or that bring a `vjp`: gradients are sums over elements that are not
stored.

    D[m, n] = sum_k f(A[m, k], B[k, n])        dA[m, k] = sum_n dD[m, n] f_x(A[m, k], B[k, n])

The right-hand side is one contraction of B, repeated along m by a stride of 0, whose function reads A and dD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from weft.algebra import Algebra
from weft.api.entry import contraction
from weft.api.lookup import one_of
from weft.autograd.backward import Needs
from weft.autograd.rule import Bare, Found, Tensors, kept_for_algebra
from weft.autograd.spec import Spec
from weft.autograd.steps import with_modes
from weft.errors import FunctionError, UnsupportedError
from weft.fn.pointwise import RecordedFunction
from weft.fn.trace import compute, derived, pull, push, recorded
from weft.planner.schedule import Scalar
from weft.spec import Layout


class Selection(Bare):
    """The rule of a bare contraction of an algebra that selects. It keeps the index along each reduced mode."""

    def __init__(self, spec: Spec, needs: Needs, ahead: bool) -> None:
        super().__init__(spec, needs, ahead)
        self.reduced = tuple(x for x in dict.fromkeys(spec.term_a + spec.term_b) if x not in spec.term_d)

    def forward(self, alpha: Scalar, beta: Scalar, tensors: Sequence[Any]) -> tuple[Tensor, ...]:
        a, b, *_ = tensors
        value, places = contraction(self.spec.text, a, b, self.options, return_arg=True)
        return (value, *places) if isinstance(places, tuple) else (value, places)

    def saved(self, tensors: Tensors, results: Sequence[Tensor]) -> Tensors:
        """A, B, and the indices, in a type that holds their mode's extent: most take a quarter of the memory so."""
        extents = _extents(self.spec, tensors[:2])
        places = [place.to(_narrow(extents[label])) for label, place in zip(self.reduced, results[1:], strict=True)]
        return (*tensors[:2], *places)

    def pulled(self, grad: Tensor, saved: Sequence[Any], needs: Needs) -> Found:
        pair, (places, there) = saved[:2], self._selected(*saved)
        slopes = _gradients_of_a_pair(self.spec.algebra, self.spec.accumulate, "grad")
        picked: tuple[Tensor | None, ...] = (None, None)
        if any(needs[side] and slope is not None and slope.inputs != ("grad",) for side, slope in enumerate(slopes)):
            picked = tuple(map(self._picked, pair, places))
        found: list[Tensor | None] = [None, None]
        for side, (tensor, place, slope) in enumerate(zip(pair, places, slopes, strict=True)):
            if needs[side]:
                part = _evaluated(slope, grad.to(self.spec.accumulate), *picked)
                found[side] = self._added_up(part if there is None else torch.where(there, part, 0), tensor, place)
        return tuple(found)

    def forward_mode(self, alpha: Scalar, beta: Scalar, saved: Tensors, tangents: Tensors) -> Found:
        return (*super().forward_mode(alpha, beta, saved, tangents), *(None for _ in self.reduced))

    def pushed(self, saved: Sequence[Any], tangents: Tensors) -> Tensor:
        pair, (places, there) = saved[:2], self._selected(*saved)
        picked, extents = tuple(map(self._picked, pair, places)), _extents(self.spec, pair)
        shape = [extents[label] for label in self.spec.term_d]
        total = torch.zeros(shape, dtype=self.spec.accumulate, device=pair[0].device)
        slopes = _gradients_of_a_pair(self.spec.algebra, self.spec.accumulate, "grad")
        for slope, tangent, place in zip(slopes, tangents, places, strict=True):
            if tangent is not None:
                total = total + _evaluated(slope, self._picked(tangent, place).expand(shape), *picked)
        return (total if there is None else torch.where(there, total, 0)).to(self.spec.results[0])

    def _selected(self, a: Tensor, b: Tensor, *places: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Where the selected elements stand in A and in B; and for which of D there are any, if not for all."""
        extents, there = _extents(self.spec, (a, b)), None
        at = dict(zip(self.reduced, places, strict=True))
        if any(extents[label] == 0 for label in self.reduced):
            there = places[0] >= 0
            at = {label: place.clamp_min(0) for label, place in at.items()}
        shape, terms = [extents[label] for label in self.spec.term_d], (self.spec.term_a, self.spec.term_b)
        first, second = (self._places_in(x, term, at, shape) for x, term in zip((a, b), terms, strict=True))
        return (first, second), there

    def _picked(self, tensor: Tensor, place: Tensor) -> Tensor:
        if not tensor.numel():
            return torch.zeros((), dtype=self.spec.accumulate, device=tensor.device)
        # Not tensor[...], which reads an index of no dimensions into Python.
        found: Tensor = torch.ops.aten.index(tensor.reshape(-1), [place])
        return found.to(self.spec.accumulate)

    def _places_in(self, tensor: Tensor, term: str, at: Mapping[str, Tensor], shape: Sequence[int]) -> Tensor:
        """Where the selected elements stand in a tensor, row by row; `at` are those along reduced modes."""
        strides = dict(zip(term, Layout.contiguous(tensor.shape, tensor.dtype).strides, strict=True))
        place: Tensor | None = None
        for axis, (label, extent) in enumerate(zip(self.spec.term_d, shape, strict=True)):
            if step := strides.get(label):
                along = torch.arange(0, extent * step, step, device=tensor.device)
                along = along.reshape([-1 if each == axis else 1 for each in range(len(shape))])
                place = along if place is None else place + along
        if place is None:  # of D's rank: a number of no dimensions would take the type of the places
            place = torch.zeros([1] * len(shape), dtype=torch.int64, device=tensor.device)
        for label, where in at.items():
            if (step := strides.get(label)) is not None:
                place = torch.add(place, where, alpha=step)
        return place

    def _added_up(self, part: Tensor, tensor: Tensor, place: Tensor) -> Tensor:
        """The sum over D's elements that selected the same one, in an order that does not change from run to run."""
        zeros = torch.zeros(tensor.numel(), dtype=part.dtype, device=part.device)
        if not tensor.numel() or not part.numel():
            return zeros.reshape(tensor.shape).to(tensor.dtype)
        flat = place.expand(part.shape).reshape(-1)
        if part.device.type == "cpu":  # one thread adds along one dimension; on a GPU that would take atomics
            added = zeros.scatter_add(0, flat, part.reshape(-1))
        else:  # sorts by place first
            added = zeros.index_put((flat,), part.reshape(-1), accumulate=True)
        return added.reshape(tensor.shape).to(tensor.dtype)


def _extents(spec: Spec, pair: Sequence[Tensor | None]) -> dict[str, int]:
    return spec.extents([None if each is None else each.shape for each in pair])


def _narrow(extent: int) -> torch.dtype:
    """A signed type that holds the indices of an extent, and -1."""
    return torch.int16 if extent <= 2**15 else torch.int32 if extent <= 2**31 else torch.int64


def _evaluated(slope: RecordedFunction | None, grad: Tensor, x: Tensor | None, y: Tensor | None) -> Tensor:
    """The slope for each element of D; `x` and `y` are there where it reads them."""
    if slope is None:
        return torch.zeros_like(grad)
    if slope.inputs == ("grad",) and len(slope.graph.nodes) == 2:  # an input and an output
        return grad
    given = {name: each.expand(grad.shape) for name, each in (("grad", grad), ("x", x), ("y", y)) if each is not None}
    found = slope(*[given[name] for name in slope.inputs])
    assert isinstance(found, Tensor)
    return found


class Summation(Bare):
    """The rule of a bare contraction of such an algebra."""

    def __init__(self, spec: Spec, needs: Needs, ahead: bool) -> None:
        super().__init__(spec, needs, ahead)
        assert spec.algebra is not None
        by_y, by_x = (_gradients_of_a_pair(spec.algebra, spec.accumulate, main) for main in ("y", "x"))
        self.slopes = by_y[0], by_x[1]

    def pulled(self, grad: Tensor, saved: Sequence[Any], needs: Needs) -> Found:
        a, b, total = saved
        found: list[Tensor | None] = [None, None]
        for side, (slope, like) in enumerate(zip(self.slopes, (a, b), strict=True)):
            if needs[side]:
                values = self._values(a, b, grad, total)
                made = torch.zeros_like(like) if slope is None else self._summed(slope, values, "xy"[side], like.dtype)
                found[side] = made
        return tuple(found)

    def _values(self, a: Tensor, b: Tensor, grad: Tensor | None, total: Tensor) -> dict[str, tuple[str, Tensor]]:
        """The values that functions of a pair read, in the accumulator's type, each with its modes."""
        spec = self.spec
        pairs = (spec.term_a, a), (spec.term_b, b), (spec.term_d, grad), (spec.term_d, total)
        given = zip(("x", "y", "grad", "total"), pairs, strict=True)
        return {name: (term, each.to(spec.accumulate)) for name, (term, each) in given if each is not None}

    def _summed(
        self, function: RecordedFunction, values: Mapping[str, tuple[str, Tensor]], own: str, dtype: torch.dtype
    ) -> Tensor:
        """The sum of a function of all pairs over the modes that one of its inputs, `own`, has not.

        It is a contraction of the first input, repeated along the modes that it lacks by strides of 0. Where it may be
        differentiated in its turn a number is repeated in its place, and the input is an operand: its gradient is
        summed along those modes as it is made.
        """
        extents = _extents(self.spec, (values["x"][1], values["y"][1]))
        every, (main, *others) = "".join(extents), function.inputs
        term, tensor = values[main]
        operands = {name: values[name] for name in others}
        if torch.is_grad_enabled():
            function = _alongside_a_number(function, function.inputs, tensor.dtype)
            operands |= {main: values[main]}
            term, tensor = "", one_of(tensor.dtype, tensor.device)
        tensor = tensor.permute([term.index(label) for label in every if label in term])
        tensor = with_modes(tensor, [label for label in every if label in term], every)
        tensor = tensor.expand([extents[label] for label in every])
        options = self.spec.asked(
            out_dtype=dtype, accumulate=self.spec.accumulate, functions=(function, None, None, None), operands=operands
        )
        text = f"{every},->{values[own][0]}"
        found: Tensor = contraction(text, tensor, one_of(tensor.dtype, tensor.device), options)
        return found

    def pushed(self, saved: Sequence[Any], tangents: Tensors) -> Tensor:
        """The sum over all pairs of what the tangents of their values make of each."""
        spec, (a, b, total) = self.spec, saved
        assert spec.algebra is not None
        moving = zip(("dx", "dy"), (spec.term_a, spec.term_b), tangents, strict=True)
        given = {name: (term, each.to(spec.accumulate)) for name, term, each in moving if each is not None}
        function = _tangent(spec.algebra, spec.accumulate, tuple(given))
        if function is None:
            return torch.zeros_like(total)
        return self._summed(function, self._values(a, b, None, total) | given, "total", spec.results[0])


def _vjp(algebra: Algebra, x: Tensor, y: Tensor, total: Tensor, grad: Tensor) -> Sequence[Tensor | None]:
    """The gradients that a pair adds to those of its values, by the user's `vjp`."""
    assert algebra.vjp is not None
    found = algebra.vjp(x, y, total, grad)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise FunctionError(f"vjp of the algebra {algebra.name} returns the gradients of x and y, a pair")
    return found


@kept_for_algebra
def _gradients_of_a_pair(algebra: Algebra, dtype: torch.dtype, main: str) -> tuple[RecordedFunction | None, ...]:
    """Functions of what a pair adds to the gradients of x and of y, with this main input.

    Where `combine` selects, too, the first of equal ones gets it.
    """
    combine = algebra.traced(dtype).combine

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        if algebra.vjp is None:
            return pull(combine, (t["x"], t["y"]), (t["grad"],), selecting=True)[0]
        return _vjp(algebra, t["x"], t["y"], t["total"], t["grad"])

    of = "combine of" if main == "grad" else "the algebra"
    return derived(body, dict.fromkeys((main, "x", "y", "grad", "total"), dtype), f"{of} {algebra.name}")


@kept_for_algebra
def _tangent(algebra: Algebra, dtype: torch.dtype, moving: tuple[str, ...]) -> RecordedFunction | None:
    """The function of what a pair adds to the tangent of the total; `moving` names the tangents that there are."""
    if algebra.vjp is not None and dtype.is_complex:
        raise UnsupportedError(
            f"the algebra {algebra.name} brings a vjp, which says nothing of forward mode for complex values: use "
            "reverse mode (torch.func.vjp, backward)"
        )

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        if algebra.vjp is None:
            return push(algebra.traced(dtype).combine, (t["x"], t["y"]), [t.get("dx"), t.get("dy")])
        slopes = _vjp(algebra, t["x"], t["y"], t["total"], torch.ones_like(t["x"]))
        pairs = zip(slopes, ("dx", "dy"), strict=True)
        parts = [slope * t[name] for slope, name in pairs if slope is not None and name in t]
        return (sum(parts[1:], parts[0]) if parts else None,)

    names = ("x", "y", "total", *moving)
    return derived(body, dict.fromkeys(names, dtype), f"the algebra {algebra.name}")[0]


@lru_cache(maxsize=256)
def _alongside_a_number(function: RecordedFunction, names: tuple[str, ...], dtype: torch.dtype) -> RecordedFunction:
    """The function with a value before its inputs that it does not read."""

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return compute(function, [t[name] for name in names])

    inputs = {"weft_number": dtype, **dict(zip(names, function.dtypes, strict=True))}
    return recorded(body, inputs, "the derivative of an algebra")
