"""Shape-generic TTGT: large products by the vendor's library, their operands packed by shape-generic permutations.

Where D does not lie as the library writes, the product goes to a workspace and one more such pass writes D. Nothing is
compiled for the shape. `planner.at_hand` alone uses this family.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from weft.gpu.blas import family as blas
from weft.gpu.common.tiling import A, B, by_stride
from weft.gpu.composite.ttgt import family as ttgt
from weft.gpu.composite.ttgt.family import build, packs_of, predict, program_of
from weft.gpu.composite.ttgt.packing import Packing, epilogue_on_d, matrix, product_of
from weft.gpu.composite.ttgt.result import ways
from weft.planner.at_hand import at_hand
from weft.planner.planner import Choice, choose_among
from weft.planner.schedule import Candidates, Description, Ranked, Target
from weft.spec import Contraction, Role

__all__ = ["NAME", "build", "predict", "schedules", "supports"]

NAME = "ttgt_at_hand"

_TTGT: Any = ttgt  # a module with the doors of a family

LEAST_FLOPS = 2**30  # of a product that is worth other launches


class _LibraryProduct(NamedTuple):
    """The library's product, with what follows it where D does not lie so, and the epilogue where it is left."""

    choice: Choice
    finish: Choice | None = None


def supports(contraction: Contraction, target: Target) -> str | None:
    if contraction.algebra is not None:
        return "the library takes no algebra"
    if 0 in [mode.extent for mode in contraction.modes]:
        return "a mode is empty"
    if 2 * contraction.m * contraction.n * contraction.k * contraction.batch < LEAST_FLOPS:
        return "the product is too small to be worth other launches"
    if target.kind not in ("cuda", "hip"):
        return "only a GPU's library is called"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found = []
    for packed in _packings(contraction):
        rest = product_of(contraction, packed)
        if rest.a_fn is not None or rest.b_fn is not None:
            continue
        product = _product(rest, target, alone=not any(packed))
        if product is None:
            continue
        steps = [_step(packing.permutation, target) if packing is not None else None for packing in packed]
        if all((step is None) is (packing is None) for step, packing in zip(steps, packed, strict=True)):
            found.append(program_of(packs_of(*steps), product.choice, product.finish))
    return Candidates(tuple(found))


def _packings(contraction: Contraction) -> Iterator[tuple[Packing | None, Packing | None]]:
    """Neither operand packed, one, or both: as rows along k, in the order of k of either."""
    yield None, None
    k = contraction.of_role(Role.K)
    for order in dict.fromkeys([by_stride(k, operand) for operand in (A, B)]):
        a, b = (matrix(contraction, operand, order, along_k=True) for operand in (A, B))
        yield from (packed for packed in dict.fromkeys([(a, None), (None, b), (a, b)]) if any(packed))


def _product(contraction: Contraction, target: Target, alone: bool) -> _LibraryProduct | None:
    """By the library, as D lies or by way of a workspace; None where it does not make it so."""
    if not alone and (direct := _library(contraction, target)) is not None:
        return _LibraryProduct(direct)
    last = epilogue_on_d(contraction)
    if last is not None and (direct := _library(replace(contraction, epilogue=None), target)) is not None:
        finish = _step(last, target)
        return _LibraryProduct(direct, finish) if finish is not None else None
    found: list[Ranked] = []
    for way in dict.fromkeys(ways(contraction)):
        product, finish = _library(way.product, target), None
        if product is not None and (finish := _step(way.finish, target)) is not None:
            schedule = program_of(packs_of(None, None), product, written=finish)
            found.append(Ranked(schedule, schedule.seconds, _TTGT))
    if not found:
        return None
    found.sort(key=lambda rank: rank.seconds)
    return _LibraryProduct(_choice(contraction, found, target))


def _library(contraction: Contraction, target: Target) -> Choice | None:
    if blas.supports(contraction, target) is not None:
        return None
    return choose_among([blas], contraction, "triton", target)


def _step(description: Description, target: Target) -> Choice | None:
    found = at_hand(description, "triton", target)
    return found if isinstance(found, Choice) else None


def _choice(contraction: Contraction, ranked: Sequence[Ranked], target: Target) -> Choice:
    return Choice(contraction, "triton", target, ranked[0], tuple(ranked))
