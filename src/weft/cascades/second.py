"""The second contraction in another algebra: blocks are contracted by `weft.contract`, and joined by its `reduce`.

Gradients of a block's result follow from the whole one: of a selection they go to the first block that has the selected
value, of a sum of exponentials each block has the share that it adds. There `weft.contract` takes them on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.algebra import Algebra, max_plus, min_plus
from weft.api.contract import contract
from weft.base.arrays import grad_mode
from weft.cascades.product import ProductRoles
from weft.errors import UnsupportedError
from weft.planner.exponentials import exponent_of


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
