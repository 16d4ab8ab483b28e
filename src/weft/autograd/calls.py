"""The public calls where derivatives are requested: from what a call says to a rule, the rule called, and explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import get_gradient_edge

from weft.api import entry
from weft.api.lookup import Terms, one_of, read_notation
from weft.api.permute import find_permutation
from weft.autograd.algebras import Composed, core, plain_form, rule
from weft.autograd.backward import Needs
from weft.autograd.graphs import Program, handed, serves
from weft.autograd.hooks import kept_type
from weft.autograd.product import Product
from weft.autograd.reductions import Selection
from weft.autograd.rule import Rule, apply
from weft.autograd.spec import (
    C,
    Plain,
    as_contraction,
    check_differentiable,
    is_differentiable,
    is_smooth,
    meta,
    meta_request,
)
from weft.autograd.steps import GradientStep
from weft.base.arguments import check_dimensions, is_zero
from weft.base.arrays import as_tensor, grad_mode, is_transformed, is_transforming, outside_transforms
from weft.base.caches import cached_property
from weft.base.figures import duration, si
from weft.engine.ways import Arguments, any_tensor, asks
from weft.errors import DTypeError, ShapeError, UnsupportedError
from weft.fn.binding import naming, parameters
from weft.planner.options import Options, options_of
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.planner.target import target_of
from weft.plans.checks import check_devices
from weft.plans.contraction import Plan
from weft.plans.explain.lines import section
from weft.plans.permutation import PermutePlan
from weft.spec import Label
from weft.spec.dtypes import dtype_name
from weft.spec.notation import expand


class DifferentiableCall:
    """A known differentiable call: its plain form, and its rule or torch's own operations.

    `make` makes the rule, and is None where no derivative is requested; `program` is the call in torch's operations,
    where they serve.
    """

    def __init__(
        self, form: Plain, make: Callable[[], Rule | Composed] | None, program: Program | None, order: tuple[int, ...],
        new: Sequence[int] | None = None, needs: Needs = (),
    ) -> None:  # fmt: skip
        self._form = form if any(form.views) else None
        self._make, self._program, self._needs = make, program, needs
        self._count = len(form.spec.results)
        self._several = form.spec.several
        self._order = order  # which of the operands given each of the rule's is
        self._new = new  # of a permutation: the extents of new modes, along which the one in place of B is repeated

    @cached_property
    def _rule(self) -> Rule | Composed:
        assert self._make is not None
        with outside_transforms():
            return self._make()

    def run(
        self, a: Any, b: Any, c: Any = None, alpha: Any = 1.0, beta: Any = 1.0, out: Any = None,
        operands: Sequence[Any] = (),
    ) -> Any:  # fmt: skip
        """The result, or None where the call must be read in full."""
        if out is not None or isinstance(alpha, torch.Tensor) or isinstance(beta, torch.Tensor):
            return None
        if self._new is not None:
            b = one_of(a.dtype, a.device).expand(self._new)
        a, b, c = a.resolve_neg(), b.resolve_neg(), None if c is None else c.resolve_neg()
        tensors: Sequence[Any] = (a, b, c, *[operands[at].resolve_conj().resolve_neg() for at in self._order])
        if self._form is not None:
            tensors = self._form.of(tensors)
        found: tuple[Any, ...] | None = None
        if self._program is not None and alpha == 1 and beta == 1 and serves():
            found = self._program(*tensors)
            if self._needs:  # the first call
                needed = [each for each, need in zip(tensors, self._needs, strict=True) if need]
                self._needs = ()
                if not depend(found, needed):
                    found = self._program = None
        if found is None:
            if self._make is None:
                return None
            own = self._rule
            found = own.call(tensors) if isinstance(own, Composed) else apply(own, alpha, beta, tensors)
        return found[: self._count] if self._several else found[0]


def depend(results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether autograd sees each result, if it has derivatives, depend on each of the tensors.

    Weft's own rules have zeros where a function does not read its value, or reads it in a comparison alone. Torch has
    None there, and a result that requires no gradient.
    """
    wanted = {get_gradient_edge(each).node for each in tensors}
    for result in results:
        reached, waiting = set(), [result.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in reached:
                reached.add(node)
                waiting += [] if node in wanted else [other for other, _ in node.next_functions]
        if is_smooth(result.dtype) and not wanted <= reached:
            return False
    return True


def contraction(
    equation: Terms, call: Arguments, options: Options, return_arg: bool, validate: bool
) -> tuple[Any, DifferentiableCall | None]:
    """The result of `weft.contract`, and what to remember of the call."""
    if any_tensor(call.alpha, call.beta):
        return with_factors(equation, call, options, return_arg, validate), None
    refuse_out(call.out)
    a, b, c, _, alpha, beta, _ = call
    check_devices(a, b, c, options.tensors)
    c = None if c is None else c.resolve_neg()
    with outside_transforms():
        request = meta_request(read_notation(equation), str(equation), a, b, options, a.device)
    if validate:
        _validated(equation, a, b, c, alpha, beta, options)
    tensors = (a, b, c, *options.tensors.values())
    return called(request, tensors, tuple(options.operands), alpha, beta, options.backend, return_arg)


def plan_call(plan: Plan, call: Arguments, validate: bool) -> tuple[Any, DifferentiableCall | None]:
    """The result of a plan's call, on tensors of the planned layouts, and what to remember of it."""
    request, factors = plan.request, any_tensor(call.alpha, call.beta)
    if not is_transforming():
        third = None if call.c is None else call.c.resolve_neg().detach()
        beside = {name: each.detach() for name, each in call.operands.items()}
        plan.prepare(Arguments(call.a.detach(), call.b.detach(), third, operands=beside))
    options = replace(options_of(request, call.operands), schedule=None if factors else request.schedule)
    return contraction(request.notation, call, options, False, validate)


def permutation(
    equation: Terms, call: Arguments, options: Options, extents: Mapping[Label, int] | None
) -> tuple[torch.Tensor, DifferentiableCall | None]:
    """The result of `weft.permute`, and what to remember of the call."""
    with outside_transforms():
        place: Any = None if call.out is None else meta(call.out)  # type: ignore[arg-type]
        plan = find_permutation(equation, meta(call.a), place, replace(options, backend="reference"), extents)
    return _permuted(plan.request, options.backend, call)


def permute_plan_call(plan: PermutePlan, call: Arguments) -> tuple[torch.Tensor, None]:
    """The result of a permutation plan's call."""
    if not is_transforming():
        scalars = (1.0, 1.0) if any_tensor(call.alpha, call.beta) else (call.alpha, call.beta)
        plan.prepare(Arguments(call.a.detach(), None, None if call.c is None else call.c.detach(), None, *scalars))
    return _permuted(plan.request, plan.request.backend, call)[0], None


def _permuted(request: Request, backend: str, call: Arguments) -> tuple[torch.Tensor, DifferentiableCall | None]:
    """The permutation as a contraction with a one that is repeated along new modes."""
    x, c = call.a, call.c
    with outside_transforms():
        asked = replace(as_contraction(request), device=x.device, target=target_of("reference", x.device))
        one = torch.ones((), dtype=x.dtype, device=x.device).expand(request.b.shape)
    if any_tensor(call.alpha, call.beta):
        options = replace(options_of(asked, {}), backend=backend)
        return with_factors(asked.notation, call._replace(b=one), options, False, False), None
    refuse_out(call.out)
    return called(asked, (x, one, c), (), call.alpha, call.beta, backend, new=request.b.shape)


def refuse_out(out: Any) -> None:
    if out is not None:
        raise UnsupportedError("out= has no derivative: leave it out where an operand requires a gradient")


def called(
    request: Request,
    tensors: Sequence[torch.Tensor | None],
    names: tuple[str, ...],
    alpha: Scalar,
    beta: Scalar,
    backend: str,
    return_arg: bool = False,
    new: Sequence[int] | None = None,
) -> tuple[Any, DifferentiableCall | None]:
    """The result of a request's call; `tensors` are A, B, C and the operands of these names.

    `new`: of a permutation, the extents of new modes.
    """
    # What a transform that has ended left behind stands for the tensor itself.
    a, b, c, *operands = (each if each is None else torch._C._functorch.unwrap_if_dead(each) for each in tensors)
    ahead = forward_ad._current_level >= 0 or is_transforming()
    assert a is not None
    every = (a, b, c, *operands)
    needs = tuple(each is not None and is_smooth(each.dtype) and (ahead or asks(each)) for each in every)
    if any(needs):
        check_differentiable(request)
    with outside_transforms():
        metas = [None if each is None else meta(each) for each in every]
        form, order, viewed, needed = plain_form(request, names, metas, needs, backend)
        moves = new is not None
        program = None if ahead or return_arg else handed(request, metas[C], form.spec, viewed, moves, core)
    make = partial(rule, form.spec, needed, viewed, a.device, ahead, moves)
    call = DifferentiableCall(form, make, program, order, new, needed)
    if return_arg:
        given = form.of((a, b, c, *(operands[at] for at in order)))
        return _with_places(make(), given), None
    result = call.run(a, b, c, alpha, beta, None, operands)
    return result, None if ahead else call


def written(
    request: Request, tensors: Sequence[torch.Tensor | None], operands: Mapping[str, torch.Tensor]
) -> DifferentiableCall | None:
    """A call of few elements, without derivatives, in torch's operations; None where they do not serve.

    `tensors` are A, B and C. The call takes the operands in the order that they have here.
    """
    metas = [None if each is None else meta(each) for each in (*tensors, *operands.values())]
    if not is_differentiable(request):
        return None
    form, order, viewed, _ = plain_form(request, [*operands], metas, (False,) * len(metas), "auto")
    # A bare contraction of an algebra would be itself within its program.
    inner = core if any(form.spec.functions) else None
    program = handed(request, metas[C], form.spec, viewed, False, inner)
    return None if program is None else DifferentiableCall(form, None, program, order)


def _with_places(found: Rule | Composed, tensors: Sequence[torch.Tensor | None]) -> Any:
    """`return_arg`: the values of a contraction that selects, and their places."""
    if not isinstance(found, Selection):
        raise UnsupportedError("return_arg with a gradient is for algebras that select, without functions and C")
    value, *places = apply(found, 1.0, 1.0, tensors)
    return value, places[0] if len(places) == 1 else tuple(places)


def _validated(
    equation: Terms, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: Any, beta: Any, options: Options
) -> None:
    """Run the plain call, which holds a sample of its results against the reference."""
    if is_transformed(a) or is_transformed(b):
        raise UnsupportedError("validate looks at values, which a transform of torch.func hides: call without it there")
    operands = {name: (modes, x.detach()) for name, (modes, x) in options.operands.items()}
    with grad_mode(False):
        read = replace(options, operands=operands)
        call = Arguments(a.detach(), b.detach(), None if c is None else c.detach(), None, alpha, beta, read.tensors)
        entry.made(equation, call, read, validate=True)


def explained(plan: Plan | PermutePlan, needs: Needs) -> str:
    """The backward pass of a plan that was made of tensors which require gradients; `needs` says which of them."""
    request = plan.request if isinstance(plan, Plan) else as_contraction(plan.request)
    needs = needs if isinstance(plan, Plan) else (True,)
    c = plan.contraction.c if isinstance(plan, Plan) else None
    beside = {each.name: each.layout for each in request.named if each.layout is not None}
    tensors = [None if each is None else meta(each) for each in (request.a, request.b, c, *beside.values())]
    asked = [need and each is not None for need, each in zip(needs, tensors, strict=False)] + [False] * len(tensors)
    check_differentiable(request)
    form, _, viewed, needed = plain_form(request, [*beside], tensors, asked, request.backend)
    found = rule(form.spec, needed, viewed, request.device, False, isinstance(plan, PermutePlan))
    return "\n".join(section("backward", described(form, found)))


def described(form: Plain, found: Rule | Composed) -> list[str]:
    """Lines on a rule: the steps of a full backward pass, and what is kept."""
    if not isinstance(found, Product):
        return [f"by the rule {type(found).__name__.lower()}: {(type(found).__doc__ or '').splitlines()[0]}"]
    steps = found.steps(tuple(is_smooth(dtype) for dtype in form.spec.results), found.needs)
    said, metas = [], found.metas()
    for step in steps:
        text = step.line()
        if isinstance(step, GradientStep):
            metas[step.target], choice = step.chosen(metas, found.device)
            if choice is not None:
                text += f"; predicted {duration(choice.best.seconds)}: {choice.best.schedule}"
        said.append(named(text, form))
    return [*said, kept(found)]


def kept(found: Product, whose: str = "") -> str:
    """A line on what is kept for the backward pass; `whose` the sums are, where it is not all of them."""
    if found.kept:
        size = si(found.sums_bytes, "B")
        return f"kept besides operands and results: the sums, {size}{whose} in {dtype_name(kept_type(found.spec))}"
    if found.again:
        return "kept besides operands and results: nothing; the sums are made again"
    return "kept besides operands and results: nothing"


def named(text: str, form: Plain) -> str:
    """Operands by the names that the call gives them."""
    for (inner, _), name in zip(form.spec.operands, form.given, strict=True):
        text = text.replace(f"operand {inner}", name)
    return text


def with_factors(equation: Terms, call: Arguments, options: Options, return_arg: bool, validate: bool) -> Any:
    """The result of `weft.contract` where `alpha` or `beta` is a tensor of no dimensions.

    They are operands of the epilogue then, and have gradients as those have.

        D = epilogue(alpha * acc + beta * c_fn(C))
    """
    a, b, c, out, alpha, beta, _ = call
    if options.algebra is not None:
        raise DTypeError("alpha and beta scale sums of products: other algebras have no such factors")
    if return_arg:
        raise UnsupportedError("return_arg is for algebras that select, which have no factors")
    if c is None and isinstance(beta, torch.Tensor):
        raise ShapeError("beta is a tensor and has no c to multiply: pass c")
    operands: dict[str, Any] = dict(options.operands)
    factors = []
    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, torch.Tensor):
            value = as_tensor(name, value)
            check_dimensions(name, value)
            operands[f"weft_{name}"] = ("", value.to(a.device))
        factors.append(None if isinstance(value, torch.Tensor) else value)
    if c is not None:
        output = expand(read_notation(equation), (a.dim(), b.dim())).output
        operands["weft_c"] = (output, c.clone() if c is out else c)
    _, _, c_fn, epilogue = options.functions
    scaled = _scaled(factors, c_fn, epilogue, (*options.operands, *options.indices), c is not None)
    asked = replace(options.having(c_fn=None, epilogue=scaled), operands=operands)
    return entry.contraction(equation, a, b, asked, out=out, validate=validate)


