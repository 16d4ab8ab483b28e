"""The one way into contractions whose options are read: of public calls, and of the steps of rooms above.

A call like an earlier one goes straight to its launch. Calls are known by all that they say: an equation, the layouts
of their tensors, and their options, as a public call was given them or as `Options` has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from weft.api.lookup import Terms, find_plan
from weft.api.selection import known_selection, selected
from weft.base.arrays import without_neg
from weft.base.describe import describe_call
from weft.base.dispatch import as_operation, is_dynamo_compiling, is_traced, outside
from weft.errors import call_context
from weft.planner.options import Options, read_operands
from weft.planner.request import Request, Results
from weft.planner.schedule import Scalar
from weft.plans.call_cache import KnownCall, call_signature, is_plain
from weft.plans.derivatives import any_tensor, asked, differentiable
from weft.plans.lately import Lately, late_words
from weft.plans.memo import CallCache
from weft.spec.whole_sums import result_types

#: By signature, equation and options: the plan of a call, and where that suffices its launch.
CALLS = CallCache("calls", 4096)
LATELY = Lately(1024)  # those of `CALLS` that came last
FEW = 1 << 15  # elements of a tensor, or pairs of another algebra, of which copies cost less than a call does
PATIENCE = 8  # calls before one is written anew
_LONE = torch.Size(())
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
    words = None if validate else words_of(equation, options)
    if return_arg and words is not None:
        words = (*words, "return_arg")
    key, beside = None, [tensor for _, tensor in options.operands.values()] if options.operands else []
    if words is not None:
        known = recalled(words, a, b, c, beside, out)
        if known is not None and (found := known.run(a, b, c, alpha, beta, out, beside)) is not None:
            return found
        signature = call_signature(a, b, out, c, *beside)
        key = None if signature is None else (signature, *words)
    with call_context(lambda: describe_call("contract", equation, a=a, b=b, c=c, out=out)):
        if any(each.is_conj() or each.is_neg() for each in beside):
            options = replace(options, operands=read_operands(options.operands))
        return made(
            equation, without_neg(a), without_neg(b), options, c, alpha, beta, out, return_arg=return_arg,
            validate=validate, key=key,
        )  # fmt: skip


def made(
    equation: Terms,
    a: torch.Tensor,
    b: torch.Tensor,
    options: Options,
    c: torch.Tensor | None,
    alpha: Scalar,
    beta: Scalar,
    out: Results | None,
    *,
    return_arg: bool = False,
    validate: bool = False,
    key: tuple[Any, ...] | None = None,
) -> Any:
    """The result of a call that is not known, which is kept under `key`: a signature, and the words after it."""
    tensors = options.tensors
    if asked(a, b, c, *tensors.values()) or any_tensor(alpha, beta):
        found, call = differentiable("contract")(equation, a, b, c, alpha, beta, out, options, return_arg, validate)
        if key is not None and call is not None:
            CALLS.put(key, call)
        return found
    places = out if isinstance(out, tuple) else (out,)
    if key is None and is_traced((a, b, c, *places, *tensors.values())):
        return as_operation("contraction")(equation, a, b, c, alpha, beta, out, options, return_arg, validate)
    if return_arg:
        found = selected(equation, a, b, c, alpha, beta, out, options, validate)
        plain = key is not None and is_plain(key[0])
        known = known_selection(equation, a, b, c, out, options) if plain else None
        if key is not None and known is not None:
            CALLS.put(key, known)
        return found
    plan = find_plan(equation, a, b, options)
    run = plan.run_validated if validate else plan.run
    result = run(a, b, c, alpha, beta, out, tensors)
    # A C that is not read has no launch of its own.
    if key is not None and (c is None or beta != 0) and plan.is_lasting:
        call = plan.known_call(key[0], a, b, c, out is not None, result, tensors)
        given = (a, b, c, *tensors.values())
        few = out is None and options.backend == "auto" and is_plain(key[0]) and are_few(plan.request, given)
        CALLS.put(key, FewElements(call, plan.request, tuple(tensors)) if few else call)
    return result


class FewElements:
    """A known call of functions, or of another algebra, on so few elements that torch's operations serve it best.

    It is written in them once it is known to come again.
    """

    def __init__(self, known: KnownCall, request: Request, names: tuple[str, ...]) -> None:
        self._known, self._request, self._names = known, request, names
        self._left = PATIENCE
        self._call: Any = None

    @property
    def plan(self) -> Any:
        return self._known.plan

    def run(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, operands: Sequence[Any]) -> Any:
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
    if request.device.type != "cpu" or request.peak or algebra not in (None, "log", "max_plus", "min_plus"):
        return False
    if algebra is None and not any(request.functions.raw):
        return False
    extents = request.extents()
    counted = request.notation.output if algebra in (None, "log") else extents
    made, most = math.prod([extents[label] for label in counted]), FEW if algebra != "log" else 8 * FEW
    return made <= most and all(each is None or each.numel() <= most for each in tensors)


def words_of(equation: Terms, options: Options) -> Words | None:
    """All that a call says but for its tensors and factors, as `recalled` takes it; None for what is read each time."""
    said = options.said()
    return None if said is None else (equation, said)


def recalled(
    words: Words, a: Any, b: Any, c: Any = None, beside: Sequence[Any] = (), out: Any = None
) -> KnownCall | None:
    """The known call of these words, and of tensors with these layouts; without `b` it is of the number one.

    `beside` are the tensors of operands.
    """
    late, given = late_words(words, a, b, c, beside, out)
    found: KnownCall | None = LATELY.find(late, given)
    if found is not None:
        return found
    signature = call_signature(a, b, out, c, *beside)
    if signature is None:
        return None
    if b is None:
        one = (_LONE, (), a.dtype, a.device, 0, None)
        signature = (signature[0], one, *signature[2:])
    found = CALLS.get((signature, *words))
    if found is not None:
        LATELY.note(late, given, found)
    return found


def of_pair(known: KnownCall | None) -> Callable[[Any, Any], Any] | None:
    """The launch of a known call that says nothing but its equation, as a function of two tensors."""
    return None if known is None else partial(_of_pair, known)


def _of_pair(known: KnownCall, a: torch.Tensor, b: torch.Tensor) -> Any:
    return known.run(a, b, None, 1.0, 1.0, None, ())
