"""The ranks along each dimension of a mesh: the groups that collectives of one dimension run in."""

from __future__ import annotations

import math
from typing import Any

import torch.distributed as dist

from weft.distributed.group.ranks import Ranks, find_ranks
from weft.distributed.planned.placement import coordinates, read_mesh
from weft.errors import ArgumentError

_made: dict[tuple[Any, ...], tuple[Ranks, ...]] = {}  # by the group itself, its name and the mesh


def ranks_of(group: Any, timeout: float | None) -> Ranks:
    """All ranks of `group`, a process group or a DeviceMesh."""
    return find_ranks(None if _is_mesh(group) else group, timeout)


def shape_of(group: Any, mesh: Any, ranks: Ranks) -> tuple[int, ...]:
    """The mesh of these ranks: that of a DeviceMesh, or the extents that are given."""
    if not _is_mesh(group):
        return read_mesh(mesh, ranks.size)
    shape = tuple(group.mesh.shape)
    if group.mesh.flatten().tolist() != list(range(ranks.size)):
        raise ArgumentError(
            f"the device mesh {shape} is not all {ranks.size} ranks in their order: pass a group and mesh= instead"
        )
    return shape


def lines_of(group: Any, mesh: tuple[int, ...], ranks: Ranks) -> tuple[Ranks, ...]:
    """This rank's line along each dimension of the mesh, on which all ranks have agreed.

    Groups of lines are made once for each group and mesh; ranks of one line wait for one another.
    """
    if len(mesh) == 1:
        return (ranks,)
    if _is_mesh(group):
        return tuple(find_ranks(group.get_group(dim), ranks.timeout, ranks) for dim in range(group.ndim))
    key = ranks.group, ranks.name, mesh
    if key not in _made:
        _made[key] = tuple(_line(ranks, mesh, dim) for dim in range(len(mesh)))
    return _made[key]


def _is_mesh(group: Any) -> bool:
    return hasattr(group, "mesh_dim_names") and group.ndim > 1


def _line(ranks: Ranks, mesh: tuple[int, ...], dim: int) -> Ranks:
    """The ranks that differ from this one in one coordinate. Only they take part in making their group."""
    every = dist.get_process_group_ranks(ranks.group)
    apart = math.prod(mesh[dim + 1 :])  # of neighbours: ranks count row by row
    first = ranks.rank - apart * coordinates(ranks.rank, mesh)[dim]
    members = [every[first + at * apart] for at in range(mesh[dim])]
    if len(members) == ranks.size == math.prod(mesh):
        return ranks
    return find_ranks(dist.new_group(members, use_local_synchronization=True), ranks.timeout, ranks)
