"""From a recorded graph to lines of the loop body that numba compiles."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import UnsupportedError
from weft.fn.inliner import Held, Language, written
from weft.fn.numba.lowering import LOWERINGS, QUICK
from weft.fn.numba.writer import NumbaWriter
from weft.fn.pointwise import Pointwise, RecordedFunction

_COMPLEX = frozenset({
    "add", "sub", "rsub", "mul", "neg", "conj_physical", "real", "imag", "_to_copy", "detach", "eq", "ne",
})  # fmt: skip
_NUMBA = Language("the CPU", LOWERINGS, _COMPLEX)
_QUICK = Language("the CPU", LOWERINGS, _COMPLEX, QUICK)


def inlined(
    writer: NumbaWriter, function: Pointwise, arguments: Sequence[Held], *, quick: bool = False
) -> list[Held]:
    """Write the function's operations on these values; its results, each rounded to its own type.

    `quick`: exponentials within two units in the last place, 0 where they are below the normal numbers, but for those
    that a condition is on. Raises `UnsupportedError` for what has no code here, naming it.
    """
    if not isinstance(function, RecordedFunction):
        raise UnsupportedError("a function written in Triton has no code for the CPU")
    graph = function.graph if function.is_complex else function.primitive
    found = written(writer, graph, arguments, _QUICK if quick else _NUMBA)
    return [
        Held(writer.cast(value.name, value.dtype, dtype), dtype)
        for value, dtype in zip(found, function.results, strict=True)
    ]
