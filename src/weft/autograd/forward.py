"""Forward mode of plus-times: the tangent of D as a sum of contractions, one for A's tangent, one for B's and C's.

    dS = alpha * (sum d(a_fn(A)) b_fn(B) + sum a_fn(A) d(b_fn(B))) + beta * d(c_fn(C))        dD = epilogue'(S) dS
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from weft.api.entry import contraction
from weft.api.lookup import one_of
from weft.autograd import hooks
from weft.autograd.backward import SUMS, arithmetic, operand_source
from weft.autograd.spec import A_FN, B_FN, C_FN, EPILOGUE, FIRST_OPERAND, C, Spec
from weft.autograd.steps import with_modes
from weft.fn.pointwise import RecordedFunction
from weft.fn.trace import converted, derived, push
from weft.planner.request import HOOKS
from weft.planner.schedule import Scalar
from weft.spec.dtypes import value_type

Tangents = Sequence[Tensor | None]


def pushed(
    spec: Spec, sources: Mapping[str, Tensor], tangents: Tangents, alpha: Scalar, beta: Scalar, kept: bool
) -> tuple[Tensor | None, ...]:
    """The tangent of each result, and of the sums where they are `kept`."""
    total: Tensor | None = None
    for hook in (A_FN, B_FN):
        total = _operand(spec, sources, tangents, hook, alpha, total)
    if beta != 0 and spec.term_c is not None:
        total = _addend(spec, sources, tangents, beta, total)
    sums = () if not kept else (None if total is None else total.to(hooks.kept_type(spec)),)
    if spec.functions[EPILOGUE] is None:
        return (None if total is None else total.to(spec.results[0]), *sums)
    term = spec.term_d
    return (*_through(spec, EPILOGUE, sources, tangents, (sources[SUMS], term), (total, term), spec.results), *sums)


def _operand(
    spec: Spec, sources: Mapping[str, Tensor], tangents: Tangents, hook: int, alpha: Scalar, total: Tensor | None
) -> Tensor | None:
    """The sums' tangent with the part of A, or of B, added."""
    own, name = ((spec.term_a, "A"), (spec.term_b, "B"))[hook]
    tangent = tangents[hook]
    if spec.functions[hook] is not None:
        (tangent,) = _through(
            spec, hook, sources, tangents, (sources[name], own), (tangent, own), (spec.accumulate,)
        )
    if tangent is None:
        return total
    other = B_FN if hook == A_FN else A_FN
    taken = {each: (spec.modes(each), sources[operand_source(each)]) for each in spec.taken(other)}
    indices = {each: label for each, label in spec.indices if each in spec.names[other]}
    a, b = (tangent, sources["B"]) if hook == A_FN else (sources["A"], tangent)
    options = spec.asked(
        out_dtype=spec.accumulate, promote=a.dtype != b.dtype, operands=taken, indices=indices, **arithmetic(spec)
    ).having(**{HOOKS[other]: spec.functions[other]})
    found: Tensor = contraction(spec.text, a, b, options, total, alpha)
    return found


def _addend(
    spec: Spec, sources: Mapping[str, Tensor], tangents: Tangents, beta: Scalar, total: Tensor | None
) -> Tensor | None:
    """The sums' tangent with the part of C added."""
    tangent, term, shape = tangents[C], spec.term_c or "", (sources["D"] if total is None else total).shape
    if spec.functions[C_FN] is not None:
        whole = with_modes(sources["C"], term, spec.term_d).expand(shape)
        (tangent,) = _through(
            spec, C_FN, sources, tangents, (whole, spec.term_d), (tangent, term), (spec.accumulate,)
        )
    elif tangent is not None:
        tangent = with_modes(tangent, term, spec.term_d).to(spec.accumulate)
    if tangent is None:
        return total
    part = tangent * beta
    return part.expand(shape) if total is None else total + part


def _through(
    spec: Spec,
    hook: int,
    sources: Mapping[str, Tensor],
    tangents: Tangents,
    value: tuple[Tensor, str],
    tangent: tuple[Tensor | None, str],
    types: Sequence[torch.dtype],
) -> list[Tensor | None]:
    """The tangent of each result of a function, of a value and its tangent with their modes."""
    (main, own), (own_tangent, term) = value, tangent
    moving = tuple(name for name in spec.taken(hook) if tangents[spec.place(name)] is not None)
    if own_tangent is None and not moving:
        return [None] * len(types)
    given: dict[str, tuple[str, Tensor | None]] = {"weft_dx": (term, own_tangent)}
    for at, (name, modes) in enumerate(spec.operands):
        given[name] = (modes, sources.get(operand_source(name)))
        given[f"weft_d_{name}"] = (modes, tangents[FIRST_OPERAND + at])
    found: list[Tensor | None] = []
    functions = _tangents(spec, hook, None if own_tangent is None else own_tangent.dtype, moving, main.dtype)
    for function, out in zip(functions, types, strict=True):
        if function is None:
            found.append(None)
            continue
        indices = {name: label for name, label in spec.indices if name in function.inputs}
        operands = {name: given[name] for name in function.inputs[1:] if name not in indices}
        options = spec.passing(
            out_dtype=out, functions=(function, None, None, None), operands=operands, indices=indices
        )
        found.append(contraction(f"{own},->{own}", main, one_of(main.dtype, main.device), options))
    return found


@lru_cache(maxsize=1024)
def _tangents(
    spec: Spec, hook: int, tangent: torch.dtype | None, moving: tuple[str, ...], storage: torch.dtype
) -> tuple[RecordedFunction | None, ...]:
    """The tangents of a function's results; its value is the main input, `weft_dx` the value's tangent if any."""
    function, names = spec.functions[hook], spec.names[hook]
    assert function is not None
    inputs = {"weft_x": value_type(storage, spec.accumulate)} | {name: spec.dtype_of(name) for name in names}
    inputs |= {f"weft_d_{name}": spec.dtype_of(name) for name in moving}
    if tangent is not None:
        inputs["weft_dx"] = tangent

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        arguments = [converted(t["weft_x"], function.dtypes[0]), *(t[name] for name in names)]
        return push(function, arguments, [t.get("weft_dx"), *(t.get(f"weft_d_{name}") for name in names)])

    return derived(body, inputs, hooks.HOOKS[hook])
