"""The kernels bound to how matrices lie: built once for each layout, then launched on tensors."""

from __future__ import annotations

from functools import lru_cache

import torch

from weft.gpu.common.launch import TRITON_TYPES, KernelLaunch
from weft.gpu.permute.words import WORDS
from weft.gpu.transpose.params import SlideParams, cycle_params, square_params
from weft.gpu.transpose.schedule import square_tile
from weft.planner.schedule import Scalar, Target
from weft.planner.target import target_of
from weft.spec import Layout

_WARPS = 4


def as_words(matrix: torch.Tensor) -> list[torch.Tensor]:
    """A matrix of elements as matrices of words of at most 8 bytes: one where its rows are contiguous, else two."""
    if matrix.itemsize <= 8:
        return [matrix.view(WORDS[matrix.itemsize])]
    pairs = torch.view_as_real(matrix).view(torch.int64)
    return [pairs.flatten(1)] if matrix.stride(1) == 1 else list(pairs.unbind(-1))


def transpose_squares_(matrices: torch.Tensor, alpha: Scalar) -> None:
    """Transpose square matrices (outer batch, inner batch, n, n) where they lie, any strides."""
    if matrices.shape[-1] == 1 and alpha == 1:
        return
    if matrices.itemsize > 8:
        matrices = torch.view_as_real(matrices)  # five dimensions: an element is two words
    words = matrices if alpha != 1 else matrices.view(WORDS[matrices.itemsize])
    target = target_of("triton", matrices.device)
    square_launch(Layout.of(words), alpha != 1, target)((words,), alpha, 0)


@lru_cache(maxsize=512)
def square_launch(matrices: Layout, scaled: bool, target: Target) -> KernelLaunch:
    from weft.gpu.transpose.kernel import square_kernel

    tile, warps = square_tile(matrices)
    params = square_params(matrices, tile)
    scale = torch.float64 if matrices.dtype is torch.float64 else torch.float32
    if not matrices.dtype.is_floating_point:
        scale = torch.int64
    constants = {"PARAMS": params, "SCALE": TRITON_TYPES[scale] if scaled else None}
    programs = matrices.shape[0] * matrices.shape[1] * params.pairs
    real = scale.is_floating_point
    return KernelLaunch(square_kernel, (matrices,), constants, real, target, programs, warps, stages=1)


@lru_cache(maxsize=512)
def cycle_launches(
    part: Layout, group: int, width: int, saved: int, moved: int, target: Target
) -> tuple[KernelLaunch, KernelLaunch]:
    """(saving, moving) a part of all super-elements."""
    from weft.gpu.transpose.kernel import cycle_kernel, save_kernel

    params = cycle_params(part, group, width, saved)
    words, numbers = Layout.contiguous((saved, params.span), part.dtype), Layout.contiguous((moved,), torch.int32)
    constants = {"PARAMS": params}
    save, move = (count // group * params.parts for count in (saved, moved))
    return (
        KernelLaunch(save_kernel, (part, numbers, words), constants, False, target, save, _WARPS, stages=1),
        KernelLaunch(cycle_kernel, (part, numbers, numbers, words), constants, False, target, move, _WARPS, stages=1),
    )


@lru_cache(maxsize=256)
def slide_launches(
    alignment: int, dtype: torch.dtype, params: SlideParams, target: Target
) -> tuple[KernelLaunch, KernelLaunch]:
    """(saving, sliding) of rows that begin at an address of so many bytes."""
    from weft.gpu.transpose.kernel import save_ends_kernel, slide_kernel

    words = Layout((params.reach,), (params.step,), dtype, alignment)
    layouts, constants = (words, Layout.contiguous((params.saved,), dtype)), {"PARAMS": params}
    ends = params.programs * params.parts
    return (
        KernelLaunch(save_ends_kernel, layouts, constants, False, target, ends, _WARPS, stages=1),
        KernelLaunch(slide_kernel, layouts, constants, False, target, params.programs, _WARPS, stages=1),
    )
