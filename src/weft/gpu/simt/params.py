"""What the kernel takes of a schedule, as compile-time constants."""

from __future__ import annotations

from typing import NamedTuple

from weft.gpu.common.launch import wide, wide_index
from weft.gpu.common.tiling import TENSORS, TiledAxis, TiledDim, rest, tiled_dim
from weft.gpu.simt.schedule import SimtSchedule
from weft.spec import Contraction, Role


class SimtParams(NamedTuple):
    r: TiledDim  # every mode of D
    k: TiledDim
    tile: tuple[int, ...]  # extents of the tile: axes of D, then axes of k
    k_rank: int  # how many of them are of k
    wide: tuple[bool, ...]
    wide_index: bool


def simt_params(contraction: Contraction, schedule: SimtSchedule) -> SimtParams:
    d_modes = contraction.of_role(Role.BATCH, Role.M, Role.N)
    axes = [*rest(d_modes, schedule.r), *schedule.r]
    if all(axis.tile == 1 for axis in axes):
        axes.append(TiledAxis((), 1, placed=True))  # a kernel stores tiles, not scalars
    tensors = TENSORS + len(contraction.aux)
    r = tiled_dim(axes, tensors=tensors)
    places = sum(axis.place >= 0 for axis in r.axes)
    k = tiled_dim(schedule.k, first_place=places, tensors=tensors)
    return SimtParams(
        r=r,
        k=k,
        tile=tuple(axis.tile for axis in (*r.axes, *k.axes) if axis.place >= 0),
        k_rank=sum(axis.place >= 0 for axis in k.axes),
        wide=wide(contraction.modes, tensors),
        wide_index=wide_index((*schedule.r, *schedule.k)),
    )
