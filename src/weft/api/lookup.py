"""From operands and options to a plan: found again where an equal one is known, else made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from weft.api.keywords import Equation, Function
from weft.base.arrays import as_tensor, like, without_neg
from weft.base.dispatch import is_traced
from weft.base.kept import constant
from weft.engine.memo import Memo
from weft.errors import NotationError
from weft.fn.fingerprint import fingerprints
from weft.planner.options import Options
from weft.planner.request import Request
from weft.plans.base import PlanBase
from weft.plans.contraction import Plan
from weft.plans.known_call import said_operands
from weft.plans.resolving import resolved
from weft.spec import Notation, parse
from weft.spec.dtypes import promoted, read_dtype
from weft.spec.notation import from_sequences, terms_of

Terms = Equation | Notation  # an equation as it is given, or read before
Kept = TypeVar("Kept", bound=PlanBase)

_PLANS = Memo("plans", 4096)  # by request: read where a call is not known
_SEQUENCES = {str, tuple, list}  # of labels, that reading leaves as they are


def read_pair(a: Any, b: Any, promote: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands; a negative view is resolved here, as no kernel can see its bit."""
    if isinstance(a, str) or isinstance(b, str):
        text = a if isinstance(a, str) else b
        raise NotationError(f"{text!r} stands in the place of an operand: one equation names all, as 'mk,kn->mn'")
    x, y = without_neg(as_tensor("a", a, promote)), without_neg(as_tensor("b", b, promote))
    if promote and x.dtype != y.dtype and not (isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)):
        common = read_dtype("the type that NumPy promotes a and b to", np.result_type(like(None, x), like(None, y)))
        if common != promoted(x.dtype, y.dtype):
            x, y = x.to(common), y.to(common)
    return x, y


def as_key(equation: Any) -> tuple[Any, ...] | None:
    """Sequences of labels as what a call is known by; None for what must be read anew in each call."""
    if type(equation) not in (tuple, list) or not {*map(type, equation)} <= _SEQUENCES:
        return None
    return tuple(map(tuple, equation))


def said_options(options: Mapping[str, Any]) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """A call's keywords as a key, and the tensors of its operands; None for what must be read anew in each call."""
    said: list[Any] = []
    tensors: tuple[Any, ...] = ()
    for name, value in options.items():
        if name == "operands" and value is not None:
            names, tensors = said_operands(value)
            if names is None:
                return None, ()
            said.append(names)
        elif name == "indices" and value is not None:
            if type(value) is not dict:
                return None, ()
            said.append((name, tuple(value.items())))
        elif name == "algebra" and type(value) is not str:
            return None, ()
        else:
            said.append((name, value))
    return tuple(said), tensors


def said_call(
    call: str, equation: Any, functions: tuple[Function | None, ...], options: Mapping[str, Any], further: bool
) -> tuple[Hashable, tuple[Any, ...]]:
    """All that a call says but for its tensors, None for what must be read anew in each call; and its operands'."""
    said, tensors = said_options(options) if options else ((), ())
    text = equation if type(equation) is str else as_key(equation)
    prints = fingerprints(functions) if functions else ()
    known = text is not None and said is not None and prints is not None and type(further) is bool
    return (call, text, prints, said, further) if known else None, tensors


def find_plan(equation: Terms, a: torch.Tensor, b: torch.Tensor, options: Options) -> Plan:
    """The plan for this request, remembered by everything it depends on."""
    key = notation_key(equation)
    return plan_of(Plan, resolved(_read(key), str(key), a, b, options), options)


def plan_of(kind: Callable[[Request], Kept], request: Request, options: Options) -> Kept:
    """The plan of a `kind` for a request. Two ways to write one share one plan, and so do functions that compute the
    same."""
    place = _PLANS.place(request)
    plan: Kept = _PLANS.get(place) or kind(request)
    if not plan.is_lasting:
        return plan
    _PLANS.put(place, plan)
    return plan.given(options.functions, options.algebra)


def one_of(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The number one: what an operand alone is contracted with."""
    return constant(1, dtype, device)


def one_beside(x: torch.Tensor) -> torch.Tensor:
    """The number one, as torch sees it beside an operand."""
    return x.new_ones(()) if is_traced((x,)) else one_of(x.dtype, x.device)


def notation_key(
    equation: Terms, expected: str = "three sequences (modes_a, modes_b, modes_d)", count: int = 3, **new: bool
) -> str | Notation:
    """Text and what was read before as it is, sequences of labels as a `Notation`: either can be looked up."""
    if isinstance(equation, (str, Notation)):
        return equation
    terms = terms_of(equation)
    if len(terms) != count:
        raise NotationError(f"labels come as {expected}, {len(terms)} are given")
    return from_sequences(*terms, **new)


def read_notation(equation: Terms) -> Notation:
    """An equation of two operands, text or sequences of labels."""
    return _read(notation_key(equation))


def _read(equation: str | Notation) -> Notation:
    notation = parse(equation) if isinstance(equation, str) else equation
    if len(notation.inputs) != 2:
        raise NotationError(f"contract takes two operands, '{notation}' names {len(notation.inputs)}: see weft.einsum")
    return notation