def _scaled(
    factors: Sequence[Any],
    c_fn: Callable[..., Any] | None,
    epilogue: Callable[..., Any] | None,
    names: tuple[str, ...],
    added: bool,
) -> Callable[..., Any]:
    """The epilogue with the factors, and C, in it."""
    own = [
        tuple(name for name in parameters(fn) or () if name in names) if fn is not None else ()
        for fn in (c_fn, epilogue)
    ]
    alpha, beta = factors

    def scaled(value: torch.Tensor, **given: torch.Tensor) -> Any:
        value = _times(given.get("weft_alpha", alpha), value)
        if added:
            c = given["weft_c"].to(value.dtype)
            if c_fn is not None:
                c = c_fn(c, **{name: given[name] for name in own[0]})
            value = value + _times(given.get("weft_beta", beta), c)
        return value if epilogue is None else epilogue(value, **{name: given[name] for name in own[1]})

    places = [*(["weft_alpha"] if alpha is None else []), *(["weft_beta"] if added and beta is None else [])]
    places += ["weft_c"] if added else []
    return naming(dict.fromkeys(("value", *places, *own[0], *own[1])), scaled)


def _times(factor: Any, value: torch.Tensor) -> torch.Tensor:
    """A factor of 0 leaves nothing of NaN and infinity; its derivative is the value, where that is finite."""
    if is_zero(factor):
        return torch.zeros_like(value)
    if isinstance(factor, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        value = torch.where((factor == 0) & (value - value != 0), 0, value)
    return value * factor
