"""Plain products of a few matrices on a CPU: a loop of torch's own products, which takes less than finding a plan.

Products are those of torch: floating types whose sums are made as weft makes them, and no keywords. Whatever torch
refuses goes to the plan, whose errors name the pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from weft.base.arrays import any_autocast, dispatch_modes, is_transforming
from weft.errors import WeftError
from weft.machine.exactness import shortened
from weft.spec.notation import parse

Product = Callable[[Tensor, Tensor], Tensor]

MOST = 64  # pairs of a group that a loop takes
_ROUNDED = frozenset((torch.float32, torch.complex64))  # factors that torch may round; those of a plan never are
_TYPES = _ROUNDED | {torch.float64, torch.complex128}


def at_once(equation: Any, operands: Sequence[Any]) -> list[Tensor] | None:
    """The results of a group, a loop; None for what is for a plan."""
    if len(operands) > 2 * MOST or type(equation) is not str or "." in equation:
        return None
    product, first = _product(equation), operands[0]
    if product is None or type(first) not in _KINDS or first.dtype not in _TYPES or not first.is_cpu:
        return None
    if dispatch_modes() or is_transforming() or any_autocast() or (first.dtype in _ROUNDED and shortened()):
        return None
    try:
        if not set(map(type, operands)) <= _KINDS or len(set(map(_ALIKE, operands))) > 1:
            return None  # torch.mm of a tensor that holds numbers and one of meta returns memory as it is
        return [product(a, b) for a, b in zip(operands[::2], operands[1::2], strict=True)]
    except (RuntimeError, IndexError, TypeError):
        return None


_ALIKE = attrgetter("dtype", "device")
_KINDS = frozenset((Tensor, torch.nn.Parameter))


@lru_cache(maxsize=256)
def _product(equation: str) -> Product | None:
    """The function that contracts a pair of matrices; None for another equation."""
    try:
        notation = parse(equation)
    except WeftError:
        return None
    if len(notation.inputs) != 2 or any(len(term) != 2 for term in (*notation.inputs, notation.output)):
        return None
    (a, b), output = notation.inputs, notation.output
    shared = set(a) & set(b)
    if len({*a, *b, *output}) != 3 or len(shared) != 1 or shared & set(output):
        return None
    k = next(iter(shared))
    turn_a, turn_b = a.index(k) == 0, b.index(k) == 1  # to [m, k] and [k, n]
    turned = output[0] in b
    if not (turn_a or turn_b or turned):
        return torch.mm

    def product(x: Tensor, y: Tensor) -> Tensor:
        left, right = x.t() if turn_a else x, y.t() if turn_b else y
        return torch.mm(right.t(), left.t()) if turned else torch.mm(left, right)

    return product
