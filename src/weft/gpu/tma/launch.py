"""Running kernels whose operands come by TMA: tensor maps are made anew for the tensors of each call."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.gpu.common.launch import KernelLaunch, TensorMap
from weft.gpu.common.tiling import A, B
from weft.gpu.tma.schedule import TmaSchedule, n_parts
from weft.gpu.tma.views import tensor_map
from weft.planner.schedule import AuxTensors, Scalar
from weft.spec import Contraction, Layout

# Of A's rows; of B's columns; of their second part along n where there is one.
OperandMaps: TypeAlias = tuple[TensorMap, TensorMap, TensorMap | None]


def operand_maps(contraction: Contraction, schedule: TmaSchedule) -> OperandMaps:
    tile_m, tile_n, tile_k = schedule.tile
    a = tensor_map(contraction.a, A, schedule.a, schedule.a.spans(tile_m, schedule.k, tile_k))
    b, *rest = (
        tensor_map(contraction.b, B, schedule.b, schedule.b.spans(width, schedule.k, tile_k))
        for width in n_parts(tile_n)
    )
    return a, b, rest[0] if rest else None


class TmaLaunch:
    """The kernel that multiplies, and the one that reduces split-K partials."""

    def __init__(
        self,
        maps: OperandMaps,
        swap_ab: bool,  # rows are B's and columns A's
        multiply: KernelLaunch,
        reduce: KernelLaunch | None = None,
        partials: Layout | None = None,
    ) -> None:
        self.kernels: tuple[KernelLaunch, ...] = (multiply, reduce) if reduce is not None else (multiply,)
        self._maps = maps
        self._swap_ab = swap_ab
        self._partials = partials

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        rows, columns, rest = self._maps
        if self._swap_ab:
            a, b = b, a
        operands = rows.descriptor(a), columns.descriptor(b), rest.descriptor(b) if rest is not None else None
        if self._partials is None:
            self.kernels[0]((*operands, *self._stored(c, d, None)), alpha, beta, aux)
            return
        partials = torch.empty(self._partials.shape, dtype=self._partials.dtype, device=d.device)
        self.kernels[0]((*operands, *self._stored(None, None, partials)), alpha, beta, aux)
        self.kernels[1]((partials, c, d), alpha, beta, aux)

    def _stored(self, c: Tensor | None, d: Tensor | None, partials: Tensor | None) -> tuple[Any, ...]:
        """What the kernel takes besides the operands: D, or the partials in its place."""
        return c, d, partials
