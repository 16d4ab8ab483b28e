"""The calls that `weft.einsum` is made of, as dynamo needs them before there are tensors."""

from __future__ import annotations

from typing import Any

import torch

from weft.base.arrays import outside_tracing
from weft.compiled.captured import constant_of_graph
from weft.compiled.contraction import algebra_of
from weft.compiled.letters import letters, spelled_equation
from weft.networks.many import Pair, path_of
from weft.plans.keywords import read_options
from weft.spec import Notation, parse
from weft.spec.notation import expand, from_sequences, implicit_from_sequences

Shape = tuple[int | None, ...]  # None: open
OPEN = 128  # what an open extent counts as where a path is chosen

# A call of an einsum: "permute", "contract", or "alone" with a one; its equation; the places of what it reads, operands
# first, then results of steps. Plain, as torch 2.11's dynamo does not unpack named tuples that are constants.
Step = tuple[str, str, int, int]


@constant_of_graph
def steps_of_einsum(
    equation: Any, shapes: tuple[Shape, ...], moved: bool, first: tuple[torch.dtype, str, int | None],
    asked: tuple[tuple[str, Any], ...],
) -> tuple[Step, ...]:  # fmt: skip
    """The calls that an einsum consists of.

    `equation`: text, or the sequences of labels, the result's last where it is given. `shapes`: extents, None for those
    that are open. `moved`: whether one operand is a mere rearrangement if its labels are. `first`: the type of the
    operands, and where they are. `asked`: keywords of every step.
    """
    if isinstance(equation, str):
        notation = parse(equation)
    elif len(equation) > len(shapes):
        notation = from_sequences(*equation)
    else:
        notation = implicit_from_sequences(*equation)
    notation = expand(notation, tuple(map(len, shapes)))
    names = letters((*notation.inputs, notation.output))
    if len(shapes) == 1:
        (term,), output = notation.inputs, notation.output
        if moved and set(term) == set(output):
            return (("permute", spelled_equation(notation, names), 0, 1),)
        return (("alone", spelled_equation(Notation((term, ()), output), names), 0, 1),)
    with outside_tracing():
        steps = [(0, 1, notation)] if len(shapes) == 2 else along(notation, shapes, first, asked)
    return tuple(("contract", spelled_equation(step, names), left, right) for left, right, step in steps)


def along(
    notation: Notation, shapes: tuple[Shape, ...], first: tuple[torch.dtype, str, int | None],
    asked: tuple[tuple[str, Any], ...],
) -> list[Pair]:  # fmt: skip
    """The steps of the path that `weft.einsum` takes elsewhere."""
    dtype, kind, index = first
    device = torch.device("cpu" if kind == "meta" else kind if index is None else f"{kind}:{index}")
    known = {
        label: extent
        for term, shape in zip(notation.inputs, shapes, strict=True)
        for label, extent in sorted(zip(term, shape, strict=True), key=lambda each: each[1] or 0)
        if extent is not None
    }
    filled = [
        tuple(known.get(label, OPEN) if extent is None else extent for label, extent in zip(term, shape, strict=True))
        for term, shape in zip(notation.inputs, shapes, strict=True)
    ]
    each = {name: algebra_of(value) if name == "algebra" else value for name, value in asked}
    return path_of(notation, filled, [dtype] * len(shapes), device, read_options("einsum", each))
