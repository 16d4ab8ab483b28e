"""Running warp-specialized kernels: their tensor maps say how tiles lie in shared memory, and D may go by TMA too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from weft.gpu.common.launch import KernelLaunch, TensorMap
from weft.gpu.tma.launch import OperandMaps, TmaLaunch, operand_maps
from weft.gpu.tma.schedule import TmaSchedule
from weft.gpu.warp_specialized.params import matrix_layout
from weft.spec import Contraction, Layout

if TYPE_CHECKING:
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


class SwizzledTensorMap(TensorMap):
    """A tensor map that says how its tiles lie in shared memory: Gluon does not choose it."""

    def descriptor(self, tensor: Any) -> TensorDescriptor:
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        shape, strides = list(self.layout.shape), list(self.layout.strides)
        return TensorDescriptor(tensor, shape, strides, list(self.block), self.shared)

    @property
    def spelled_place(self) -> str:
        return f",{self.shared}"

    @property
    def shared(self) -> NVMMASharedLayout:
        *_, rows, columns = self.block
        return matrix_layout((rows, columns), True, self.layout.dtype.itemsize, len(self.block))


def swizzled_maps(contraction: Contraction, schedule: TmaSchedule) -> OperandMaps:
    a, b, rest = operand_maps(contraction, schedule)
    return SwizzledTensorMap(*a), SwizzledTensorMap(*b), SwizzledTensorMap(*rest) if rest is not None else None


class WsLaunch(TmaLaunch):
    """The same for kernels that read no C, and store D, or partials, by TMA or from registers."""

    def __init__(
        self,
        maps: OperandMaps,
        result: SwizzledTensorMap | None,  # of D, or of partials; None where D is stored from registers
        swap_ab: bool,
        multiply: KernelLaunch,
        reduce: KernelLaunch | None = None,
        partials: Layout | None = None,
    ) -> None:
        super().__init__(maps, swap_ab, multiply, reduce, partials)
        self._result = result

    def _stored(self, c: Tensor | None, d: Tensor | None, partials: Tensor | None) -> tuple[Any, ...]:
        to = d if partials is None else partials
        return (to if self._result is None else self._result.descriptor(to),)
