"""Auxiliary operands of each step of a complex contraction.

A step knows only those auxiliary operands that it takes. The others have no strides in its modes, so that they keep no
modes apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from weft.fn import Pointwise
from weft.gpu.complex.interleaved.family import TransferAux
from weft.spec import Contraction, Mode

Positions: TypeAlias = tuple[int, ...]  # in the auxiliary operands of a contraction


class ProductAux(NamedTuple):
    """Auxiliary operands of a product, and its functions."""

    places: Positions
    fields: dict[str, Any]  # of the `Contraction` that the product is


def of_operand(contraction: Contraction, operand: int) -> TransferAux:
    """Auxiliary operands of the step that packs an operand, its function applied."""
    return _transfer_aux(contraction, fn=_arguments(contraction, operand))


def of_result(contraction: Contraction) -> TransferAux:
    """Auxiliary operands of the step that writes D, and results after D."""
    return _transfer_aux(
        contraction, c_fn=contraction.c_args, epilogue=contraction.epilogue_args, outputs=contraction.outputs
    )


def of_product(contraction: Contraction, functions: Sequence[Pointwise | None]) -> ProductAux:
    """Auxiliary operands of a product that applies these functions to A and B, and nothing to C and D."""
    arguments = [_arguments(contraction, at) if function is not None else () for at, function in enumerate(functions)]
    places = _places(*arguments)
    a_fn, b_fn = functions
    a_args, b_args = (_within(places, each) for each in arguments)
    fields = {
        "a_fn": a_fn, "b_fn": b_fn, "c_fn": None, "epilogue": None,
        "aux": tuple(contraction.aux[at] for at in places),
        "a_args": a_args, "b_args": b_args, "c_args": (), "epilogue_args": (),
    }  # fmt: skip
    return ProductAux(places, fields)


def steps(mode: Mode, places: Positions) -> tuple[int, ...]:
    """Strides of a mode in some of the auxiliary operands."""
    return tuple(mode.strides.aux[at] for at in places)


def moves(contraction: Contraction, operand: int, mode: Mode) -> bool:
    """Whether an operand's values change along a mode: as it lies, or by its function's auxiliary operands."""
    return bool(mode.strides[operand]) or any(steps(mode, _arguments(contraction, operand)))


def _arguments(contraction: Contraction, operand: int) -> Positions:
    return (contraction.a_args, contraction.b_args)[operand]


def _places(*arguments: Positions) -> Positions:
    return tuple(sorted({at for each in arguments for at in each}))


def _within(places: Positions, arguments: Positions) -> tuple[int, ...]:
    return tuple(places.index(at) for at in arguments)


def _transfer_aux(
    contraction: Contraction,
    fn: Positions = (),
    c_fn: Positions = (),
    epilogue: Positions = (),
    outputs: Positions = (),
) -> TransferAux:
    arguments = (fn, c_fn, epilogue, outputs)
    places = _places(*arguments)
    aux = tuple(contraction.aux[at] for at in places)
    return TransferAux(aux, places, *(_within(places, each) for each in arguments))
