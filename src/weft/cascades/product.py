"""Products of blocks: X (batch, m, k) and Y (batch, n, k) to (batch, m, n), each of the four any number of modes.

Operands are arranged once for a call, so that a block of them is a view that a matrix product reads as it lies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.base.cached import cached_property
from weft.library.exact import widens
from weft.machine.ceilings import float32_products
from weft.machine.exactness import guarded
from weft.spec import Label

Box = Mapping[Label, tuple[int, int]]  # where a block begins along a label, and how many indices it has
Labels = tuple[Label, ...]


@dataclass(frozen=True)
class ProductRoles:
    """Labels by role; X is of batch, m, k, Y of batch, n, k, the result of batch, m, n, in these orders."""

    batch: Labels
    m: Labels
    n: Labels
    k: Labels

    @cached_property
    def x(self) -> Labels:
        return (*self.batch, *self.m, *self.k)

    @cached_property
    def y(self) -> Labels:
        return (*self.batch, *self.n, *self.k)

    @cached_property
    def result(self) -> Labels:
        return (*self.batch, *self.m, *self.n)


def roles_of(x: Labels, y: Labels, result: Labels) -> ProductRoles:
    """Roles of the labels of two operands; a label of the result that neither has is one of m, with extent 1."""
    batch = tuple(label for label in result if label in x and label in y)
    n = tuple(label for label in result if label in y and label not in x)
    m = tuple(label for label in result if label not in batch and label not in n)
    return ProductRoles(batch, m, n, tuple(label for label in x if label in y and label not in result))


def turned(value: Tensor, own: Labels, wanted: Labels) -> Tensor:
    """A value along other labels: without those of extent 1 that they lack, with extent 1 for those that it lacks."""
    value = value.squeeze([at for at, label in enumerate(own) if label not in wanted])
    kept = [label for label in own if label in wanted]
    value = value.permute([kept.index(label) for label in wanted if label in kept])
    for at, label in enumerate(wanted):
        if label not in kept:
            value = value.unsqueeze(at)
    return value


def as_it_lies(tensor: Tensor, groups: Sequence[int]) -> Tensor:
    """The tensor where each group of so many dimensions is one stretch and rows or columns are contiguous."""
    at, fits = 0, True
    for count in groups:
        dims = range(at, at + count)
        steps = [(tensor.shape[dim], tensor.stride(dim)) for dim in dims if tensor.shape[dim] > 1]
        fits &= all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(steps))
        at += count
    inner = range(tensor.dim() - groups[-1] - groups[-2], tensor.dim())
    unit = [tensor.stride(dim) == 1 for dim in inner if tensor.shape[dim] > 1]
    return tensor if fits and (any(unit) or not unit) else tensor.contiguous()


def apart(tensor: Tensor, batch: int) -> Tensor:
    """The tensor where the rows of its matrices, behind dimensions of the batch, do not overlap, as BLAS reads them."""
    reach = 1
    for step, extent in sorted(zip(tensor.stride()[batch:], tensor.shape[batch:], strict=True)):
        if extent > 1 and step < reach:
            return tensor.contiguous()
        reach = max(reach, step * extent)
    return tensor


def narrowed(tensor: Tensor, labels: Labels, box: Box) -> Tensor:
    """The block of a tensor in a box; along labels that it has extent 1 in, or the box lacks, it is whole."""
    for dim, label in enumerate(labels):
        place = box.get(label)
        if place is not None and tensor.shape[dim] != 1 and place[1] != tensor.shape[dim]:
            tensor = tensor.narrow(dim, *place)
    return tensor


class BlockProducts:
    """Matrix products of blocks, of operands of one type, with sums in another, on one kind of device."""

    def __init__(self, product: torch.dtype, accumulate: torch.dtype, kind: str, precision: str) -> None:
        self.product, self.accumulate, self.precision = product, accumulate, precision
        call = _widening if product != accumulate else _plain
        self._call: Callable[..., Tensor] = guarded(call, product, accumulate, kind)
        if precision == "tf32" and kind == "cuda":
            self._call = _shortened

    @property
    def as_they_are(self) -> str:
        """The precision of products of values that are no terms."""
        return "ieee" if self.precision == "ieee_bound" else self.precision

    def __call__(self, roles: ProductRoles, x: Tensor, y: Tensor, alpha: float = 1.0) -> Tensor:
        """The product of two blocks, of shape (batch, m, n) with a dimension for each label."""
        batch, m, n = len(roles.batch), len(roles.m), len(roles.n)
        shape = (*x.shape[: batch + m], *y.shape[batch : batch + n])
        left = _folded(x, batch, m).to(self.product)
        right = _folded(y, batch, n).to(self.product)
        return self._call(left, right.mT, self.accumulate, alpha).reshape(shape)


def _folded(tensor: Tensor, batch: int, rows: int) -> Tensor:
    """As one or three dimensions: batch, rows, columns."""
    shape = tensor.shape
    return tensor.reshape(
        math.prod(shape[:batch]), math.prod(shape[batch : batch + rows]), math.prod(shape[batch + rows :])
    )


def _plain(left: Tensor, right: Tensor, accumulate: torch.dtype, alpha: float) -> Tensor:
    if left.shape[0] == 1:
        return torch.addmm(left.new_empty(()), left[0], right[0], beta=0, alpha=alpha)[None]
    return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=alpha)


def _widening(left: Tensor, right: Tensor, accumulate: torch.dtype, alpha: float) -> Tensor:
    if left.is_cuda and widens():
        found = torch.ops.aten.bmm.dtype(left, right, accumulate)
        return found if alpha == 1.0 else found.mul_(alpha)
    return _plain(left.to(accumulate), right.to(accumulate), accumulate, alpha)


def _shortened(left: Tensor, right: Tensor, accumulate: torch.dtype, alpha: float) -> Tensor:
    with float32_products(tf32=True):
        return _plain(left, right, accumulate, alpha)
