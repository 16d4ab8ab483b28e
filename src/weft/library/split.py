"""float32 products by matrix units: operands as terms of a shorter type, and products of these in float32.

What is made, and what is proven of it: `weft.planner.split_schemes`. Terms of an operand lie side by side along k,
those of the right one last first, so that the products of an order are one product of longer matrices::

    A0 A1 A2    order 0   A0 * B0            B2
                order 1   A0 A1 * B1 B0      B1
                order 2   A0 A1 A2 * B2..B0  B0

Where `WEFT_TRY_TERMS` is 1, one kernel of weft's makes all products of terms, and the choice of terms is made on the
device: `weft.gpu.terms`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from weft.base.bounded_cache import BoundedCache
from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.machine.exactness import guarded
from weft.planner.schedule import Scalar, Target
from weft.planner.split_schemes import (
    ALIGNED,
    BF16X6,
    FP16X3,
    NEAR,
    RUN,
    SCALED,
    SplitScheme,
    padded_length,
    prefers_float16,
    seconds,
    split_bytes,
)

if TYPE_CHECKING:
    from weft.gpu.terms.launch import TermsProduct

_MODEST = 2.0**10  # factors, and
_RANGE = 2.0**30  # largest magnitudes, whose scales multiplied are numbers


class SplitProducts:
    """Multiplies float32 matrices by terms, as `MatrixProducts` multiplies them."""

    fuses, adds = True, False

    def __init__(self, batched: bool, kind: str, k: int, epilogue: Pointwise | None = None) -> None:
        """`epilogue`: a function of sums alone, for the kernel that can apply it."""
        call: Callable[..., Any] = torch.baddbmm if batched else torch.addmm
        if kind != "cpu":
            call = partial(call, out_dtype=torch.float32)
        self._kind, self._k, self._epilogue = kind, k, epilogue
        self._add = {dtype: guarded(call, dtype, torch.float32, kind) for dtype in (torch.bfloat16, torch.float16)}
        self._passes: BoundedCache = BoundedCache(16)
        self._joined: BoundedCache = BoundedCache(16)
        self._target: Target | None = None

    def prepare(self, target: Target) -> None:
        """Have terms made in one pass, where a device can."""
        self._target = target

    @property
    def state(self) -> str:
        """One sentence for `explain`: the terms, and their bound over that of an IEEE sum."""
        k, joined = self._k, tries_one_kernel()
        served = [each for each in (FP16X3, BF16X6) if each.admitted(k, joined=joined)]
        shares = " or ".join([f"{each.loss(k, joined=joined) / k:.2f} by {each.name}" for each in served])
        return f"terms{' in one kernel' if joined else ''}, of an IEEE sum's bound {shares}"

    def bytes(self, batch: int, rows: int, columns: int, k: int) -> int:
        """Workspace bytes of a product, besides its result."""
        found = split_bytes(batch, rows, columns, k)
        if tries_one_kernel():  # a place that TMA stores in, and what is counted of rows and columns
            found += 4 * batch * (rows * padded_length(columns) + rows + columns)
        return found

    def made(self, left: Tensor, right: Tensor, alpha: Scalar = 1) -> Tensor:
        """`alpha` times the product in memory of its own."""
        place = left.new_empty((*left.shape[:-1], right.shape[-1]))
        self.into(place, left, right, alpha)
        return place

    @property
    def has_epilogue(self) -> bool:
        """Whether there is one that the kernel may apply."""
        return self._epilogue is not None and tries_one_kernel()

    def finishes(self, place: Tensor, left: Tensor, right: Tensor, alpha: Scalar = 1) -> bool:
        """Write the epilogue of `alpha` times the product to a place; False where that is for others."""
        product = self._in_one_kernel(left, right, place, self._epilogue)
        if product is not None:
            product(left, right, place, float(alpha.real))
        return product is not None

    def into(self, place: Tensor, left: Tensor, right: Tensor, alpha: Scalar = 1) -> None:
        """`alpha` times the product, written to a place."""
        if tries_one_kernel() and (product := self._in_one_kernel(left, right, place)) is not None:
            product(left, right, place, float(alpha.real))
            return
        inner = alpha if 1 / _MODEST < abs(alpha) < _MODEST else 1
        found = self._of_float16(left, right) if self._is_large(left, right) else None
        x, y, scale = found or (self._terms(left, -1, BF16X6), self._terms(right, -2, BF16X6), 0)
        self._multiply(place, x, y, float(inner.real) * 2.0**-scale)
        if inner != alpha:
            place *= alpha

    def _in_one_kernel(
        self, left: Tensor, right: Tensor, place: Tensor, epilogue: Pointwise | None = None
    ) -> TermsProduct | None:
        """The kernel for operands and a place that lie like these; None where it does not take them."""
        if self._target is None:
            return None
        (*batch, m, k), n = left.shape, right.shape[-1]
        looks = prefers_float16(math.prod(batch), m, n, k)
        lie = [(tuple(x.shape), x.stride(), x.data_ptr() & 15) for x in (left, right, place)]
        key = (looks, epilogue is not None, *lie)
        found = self._joined.get(key)
        if found is None:
            from weft.gpu.terms.launch import TermsProduct

            try:
                schemes = (FP16X3, BF16X6) if looks else (BF16X6,)
                found = TermsProduct(left, right, place, schemes, self._target, epilogue)
            except UnsupportedError as error:
                found = str(error)
            self._joined.put(key, found)
        return found if not isinstance(found, str) else None

    def _is_large(self, left: Tensor, right: Tensor) -> bool:
        """Whether float16 terms, which a call waits for, are predicted to be faster; in a graph nobody can wait."""
        (*batch, m, k), n = left.shape, right.shape[-1]
        dims = math.prod(batch), m, n, k
        faster = FP16X3.admitted(k) and seconds(*dims, FP16X3) < seconds(*dims, BF16X6)
        return faster and not torch.cuda.is_current_stream_capturing()

    def _of_float16(self, left: Tensor, right: Tensor) -> tuple[TermMatrix, TermMatrix, int] | None:
        """Terms of float16 and the power of two that their products are scaled by; None where too much would be lost.

        It waits for the device: for the largest magnitudes, then for how many values are near to them.
        """
        tops = torch.stack([torch.linalg.vector_norm(x, math.inf) for x in (left, right)]).tolist()
        if not all(1 / _RANGE < top < _RANGE for top in tops):  # or NaN
            return None
        scales = [SCALED - math.frexp(top)[1] for top in tops]
        x, y = self._terms(left, -1, FP16X3, scales[0]), self._terms(right, -2, FP16X3, scales[1])
        assert x.near is not None and y.near is not None, "float16 terms have them"  # noqa: PT018
        least = torch.stack([self._counted(x.near, True), self._counted(y.near, False)]).tolist()
        return (x, y, sum(scales)) if min(least) >= 0.75 * left.shape[-1] else None

    def _counted(self, near: Tensor, of_rows: bool) -> Tensor:
        """The least sum of ones of a row, or of a column, by a product with ones: torch's sums take longer."""
        *batch, rows, columns = near.shape
        ones = near.new_ones((*batch, columns, ALIGNED) if of_rows else (*batch, ALIGNED, rows))
        shape = (*batch, rows, ALIGNED) if of_rows else (*batch, ALIGNED, columns)
        sums = torch.empty(shape, dtype=torch.float32, device=near.device)
        left, right = (near, ones) if of_rows else (ones, near)
        self._add[torch.float16](sums, left, right, beta=0, alpha=1, out=sums)
        return sums.amin()

    def _terms(self, x: Tensor, along: int, scheme: SplitScheme, scale: int = 0) -> TermMatrix:
        """The terms of an operand side by side along k, the right one's last first."""
        k = x.shape[along]
        padded = padded_length(k)
        shape = list(x.shape)
        shape[along] = scheme.terms * padded
        turned = x.stride(-2) == 1 and x.stride(-1) != 1
        if turned:
            buffer = x.new_empty([*shape[:-2], shape[-1], shape[-2]], dtype=scheme.term).mT
        else:
            buffer = x.new_empty(shape, dtype=scheme.term)
        near = torch.empty_like(x, dtype=torch.float16) if scheme is FP16X3 else None
        found = TermMatrix(buffer, along, padded, last_first=along == -2, scheme=scheme, near=near)
        every = [found.terms(at, at + 1) for at in range(scheme.terms)]
        places = [each.narrow(along, 0, k) for each in every]
        if padded != k:
            for each in every:
                each.narrow(along, k, padded - k).zero_()
        if not self._in_one_pass(x, found, places, scale):
            split_into(found, places, x * 2.0**scale if scale else x)
        return found

    def _in_one_pass(self, x: Tensor, found: TermMatrix, places: list[Tensor], scale: int) -> bool:
        """Make the terms in one pass; False where there is none, or not yet."""
        if self._target is None:
            return False
        from weft.library.passes import split_pass

        written = [*places, *([found.near] if found.near is not None else [])]
        aligned = math.gcd(16, *(tensor.data_ptr() & 15 or 16 for tensor in (x, *written)))
        key = (tuple(x.shape), x.stride(), found.scheme.name, places[0].stride(), aligned)
        fused = self._passes.get(key)
        if fused is None:
            fused = split_pass(x, written, found.scheme, aligned, self._target)
            self._passes.put(key, fused)
        if isinstance(fused, str) or not fused.serves:
            return False
        fused([x, *written], 2.0**scale)
        return True

    def _multiply(self, place: Tensor, x: TermMatrix, y: TermMatrix, alpha: float) -> None:
        scheme, beta = x.scheme, 0
        add = self._add[scheme.term]
        for order in reversed(range(1, scheme.orders)):
            factor = alpha * 2.0 ** -(order * scheme.shift)
            add(place, x.terms(0, order + 1), y.terms(0, order + 1), beta=beta, alpha=factor, out=place)
            beta = 1
        if x.near is None:  # Of an infinite value the first order tells all; products of its other terms may be NaN.
            torch.nan_to_num_(place, nan=0.0, posinf=0.0, neginf=0.0)
        left, right = x.terms(0, 1), y.terms(0, 1)
        k = left.shape[-1]
        for start in range(0, k, RUN):
            run = min(RUN, k - start)
            add(place, left.narrow(-1, start, run), right.narrow(-2, start, run), beta=1, alpha=alpha, out=place)


def tries_one_kernel() -> bool:
    """Whether all products of terms are made by one kernel."""
    return os.environ.get("WEFT_TRY_TERMS") == "1"


class TermMatrix(NamedTuple):
    """Terms of an operand as one matrix."""

    matrix: Tensor
    along: int  # the dimension that k is
    length: int  # of a term
    last_first: bool
    scheme: SplitScheme
    near: Tensor | None = None  # ones where a value is `NEAR` or more once it is scaled, as float16 terms want to know

    def terms(self, first: int, end: int) -> Tensor:
        """The terms from one up to another, side by side."""
        count = self.matrix.shape[self.along] // self.length
        start = count - end if self.last_first else first
        return self.matrix.narrow(self.along, start * self.length, (end - first) * self.length)


def split_into(found: TermMatrix, places: list[Tensor], x: Tensor) -> None:
    """Write the terms of values, each rounded from what those before it leave."""
    rest = x
    for at, place in enumerate(places):
        place.copy_(rest)
        if at + 1 < len(places):
            rest = (rest - place.to(torch.float32)).mul_(2.0**found.scheme.shift)
    if found.near is not None:
        found.near.copy_(x.abs() >= NEAR)
