"""Derivatives of a contraction's four functions, recorded for where they are fused.

Parameters that a user's function does not know begin with `weft_`: `weft_grad0` is the gradient of D, `weft_grad1` that
of the next result, `weft_sums` what the epilogue was given, `weft_result0` D itself, `weft_a` A, `weft_h` the gradient
of `a_fn`'s values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from weft.autograd.spec import C_FN, EPILOGUE, Spec, is_smooth
from weft.fn import Pointwise, trace
from weft.fn.pointwise import RecordedFunction
from weft.fn.trace import compute, converted, derived, pull, recorded
from weft.planner.request import HOOKS

Pattern = tuple[bool, ...]  # which results have a gradient


@lru_cache(maxsize=1024)
def of_sums(
    spec: Spec, pattern: Pattern, main: str, value: torch.dtype, known: frozenset[int]
) -> tuple[RecordedFunction | None, ...]:
    """Gradients of the sums, and of each name that the epilogue takes, from those of the results.

    `main` is the input that comes as the value, and `value` its type then. None where nothing flows. The first is for a
    contraction without an epilogue, too: there it converts. `known` are the results that may be read.
    """
    epilogue = spec.functions[EPILOGUE]
    inputs = _offered(spec, pattern, main, value)

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        grads, results = sums_pulled(spec, t)
        return (*grads, *(each if at in known else None for at, each in enumerate(results)))

    names = spec.names[EPILOGUE]
    places = {} if epilogue is None else {f"weft_result{at}": 1 + len(names) + at for at in known}
    found = derived(body, inputs, HOOKS[EPILOGUE], places)
    return found[: 1 + len(names)]


@lru_cache(maxsize=1024)
def of_addend(
    spec: Spec, pattern: Pattern, main: str, value: torch.dtype, known: frozenset[int]
) -> tuple[RecordedFunction | None, ...]:
    """Gradients of C and of each name that `c_fn` takes; `main` "weft_h" is the gradient of its values."""
    addend = spec.functions[C_FN]
    assert addend is not None
    inputs = {main: value} if main == "weft_h" else _offered(spec, pattern, main, value)
    inputs = {**inputs, "weft_c": spec.storage[2], **{name: spec.dtype_of(name) for name in spec.names[C_FN]}}

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        grads, results = ((t["weft_h"],), ()) if main == "weft_h" else sums_pulled(spec, t)
        arguments = [converted(t["weft_c"], addend.dtypes[0]), *(t[name] for name in spec.names[C_FN])]
        held = (each if at in known else None for at, each in enumerate(results))
        return (*pull(addend, arguments, grads[:1])[0], *held)

    count = 1 + len(spec.names[C_FN])
    fused = main != "weft_h" and spec.functions[EPILOGUE] is not None
    places = {f"weft_result{at}": count + at for at in known} if fused else {}
    return derived(body, inputs, HOOKS[C_FN], places)[:count]


@lru_cache(maxsize=1024)
def of_operand(spec: Spec, hook: int, main: str, value: torch.dtype) -> tuple[RecordedFunction | None, ...]:
    """Gradients of A (or B) and of each name that its function takes, from that of the function's values, `weft_h`.

    `main` is the one of `weft_h` and `weft_a` that comes as the value.
    """
    function = spec.functions[hook]
    assert function is not None
    types = {"weft_h": spec.accumulate, "weft_a": spec.storage[hook]}
    types |= {name: spec.dtype_of(name) for name in spec.names[hook]}
    types[main] = value
    inputs = {main: value, **types}

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        arguments = [converted(t["weft_a"], function.dtypes[0]), *(t[name] for name in spec.names[hook])]
        return pull(function, arguments, [t["weft_h"]])[0]

    return derived(body, inputs, HOOKS[hook])


def sums_pulled(spec: Spec, t: Mapping[str, Tensor]) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
    """Within a body: gradients of the sums and of what the epilogue takes, and its results."""
    epilogue = spec.functions[EPILOGUE]
    if epilogue is None:
        return (converted(t["weft_grad0"], spec.accumulate),), ()
    arguments = [converted(t["weft_sums"], spec.accumulate), *(t[name] for name in spec.names[EPILOGUE])]
    return pull(epilogue, arguments, [t.get(f"weft_grad{at}") for at in range(len(spec.results))])


def _offered(spec: Spec, pattern: Pattern, main: str, value: torch.dtype) -> dict[str, torch.dtype]:
    types = {f"weft_grad{at}": dtype for at, dtype in enumerate(spec.results) if pattern[at]}
    if spec.functions[EPILOGUE] is not None:
        types |= {f"weft_result{at}": dtype for at, dtype in enumerate(spec.results) if is_smooth(dtype)}
        types["weft_sums"] = kept_type(spec)
        types |= {name: spec.dtype_of(name) for name in spec.names[EPILOGUE]}
    types[main] = value
    return {main: value, **types}


def kept_type(spec: Spec) -> torch.dtype:
    """The type in which sums are kept for the backward pass: the requested one, else half precision where D is, as
    torch keeps them, else their own."""
    if spec.how.kept_dtype is not None:
        return spec.how.kept_dtype
    half = spec.results[0] in (torch.float16, torch.bfloat16) and not spec.accumulate.is_complex
    return spec.results[0] if half else spec.accumulate


def keeping(epilogue: Pointwise) -> Pointwise:
    """The epilogue with what it is given as one more result."""

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        arguments = [t[name] for name in epilogue.inputs]
        return (*compute(epilogue, arguments), arguments[0])

    return recorded(body, dict(zip(epilogue.inputs, epilogue.dtypes, strict=True)), HOOKS[EPILOGUE])


def conjugated(function: Pointwise) -> Pointwise:
    """The conjugate of a function's values."""

    def body(t: Mapping[str, Tensor]) -> Sequence[Tensor]:
        (found,) = compute(function, [t[name] for name in function.inputs])
        return (torch.conj(found),)

    return recorded(body, dict(zip(function.inputs, function.dtypes, strict=True)), "b_fn")


def real_part(dtype: torch.dtype) -> Pointwise:
    return trace(torch.real, (dtype,), hook="epilogue")
