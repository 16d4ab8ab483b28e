"""The reference: all of S in float64, and the function on it in the order in which it was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from weft.api.contract import contract
from weft.cascades.evaluate import Recipe
from weft.cascades.forward import reducing
from weft.cascades.product import arranged


def referred(plan: Any, *tensors: Tensor, operands: Mapping[str, Tensor] | None = None) -> Any:
    """Results of a plan computed in float64, then rounded to their types. Differentiable by torch's own autograd."""
    notation, frame, between = plan.notation, plan.frame, plan.written
    a, b = (_full(plan, tensor, term) for tensor, term in zip(tensors, (notation.a, notation.b), strict=False))
    labels = {label: at for at, label in enumerate(plan.extents)}
    wanted = _places(frame.order, labels)
    s = torch.einsum(a, _places(notation.a, labels), b, _places(notation.b, labels), wanted)
    values = {between.inputs[0]: s * plan.alpha}
    given = [
        arranged((operands or {})[name], terms, frame.order, plan.extents)
        for name, (terms, _, _) in plan.said.operands.items()
    ]
    values.update(zip(between.inputs[1:], (*given, *plan.coordinates), strict=True))
    recipe = Recipe(between.calls, frozenset(between.graph.nodes))
    recipe.run(values, len(frame.order), reducing(between, frame, None), frame.device)
    results = []
    outputs = list(between.outputs)
    if plan.meets:
        p = values[outputs.pop(0)].double().expand(frame.shape(frozenset(frame.order)))
        c = _full(plan, tensors[2], notation.c)
        if frame.algebra is None:
            d = torch.einsum(
                p, [labels[each] for each in frame.order], c, _places(notation.c, labels),
                [labels[each] for each in frame.second.result],
            )  # fmt: skip
        else:
            terms = (frame.order, notation.c, frame.second.result)
            d = contract(terms, p, c, algebra=frame.algebra.algebra, backend="reference")
        results.append(d.to(plan.result_type))
    for node in outputs:
        value = values[node].expand(frame.shape(between.modes[node]))
        dtype = node.meta["dtype"]
        wanted = frame.stored_as(dtype) if node in between.elementwise else dtype
        results.append(value.to(wanted))
    return plan._results(results)


def _full(plan: Any, tensor: Tensor, term: Any) -> Tensor:
    """An operand in float64, with the extents of its labels."""
    return tensor.double().expand([plan.extents[label] for label in term])


def _places(term: Any, labels: Mapping[Any, int]) -> list[int]:
    return [labels[label] for label in term]
