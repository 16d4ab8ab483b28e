"""From a recorded graph to lines of a body in CUDA C++.

Values of short floating types are computed in float. They are rounded to their own type at explicit casts, and where
they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import UnsupportedError
from weft.fn.cuda.lowering import LOWERINGS
from weft.fn.cuda.writer import CudaWriter
from weft.fn.inliner import Held, Language, written
from weft.fn.pointwise import Pointwise, RecordedFunction

_CUDA = Language("CUDA C++", LOWERINGS)


def inlined(writer: CudaWriter, function: Pointwise, arguments: Sequence[Held]) -> list[Held]:
    """Write the function's operations on these values; its results, of its own types and not rounded to them yet.

    Raises `UnsupportedError` for what has no code here, naming it.
    """
    if not isinstance(function, RecordedFunction) or function.is_complex:
        kind = "of complex values" if isinstance(function, RecordedFunction) else "written in Triton"
        raise UnsupportedError(f"a function {kind} has no code in CUDA C++")
    found = written(writer, function.primitive, arguments, _CUDA)
    return [Held(value.name, dtype) for value, dtype in zip(found, function.results, strict=True)]
