"""Functions of users as lines of a loop body, in CUDA C++ or for numba."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import UnsupportedError
from weft.fn.body import write, written
from weft.fn.graphs import results_of
from weft.fn.pointwise import Pointwise, RecordedFunction
from weft.fn.writer import BodyWriter, Held


def inlined(w: BodyWriter, function: Pointwise, arguments: Sequence[Held], *, quick: bool = False) -> list[Held]:
    """Write the function's operations on these values; its results, of its own types: in C++ not rounded to them yet.

    `quick`: exponentials within two units in the last place, 0 where they are below the normal numbers, but for those
    that a condition is on. Raises `UnsupportedError` for what has no code there, naming it.
    """
    if not isinstance(function, RecordedFunction) or (function.is_complex and not w.of_complex):
        kind = "of complex values" if isinstance(function, RecordedFunction) else "written in Triton"
        raise UnsupportedError(f"a function {kind} has no code {w.where}")
    graph = function.graph if function.is_complex else function.primitive
    write(w, graph, arguments, quick=quick)
    found = zip([written(w, node) for node in results_of(graph)], function.results, strict=True)
    return [Held(w.cast(value.name, value.dtype, dtype) if w.rounds else value.name, dtype) for value, dtype in found]
