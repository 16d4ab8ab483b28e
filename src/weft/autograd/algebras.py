"""Which rule an algebra has; and contractions of other algebras with functions and C, composed of differentiable parts.

A bare contraction (no functions, no C) has a rule of its own. With functions it is three calls, each differentiable:
`a_fn` and `b_fn` as passes over A and B, the bare contraction, and one more pass for C and the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weft.algebra import NAMED, Algebra
from weft.api.entry import contraction
from weft.api.lookup import one_of
from weft.autograd.backward import Needs
from weft.autograd.logarithm import Logarithm
from weft.autograd.product import Permuted, Product, product
from weft.autograd.reductions import Selection, Summation
from weft.autograd.rule import Rule, Tensors, apply, kept_for_algebra
from weft.autograd.spec import C_FN, EPILOGUE, FIRST_OPERAND, A, B, C, Plain, Spec, plain
from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.fn.trace import compute, converted, recorded
from weft.planner.request import Request
from weft.spec.dtypes import value_type


def plain_form(
    request: Request, names: Sequence[str], tensors: Tensors, needs: Sequence[bool], backend: str
) -> tuple[Plain, tuple[int, ...], Tensors, Needs]:
    """A request's plain form, which of the operands of these names each of its own is, its tensors, and whether a
    gradient of each is needed. `tensors` are A, B, C and the operands."""
    c = tensors[C]
    form = plain(request, None if c is None else (tuple(c.shape), c.dtype), backend)
    order = tuple([names.index(name) for name in form.given])
    places = (0, 1, 2, *(FIRST_OPERAND + at for at in order))
    return form, order, form.of([tensors[at] for at in places]), tuple([needs[at] for at in places])


def rule(
    spec: Spec, needs: Needs, tensors: Tensors, device: torch.device, ahead: bool, permutes: bool = False
) -> Rule | Composed:
    """The rule of a contraction. `needs`: which gradients may be requested; `ahead`: whether tangents may be."""
    if spec.algebra is None:
        return product(Permuted if permutes else Product, spec, needs, ahead, tensors, device)
    if not any(needs):
        return Rule(spec, needs, False)
    made = _kind(spec.algebra, spec.accumulate)
    if any(spec.functions) or spec.term_c is not None or spec.results != (spec.accumulate,):
        return Composed(spec, ahead)
    return made(spec, needs, ahead)


def core(spec: Spec) -> Callable[[Tensor, Tensor], Tensor]:
    """The differentiable function of A and B of a bare contraction of another algebra.

    What an algebra of the caller's computes may change: its rule is looked for in each call.
    """
    algebra = spec.algebra
    assert algebra is not None

    def rule_now() -> Rule:
        return _kind(algebra, spec.accumulate)(spec, (True, True, False), False)

    kept = rule_now()
    stays = NAMED.get(algebra.name) is algebra

    def contracted(a: Tensor, b: Tensor) -> Tensor:
        found = kept if stays else rule_now()
        if not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
            return found.forward(1.0, 1.0, (a, b, None))[0]
        return apply(found, 1.0, 1.0, (a, b, None))[0]

    return contracted


@kept_for_algebra
def _kind(algebra: Algebra, dtype: torch.dtype) -> Callable[[Spec, Needs, bool], Rule]:
    if algebra.vjp is not None:
        return Summation
    traced = algebra.traced(dtype)
    if traced.reduce == NAMED["plus_times"].traced(dtype).reduce:
        return Summation
    if _larger(algebra, dtype) is not None:
        return Selection
    if dtype.is_floating_point and traced == NAMED["log"].traced(dtype):
        return Logarithm
    raise UnsupportedError(
        f"the algebra {algebra.name} has no derivative that is known: its reduce is neither a sum nor a selection; "
        "give weft.Algebra a vjp, or detach the operands"
    )


def _larger(algebra: Algebra, dtype: torch.dtype) -> bool | None:
    """Whether the larger of two values is kept, or the smaller; None where neither."""
    if dtype.is_complex or not dtype.is_floating_point:
        return None
    reduce = algebra.traced(dtype).reduce
    for name, larger in (("max_plus", True), ("min_plus", False)):
        if reduce == NAMED[name].traced(dtype).reduce:
            return larger
    return None


class Composed:
    """A contraction of another algebra with functions, C or another type of result.

    `call` is differentiable as it is, by the rules of its parts.
    """

    def __init__(self, spec: Spec, ahead: bool) -> None:
        self.spec, self.ahead = spec, ahead

    def call(self, tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        spec, accumulate = self.spec, self.spec.accumulate
        assert spec.algebra is not None
        a, b = (self._values(side, tensors) for side in (A, B))
        product = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(value_type(a.dtype, product)), b.to(value_type(b.dtype, product))  # one may have a wider function
        core = replace(
            spec.without(0, 1, 2, 3), term_c=None, storage=(a.dtype, b.dtype, accumulate), results=(accumulate,),
            arithmetic=replace(spec.arithmetic, product=product), several=False,
        )  # fmt: skip
        bare = _kind(spec.algebra, accumulate)(core, (True, True, False), self.ahead)
        value = apply(bare, 1.0, 1.0, (a, b, None))[0]
        if spec.functions[EPILOGUE] is None and spec.term_c is None:
            return (value.to(spec.results[0]),)
        return self._finished(value, tensors)

    def _values(self, side: int, tensors: Sequence[Tensor | None]) -> Tensor:
        """A or B as it is combined: rounded to the type of products, its function applied."""
        spec, tensor = self.spec, tensors[side]
        assert tensor is not None
        function, product = spec.functions[side], value_type(spec.storage[side], spec.arithmetic.product)
        if function is None:
            return tensor.to(product)
        term = (spec.term_a, spec.term_b)[side]
        options = spec.passing(
            out_dtype=spec.accumulate, precision=product, functions=(function, None, None, None),
            **spec.aux(tensors, spec.names[side]),
        )  # fmt: skip
        found: Tensor = contraction(f"{term},->{term}", tensor, one_of(tensor.dtype, tensor.device), options)
        return found

    def _finished(self, value: Tensor, tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        spec = self.spec
        assert spec.algebra is not None
        names = (*spec.names[C_FN], *spec.names[EPILOGUE])
        given = spec.aux(tensors, names)
        if spec.term_c is not None:
            given["operands"]["weft_c"] = (spec.term_c, tensors[C])
        options = spec.passing(
            out_dtype=spec.results if spec.several else spec.results[0],
            functions=(None, None, None, _finish(spec.algebra, spec.accumulate, spec)), **given,
        )  # fmt: skip
        text = f"{spec.term_d},->{spec.term_d}"
        found = contraction(text, value, one_of(value.dtype, value.device), options)
        return found if isinstance(found, tuple) else (found,)


@kept_for_algebra
def _finish(algebra: Algebra, accumulate: torch.dtype, spec: Spec) -> Pointwise:
    """A function of a reduced value: C added by the algebra's `reduce`, then the epilogue. A tie selects the sum."""
    addend, epilogue = spec.functions[C_FN], spec.functions[EPILOGUE]
    larger, reduce = _larger(algebra, accumulate), algebra.traced(accumulate).reduce
    inputs: dict[str, torch.dtype] = {"weft_value": accumulate}
    inputs |= {name: spec.dtype_of(name) for name in (*spec.names[C_FN], *spec.names[EPILOGUE])}
    if spec.term_c is not None:
        inputs["weft_c"] = spec.storage[C]

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        value = t["weft_value"]
        if "weft_c" in t:
            c = converted(t["weft_c"], accumulate)
            if addend is not None:
                c = converted(compute(addend, [c, *(t[name] for name in spec.names[C_FN])])[0], accumulate)
            if larger is None:
                (value,) = compute(reduce, [value, c])
            else:
                value = torch.where(value >= c if larger else value <= c, value, c)
        if epilogue is None:
            return (value,)
        return compute(epilogue, [value, *(t[name] for name in spec.names[EPILOGUE])])

    return recorded(body, inputs, "epilogue")
