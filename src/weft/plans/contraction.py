"""A `Plan`: a contraction bound to the way it is computed, to run again and again on new pointers.

A plan is made for the layouts of A and B. C and the result may change from call to call; each combination of their
layouts is one variant, planned and built when it first appears.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic, Unpack, overload

import torch

from weft.base.arguments import addition, describe_call
from weft.base.arrays import (
    Array,
    One,
    Returned,
    Selected,
    Several,
    any_autocast,
    as_results,
    as_tensor,
    is_subclass,
    returned,
    source_of,
)
from weft.base.dispatch import as_operation, is_dynamo_compiling, outside_graphs
from weft.engine.calls import CallPlace, present
from weft.engine.ways import Arguments, aside, each_of, operand_tensors
from weft.errors import call_context
from weft.oracle.reference import launcher
from weft.planner.request import Request, Results, hook_types
from weft.planner.schedule import NewTensor, Scalar
from weft.plans.base import PlanBase, Variant
from weft.plans.checks import (
    aligned_as,
    aux_tensors,
    check_addend,
    check_aux,
    check_operand,
    check_outputs,
    check_unscaled,
    checked_factors,
    checked_scalar,
)
from weft.plans.keywords import PlanCallKeywords, refuse_unknown
from weft.plans.known_call import BoundCall, KnownCall, held, held_places, said_operands
from weft.plans.select import ServiceRequest
from weft.spec import Contraction, Layout
from weft.spec.arguments import read_flag
from weft.spec.memory import reach

CALLS_KNOWN = 256  # of one plan

# Of a variant: the layouts of C and of all results, where less than planned, alignments, and whether there is an alpha
# that the sums' type must have room for.
_Key = tuple[Layout | None, tuple[Layout, ...], tuple[int, ...], tuple[int, ...], bool]


class Plan(PlanBase, Generic[Returned]):
    """A contraction, planned once; calling it runs it on new tensors of the same shapes, strides and types.

    Made by `weft.plan`. `plan(a, b, *, c=None, alpha=1.0, beta=None, out=None, operands=None, validate=False)` returns
    the result, which is `out` when that is given; the arguments mean what they mean for `weft.contract`. `explain()`
    says what was chosen and why.
    """

    places: int | None = None  # how many indices a call returns after D; None where none were requested

    def __init__(self, request: Request) -> None:
        super().__init__(request, CALLS_KNOWN)
        self._default = tuple(Layout.contiguous(self.shape, dtype) for dtype in self.dtypes)
        self._usual = (None, self._default, (), (), False)
        self._nothing: Plan | None = None  # of calls without products

    @property
    def contraction(self) -> Contraction:
        """The canonical contraction this plan was made for."""
        found: Contraction = self._first().description
        return found

    @overload
    def __call__(self: Plan[One], a: Array, b: Any, **keywords: Unpack[PlanCallKeywords]) -> Array: ...
    @overload
    def __call__(self: Plan[Several], a: Array, b: Any, **keywords: Unpack[PlanCallKeywords]) -> tuple[Array, ...]: ...
    @overload
    def __call__(
        self: Plan[Selected], a: Array, b: Any, **keywords: Unpack[PlanCallKeywords]
    ) -> tuple[Array, Array | tuple[Array, ...]]: ...
    @overload
    def __call__(self, a: Any, b: Any, **keywords: Unpack[PlanCallKeywords]) -> Any: ...
    def __call__(
        self, a: Any, b: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None, out: Any = None,
        operands: Mapping[str, Any] | None = None, validate: bool = False, **unknown: Any,
    ) -> Any:  # fmt: skip
        """Run on `a` and `b`, which have the planned layouts; returns D, in the kind of array that `a` is.

        `operands` has for each operand that the plan's functions take, by name, a tensor or the pair (modes, tensor)
        that `weft.contract` takes: of the planned layouts, too. A tensor may be less aligned than planned: it gets a
        variant of its own. Of an epilogue that yields several values the result is a tuple, and so is `out`. `validate`
        checks a sample of D as for `weft.contract`.

        Raises `ShapeError` or `DTypeError` when a tensor does not fit the plan; then nothing is written. Raises
        `AccuracyError` when a validated element is off.
        """
        if is_dynamo_compiling():
            return as_operation("plan")(self, a, b, c, alpha, beta, out, operands, validate)
        if self._watched is not None and (plan := self._current) is not self:
            return plan(a, b, c=c, alpha=alpha, beta=beta, out=out, operands=operands, validate=validate, **unknown)
        if beta is None:
            beta = 1.0
        elif c is None and out is not None:
            c, beta = addition(c, beta, out)
        said, beside = said_operands(operands) if operands is not None else ((), ())
        place: CallPlace | None = None
        tensors: Sequence[Any] = ()
        if said is not None and validate is False and not unknown:
            words, tensors = present(said, a, b, c, out, beside)
            known, place = self._calls.find(words, tensors)
            if known is not None and (found := known.run(a, b, c, alpha, beta, out, beside)) is not None:
                return found
        with call_context(lambda: describe_call("plan", self._request.text, a=a, b=b, c=c, out=out)):
            if unknown:
                refuse_unknown("a plan's call", unknown)
            read_flag("validate", validate)
            source = source_of(a, b, c)
            if is_subclass(source):
                place = None  # known calls have plain tensors as results
            promote = self._request.promote
            x, y = (as_tensor(name, value, promote).resolve_neg() for name, value in (("a", a), ("b", b)))
            addend = as_tensor("c", c, promote) if c is not None else None
            given = aux_tensors(operands, self._request.named) if operands is not None else {}
            call = Arguments(x, y, addend, as_results(out), alpha, beta, given)
            result, known = self._answer(call, validate, place is not None)
        self._calls.keep(place, tensors, known)
        return returned(source, out, result, self.places is not None)

    def _answer(self, call: Arguments, validate: bool, keeps: bool) -> tuple[Any, Any]:
        """The result of a call that is not known; and where that `keeps`, what makes that of later ones."""
        if (seen := aside("plan_call", self, call, validate)) is not None:
            return seen
        if validate or not keeps:
            return (self.run_validated if validate else self.run)(call), None
        return self.run_known(call)

    def text_of_call(self, added: bool, validate: bool, functions: Any, algebra: Any) -> Any:
        """The text that describes a call to its operation: see `weft.compiled`. Dynamo takes it for a constant."""
        return as_operation("text of a plan's call")(self, added, validate, functions, algebra)

    def functions_seen(self) -> tuple[tuple[torch.dtype, ...], tuple[tuple[str, torch.dtype], ...]]:
        """The types of values of functions, in the order of the hooks, and of what else they take. A constant, too."""
        request = self._request
        types = hook_types((request.a.dtype, request.b.dtype), request.arithmetic)
        return types, tuple((named.name, named.dtype) for named in request.named)

    # As torch.compiler.assume_constant_result does.
    text_of_call._dynamo_marked_constant = functions_seen._dynamo_marked_constant = True  # type: ignore[attr-defined]

    @outside_graphs
    def bind(
        self, a: Any, b: Any, out: Any = None, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None,
        operands: Mapping[str, Any] | None = None,
    ) -> BoundCall:  # fmt: skip
        """The plan's call on these very tensors, as a callable without arguments that launches and does nothing else.

        Arguments as in a call; without `out` the result is allocated now, once. All is checked now, as in a call, and
        nothing runs: values may change from run to run, shapes, strides and storage may not (see `weft.BoundCall`).
        Where ``specialize="auto"``, ``plan.warm().bind(...)`` has the best kernel from the first run on.

        Raises what a call raises, `UnsupportedError` also where a derivative is requested, for negative views and
        conjugate ones of C and operands, inside of transforms of torch.func and while torch traces.

        >>> import torch, weft
        >>> a, b, out = torch.ones(2, 3), torch.ones(3, 4), torch.empty(2, 4)
        >>> run = weft.plan("mk,kn->mn", a, b).bind(a, b, out)
        >>> a[:] = 2.0
        >>> run() is out, out[0, 0]
        (True, tensor(6.))
        """
        with call_context(lambda: describe_call("plan.bind", self._request.text, a=a, b=b, c=c, out=out)):
            plan = self._current
            c, beta = addition(c, beta, out)
            x, y = held("a", a, conjugate=True), held("b", b, conjugate=True)
            addend = None if c is None else held("c", c)
            target = plan._places() if out is None else held_places(out)
            for each in operand_tensors(operands):  # before views of them are resolved
                held("an operand", each)
            given = {} if operands is None else aux_tensors(operands, plan._request.named)
            given = {name: tensor.detach() for name, tensor in given.items()}
            call = Arguments(x, y, addend, target, alpha, beta, given)
            return plan._bound(call, returned(source_of(a, b, c), out, target, False))

    def _checked(self, call: Arguments) -> Arguments:
        if self._request.algebra is not None:
            check_unscaled(self._request.algebra.name, call.alpha, call.beta)
        device, accumulate, c = self._request.device, self._request.arithmetic.accumulate, call.c
        alpha, beta = checked_factors(call.alpha, call.beta, accumulate, c is not None)
        if c is not None:
            check_addend(c, self.shape, accumulate, device)
            c = c.resolve_conj().resolve_neg() if beta != 0 else None
        return call._replace(c=c, alpha=alpha, beta=beta)

    def _without_products(self, call: Arguments) -> Results:
        """The addend alone, as A and B are summed over nothing."""
        if self._nothing is None:
            self._nothing = Plan(self._request.summed_over_nothing())
        x, y = (each.unsqueeze(-1)[..., :0] for each in call[:2])
        found: Results = self._nothing.run(call._replace(a=x, b=y, alpha=1))
        return found

    def _passed(self, variant: Variant, call: Arguments) -> tuple[Any, ...]:
        a, b = (x.conj() if x.is_conj() else x for x in call[:2])
        d, *others = each_of(call.out)
        passed = a, b, call.c, d, call.alpha, call.beta
        if not variant.description.aux:
            return passed
        # By name; None for an index, then further results.
        aux = [call.operands.get(each.name) for each in variant.description.aux if each.kind != "output"]
        return *passed, (*aux, *others)

    def run_validated(self, call: Arguments) -> Results:
        """Run, and hold a sample of the results against the oracle: `AccuracyError` where one is off."""
        from weft.oracle.validate import validated

        self.prepare(call)
        a, b, c, _, alpha, beta, operands = call
        return validated(self._request, partial(self.run, call), a, b, c, alpha, beta, operands)

    def launch(self, call: Arguments) -> Variant:
        """The variant whose `launch(a, b, c, out, alpha, beta, aux)` serves these layouts of tensors; no check is made.

        A launch sees memory as it is stored: a conjugate view goes in without its bit.
        """
        return self._variant(self._key(self._checked(call)))

    def _known_call(self, variant: Variant, call: Arguments, result: Results) -> KnownCall | None:
        (a, b, c, out, _, beta, operands), first = call, each_of(result)[0]
        others = [each for each in (c, *operands.values(), None if out is None else first) if each is not None]
        if not first.numel() or (out is not None and first is not result) or (c is not None and beta == 0):
            return None  # a C that is not read has no launch of its own
        if any(x.is_conj() or x.is_neg() for x in others):
            return None
        views = (a.is_conj(), b.is_conj())
        names = list(operands)
        order = tuple([
            names.index(each.name) if each.name in operands else None
            for each in variant.description.aux if each.kind != "output"
        ])  # fmt: skip
        request, maker = self._request, getattr(variant.launch, "maker", None)
        new = NewTensor(self.shape, self._default[0].strides, self.dtype, request.device)
        return KnownCall(
            variant.launch,
            number=type(checked_scalar("alpha", 1, request.arithmetic.accumulate)),
            new=new,
            reaches=tuple(map(reach, (first, a, b, *operands.values()))),
            scaled=request.algebra is None and variant.description.arithmetic == request.arithmetic,
            addend=None if c is None else (reach(c), out is not None and Layout.of(first) == Layout.of(c)),
            variant=variant,
            others=request.outputs or (),
            views=views if any(views) else (),
            make=None if any(views) or request.outputs is not None or maker is None or any_autocast() else maker(new),
            order=None if order == tuple(range(len(names))) else order,
        )

    def wanted(self, call: Arguments) -> ServiceRequest | None:
        """The request for the variant of a call; None where it is built, or chooses nothing."""
        key = self._key(call)
        return None if self._standing(key) is not None else self._wanted_for(self._described(key)[1])

    def _key(self, call: Arguments) -> _Key:
        (a, b, c, out, alpha, _, operands), request = call, self._request
        check_operand("a", a, request.a, request.conjugate[0], request.device)
        check_operand("b", b, request.b, request.conjugate[1], request.device)
        if request.named or operands:
            check_aux(operands, request.named, request.device)
        layouts = self._default
        if out is not None:
            inputs = {"a": a, "b": b, **{f"operand '{name}'": tensor for name, tensor in operands.items()}}
            check_outputs(out, self.shape, self.dtypes, request.outputs is not None, request.device, inputs, c)
            layouts = tuple(map(Layout.of, each_of(out)))
        aligned = aligned_as((a, b), (request.a, request.b))
        aux: tuple[int, ...] = ()
        if request.named:
            taken = [named for named in request.named if named.layout is not None]
            aux = aligned_as([operands[named.name] for named in taken], [named.layout for named in taken])
        scaled = alpha not in (0, 1) and request.narrows
        return (Layout.of(c) if c is not None else None, layouts, aligned, aux, scaled)

    def _build(self, key: _Key) -> Variant:
        request, contraction = self._described(key)
        return self._built(contraction, partial(launcher, request, contraction))

    def _described(self, key: _Key) -> tuple[Request, Contraction]:
        c, results, aligned, aux, scaled = key
        request = self._request.aligned(aligned, aux) if aligned or aux else self._request
        return request, request.contraction(c, results[0], results[1:], scaled=scaled)
