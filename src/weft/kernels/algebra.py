"""What the kernels take of an algebra."""

from __future__ import annotations

from typing import Any

from weft.spec import Contraction


def algebra_constants(contraction: Contraction) -> dict[str, Any]:
    """The compile-time parameters COMBINE, REDUCE and IDENTITY; of plus-times None, None and 0."""
    algebra = contraction.algebra
    if algebra is None:
        return {"COMBINE": None, "REDUCE": None, "IDENTITY": 0}
    return {"COMBINE": algebra.combine.jit, "REDUCE": algebra.reduce.jit, "IDENTITY": algebra.identity}
