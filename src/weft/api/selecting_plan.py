"""A plan of a contraction that says where it selected: `weft.plan(..., return_arg=True)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.api.keywords import Equation
from weft.api.lookup import read_notation
from weft.base.arrays import as_results, as_tensor, returned
from weft.base.describe import describe_call
from weft.base.dispatch import is_dynamo_compiling, is_traced
from weft.errors import call_context
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.plans.checks import aux_tensors
from weft.plans.contraction import Plan
from weft.plans.derivatives import asked
from weft.plans.keywords import refuse_unknown


class SelectingPlan(Plan):
    """A `weft.Plan` whose calls return ``(D, where)``, as ``weft.contract(..., return_arg=True)`` does.

    What it says of itself, its schedule and its report, is of the contraction that finds D alone.
    """

    def __init__(
        self, request: Request, contract: Callable[..., Any], equation: Equation, keywords: Mapping[str, Any],
        modes: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """`contract` is `weft.contract`; `keywords` are its own but for the tensors of operands, which have `modes`."""
        super().__init__(request)
        self._contract = contract
        terms = read_notation(equation)
        self._equation = equation if isinstance(equation, str) else (*terms.inputs, terms.output)
        self._keywords, self._modes = dict(keywords), dict(modes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._request, self._contract, self._equation, self._keywords, self._modes)

    def __call__(
        self, a: Any, b: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None, out: Any = None,
        operands: Mapping[str, Any] | None = None, validate: bool = False, **unknown: Any,
    ) -> Any:  # fmt: skip
        """Run on `a` and `b`, which lie as the planned ones did; returns D and the indices, as `weft.contract` does."""
        if is_dynamo_compiling():
            return self._contracted(a, b, c, alpha, beta, out, operands or {}, validate)
        with call_context(lambda: describe_call("plan", self._request.text, a=a, b=b, c=c, out=out)):
            if unknown:
                refuse_unknown("a plan's call", unknown)
            promote = self._request.promote
            x, y = (as_tensor(name, value, promote).resolve_neg() for name, value in (("a", a), ("b", b)))
            addend = as_tensor("c", c, promote) if c is not None else None
            given = aux_tensors(operands, self._request.named) if operands else {}
            if not asked(x, y, addend, *given.values()) and not is_traced((x, y, addend, *given.values())):
                self._key(x, y, addend, as_results(out), given)  # raises what does not fit the plan
        found = self._contracted(x, y, addend, alpha, beta, out, given, validate)
        return returned(a, out, found, True)

    def _contracted(
        self, a: Any, b: Any, c: Any, alpha: Scalar, beta: Scalar | None, out: Any, operands: Mapping[str, Any],
        validate: bool,
    ) -> Any:  # fmt: skip
        placed = {
            name: each if isinstance(each, tuple) else (self._modes[name], each) for name, each in operands.items()
        }
        return self._contract(
            self._equation, a, b, c=c, alpha=alpha, beta=beta, out=out, operands=placed or None,
            return_arg=True, validate=validate, **self._keywords,
        )  # fmt: skip
