"""All ladders by name."""

from __future__ import annotations

from collections.abc import Mapping

from weft.base.figures import nearest
from weft.errors import UnsupportedError
from weft_bench.ladder.cpu_rungs import LADDER as CPU
from weft_bench.ladder.multiply_rungs import LADDER as MULTIPLY
from weft_bench.ladder.reduce_rungs import LADDER as REDUCE
from weft_bench.ladder.rung import Ladder, Rung
from weft_bench.ladder.tensor_rungs import LADDER as TENSOR
from weft_bench.ladder.transpose_rungs import LADDER as TRANSPOSE

LADDERS: Mapping[str, Ladder] = {each.name: each for each in (MULTIPLY, TRANSPOSE, TENSOR, REDUCE, CPU)}


def ladder(name: str) -> Ladder:
    """The ladder of that name: "multiply", "transpose", "tensor", "reduce" or "cpu". `UnsupportedError` for others.

    >>> ladder("transpose").flights[0].rungs[-1].name
    'copy'
    """
    if name not in LADDERS:
        raise UnsupportedError(f"no ladder is called '{name}': {', '.join(LADDERS)}{nearest(name, LADDERS)}")
    return LADDERS[name]


def known_rung(name: str, flight: str, rung: str) -> Rung | None:
    """A rung by the names of its ladder and flight; None where this version of weft has no such rung."""
    found = LADDERS[name].rungs if name in LADDERS else []
    return next((each for of, each in found if (of.name, each.name) == (flight, rung)), None)
