"""A plan of a contraction that says where it selected: `weft.plan(..., return_arg=True)`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from weft.api.entry import made
from weft.api.selection import reduced_labels
from weft.base.arrays import as_results, as_tensor, returned
from weft.base.describe import describe_call
from weft.base.dispatch import as_operation, is_dynamo_compiling, is_traced
from weft.base.factors import addition
from weft.errors import UnsupportedError, call_context
from weft.planner.options import Options
from weft.planner.request import Request
from weft.planner.schedule import Scalar
from weft.plans.checks import aux_tensors
from weft.plans.contraction import Plan
from weft.plans.derivatives import asked
from weft.plans.keywords import refuse_unknown
from weft.spec.arguments import read_flag


class SelectingPlan(Plan):
    """A `weft.Plan` whose calls return ``(D, where)``, as ``weft.contract(..., return_arg=True)`` does.

    What it says of itself, its schedule and its report, is of the contraction that finds D alone.
    """

    def __init__(self, request: Request, options: Options, modes: Mapping[str, Hashable]) -> None:
        """`options` are those of the call without operands, which have `modes`."""
        super().__init__(request)
        self._options, self._modes = options, dict(modes)
        self.places = len(reduced_labels(request))

    def bind(self, *tensors: Any, **keywords: Any) -> NoReturn:
        """Refused: places are found by several launches."""
        raise UnsupportedError("a plan made with return_arg is not bound: its calls are several launches")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._request, self._options, self._modes)

    def __call__(
        self, a: Any, b: Any, *, c: Any = None, alpha: Scalar = 1.0, beta: Scalar | None = None, out: Any = None,
        operands: Mapping[str, Any] | None = None, validate: bool = False, **unknown: Any,
    ) -> Any:  # fmt: skip
        """Run on `a` and `b`, which have the planned layouts; returns D and the indices, as `weft.contract` does."""
        if is_dynamo_compiling():
            return as_operation("plan")(self, a, b, c, alpha, beta, out, operands, validate)
        c, beta = addition(c, beta, out)
        with call_context(lambda: describe_call("plan", self._request.text, a=a, b=b, c=c, out=out)):
            if unknown:
                refuse_unknown("a plan's call", unknown)
            read_flag("validate", validate)
            promote = self._request.promote
            x, y = (as_tensor(name, value, promote).resolve_neg() for name, value in (("a", a), ("b", b)))
            target = as_results(out)
            addend = as_tensor("c", c, promote) if c is not None else None
            given = aux_tensors(operands, self._request.named) if operands else {}
            if not asked(x, y, addend, *given.values()) and not is_traced((x, y, addend, *given.values())):
                self._key(x, y, addend, target, given)  # raises what does not fit the plan
            placed = {name: (self._modes[name], tensor) for name, tensor in given.items()}
            options = replace(self._options, operands=placed)
            found, _ = made(
                self._request.notation, x, y, options, addend, alpha, beta, target, return_arg=True,
                validate=validate,
            )  # fmt: skip
        return returned(a, out, found, True)
