"""A `Plan`: a contraction bound to the way it is computed, to run again and again on new pointers.

A plan is made for the layouts of A and B. C and the result may change from call to call; each combination of their
layouts is one `_Variant`, planned and built when it first appears.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from weft.algebra import Algebra
from weft.base.arrays import as_results, as_tensor, like_each
from weft.errors import call_context
from weft.fn import Pointwise
from weft.fn.algebra import TracedAlgebra
from weft.planner.planner import Choice
from weft.planner.schedule import Extras, Scalar, Target
from weft.plans.building import chosen_and_built
from weft.plans.call_cache import Repeats, sight
from weft.plans.checks import (
    Results,
    check_addend,
    check_named,
    check_operand,
    check_outputs,
    check_unscaled,
    checked_scalar,
    describe_call,
    named_tensors,
)
from weft.plans.variants import Varied
from weft.spec import Arithmetic, Contraction, Extra, Layout, Notation, canonical
from weft.spec.aux_operands import Named
from weft.spec.contraction import class_modes, mode_extents, mode_strides, output_shape

C_FN = 2  # place of `c_fn` among the hooks


@dataclass(frozen=True, slots=True)
class Functions:
    """The four hooks as traced graphs; None where there is none. `raw` keeps what the user passed.

    `names` holds for each hook what its function takes after the value.
    """

    a: Pointwise | None = None
    b: Pointwise | None = None
    c: Pointwise | None = None
    epilogue: Pointwise | None = None
    names: tuple[tuple[str, ...], ...] = ((), (), (), ())
    raw: tuple[Callable[..., Any] | None, ...] = field(default=(None, None, None, None), compare=False)


@dataclass(frozen=True, slots=True)
class Request:
    """All that a plan depends on besides C and the result: what was asked, checked and resolved."""

    notation: Notation  # two inputs, no ellipsis left
    text: str  # the equation as the caller wrote it
    a: Layout
    b: Layout
    conjugate: tuple[bool, bool]
    arithmetic: Arithmetic
    d_dtype: torch.dtype
    functions: Functions
    backend: str
    device: torch.device
    target: Target
    workspace_limit: int | None = None
    tune: str | None = None
    named: tuple[Named, ...] = ()  # operands and coordinates of the functions
    outputs: tuple[torch.dtype, ...] | None = None  # of what the epilogue yields after D; None where it is no tuple
    algebra: TracedAlgebra | None = None
    raw_algebra: Algebra | None = field(default=None, compare=False)

    def extents(self) -> dict[Any, int]:
        return mode_extents(self.notation, (self.a.shape, self.b.shape))

    def contraction(self, c: Layout | None, d: Layout, outputs: tuple[Layout, ...] | None = None) -> Contraction:
        """The canonical contraction for one set of layouts of C, D and further outputs (contiguous by default)."""
        extents = self.extents()
        functions = self.functions
        if outputs is None:
            outputs = tuple(Layout.contiguous(d.shape, dtype) for dtype in self.outputs or ())
        taken = [names if hook != C_FN or c is not None else () for hook, names in enumerate(functions.names)]
        named = [found for found in self.named if any(found.name in names for names in taken)]
        places = {found.name: at for at, found in enumerate(named)}
        a_args, b_args, c_args, epilogue_args = (tuple(places[name] for name in names) for names in taken)
        steps = [found.strides(extents) for found in named]
        steps += [mode_strides(self.notation.output, layout, extents) for layout in outputs]
        extras = [found.extra for found in named]
        extras += [Extra(f"output {at}", "output", layout, layout.dtype) for at, layout in enumerate(outputs, 1)]
        return canonical(
            Contraction(
                modes=class_modes(self.notation, self.a, self.b, c, d, extents, steps),
                a=self.a,
                b=self.b,
                c=c,
                d=d,
                arithmetic=self.arithmetic,
                a_fn=functions.a,
                b_fn=functions.b,
                c_fn=functions.c if c is not None else None,
                epilogue=functions.epilogue,
                conjugate_a=self.conjugate[0],
                conjugate_b=self.conjugate[1],
                extras=tuple(extras),
                a_args=a_args,
                b_args=b_args,
                c_args=c_args,
                epilogue_args=epilogue_args,
                algebra=self.algebra,
                text=self.text,
            )
        )


@dataclass(slots=True)
class _Variant:
    """One built launch, for one set of layouts of C, D and further outputs."""

    contraction: Contraction
    choice: Choice | None  # None for the reference backend, which chooses nothing
    launch: Callable[..., None]  # a `Launch`, or an `ExtendedLaunch` where the contraction has extras


class Plan(Varied):
    """A contraction, planned once; calling it runs it on new tensors of the same shapes, strides and types.

    Made by `weft.plan`. `plan(a, b, *, c=None, alpha=1.0, beta=1.0, out=None, operands=None, validate=False)` returns
    the result, which is `out` when that is given. `explain()` says what was chosen and why.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.shape = output_shape(request.notation, request.extents())
        self.dtype = request.d_dtype
        self.dtypes = (self.dtype, *(request.outputs or ()))  # of all results
        self._variants: dict[tuple[Layout | None, tuple[Layout, ...]], _Variant] = {}
        self._default = tuple(Layout.contiguous(self.shape, dtype) for dtype in self.dtypes)
        self.repeats = Repeats(self.shape, self.dtype, request.device)

    @property
    def contraction(self) -> Contraction:
        """The canonical contraction this plan was made for."""
        return self._first().contraction

    @property
    def schedule(self) -> Any:
        """The chosen schedule; None for the reference backend."""
        choice = self._first().choice
        return choice.best.schedule if choice else None

    @property
    def workspace_bytes(self) -> int:
        """Bytes allocated during a call besides the result."""
        return self.schedule.workspace_bytes if self.schedule is not None else 0

    def __call__(
        self,
        a: Any,
        b: Any,
        *,
        c: Any = None,
        alpha: Scalar = 1.0,
        beta: Scalar = 1.0,
        out: Any = None,
        operands: Mapping[str, Any] | None = None,
        validate: bool = False,
    ) -> Any:
        """Run on `a` and `b`, which lie as the planned ones did; returns D, in the kind of array that `a` is.

        `operands` has a tensor for each operand that the plan's functions take, by name: they lie as planned, too. Of
        an epilogue that yields several values the result is a tuple, and so is `out`. `validate` checks a sample of D
        as for `weft.contract`.

        Raises `ShapeError` or `DTypeError` when a tensor does not fit the plan; then nothing is written. Raises
        `AccuracyError` when a validated element is off.
        """
        if c is None and operands is None and not validate:
            again = self.repeats.run((sight(a), sight(b), sight(out)), a, b, alpha, beta, out)
            if again is not None:
                return again
        with call_context(lambda: describe_call("plan", self._request.text, a=a, b=b, c=c, out=out)):
            tensors = [as_tensor(name, value).resolve_neg() for name, value in (("a", a), ("b", b))]
            addend = as_tensor("c", c) if c is not None else None
            given = named_tensors(operands) if operands else None
            run = self.run_validated if validate else self.run
            result = run(tensors[0], tensors[1], addend, alpha, beta, as_results(out), given)
        return out if out is not None else like_each(a, result)

    def run(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        alpha: Scalar,
        beta: Scalar,
        out: Results | None,
        operands: Mapping[str, torch.Tensor] | None = None,
    ) -> Results:
        """The call on torch tensors: check what can differ, find the variant, launch."""
        if self._request.algebra is not None:
            check_unscaled(self._request.algebra.name, alpha, beta)
        device, accumulate = self._request.device, self._request.arithmetic.accumulate
        alpha = checked_scalar("alpha", alpha, accumulate)
        beta = checked_scalar("beta", beta, accumulate)
        if c is not None:
            check_addend(c, self.shape, accumulate, device)
            c = c.resolve_conj().resolve_neg() if beta != 0 else None
        variant = self._fitting(a, b, c, out, operands or {})
        given = out is not None
        if out is None:
            found = tuple(torch.empty(self.shape, dtype=dtype, device=device) for dtype in self.dtypes)
            out = found if self._request.outputs is not None else found[0]
        d, *others = out if isinstance(out, tuple) else (out,)
        if d.numel():
            # A launch sees memory as it lies: conjugation is in the contraction, not in the tensor's bit.
            a, b = (x.conj() if x.is_conj() else x for x in (a, b))
            if variant.contraction.extras:
                extras = _in_order(variant.contraction.extras, operands or {}, others)
                variant.launch(a, b, c, d, alpha, beta, extras)
            else:
                variant.launch(a, b, c, d, alpha, beta)
                if c is None and type(alpha) is type(beta):
                    self.repeats.remember(variant.launch, a, b, alpha, d, given)
        return out

    def run_validated(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        alpha: Scalar,
        beta: Scalar,
        out: Results | None,
        operands: Mapping[str, torch.Tensor] | None = None,
    ) -> Results:
        """The same, with a sample of the results held against the oracle: `AccuracyError` where one is off."""
        from weft.oracle.validate import validated

        self.prepare(a, b, c, out, operands)
        run = partial(self.run, a, b, c, alpha, beta, out, operands)
        return validated(self._request, run, a, b, c, alpha, beta, operands or {})

    def prepare(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None = None,
        out: Results | None = None,
        operands: Mapping[str, torch.Tensor] | None = None,
    ) -> Plan:
        """Plan and build what a call on these tensors will launch, checked as that call will; runs nothing.

        Returns the same plan, which describes itself as that call's.
        """
        if c is not None:
            check_addend(c, self.shape, self._request.arithmetic.accumulate, self._request.device)
        return self._standing_for(self._fitting(a, b, c, out, operands or {}))

    def explain(self) -> str:
        """Modes, schedule, bytes, flops, the roofline floor, and why this schedule and not another."""
        from weft.plans.explain import explain

        return explain(self._request, self._first().contraction, self._first().choice)

    def __repr__(self) -> str:
        return f"Plan({self._request.text!r}, {self.schedule or self._request.backend})"

    def _fitting(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        out: Results | None,
        operands: Mapping[str, torch.Tensor],
    ) -> _Variant:
        """The variant for these tensors; they are checked first, so that no plan is made for what cannot run."""
        request = self._request
        check_operand("a", a, request.a, request.conjugate[0], request.device)
        check_operand("b", b, request.b, request.conjugate[1], request.device)
        if request.named or operands:
            check_named(operands, request.named, request.device)
        layouts = self._default
        if out is not None:
            inputs = {"a": a, "b": b, **{f"operand '{name}'": tensor for name, tensor in operands.items()}}
            check_outputs(out, self.shape, self.dtypes, request.outputs is not None, request.device, inputs, c)
            layouts = tuple(map(Layout.of, out)) if isinstance(out, tuple) else (Layout.of(out),)
        return self._variant(Layout.of(c) if c is not None else None, layouts)

    def _usual(self) -> _Variant:
        return self._variant(None, self._default)

    def _variant(self, c: Layout | None, results: tuple[Layout, ...]) -> _Variant:
        key = (c, results)
        known = self._variants.get(key)
        if known is None:
            known = self._variants[key] = self._build(c, results)
        return known

    def _build(self, c: Layout | None, results: tuple[Layout, ...]) -> _Variant:
        request = self._request
        contraction = request.contraction(c, results[0], results[1:])
        if request.backend == "reference":
            from weft.oracle.reference import launcher

            return _Variant(contraction, None, launcher(request, contraction))
        choice, launch = chosen_and_built(
            contraction, request.backend, request.target, request.workspace_limit, request.tune
        )
        return _Variant(contraction, choice, launch)


def _in_order(extras: Sequence[Extra], operands: Mapping[str, torch.Tensor], outputs: Sequence[torch.Tensor]) -> Extras:
    """The tensors of a contraction's extras: the call's operands by name, none for an index, then further outputs."""
    beside = [operands.get(extra.name) for extra in extras if extra.kind != "output"]
    return (*beside, *outputs)
