"""A `Plan`: a contraction bound to the way it is computed, to run again and again on new pointers.

A plan is made for the layouts of A and B. C and the result may change from call to call; each combination of their
layouts is one `_Variant`, planned and built when it first appears.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.errors import call_context
from weft.fn import Pointwise
from weft.interop import as_result, as_tensor, like
from weft.plan.checks import check_addend, check_operand, check_out, checked_scalar, describe_call
from weft.plan.planner import Choice, select
from weft.plan.schedule import Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Layout, Notation, canonical
from weft.spec.contraction import class_modes, mode_extents, output_shape


@dataclass(frozen=True, slots=True)
class Functions:
    """The four hooks as traced graphs; None where there is none. `raw` keeps what the user passed."""

    a: Pointwise | None = None
    b: Pointwise | None = None
    c: Pointwise | None = None
    epilogue: Pointwise | None = None
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

    def extents(self) -> dict[Any, int]:
        return mode_extents(self.notation, (self.a.shape, self.b.shape))

    def contraction(self, c: Layout | None, d: Layout) -> Contraction:
        """The canonical contraction for one pair of layouts of C and D."""
        extents = self.extents()
        functions = self.functions
        return canonical(
            Contraction(
                modes=class_modes(self.notation, self.a, self.b, c, d, extents),
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
                text=self.text,
            )
        )


@dataclass(slots=True)
class _Variant:
    """One built launch, for one pair of layouts of C and D."""

    contraction: Contraction
    choice: Choice | None  # None for the reference backend, which chooses nothing
    launch: Launch


class Plan:
    """A contraction, planned once; calling it runs it on new tensors of the same shapes, strides and types.

    Made by `weft.plan`. `plan(a, b, *, c=None, alpha=1.0, beta=1.0, out=None)` returns the result, which is `out`
    when that is given. `explain()` says what was chosen and why.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.shape = output_shape(request.notation, request.extents())
        self.dtype = request.d_dtype
        self._variants: dict[tuple[Layout | None, Layout], _Variant] = {}
        self._default = Layout.contiguous(self.shape, self.dtype)

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
    ) -> Any:
        """Run on `a` and `b`, which lie as the planned ones did; returns D, in the kind of array that `a` is.

        Raises `ShapeError` or `DTypeError` when a tensor does not fit the plan; then nothing is written.
        """
        with call_context(lambda: describe_call("plan", self._request.text, a=a, b=b, c=c, out=out)):
            tensors = [as_tensor(name, value) for name, value in (("a", a), ("b", b))]
            addend = as_tensor("c", c) if c is not None else None
            target = as_result(out) if out is not None else None
            result = self.run(tensors[0], tensors[1], addend, alpha, beta, target)
        return out if out is not None else like(a, result)

    def run(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        alpha: Scalar,
        beta: Scalar,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        """The call on torch tensors: check what can differ, find the variant, launch."""
        device, accumulate = self._request.device, self._request.arithmetic.accumulate
        alpha = checked_scalar("alpha", alpha, accumulate)
        beta = checked_scalar("beta", beta, accumulate)
        if c is not None:
            check_addend(c, self.shape, accumulate, device)
            c = c.resolve_conj().resolve_neg() if beta != 0 else None
        variant = self._fitting(a, b, c, out)
        if out is None:
            out = torch.empty(self.shape, dtype=self.dtype, device=device)
        if out.numel():
            # A launch sees memory as it lies: conjugation is in the contraction, not in the tensor's bit.
            variant.launch(a.conj() if a.is_conj() else a, b.conj() if b.is_conj() else b, c, out, alpha, beta)
        return out

    def prepare(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, out: torch.Tensor | None = None
    ) -> None:
        """Plan and build what a call on these tensors will launch, checked as that call will; runs nothing."""
        if c is not None:
            check_addend(c, self.shape, self._request.arithmetic.accumulate, self._request.device)
        self._fitting(a, b, c, out)

    def explain(self) -> str:
        """Modes, schedule, bytes, flops, the roofline floor, and why this schedule and not another."""
        from weft.plan.explain import explain

        return explain(self._request, self._first().contraction, self._first().choice)

    def __repr__(self) -> str:
        return f"Plan({self._request.text!r}, {self.schedule or self._request.backend})"

    def _fitting(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, out: torch.Tensor | None) -> _Variant:
        """The variant for these tensors; they are checked first, so that no plan is made for what cannot run."""
        request = self._request
        check_operand("a", a, request.a, request.conjugate[0], request.device)
        check_operand("b", b, request.b, request.conjugate[1], request.device)
        if out is not None:
            check_out(out, self.shape, self.dtype, request.device, {"a": a, "b": b}, c)
        return self._variant(
            Layout.of(c) if c is not None else None, Layout.of(out) if out is not None else self._default
        )

    def _first(self) -> _Variant:
        """The variant that was made first, which stands for the plan where it describes itself."""
        return next(iter(self._variants.values()), None) or self._variant(None, self._default)

    def _variant(self, c: Layout | None, d: Layout) -> _Variant:
        key = (c, d)
        known = self._variants.get(key)
        if known is None:
            known = self._variants[key] = self._build(c, d)
        return known

    def _build(self, c: Layout | None, d: Layout) -> _Variant:
        request = self._request
        contraction = request.contraction(c, d)
        if request.backend == "reference":
            from weft.reference import launcher

            return _Variant(contraction, None, launcher(request))
        choice = select(contraction, request.backend, request.target, request.workspace_limit, request.tune)
        choice, launch = choice.built()
        return _Variant(contraction, choice, launch)
