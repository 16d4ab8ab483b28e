"""Tensor maps: by them the tensor memory accelerator (TMA) of an NVIDIA GPU finds the tiles of a tensor.

A kernel takes each as 128 bytes that CUDA's driver writes, with the tensor's extents and strides behind them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

from weft.gpu.common.constants import GluonLayout
from weft.spec import Layout

BYTES = 128
_ALIGNMENT = 64
# Triton's numbers of element types, which are the device's, where the driver has others for them.
_OF_THE_DRIVER = {8: 10, 9: 8, 10: 9}
_NO_INTERLEAVE, _L2_OF_128, _ZEROS_OUTSIDE = 0, 2, 0


class TensorMap(NamedTuple):
    """A tensor that a kernel reads or writes tile by tile through the tensor memory accelerator."""

    layout: Layout
    block: tuple[int, ...]

    def descriptor(self, tensor: Any) -> Any:
        """The descriptor of `tensor`, which has this layout, as Gluon takes it."""
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        if tensor.dtype != self.layout.dtype:
            tensor = tensor.view(self.layout.dtype)
        return TensorDescriptor(
            tensor, list(self.layout.shape), list(self.layout.strides), list(self.block), self.shared.meant
        )

    @property
    def shared(self) -> GluonLayout:
        """How tiles lie in shared memory: Gluon does not choose it."""
        *_, rows, columns = self.block
        return matrix_layout((rows, columns), True, self.layout.dtype.itemsize, len(self.block))


def matrix_layout(shape: tuple[int, int], along_k: bool, size: int, rank: int = 2) -> GluonLayout:
    """How a tile of so many rows and columns lies in shared memory, its contiguous side as it is in memory.

    Its order is the widest that its lines fill.
    """
    rows, columns = shape
    line = (columns if along_k else rows) * size
    swizzle = next(width for width in (128, 64, 32) if line % width == 0)
    return GluonLayout("NVMMASharedLayout", (swizzle, 8 * size, rank))


class MapForm(NamedTuple):
    """Facts on a tensor map that a kernel is compiled for."""

    element: int  # the driver's number of the element type
    itemsize: int  # bytes of an element
    swizzle: int  # the driver's number of the order in shared memory
    block: tuple[int, ...]  # elements of a tile, outermost first

    @classmethod
    def all_of(cls, compiled: Any) -> tuple[MapForm, ...] | None:
        """Forms of all maps that a compiled kernel takes, in order; None where one is of another kind."""
        found = getattr(compiled.metadata, "tensordesc_meta", None) or ()
        if any(each is None or each.get("fp4_padded") or each.get("is_im2col") for each in found):
            return None
        return tuple(
            cls(
                _OF_THE_DRIVER.get(each["elem_type"], each["elem_type"]), each["elem_size"], each["swizzle"],
                tuple(each["block_size"]),
            )
            for each in found
        )  # fmt: skip

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the parameters that a tensor map is to a kernel: itself, extents, strides."""
        rank = len(self.block)
        return BYTES, *(4,) * rank, *(8,) * rank


class EncodedMap:
    """The 128 bytes of one tensor, which may move from launch to launch."""

    def __init__(self, driver: Any, form: MapForm, layout: Layout) -> None:
        self._driver, self._form, self._layout = driver, form, layout
        self._room = (ctypes.c_char * (BYTES + _ALIGNMENT))()
        start = ctypes.addressof(self._room)
        #: Where the bytes stand.
        self.address = start + -start % _ALIGNMENT
        self._place = ctypes.c_void_p(self.address)
        self._tensor = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """Extents and strides, which a kernel takes behind the bytes."""
        return *self._layout.shape, *self._layout.strides

    def move(self, tensor: int) -> int:
        """Have the bytes speak of the tensor at an address; returns the driver's status."""
        if tensor == self._tensor:
            return 0
        if self._tensor:
            status = self._driver.cuTensorMapReplaceAddress(self._place, ctypes.c_void_p(tensor))
        else:
            status = self._encode(tensor)
        self._tensor = 0 if status else tensor
        return int(status)

    def _encode(self, tensor: int) -> int:
        form, layout = self._form, self._layout
        rank = len(form.block)
        strides = [form.itemsize * stride for stride in layout.strides[:-1]]
        status: int = self._driver.cuTensorMapEncodeTiled(
            self._place, form.element, rank, ctypes.c_void_p(tensor), _innermost_first(ctypes.c_uint64, layout.shape),
            _innermost_first(ctypes.c_uint64, strides or [0]), _innermost_first(ctypes.c_uint32, form.block),
            _innermost_first(ctypes.c_uint32, [1] * rank), _NO_INTERLEAVE, form.swizzle, _L2_OF_128, _ZEROS_OUTSIDE,
        )  # fmt: skip
        return status


def _innermost_first(kind: Any, numbers: Iterable[int]) -> Any:
    held = list(numbers)[::-1]
    return (kind * len(held))(*held)
