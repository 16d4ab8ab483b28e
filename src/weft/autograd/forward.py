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
from weft.fn.derivative import Derived, converted, derived, push
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
    total = _addend(spec, sources, tangents, beta, total)
    moving = [name for name in spec.taken(EPILOGUE) if tangents[spec.place(name)] is not None]
    sums = () if not kept else (None if total is None else total.to(hooks.kept_type(spec)),)
    if spec.functions[EPILOGUE] is None:
        return (None if total is None else total.to(spec.results[0]), *sums)
    if total is None and not moving:
        return (*(None for _ in spec.results), *sums)
    held = sources[SUMS]
    functions = _of_epilogue(spec, total is not None, tuple(moving), held.dtype)
    given = {"weft_total": (spec.term_d, total), "weft_sums": (spec.term_d, held)} | _operands(spec, sources, tangents)
    found = [
        None if each is None else _over(spec, each, held, spec.term_d, spec.term_d, given, dtype)
        for each, dtype in zip(functions, spec.results, strict=True)
    ]
    return (*found, *sums)


def _operand(
    spec: Spec, sources: Mapping[str, Tensor], tangents: Tangents, hook: int, alpha: Scalar, total: Tensor | None
) -> Tensor | None:
    """The sums' tangent with the part of A, or of B, added."""
    own, name = ((spec.term_a, "A"), (spec.term_b, "B"))[hook]
    tangent, function = tangents[hook], spec.functions[hook]
    moving = [each for each in spec.taken(hook) if tangents[spec.place(each)] is not None]
    if tangent is None and not moving:
        return total
    value, given = sources[name], _operands(spec, sources, tangents)
    if function is not None:
        given |= {"weft_x": (own, value), "weft_dx": (own, tangent)}
        (pushed_,) = _of_function(spec, hook, tangent is not None, tuple(moving), value.dtype)
        if pushed_ is None:
            return total
        tangent = _over(spec, pushed_, value, own, own, given, spec.accumulate)
    assert tangent is not None
    other = B_FN if hook == A_FN else A_FN
    taken = {each: given[each] for each in spec.taken(other)}
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
    moving = [each for each in spec.taken(C_FN) if tangents[spec.place(each)] is not None]
    if spec.term_c is None or beta == 0 or (tangents[C] is None and not moving):
        return total
    tangent, term, value = tangents[C], spec.term_c, sources["C"]
    if spec.functions[C_FN] is not None:
        given = _operands(spec, sources, tangents) | {"weft_x": (term, value), "weft_dx": (term, tangent)}
        (pushed_,) = _of_function(spec, C_FN, tangent is not None, tuple(moving), value.dtype)
        if pushed_ is None:
            return total
        whole = with_modes(value, term, spec.term_d)
        shape = total.shape if total is not None else sources["D"].shape
        tangent = _over(spec, pushed_, whole.expand(shape), spec.term_d, spec.term_d, given, spec.accumulate)
    else:
        assert tangent is not None
        tangent = with_modes(tangent, term, spec.term_d).to(spec.accumulate)
    part = tangent * beta
    if total is None:
        return part.expand(sources["D"].shape)
    return total + part


def _operands(spec: Spec, sources: Mapping[str, Tensor], tangents: Tangents) -> dict[str, tuple[str, Tensor | None]]:
    found: dict[str, tuple[str, Tensor | None]] = {}
    for at, (name, modes) in enumerate(spec.operands):
        found[name] = (modes, sources.get(operand_source(name)))
        found[f"weft_d_{name}"] = (modes, tangents[FIRST_OPERAND + at])
    return found


def _over(
    spec: Spec,
    function: Derived,
    main: Tensor,
    own: str,
    term: str,
    given: Mapping[str, tuple[str, Tensor | None]],
    out: torch.dtype,
) -> Tensor:
    """A function of a tensor's elements."""
    indices = {name: label for name, label in spec.indices if name in function.inputs}
    operands = {name: given[name] for name in function.inputs[1:] if name not in indices}
    functions = (function.function, None, None, None)
    options = spec.passing(out_dtype=out, functions=functions, operands=operands, indices=indices)
    found: Tensor = contraction(f"{own},->{term}", main, one_of(main.dtype, main.device), options)
    return found


@lru_cache(maxsize=1024)
def _of_function(
    spec: Spec, hook: int, itself: bool, moving: tuple[str, ...], storage: torch.dtype
) -> tuple[Derived | None, ...]:
    """The tangent of a_fn, b_fn or c_fn; the value is the operand, `weft_dx` its tangent if it has one (`itself`)."""
    function = spec.functions[hook]
    assert function is not None
    names = spec.names[hook]
    inputs = {"weft_x": value_type(storage, spec.accumulate)} | {name: spec.dtype_of(name) for name in names}
    inputs |= {f"weft_d_{name}": spec.dtype_of(name) for name in moving}
    if itself:
        inputs["weft_dx"] = storage

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        arguments = [converted(t["weft_x"], function.dtypes[0]), *(t[name] for name in names)]
        return push(function, arguments, [t.get("weft_dx"), *(t.get(f"weft_d_{name}") for name in names)])

    return derived(body, inputs, hooks.HOOKS[hook])


@lru_cache(maxsize=1024)
def _of_epilogue(
    spec: Spec, summed: bool, moving: tuple[str, ...], held: torch.dtype
) -> tuple[Derived | None, ...]:
    """The tangent of each result; the value is the sums, `weft_total` their tangent if they have one (`summed`)."""
    epilogue = spec.functions[EPILOGUE]
    assert epilogue is not None
    names = spec.names[EPILOGUE]
    inputs = {"weft_sums": value_type(held, spec.accumulate)} | {name: spec.dtype_of(name) for name in names}
    inputs |= {f"weft_d_{name}": spec.dtype_of(name) for name in moving}
    if summed:
        inputs["weft_total"] = spec.accumulate

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        arguments = [converted(t["weft_sums"], spec.accumulate), *(t[name] for name in names)]
        return push(epilogue, arguments, [t.get("weft_total"), *(t.get(f"weft_d_{name}") for name in names)])

    return derived(body, inputs, hooks.HOOKS[EPILOGUE])
