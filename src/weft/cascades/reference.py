"""All of S at once, and the function on it in the order in which it was written: the reference, and second derivatives.

Torch's autograd differentiates it, as often as is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.api.contract import contract
from weft.cascades.evaluate import Recipe
from weft.cascades.forward import reducing


def all_at_once(
    plan: Any, a: Tensor, b: Tensor, c: Tensor | None, operands: Sequence[Tensor], wide: torch.dtype
) -> list[Tensor]:
    """D and the function's other results along S, of arranged tensors: computed in a type, rounded to their own."""
    frame, between = plan.frame, plan.written
    labels = {label: at for at, label in enumerate((*plan.extents, *frame.order))}

    def places(term: Sequence[Any]) -> list[int]:
        return [labels[label] for label in term]

    every = frame.shape(frozenset(frame.order))
    first, second = frame.first, frame.second
    s = torch.einsum(a.to(wide), places(first.x), b.to(wide), places(first.y), places(frame.order))
    values = {between.inputs[0]: (s * frame.alpha).expand(every)}
    values.update(zip(between.inputs[1:], (*operands, *plan.coordinates), strict=True))
    recipe = Recipe(between.calls, frozenset(between.graph.nodes))
    recipe.run(values, len(frame.order), reducing(between, frame, None), frame.device)
    results, outputs = [], list(between.outputs)
    if c is not None:
        p = values[outputs.pop(0)].to(wide).expand(every)
        if frame.algebra is None:
            d = torch.einsum(p, places(frame.order), c.to(wide), places(second.y), places(second.result))
        else:
            d = contract((frame.order, second.y, second.result), p, c.to(wide), algebra=frame.algebra.algebra)
        results.append(d.to(plan.result_type))
    for node in outputs:
        value = values[node].expand(frame.shape(between.modes[node]))
        dtype = node.meta["dtype"]
        results.append(value.to(frame.stored_as(dtype) if node in between.elementwise else dtype))
    return results
