"""Plain products of a few matrices on a CPU: a loop of torch's own products, which takes less than a plan's call does.

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
from weft.spec.notation import Notation, parse

MOST = 64  # pairs of a group that a loop takes
_ROUNDED = frozenset((torch.float32, torch.complex64))  # factors that torch may round; those of a plan never are
_TYPES = _ROUNDED | {torch.float64, torch.complex128}
_KINDS = frozenset((Tensor, torch.nn.Parameter))
_DTYPE, _LAYOUT, _ON_CPU = attrgetter("dtype"), attrgetter("layout"), attrgetter("is_cpu")
_EQUATIONS = frozenset((str, Notation))
_STRIDED = {torch.strided}


def at_once(equation: Any, operands: Sequence[Any], most: int = MOST) -> list[Tensor] | None:
    """The results of a group, a loop; None for what is for a plan."""
    known = type(equation) in _EQUATIONS and 0 < len(operands) <= 2 * most
    if not known or (product := product_of(equation)) is None:
        return None
    dtype = operands[0].dtype if set(map(type, operands)) <= _KINDS else None
    if dtype not in _TYPES or set(map(_LAYOUT, operands)) != _STRIDED or not all(map(_ON_CPU, operands)):
        return None  # torch.mm of a tensor that holds numbers and one of meta returns memory as it is
    if dispatch_modes() or is_transforming() or any_autocast() or (dtype in _ROUNDED and shortened()):
        return None
    try:
        products = [*map(product, operands[::2], operands[1::2])]
    except (RuntimeError, IndexError, TypeError):
        return None
    return products if set(map(_DTYPE, products)) == {dtype} else None


@lru_cache(maxsize=256)
def product_of(equation: str | Notation) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The function that contracts a pair of matrices; None for another equation."""
    try:
        notation = parse(equation) if isinstance(equation, str) else equation
    except WeftError:
        return None
    terms = (*notation.inputs, notation.output)
    if len(terms) != 3 or any(len(term) != 2 or Ellipsis in term for term in terms):
        return None
    a, b, output = terms
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
