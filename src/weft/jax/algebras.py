"""Algebras of users as JAX's programs have them: what they compute when JAX traces the call, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch

from weft.algebra import NAMED, Algebra
from weft.errors import WeftError
from weft.plans.keywords import read_options
from weft.spec.dtypes import resolve


class FixedAlgebra(Algebra):
    """An algebra of functions that are recorded; its text is what they compute."""

    def __repr__(self) -> str:
        parts = [getattr(part, "identity", part) for part in (self.combine, self.reduce, self.vjp)]
        return f"algebra {self.name} {parts} {self.identity!r}"


def fixed(algebra: Algebra, types: Sequence[torch.dtype], keywords: Mapping[str, Any]) -> Algebra:
    """The algebra for a call of operands of these types; as it is where it does not fit them, which the call says."""
    if algebra in NAMED.values() or isinstance(algebra, FixedAlgebra):
        return algebra
    given = {name: keywords[name] for name in ("precision", "accumulate") if name in keywords}
    try:
        options, stored = read_options("plan", given), reduce(torch.promote_types, types)
        dtype = resolve(stored, stored, options.precision, options.accumulate, algebra.name).accumulate
        traced = algebra.traced(dtype)
        return FixedAlgebra(traced.combine, traced.reduce, traced.identity, algebra.name, None, algebra.vjp)
    except (WeftError, RuntimeError):
        return algebra
