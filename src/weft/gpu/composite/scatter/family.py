"""The family that scatters D: the product goes to a workspace as a plain matrix, and one more pass writes D from it.

It is the last step of TTGT alone. It pays where D lies so that products write it badly: a batch mode innermost, gaps
between neighbours, rows that start between words, or modes of A and of B in turn, where the vendor's BLAS cannot write
at all. The last pass moves D's elements as they are, or, where C is added or an epilogue applied, computes D from sums
in the accumulator's type. That pays for a D that is a plain matrix, too, where the library makes the product: it fuses
nothing, and is ahead of any kernel here at IEEE products of float32 and float64 (by 1.3, 4096^3 on an H200). It has no
kernels of its own: the product and the last pass are planned by the others.
"""

from __future__ import annotations

from weft.errors import UnsupportedError
from weft.gpu.composite.scatter.launch import ScatterLaunch
from weft.gpu.composite.scatter.schedule import NAME, ScatterSchedule
from weft.gpu.composite.scatter.ways import is_left_to_library, is_matrix, ways
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

__all__ = ["NAME", "ScatterSchedule", "build", "predict", "schedules", "supports"]

KEPT = 2  # schedules of the product that are proposed for each workspace
LEAST_FLOPS = 2**27  # of a product that is worth another launch
OTHERS = (NAME, "pre_reduce", "simt")  # families that the product is planned without
TILED = ("gett", "tma", "warp_specialized")  # those that could have fused what the last pass does


def supports(contraction: Contraction, target: Target) -> str | None:
    if contraction.algebra is not None:
        return f"the algebra {contraction.algebra.name} multiplies nothing that another layout of D would speed up"
    if contraction.arithmetic.product.is_complex:
        return f"D of {dtype_name(contraction.arithmetic.product)} is scattered by the family complex"
    if contraction.a_args or contraction.b_args:
        return "its product passes on no operands or coordinates of a_fn and b_fn"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if 2 * contraction.m * contraction.n * contraction.k * contraction.batch < LEAST_FLOPS:
        return "the product is too small to be worth another launch"
    if is_matrix(contraction) and not is_left_to_library(contraction):
        return "D lies as a matrix already"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.planner.planner import choose

    by_library = is_matrix(contraction) and is_left_to_library(contraction)
    without = (*OTHERS, *TILED) if by_library else OTHERS
    found: list[ScatterSchedule] = []
    excluded: dict[str, None] = {}
    for way in dict.fromkeys(ways(contraction)):
        try:
            product = choose(way.product, "triton", target, without=without)
            finish = choose(way.finish, "triton", target, without=(NAME, "pre_reduce", "ttgt"))
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        found += [ScatterSchedule(each, finish) for each in product.led_by_each(product.ranked[:KEPT])]
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: ScatterSchedule, target: Target) -> float:
    """Seconds of both steps."""
    return schedule.product.best.seconds + schedule.finish.best.seconds


def build(contraction: Contraction, schedule: ScatterSchedule, target: Target) -> Launch:
    return ScatterLaunch(schedule)
