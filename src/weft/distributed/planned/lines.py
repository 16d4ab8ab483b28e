"""The ranks along each dimension of a mesh: the groups that collectives of one dimension run in."""

from __future__ import annotations

import math
from typing import Any

import torch.distributed as dist

from weft.distributed.group.ranks import Ranks, find_ranks
from weft.distributed.planned.placement import coordinates, rank_at, read_mesh
from weft.errors import ArgumentError

_made: dict[tuple[Any, ...], tuple[Any, tuple[Ranks, ...]]] = {}  # with the group, whose id is then no other's


def find_lines(group: Any, mesh: Any, timeout: float | None) -> tuple[Ranks, tuple[int, ...], tuple[Ranks, ...]]:
    """All ranks, the mesh, and this rank's line along each of its dimensions.

    `group` may be a DeviceMesh, which is the mesh then. Groups of lines are made once for each group and mesh.
    """
    if hasattr(group, "mesh_dim_names") and group.ndim > 1:
        ranks = find_ranks(None, timeout)
        shape = tuple(group.mesh.shape)
        if group.mesh.flatten().tolist() != list(range(ranks.size)):
            raise ArgumentError(
                f"the device mesh {shape} is not all {ranks.size} ranks in their order: pass a group and mesh= instead"
            )
        return ranks, shape, tuple(find_ranks(group.get_group(dim), timeout) for dim in range(group.ndim))
    ranks = find_ranks(group, timeout)
    shape = read_mesh(mesh, ranks.size)
    if len(shape) == 1:
        return ranks, shape, (ranks,)
    key = id(ranks.group), ranks.name, shape
    if key not in _made:
        _made[key] = ranks.group, tuple(_line(ranks, shape, dim, timeout) for dim in range(len(shape)))
    return ranks, shape, _made[key][1]


def _line(ranks: Ranks, mesh: tuple[int, ...], dim: int, timeout: float | None) -> Ranks:
    """The ranks that differ from this one in one coordinate. Only they take part in making their group."""
    here = coordinates(ranks.rank, mesh)
    every = dist.get_process_group_ranks(ranks.group)
    members = [
        every[rank_at([at if one == dim else here[one] for one in range(len(mesh))], mesh)] for at in range(mesh[dim])
    ]
    if len(members) == ranks.size == math.prod(mesh):
        return ranks
    return find_ranks(dist.new_group(members, use_local_synchronization=True), timeout)
