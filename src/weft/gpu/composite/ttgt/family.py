"""The family TTGT (transpose, transpose, GEMM, transpose): operands are packed, and what is left is planned anew.

A permutation packs an operand into a workspace: as a matrix whose rows run along k or along the operand's own side, or
in its own order with the function applied, or with its rows padded to whole lines. Functions and casts happen there,
once for each element, where the product would repeat them for every output tile that reads the element. It pays where
elements are used often, and moves every packed operand once more, at the speed of memory; two operands by one launch.
Where that leaves nothing to fuse but the epilogue, and D is small for the length of its sums, the vendor's BLAS may
make the product, and a last step applies the epilogue where D lies. D's own transposition is the family `scatter`,
whose product may be one of this. It has no kernels of its own: each step is planned by the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import UnsupportedError
from weft.gpu.composite.ttgt.cost import predict
from weft.gpu.composite.ttgt.launch import TtgtLaunch
from weft.gpu.composite.ttgt.schedule import NAME, TtgtSchedule
from weft.gpu.composite.ttgt.ways import epilogue_on_d, packings, products, reads_by_tma
from weft.planner.schedule import Candidates, Launch, Ranked, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

__all__ = ["NAME", "TtgtSchedule", "build", "predict", "schedules", "supports"]

KEPT = 4  # schedules of the product that are proposed for each way to pack, besides the best of each family
LEAST_FLOPS = 2**27  # of a product that is worth another launch


def supports(contraction: Contraction, target: Target) -> str | None:
    if contraction.algebra is not None:
        return f"the algebra {contraction.algebra.name} multiplies nothing that packing would speed up"
    if contraction.arithmetic.product.is_complex:
        return f"{dtype_name(contraction.arithmetic.product)} is packed by the family complex"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if 2 * contraction.m * contraction.n * contraction.k * contraction.batch < LEAST_FLOPS:
        return "the product is too small to be worth another launch"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.planner.planner import choose

    found: list[TtgtSchedule] = []
    excluded: dict[str, None] = {}
    by_tma = reads_by_tma(contraction, target)
    finish = choose(last, "triton", target) if (last := epilogue_on_d(contraction)) is not None else None
    for packed in dict.fromkeys(packings(contraction, by_tma)):
        try:
            a, b = (choose(each.permutation, "triton", target) if each is not None else None for each in packed)
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        for way in products(contraction, packed, by_tma, finish):
            try:
                product = choose(way.product, "triton", target, without=way.without)
            except UnsupportedError as error:
                excluded[str(error)] = None
                continue
            found += [TtgtSchedule((a, b), each, way.finish) for each in product.led_by_each(_kept(product.ranked))]
    return Candidates(tuple(found), tuple(excluded))


def build(contraction: Contraction, schedule: TtgtSchedule, target: Target) -> Launch:
    return TtgtLaunch(schedule, target)


def _kept(ranked: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """The best few schedules of a product, and the best of each family."""
    best: dict[str, Ranked] = {}
    for each in ranked:
        best.setdefault(each.schedule.family, each)
    return tuple(each for at, each in enumerate(ranked) if at < KEPT or each is best[each.schedule.family])
