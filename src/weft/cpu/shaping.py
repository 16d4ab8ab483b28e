"""The shape of blocks: how far they reach along each mode, and the order of modes within them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.cpu.blocking import BATCH_BYTES, Targets, chain, fill, order_group
from weft.cpu.index_groups import Anatomy, Group


def block_extents(
    anatomy: Anatomy, order: Group, targets: Targets, limits: Mapping[int, int], room: int = BATCH_BYTES
) -> tuple[int, ...]:
    """Extents of a block along every mode; along batch modes, and those summed while packing, `room` bytes of it."""
    extents, d = anatomy.extents, anatomy.strides_d
    a, b = anatomy.a.strides, anatomy.b.strides

    def part(group: Group, target: int, *tensors: Sequence[int]) -> dict[int, int]:
        return fill(tuple(at for at in order if at in group), target, extents, tensors, limits)

    tile = part(anatomy.m, targets.m, a, d) | part(anatomy.n, targets.n, b, d) | part(anatomy.k, targets.k, a, b)
    m, n, k = (math.prod(tile[at] for at in group) for group in (anatomy.m, anatomy.n, anatomy.k))
    block_bytes = (m * k + n * k + m * n) * anatomy.accumulate.itemsize
    tile |= part(anatomy.batch, max(room // block_bytes, 1), a, b, d)
    matrices = math.prod(tile.get(at, extents[at]) for at in anatomy.batch)
    for operand in (anatomy.a, anatomy.b):
        block = matrices * (m * k if operand is anatomy.a else n * k)
        if not operand.sums_where_it_lies:
            tile |= part(operand.alone, max(room // (block * operand.compute.itemsize), 1), operand.strides)
    return tuple(tile.get(at, extent) for at, extent in enumerate(extents))


def largest_block(anatomy: Anatomy, limits: Mapping[int, int]) -> tuple[int, ...]:
    """Extents of a block that is bounded by nothing else."""
    return tuple(limits.get(at, extent) for at, extent in enumerate(anatomy.extents))


def mode_limits(anatomy: Anatomy, views: frozenset[str]) -> dict[int, int]:
    """Modes along which a block must not reach, so that it lies as a matrix in every operand of `views`."""
    strides = {operand.name: operand.strides for operand in (anatomy.a, anatomy.b)}
    limits: dict[int, int] = {}
    for group, names in ((anatomy.m, "A"), (anatomy.n, "B"), (anatomy.k, "AB"), (anatomy.batch, "AB")):
        tensors = [strides[name] for name in names if name in views]
        if tensors:
            kept = chain(group, anatomy.extents, tensors)
            limits.update((at, 1) for at in group if at not in kept)
    return limits


def mode_order(anatomy: Anatomy, views: frozenset[str]) -> Group:
    """All modes, outermost first, groups apart: each as it lies in the tensor where that saves most."""
    batch = anatomy.size(anatomy.batch)
    k, m, n = anatomy.size(anatomy.k), anatomy.size(anatomy.m), anatomy.size(anatomy.n)
    a = (anatomy.a.strides, batch * m * k * anatomy.size(anatomy.a.alone), "A" in views)
    b = (anatomy.b.strides, batch * n * k * anatomy.size(anatomy.b.alone), "B" in views)
    d = (anatomy.strides_d, batch * m * n, anatomy.elementwise)  # where nothing is summed, the pass goes along D
    return (
        *_as_in_best(anatomy, anatomy.batch, a, b, d),
        *_as_in_best(anatomy, anatomy.m, a, d),
        *_as_in_best(anatomy, anatomy.n, b, d),
        *_as_in_best(anatomy, anatomy.k, a, b),
        *order_group(anatomy.a.alone, anatomy.a.strides),
        *order_group(anatomy.b.alone, anatomy.b.strides),
        *anatomy.repeated,
    )


def _as_in_best(anatomy: Anatomy, group: Group, *tensors: tuple[Sequence[int], int, bool]) -> Group:
    """Order a group as in a tensor that must lie as it is, or has its contiguous mode there, or is largest."""

    def rank(tensor: tuple[Sequence[int], int, bool]) -> tuple[bool, bool, int]:
        strides, elements, fixed = tensor
        return fixed, innermost(range(len(strides)), strides) in group, elements

    best = sorted(tensors, key=rank, reverse=True)
    return order_group(group, *(strides for strides, _, _ in best))


def innermost(modes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The mode of the smallest stride."""
    return min((at for at in modes if strides[at] > 0), key=lambda at: strides[at], default=None)
