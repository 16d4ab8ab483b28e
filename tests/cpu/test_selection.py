"""Best pairs and their places on the CPU, by register blocks and by rows, against a table of all pairs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import weft

COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "max_plus": torch.add, "min_plus": torch.add, "max_times": torch.mul, "min_max": torch.maximum,
    "max_min": torch.minimum,
}  # fmt: skip
# Each pair of an algebra and a type is a kernel to compile: quick ones are all algebras in one type, all types in two.
RUNS = [
    pytest.param(
        algebra, dtype, id=f"{algebra}-{dtype}",
        marks=() if dtype is torch.float32 or algebra in ("max_plus", "min_max") else pytest.mark.slow,
    )
    for algebra in COMBINE for dtype in (torch.float32, torch.float64, torch.int32, torch.int64)
]  # fmt: skip


def check(a: torch.Tensor, b: torch.Tensor, algebra: str) -> None:
    """Values to the bit; of equal ones the first place, as of torch's argmax; NaN is better than any number."""
    pairs = COMBINE[algebra](a[:, :, None], b[None])
    values = pairs.amax(1) if algebra.startswith("max") else pairs.amin(1)
    first = ((pairs == values[:, None]) | (pairs.isnan() & values.isnan()[:, None])).int().argmax(1)
    found, where = weft.contract("mk,kn->mn", a, b, algebra=algebra, return_arg=True)
    assert torch.equal(found.nan_to_num(), values.nan_to_num())
    assert torch.equal(found.isnan(), values.isnan())
    assert torch.equal(where, first)


@pytest.mark.parametrize(("algebra", "dtype"), RUNS)
@pytest.mark.parametrize("shape", [(2, 8, 1), (7, 33, 5), (200, 41, 64), (1, 40, 9), (9, 7, 12)])
def test_values_and_places(shape: tuple[int, int, int], algebra: str, dtype: torch.dtype) -> None:
    m, n, k = shape
    a, b = (torch.randint(-4, 5, size).to(dtype) for size in ((m, k), (k, n)))  # most values stand several times
    check(a, b, algebra)


@pytest.mark.parametrize("algebra", COMBINE)
def test_infinities_and_nan(algebra: str) -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 40)
    absent = -math.inf if algebra.startswith("max") else math.inf
    a[3], b[:, 5], a[4, ::2], b[1::2, 6] = absent, absent, absent, absent
    check(a, b, algebra)
    a[7, 2], b[9, 9], b[3, 11] = -absent, math.nan, -absent
    check(a, b, algebra)
