"""Matrix product operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.api.contract import contract
from weft.errors import ArgumentError, ShapeError
from weft.spec.arguments import reads


class MPO:
    """A matrix product operator: tensors (left, out, in, right), the first `left` and the last `right` of extent 1."""

    @reads("tn.MPO.__init__")
    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        check_chain(self.tensors, 4)

    def __len__(self) -> int:
        return len(self.tensors)

    def to(self, *arguments: object, **keywords: object) -> MPO:
        """This operator on another device or in another type: the arguments of `torch.Tensor.to`."""
        try:
            moved = [tensor.to(*arguments, **keywords) for tensor in self.tensors]  # type: ignore[call-overload]
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:  # the last without CUDA
            reason = str(error).partition("\n")[0]
            raise ArgumentError(f"to takes a device, a type, or both, as torch.Tensor.to does: {reason}") from None
        return MPO(moved)

    def to_dense(self) -> torch.Tensor:
        """The whole matrix (out, in), of sites in order; for small chains."""
        total = self.tensors[0].new_ones(1, 1, 1)
        for tensor in self.tensors:
            total = contract("abw,wstv->asbtv", total, tensor)
            total = total.reshape(total.shape[0] * total.shape[1], -1, total.shape[-1])
        return total[..., 0]


def check_chain(tensors: Sequence[torch.Tensor], rank: int) -> None:
    """`ShapeError` that names the site where bonds do not fit."""
    if not tensors:
        raise ShapeError("a chain has one site at least")
    for at, tensor in enumerate(tensors):
        if tensor.dim() != rank:
            raise ShapeError(f"site {at} has {tensor.dim()} dimensions, not {rank}")
        before = tensors[at - 1].shape[-1] if at else 1
        if tensor.shape[0] != before:
            raise ShapeError(f"site {at} has a left bond of {tensor.shape[0]}, the site before a right one of {before}")
    if tensors[-1].shape[-1] != 1:
        raise ShapeError(f"the last site has a right bond of {tensors[-1].shape[-1]}, not 1")

