"""float32 products by matrix units, of operands as terms of a shorter type: `weft.gpu.terms` makes them.

What is made, and what is proven of it: `weft.planner.split_schemes`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.planner.schedule import ResourceError, Scalar, Target
from weft.planner.split_schemes import BF16X6, FP16X3, prefers_float16, split_bytes
from weft.spec import Layout

if TYPE_CHECKING:
    from weft.gpu.terms.launch import TermsProduct


class SplitProducts:
    """Multiplies float32 matrices by terms, as `MatrixProducts` does, once it is prepared for their layouts."""

    fuses, adds = True, False

    def __init__(self, k: int, epilogue: Pointwise | None = None) -> None:
        """`epilogue`: a function of sums alone, which the kernel applies where it writes to D."""
        self._k, self._epilogue = k, epilogue
        self._product: TermsProduct | None = None
        self._lie: tuple[Layout, Layout, Layout] | None = None

    def prepare(self, target: Target, left: Layout, right: Layout, place: Layout, *, in_place: bool) -> None:
        """Have the kernels made, which apply the epilogue `in_place`: where the place is D.

        `ResourceError` where they do not take matrices that lie so.
        """
        from weft.gpu.terms.launch import TermsProduct

        if not in_place:
            self._epilogue = None
        *batch, m, n = place.shape
        schemes = (FP16X3, BF16X6) if prefers_float16(math.prod(batch), m, n, self._k) else (BF16X6,)
        try:
            self._product = TermsProduct(left, right, place, schemes, target, self._epilogue)
        except UnsupportedError as error:
            raise ResourceError(str(error)) from None
        self._lie = left, right, place

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The launches of a product."""
        return self._product.kernels if self._product is not None else ()

    @property
    def state(self) -> str:
        """One sentence for `explain`: the terms, and their bound over that of an IEEE sum."""
        served = self._product.schemes if self._product is not None else (BF16X6,)
        shares = " or ".join([f"{each.loss(self._k, joined=True) / self._k:.2f} by {each.name}" for each in served])
        return f"terms in one kernel, of an IEEE sum's bound {shares}"

    @staticmethod
    def bytes(batch: int, rows: int, columns: int, k: int) -> int:
        """Workspace bytes of a product, besides its result."""
        return split_bytes(batch, rows, columns, k)

    def made(self, left: Tensor, right: Tensor, alpha: Scalar = 1) -> Tensor:
        """`alpha` times the product in memory of its own."""
        place = left.new_empty((*left.shape[:-1], right.shape[-1]))
        self.into(place, left, right, alpha)
        return place

    @property
    def has_epilogue(self) -> bool:
        """Whether there is one that the kernel applies."""
        return self._epilogue is not None

    def finishes(self, place: Tensor, left: Tensor, right: Tensor, alpha: Scalar = 1) -> bool:
        """Write the epilogue of `alpha` times the product to a place."""
        self._run(place, left, right, alpha)
        return True

    def into(self, place: Tensor, left: Tensor, right: Tensor, alpha: Scalar = 1) -> None:
        """`alpha` times the product, written to a place."""
        assert self._epilogue is None, "it is for `finishes`"
        self._run(place, left, right, alpha)

    def _run(self, place: Tensor, left: Tensor, right: Tensor, alpha: Scalar) -> None:
        assert self._product is not None, "it is prepared"
        assert self._lie is not None, "it is prepared"
        left, right = (_lying(x, layout) for x, layout in zip((left, right), self._lie, strict=False))
        stored = place if place.stride() == self._lie[2].strides else _empty(self._lie[2], place.device)
        self._product(left, right, stored, float(alpha.real))
        if stored is not place:
            place.copy_(stored)


def _lying(x: Tensor, layout: Layout) -> Tensor:
    """The values of a matrix in the layout that kernels were made for: functions may leave them in another."""
    return x if x.stride() == layout.strides else _empty(layout, x.device).copy_(x)


def _empty(layout: Layout, device: torch.device) -> Tensor:
    return torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device=device)
