"""The stage that values pass through: conj, fn, alpha, beta * C and a cast, as one loop that numba compiles."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from weft.cpu.gett.family import LOADABLE
from weft.cpu.gett.stages import Held, StageSource
from weft.cpu.jit import compiled
from weft.cpu.permute.params import ALPHA, CONSTANTS, PLAN
from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.fn.inliner import inlined
from weft.fn.numba.writer import NumbaWriter
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation, scaling_type


class PermuteStage(NamedTuple):
    """A compiled stage: reads X's values, then C's; writes D's, over X's where they have one size."""

    address: int
    in_place: bool
    constants: bytes  # of its function


class Values(NamedTuple):
    """The types, function and scaling that the code of a stage depends on."""

    x: torch.dtype
    d: torch.dtype
    fn: Pointwise | None = None
    conjugate: bool = False
    scaled: bool = False
    added: bool = False

    @classmethod
    def of(cls, permutation: Permutation) -> Values:
        return cls(
            permutation.x.dtype, permutation.d.dtype, permutation.fn, permutation.conjugate, permutation.scaled,
            permutation.c is not None,
        )  # fmt: skip


def fault(values: Values) -> str | None:
    """Why there is no code for them; None where there is. Compiles nothing."""
    for dtype in (values.x, values.d):
        if dtype not in LOADABLE:
            return f"kernels do not compute with {dtype_name(dtype)}"
    if values.fn is not None:
        try:
            inlined(NumbaWriter(), values.fn, [Held("x", values.x)])
        except UnsupportedError as error:
            return f"fn: {error}"
    return None


@lru_cache(maxsize=512)
def stage(values: Values) -> PermuteStage:
    loop = StageSource(values.x, (PLAN - ALPHA, CONSTANTS))
    writer, found = loop.writer, loop.value
    c = loop.read(values.d) if values.added else None
    if values.conjugate:
        found = Held(writer.let(f"{found.name}.conjugate()"), found.dtype)
    if values.fn is not None:
        (found,) = inlined(writer, values.fn, [found])
    if values.scaled:
        scale = scaling_type(found.dtype, values.d)
        total = f"{loop.scalar('alpha', 0, scale).name} * {writer.cast(found.name, found.dtype, scale)}"
        if c is not None:
            total += f" + {loop.scalar('beta', 2, scale).name} * {writer.cast(c.name, c.dtype, scale)}"
        found = Held(writer.typed(total, scale), scale)
    in_place = values.x.itemsize == values.d.itemsize
    loop.write(found, values.d, 0 if in_place else None)
    return PermuteStage(compiled(loop.source), in_place, loop.constants)
