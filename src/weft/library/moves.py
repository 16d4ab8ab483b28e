"""Copies from one layout into another: by torch, or by weft's shape-generic kernel where many modes are left.

For each element torch divides once for every mode: copies of a dozen modes take ten times as long on a GPU as their
bytes do. Both copy the same bits. Nothing is compiled here: the kernel copies where it is built ahead or stored.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from weft.base.bounded_cache import BoundedCache
from weft.planner import verdicts
from weft.planner.target import target_of
from weft.spec import Layout, Mode, Role, Strides
from weft.spec.canonical import merged
from weft.spec.permutation import Permutation

MANY = 7  # modes behind merging

_LAUNCHES = BoundedCache(1024)  # by layouts; False where torch copies


def copy(place: Tensor, source: Tensor) -> None:
    """`place.copy_(source)`."""
    if place.dim() < MANY or not place.is_cuda or not _is_plain(place, source):
        place.copy_(source)
        return
    source = source.expand(place.shape)
    addresses = place.data_ptr() % 16, source.data_ptr() % 16
    key = place.shape, place.stride(), source.stride(), place.dtype, place.device, addresses
    launch = _LAUNCHES.get(key)
    if launch is None:
        launch = _launch(place, source) or False
        _LAUNCHES.put(key, launch)
    if launch:
        launch(source, None, place, 1.0, 0.0)
    else:
        place.copy_(source)


def _is_plain(place: Tensor, source: Tensor) -> bool:
    """Whether bits are copied as they are."""
    return place.dtype is source.dtype and not (source.is_conj() or source.is_neg() or place.is_conj())


def _launch(place: Tensor, source: Tensor) -> Any:
    """A launch of the shape-generic kernel; None where torch had better copy."""
    modes = [
        Mode((at,), extent, Role.M, Strides(in_source, 0, 0, in_place))
        for at, (extent, in_source, in_place) in enumerate(
            zip(place.shape, source.stride(), place.stride(), strict=True)
        )
        if extent != 1
    ]  # fmt: skip
    modes = merged(sorted(modes, key=lambda mode: -mode.strides.d))
    target = target_of("triton", place.device)
    if len(modes) < MANY or target.kind != "cuda" or 0 in place.shape:
        return None
    from weft.gpu.common.cubins import is_kept
    from weft.gpu.common.launch import collected
    from weft.gpu.permute import generic

    x, d = (Layout(tuple(each.shape), each.stride(), each.dtype, _alignment(each)) for each in (source, place))
    permutation = Permutation(tuple(modes), x, None, d, place.dtype)
    found = verdicts.known(generic.__name__, "triton", target)
    if any(verdict.reason is not None for verdict in found.values()) or generic.supports(permutation, target):
        return None
    for schedule in generic.schedules(permutation, target).schedules:
        with collected() as kernels:
            generic.build(permutation, schedule, target)
        if all(map(is_kept, kernels)):
            return generic.build(permutation, schedule, target)
    return None


def _alignment(tensor: Tensor) -> int:
    """The largest power of two, at most 16, that divides the address."""
    return next(size for size in (16, 8, 4, 2, 1) if tensor.data_ptr() % size == 0)
