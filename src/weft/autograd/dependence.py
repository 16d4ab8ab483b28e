"""The tensors that results of a call depend on, as autograd sees it where torch's operations make them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from weft.autograd.backward import Needs
from weft.autograd.spec import A_FN, B_FN, C_FN, EPILOGUE, A, B, C, Spec, is_smooth
from weft.fn import Pointwise
from weft.fn.derivative import pull
from weft.fn.surroundings import set_aside


def depends(spec: Spec, needs: Needs) -> bool:
    """Whether each result has a gradient for each tensor that needs one.

    Weft's own rules have zeros where a function does not read its value, or reads it in a comparison alone. Torch has
    None there, and a result that requires no gradient.
    """
    wanted = {place for place, need in enumerate(needs) if need}
    value = _through(spec, A_FN, {A})[0] | _through(spec, B_FN, {B})[0]
    if spec.term_c is not None:
        value |= _through(spec, C_FN, {C})[0]
    found = zip(_through(spec, EPILOGUE, value), spec.results, strict=True)
    return all(wanted <= places for places, dtype in found if is_smooth(dtype))


def _through(spec: Spec, hook: int, value: set[int]) -> list[set[int]]:
    """The tensors that each result of a function depends on, whose value depends on these."""
    function = spec.functions[hook]
    if function is None:
        return [value]
    named = {name for name, _ in spec.operands}
    inputs = [value, *({spec.place(name)} if name in named else set() for name in spec.names[hook])]
    return [set().union(*(inputs[at] for at in read)) for read in _differentiated(function)]


@lru_cache(maxsize=1024)
def _differentiated(function: Pointwise) -> tuple[tuple[int, ...], ...]:
    """The inputs that each result has a derivative by."""
    count = len(function.results)

    def found() -> Iterator[tuple[int, ...]]:
        inputs = [torch.empty(1, dtype=dtype, device="meta") for dtype in function.dtypes]
        for at in range(count):
            of_one = [torch.empty(1, device="meta") if at == other else None for other in range(count)]
            grads, _ = pull(function, inputs, of_one)
            yield tuple(place for place, grad in enumerate(grads) if grad is not None)

    return set_aside(lambda: tuple(found()))
