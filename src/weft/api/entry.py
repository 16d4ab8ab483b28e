"""The one way into contractions whose options are read: of public calls, and of the steps of rooms above.

A call like an earlier one goes straight to its launch. Calls are known by all that they say: an equation, the layouts
of their tensors, and their options, as a public call was given them or as `Options` has them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self

import torch

from weft.api.lookup import Terms, find_plan
from weft.api.selection import reduced_labels, selected
from weft.base.arguments import describe_call
from weft.base.arrays import without_neg
from weft.base.dispatch import is_dynamo_compiling, outside
from weft.engine.calls import CALLS, present
from weft.engine.ways import Arguments, aside, differentiable, is_seen
from weft.errors import UnsupportedError, call_context
from weft.planner.options import Options, read_operands
from weft.planner.request import Request, Results
from weft.planner.schedule import Scalar
from weft.plans.contraction import Plan
from weft.plans.known_call import KnownCall
from weft.spec.dtypes import result_types

FEW = 1 << 15  # elements of a tensor, or pairs of another algebra, of which copies cost less than a call does
PATIENCE = 8  # calls before one is written anew
_USUAL = Options(specialize="auto")

Words = tuple[Hashable, ...]  # all that a call says but for its tensors and factors


def contraction(
    equation: Terms,
    a: torch.Tensor,
    b: torch.Tensor,
    options: Options = _USUAL,
    c: torch.Tensor | None = None,
    alpha: Scalar = 1.0,
    beta: Scalar = 1.0,
    out: Results | None = None,
    *,
    return_arg: bool = False,
    validate: bool = False,
) -> Any:
    """The result of `weft.contract` on tensors, of options that are read; `out` says D's type where they do not."""
    if is_dynamo_compiling():
        return outside(
            contraction, equation, a, b, options, c, alpha, beta, out, return_arg=return_arg, validate=validate
        )
    if out is not None and options.out_dtype is None:
        options = replace(options, out_dtype=result_types(out))
    beside = [tensor for _, tensor in options.operands.values()] if options.operands else ()
    words: Any = None if validate else words_of(equation, options)
    tensors: Sequence[Any] = ()
    place = None
    if words is not None:
        words, tensors = present((*words, "return_arg") if return_arg else words, a, b, c, out, beside)
        known, place = CALLS.find(words, tensors)
        if known is not None and (found := known.run(a, b, c, alpha, beta, out, beside)) is not None:
            return found
    with call_context(lambda: describe_call("contract", equation, a=a, b=b, c=c, out=out)):
        if any(each.is_conj() or each.is_neg() for each in beside):
            options = replace(options, operands=read_operands(options.operands))
        call = Arguments(without_neg(a), without_neg(b), c, out, alpha, beta, options.tensors)
        found, known = made(equation, call, options, return_arg, validate)
    CALLS.keep(place, tensors, known)
    return found


def made(
    equation: Terms, call: Arguments, options: Options, return_arg: bool = False, validate: bool = False
) -> tuple[Any, Any]:
    """The result of a call that is not known, and what makes that of later ones, where they need not be read."""
    if (seen := aside("contraction", equation, call, options, return_arg, validate)) is not None:
        return seen
    if return_arg:
        return selected(equation, call, options, validate)
    plan = find_plan(equation, call.a, call.b, options)
    if validate or not plan.is_lasting:
        return (plan.run_validated if validate else plan.run)(call), None
    result, known = plan.run_known(call)
    free = call.out is None and options.backend == "auto"
    if known is not None and free and are_few(plan.request, (*call[:3], *call.operands.values())):
        return result, FewElements(known, plan.request, tuple(call.operands))
    return result, known


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

    @property
    def _current(self) -> Self:
        return self  # each call reads its functions

    def _answer(self, call: Arguments, validate: bool, keeps: bool) -> tuple[Any, Any]:
        """D and the indices, as `weft.contract` makes them."""
        if not is_seen((*call[:3], *call.operands.values())):
            self._key(call._replace(alpha=1))  # raises what does not fit the plan
        placed = {name: (self._modes[name], tensor) for name, tensor in call.operands.items()}
        return made(self._request.notation, call, replace(self._options, operands=placed), True, validate)


class FewElements:
    """A known call of functions, or of another algebra, on so few elements that torch's operations serve it best.

    It is written in them once it is known to come again.
    """

    def __init__(self, known: KnownCall, request: Request, names: tuple[str, ...]) -> None:
        self._known, self._request, self._names = known, request, names
        self._left = PATIENCE
        self._call: Any = None

    def run(
        self, a: Any, b: Any, c: Any = None, alpha: Any = 1.0, beta: Any = 1.0, out: Any = None,
        operands: Sequence[Any] = (),
    ) -> Any:  # fmt: skip
        """The result, or None where the call must be read in full."""
        if self._call is not None and (found := self._call.run(a, b, c, alpha, beta, out, operands)) is not None:
            return found
        self._left -= 1
        if not self._left:
            given = dict(zip(self._names, operands, strict=True))
            self._call = differentiable("written")(self._request, (a, b, c), given)
        return self._known.run(a, b, c, alpha, beta, out, operands)


def are_few(request: Request, tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether a call on a CPU has functions, or an algebra that is written so, and few elements or pairs.

    Products of exponentials in torch's operations are ahead of compiled passes up to 512 x 512 of them.
    """
    algebra = None if request.raw_algebra is None else request.raw_algebra.name
    if request.device.type != "cpu" or algebra not in (None, "log", "max_plus", "min_plus"):
        return False
    if algebra is None and not any(request.functions.raw):
        return False
    extents = request.extents
    counted = request.notation.output if algebra in (None, "log") else extents
    made, most = math.prod([extents[label] for label in counted]), FEW if algebra != "log" else 8 * FEW
    return made <= most and all(each is None or each.numel() <= most for each in tensors)


def words_of(equation: Terms, options: Options) -> Words | None:
    """All that a call says but for its tensors and factors; None for what is read in each call."""
    said = options.said()
    return None if said is None else (equation, said)


def bare(equation: Terms, asked: tuple[Any, ...] = ()) -> Words:
    """The words of `weft.contract` for an equation, two tensors and options without functions (`said_options`)."""
    return equation, (), asked
