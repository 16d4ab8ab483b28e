"""cuTENSOR's contraction of block-sparse tensors (2.3 and later), through the functions that `cutensor_library` opens.

Only the blocks of D that are described are made. Pointers of blocks lie in the host's memory, a list for each tensor.
Source: ``cutensor.h``, `cutensorCreateBlockSparseTensorDescriptor` and what stands beside it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_uint32, c_void_p
from typing import Any

import torch

from weft.blocks import BlockTensor, ChargedTensor
from weft_bench.peers.cutensor_library import DATA_TYPES, IDENTITY, Library, Operation, Plan, Tensor

Blocked = BlockTensor | ChargedTensor
Modes = Sequence[dict[Any, int]]  # of each mode its sectors, with their extents


class BlockOperation(Operation):
    """``D = alpha A B + beta D`` over blocks: what `Library` describes for dense tensors."""

    def __init__(
        self, library: Library, terms: Sequence[str], tensors: Sequence[tuple[Blocked, Modes]], compute: str
    ) -> None:
        self._tensors = [each for each, _ in tensors]
        self._modes = {id(each): modes for each, modes in tensors}
        a, b, d = (
            Tensor([ord(label) for label in term], (), (), each.dtype, 0)
            for term, each in zip(terms, self._tensors, strict=True)
        )
        self._described = dict(zip((id(a), id(b), id(d)), self._tensors, strict=True))
        operators = (IDENTITY, IDENTITY, IDENTITY)
        super().__init__(library, "cutensorCreateBlockSparseContraction", (a, b, d, d), operators, compute)

    def _describe(self, tensor: Tensor) -> c_void_p:
        blocked = self._described[id(tensor)]
        modes, structure = self._modes[id(blocked)], blocked.structure
        numbers = [{sector: at for at, sector in enumerate(mode)} for mode in modes]
        extents = [extent for mode in modes for extent in mode.values()]
        places = [number[sector] for key in structure.keys for number, sector in zip(numbers, key, strict=True)]
        steps = [step for shape in structure.shapes for step in torch.empty(shape, device="meta").stride()]
        return self.library._made(
            "cutensorCreateBlockSparseTensorDescriptor",
            (
                len(modes), len(structure.keys), _of(c_uint32, [len(mode) for mode in modes]), _of(c_int64, extents),
                _of(c_int32, places), _of(c_int64, steps), DATA_TYPES[tensor.dtype],
            ),
            "cutensorDestroyBlockSparseTensorDescriptor",
            self,
        )  # fmt: skip


class BlockCall:
    """A planned contraction with a workspace: call it with tensors whose blocks lie as those that it was made of."""

    def __init__(self, operation: BlockOperation, device: torch.device, limit: int = 1 << 32) -> None:
        self._operation, self._plan = operation, Plan(operation, -1, 0, limit)
        self._workspace = torch.empty(max(1, self._plan.workspace_bytes), dtype=torch.uint8, device=device)
        self._one, self._zero = operation.scalar(1), operation.scalar(0)

    def __call__(self, a: Blocked, b: Blocked, d: Blocked) -> None:
        library, plan = self._operation.library, self._plan
        first, second, result = (_addresses(each) for each in (a, b, d))
        library.call(
            "cutensorBlockSparseContract",
            library._handle, plan._plan, ctypes.byref(self._one), first, second, ctypes.byref(self._zero), result,
            result, self._workspace.data_ptr(), plan.workspace_bytes, torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip


def _addresses(tensor: Blocked) -> Any:
    known = getattr(tensor, "_addresses_of_blocks", None)
    if known is None:
        start, size = tensor.buffer.data_ptr(), tensor.dtype.itemsize
        known = _of(c_void_p, [start + at * size for at in tensor.structure.starts])
        tensor._addresses_of_blocks = known  # type: ignore[union-attr]
    return known


def _of(kind: type[Any], values: Sequence[Any]) -> Any:
    return (kind * len(values))(*values)
