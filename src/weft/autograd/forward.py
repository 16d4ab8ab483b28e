"""Forward mode of plus-times: the tangent of D as a sum of contractions, one for A's tangent, one for B's and C's.

    dS = alpha * (sum d(a_fn(A)) b_fn(B) + sum a_fn(A) d(b_fn(B))) + beta * d(c_fn(C))        dD = epilogue'(S) dS
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from weft.api.entry import contraction
from weft.api.lookup import one_of
from weft.autograd import hooks
from weft.autograd.backward import arithmetic
from weft.autograd.spec import A_FN, B_FN, C_FN, EPILOGUE, FIRST_OPERAND, A, B, C, Spec
from weft.autograd.steps import with_modes
from weft.fn.pointwise import RecordedFunction
from weft.fn.trace import converted, derived, push
from weft.planner.request import HOOKS
from weft.planner.schedule import Scalar
from weft.spec.dtypes import value_type

Tangents = Sequence[Tensor | None]


def pushed(
    spec: Spec, saved: Sequence[Any], tangents: Tangents, alpha: Scalar, beta: Scalar, kept: bool
) -> tuple[Tensor | None, ...]:
    """The tangent of each result, and of the sums where they are `kept`.

    `saved` are A, B, C, the operands, the results, and the sums if they are kept.
    """
    tensors, d, sums = saved[: len(spec.storage)], saved[len(spec.storage)], saved[-1]
    total: Tensor | None = None
    for hook in (A_FN, B_FN):
        total = _operand(spec, tensors, tangents, hook, alpha, total)
    if beta != 0 and spec.term_c is not None:
        total = _addend(spec, tensors, tangents, beta, total, d.shape)
    of_sums = () if not kept else (None if total is None else total.to(hooks.kept_type(spec)),)
    if spec.functions[EPILOGUE] is None:
        return (None if total is None else total.to(spec.results[0]), *of_sums)
    term = spec.term_d
    return (*_through(spec, EPILOGUE, tensors, tangents, (sums, term), (total, term), spec.results), *of_sums)


def _operand(
    spec: Spec, tensors: Sequence[Any], tangents: Tangents, hook: int, alpha: Scalar, total: Tensor | None
) -> Tensor | None:
    """The sums' tangent with the part of A, or of B, added."""
    own, tangent = (spec.term_a, spec.term_b)[hook], tangents[hook]
    if spec.functions[hook] is not None:
        (tangent,) = _through(spec, hook, tensors, tangents, (tensors[hook], own), (tangent, own), (spec.accumulate,))
    if tangent is None:
        return total
    other = B_FN if hook == A_FN else A_FN
    a, b = (tangent, tensors[B]) if hook == A_FN else (tensors[A], tangent)
    beside = spec.aux(tensors, spec.names[other])
    options = spec.asked(out_dtype=spec.accumulate, promote=a.dtype != b.dtype, **beside, **arithmetic(spec))
    options = options.having(**{HOOKS[other]: spec.functions[other]})
    found: Tensor = contraction(spec.text, a, b, options, total, alpha)
    return found


def _addend(
    spec: Spec, tensors: Sequence[Any], tangents: Tangents, beta: Scalar, total: Tensor | None, shape: torch.Size
) -> Tensor | None:
    """The sums' tangent with the part of C added."""
    tangent, term = tangents[C], spec.term_c or ""
    if spec.functions[C_FN] is not None:
        whole = with_modes(tensors[C], term, spec.term_d).expand(shape)
        (tangent,) = _through(spec, C_FN, tensors, tangents, (whole, spec.term_d), (tangent, term), (spec.accumulate,))
    elif tangent is not None:
        tangent = with_modes(tangent, term, spec.term_d).to(spec.accumulate)
    if tangent is None:
        return total
    part = tangent * beta
    return part.expand(shape) if total is None else total + part


def _through(
    spec: Spec,
    hook: int,
    tensors: Sequence[Any],
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
        given[name] = (modes, tensors[FIRST_OPERAND + at])
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
