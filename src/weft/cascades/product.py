"""Products of blocks: X (batch, m, k) and Y (batch, n, k) to (batch, m, n), each of the four any number of modes.

Operands are arranged once for a call, so that a block of them is a view that a matrix product reads as it lies.

In another algebra `weft.contract` makes them, and its `reduce` joins those of blocks. Gradients of a block's result
follow from the whole one: of a selection they go to the first block that has the selected value, of a sum of
exponentials each block has the share that it adds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.algebra import Algebra, max_plus, min_plus
from weft.api.contract import contract
from weft.base.arrays import grad_mode
from weft.base.cached import cached_property
from weft.errors import UnsupportedError
from weft.library.exact import widens
from weft.machine.ceilings import float32_products
from weft.machine.exactness import guarded
from weft.planner.exponentials import exponent_of
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


def step_of(tensor: Tensor, start: int, count: int) -> int:
    """The stride of a group of dimensions that lie as one: that of its last one with more than one index."""
    start %= tensor.dim()
    steps = [tensor.stride(dim) for dim in range(start, start + count) if tensor.shape[dim] > 1]
    return steps[-1] if steps else 0


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


class SecondAlgebra:
    """An algebra of values of one type in the place of the second contraction's products and sums."""

    def __init__(self, algebra: Algebra, dtype: torch.dtype) -> None:
        self.algebra, self.traced = algebra, algebra.traced(dtype)
        self.name, self.identity = algebra.name, self.traced.identity
        selects = [each for each in (max_plus, min_plus) if self.traced.reduce == each.traced(dtype).reduce]
        self._selects, self._exponent = bool(selects), exponent_of(self.traced, dtype)

    @property
    def idle(self) -> float | None:
        """The value of S that adds nothing whatever it meets; None where that is not known."""
        if self.traced.combine == max_plus.traced(self.traced.combine.dtypes[0]).combine:
            return float(self.identity.real) if self._selects or self._exponent is not None else None
        return None

    def __call__(self, roles: ProductRoles, x: Tensor, y: Tensor) -> Tensor:
        """The contraction of two blocks, of shape (batch, m, n) with a dimension for each label."""
        found = contract((roles.x, roles.y, roles.result), x, y, algebra=self.algebra)
        assert isinstance(found, Tensor)
        return found

    def joined(self, total: Tensor, found: Tensor) -> Tensor:
        """The result of blocks so far together with that of one more."""
        both = self.traced.reduce(total, found)
        assert isinstance(both, Tensor)
        return both

    def gradients(
        self, roles: ProductRoles, x: Tensor, y: Tensor, total: Tensor, grad: Tensor, free: Tensor
    ) -> Sequence[Tensor]:
        """Gradients of two blocks. `free` marks what is not yet selected of the whole result, and is taken from."""
        with grad_mode(True):
            x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
            found = self(roles, x, y)
        return torch.autograd.grad(found, (x, y), self._share(found.detach(), total, grad, free))

    def _share(self, found: Tensor, total: Tensor, grad: Tensor, free: Tensor) -> Tensor:
        if self._selects:
            chosen = (found == total) & free
            free.logical_and_(~chosen)
            return torch.where(chosen, grad, 0.0)
        if self._exponent is None:
            raise UnsupportedError(
                f"the algebra {self.name} behind a function has no derivative that is known: it neither selects nor "
                "adds exponentials; detach the operands"
            )
        return grad * torch.where(found == total, 1.0, torch.exp(self._exponent.rate * (found - total)))
