"""Copies out of a matrix into a workspace and back to another place of the same memory.

They are permutations like any other (`permute`), each of two launches. What is larger than the workspace takes rounds.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from weft.gpu.permute import family as permute
from weft.gpu.permute.launch import PermuteLaunch
from weft.planner.schedule import Scalar, Target
from weft.planner.target import target_of
from weft.spec import Label, Layout, parse
from weft.spec.permutation import Permutation, canonical_modes


def copy(source: torch.Tensor, target: torch.Tensor, alpha: Scalar = 1) -> None:
    """target[...] = alpha * source[...], of the same shape; their memories are apart."""
    if source.numel() == 0:
        return
    if alpha == 1 and source.is_contiguous() and target.is_contiguous():
        target.copy_(source)
        return
    device = target_of("triton", source.device)
    copy_launch(_few_alignments(source), _few_alignments(target), alpha != 1, device)(source, None, target, alpha, 0)


def transpose_via_workspace_(matrices: torch.Tensor, workspace: int, alpha: Scalar) -> None:
    """Transpose dense matrices (batch, rows, columns), as many at a time as fit into the workspace; at least one."""
    batch, rows, columns = matrices.shape
    step, base = matrices.stride(2), int(matrices.storage_offset())
    if batch == 0:
        return
    together = evenly(batch, max(workspace // (rows * columns * matrices.itemsize), 1))
    buffer = torch.empty((together, columns, rows), dtype=matrices.dtype, device=matrices.device)
    for start in range(0, batch, together):
        out = matrices[start : start + together]
        full = buffer[: out.shape[0]]
        copy(out.mT, full, alpha)
        back = (matrices.stride(0), rows * step, step)
        copy(full, matrices.as_strided(full.shape, back, base + start * matrices.stride(0)))


def evenly(count: int, most: int) -> int:
    """How many of `count` to take at a time, at most `most`, so that all rounds are nearly alike."""
    return -(-count // -(-count // most))


def _few_alignments(tensor: torch.Tensor) -> Layout:
    """The layout with an alignment of 16 bytes or of an element, so that kernels are compiled twice at most."""
    layout = Layout.of(tensor)
    return layout if layout.alignment == 16 else layout._replace(alignment=min(tensor.itemsize, 8))


@lru_cache(maxsize=512)
def copy_launch(source: Layout, target: Layout, scaled: bool, device: Target) -> PermuteLaunch:
    term = "abc"[: len(source.shape)]
    extents: dict[Label, int] = dict(zip(term, source.shape, strict=True))
    modes = canonical_modes(parse(f"{term}->{term}"), source, None, target, extents)
    permutation = Permutation(modes, x=source, c=None, d=target, compute=source.dtype, scaled=scaled)
    schedule, _ = permute.best(permutation, device)
    return permute.build(permutation, schedule, device)
