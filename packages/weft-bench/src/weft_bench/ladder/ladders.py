"""All ladders by name."""

from __future__ import annotations

from collections.abc import Mapping

from weft.base.figures import nearest
from weft.errors import UnsupportedError
from weft_bench.ladder.cpu_rungs import LADDER as CPU
from weft_bench.ladder.multiply_rungs import LADDER as MULTIPLY
from weft_bench.ladder.reduce_rungs import LADDER as REDUCE
from weft_bench.ladder.rung import Ladder
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
